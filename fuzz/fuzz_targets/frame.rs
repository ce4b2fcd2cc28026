//! Frames of a peer, received as a whole and byte by byte.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use thalweg_net::frame::{FrameError, RawFrame, decode_raw};

const LONGEST: usize = 4096;

/// All frames up to the first error.
fn decode_all(
    parts: impl Iterator<Item = impl AsRef<[u8]>>,
) -> (Vec<RawFrame>, Option<FrameError>) {
    let (mut input, mut found) = (BytesMut::new(), Vec::new());
    for part in parts {
        input.extend_from_slice(part.as_ref());
        loop {
            match decode_raw(&mut input, LONGEST) {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

fuzz_target!(|data: &[u8]| {
    let whole = decode_all(std::iter::once(data));
    assert_eq!(whole, decode_all(data.chunks(1)));
});
