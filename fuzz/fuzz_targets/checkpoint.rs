//! The decoders of checkpoint heads, payloads and witnesses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_store::chain::fuzz;
use uuid::Uuid;

fuzz_target!(|data: &[u8]| fuzz::checkpoint(data, Uuid::from_u128(7)));
