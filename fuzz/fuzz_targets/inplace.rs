//! In-place stores with arbitrary damage: an error, or what has a checksum as it was some time.
#![no_main]

#[path = "../../crates/store/tests/inplace/support/mod.rs"]
mod inplace_support;

use std::sync::LazyLock;

use inplace_support::scribble::Image;
use libfuzzer_sys::fuzz_target;
use thalweg_store::inplace::Mode;

/// The journal inside, and on a device of its own.
static IMAGES: LazyLock<[Image; 2]> =
    LazyLock::new(|| [Image::new(0, Mode::Wasteless), Image::new(1, Mode::Ordered)]);

fuzz_target!(|data: &[u8]| {
    if let Some((which, strokes)) = data.split_first() {
        IMAGES[usize::from(which % 2)].scribble(strokes);
    }
});
