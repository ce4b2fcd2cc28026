//! Journals of arbitrary bytes, and one with arbitrary damage: an error, or some of what it said.
#![no_main]

#[path = "../../crates/store/tests/inplace/journal_support/mod.rs"]
mod journal_support;

use std::sync::LazyLock;

use journal_support::scribble::{Image, arbitrary};
use libfuzzer_sys::fuzz_target;

static IMAGE: LazyLock<Image> = LazyLock::new(|| Image::new(1));

fuzz_target!(|data: &[u8]| {
    IMAGE.scribble(data);
    arbitrary(data);
});
