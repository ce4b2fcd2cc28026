//! The decoder of map sectors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_store::chain::fuzz;

fuzz_target!(|data: &[u8]| fuzz::sector(data, 9, 1));
