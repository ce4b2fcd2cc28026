//! Whole images with arbitrary damage: an error, or a consistent volume.
#![no_main]

#[path = "../../crates/store/tests/support/mod.rs"]
mod support;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use support::scribble::Image;
use thalweg_store::chain::Cleaning;

static IMAGE: LazyLock<Image> = LazyLock::new(|| Image::new(1, Cleaning::CompactInBody));

fuzz_target!(|data: &[u8]| {
    IMAGE.scribble(data);
});
