//! The label's decoder.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_store::chain::fuzz;

fuzz_target!(|data: &[u8]| fuzz::label(data));
