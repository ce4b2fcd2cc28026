//! Filesystems with arbitrary damage: used, repaired, and used again.
#![no_main]

#[path = "../../crates/fs/tests/fs/fuzz/image.rs"]
mod image;
#[path = "../../crates/fs/tests/fs/support.rs"]
mod support;

use std::sync::LazyLock;

use image::Image;
use libfuzzer_sys::fuzz_target;

static IMAGE: LazyLock<Image> = LazyLock::new(|| Image::new(1));

fuzz_target!(|data: &[u8]| {
    IMAGE.scribble(data);
});
