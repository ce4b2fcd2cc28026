//! The decoder of an image's header on objects.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_rados::format::Header;

fuzz_target!(|data: &[u8]| {
    if let Ok(header) = Header::decode(data) {
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
});
