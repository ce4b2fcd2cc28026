//! The decoder of mini-log blocks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_store::chain::fuzz;

fuzz_target!(|data: &[u8]| fuzz::mini(data));
