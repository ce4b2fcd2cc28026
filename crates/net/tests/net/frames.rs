//! Frames, whole, cut and invalid.

use bytes::BytesMut;
use proptest::prelude::*;
use thalweg_net::frame::{self, Frame, FrameError, MAX_HEAD};
use thalweg_net::hello::{Hello, HelloError};

const LONGEST: usize = 4096;

fn encoded(id: u64, message: &str, payload: &[u8]) -> BytesMut {
    let mut frame = BytesMut::new();
    frame::encode(id, &message, payload.len(), &mut frame).expect("it fits");
    frame.extend_from_slice(payload);
    frame
}

/// The layout, byte for byte: another release reads it.
#[test]
fn the_layout_is_what_it_was() {
    let frame = encoded(300, "ab", b"xyz");
    let golden = [10, 0, 0, 0, 5, 0, 0xac, 2, 2, b'a', b'b', b'x', b'y', b'z'];
    assert_eq!(&frame[..], golden);
}

#[test]
fn lengths_are_refused_before_the_frame_has_come() {
    let refused =
        |bytes: &[u8]| frame::decode_raw(&mut BytesMut::from(bytes), LONGEST).unwrap_err();
    let payload = (2 + 4 + LONGEST as u32 + 1).to_le_bytes();
    let too_long = [&payload[..], &4u16.to_le_bytes()].concat();
    assert_eq!(refused(&too_long), FrameError::Length(2 + 4 + LONGEST + 1, 4));
    let head = MAX_HEAD as u16 + 1;
    let long_head = [&u32::MAX.to_le_bytes()[..], &head.to_le_bytes()].concat();
    assert!(matches!(refused(&long_head), FrameError::Length(..)));
    assert!(matches!(refused(&[1, 0, 0, 0, 0, 0]), FrameError::Length(1, 0)));
}

/// What no receiver would take is not sent in part either.
#[test]
fn a_message_that_does_not_fit_is_an_error_of_the_sender() {
    let mut frame = BytesMut::new();
    // The number takes one byte, the text's length two.
    let longest = "n".repeat(MAX_HEAD - 3);
    frame::encode(1, &longest, 0, &mut frame).unwrap();
    let found = frame::decode::<String>(&mut frame, LONGEST).unwrap().unwrap();
    assert_eq!((found.message, frame.len()), (longest.clone(), 0));
    for len in [MAX_HEAD - 2, usize::from(u16::MAX) + 1] {
        let refused = frame::encode(1, &"n".repeat(len), 7, &mut frame);
        assert!(matches!(refused, Err(FrameError::TooLarge(_, 7))), "{refused:?}");
        assert!(frame.is_empty());
    }
    let refused = frame::encode(1, &"n", u32::MAX as usize, &mut frame);
    assert!(matches!(refused, Err(FrameError::TooLarge(..))) && frame.is_empty());
}

#[tokio::test]
async fn a_single_frame_is_read_and_no_byte_behind_it() {
    let bytes = [&encoded(7, "first", b"pay")[..], b"behind"].concat();
    let mut stream = &bytes[..];
    let found: Frame<String> = frame::read(&mut stream, LONGEST).await.unwrap().unwrap();
    assert_eq!((found.id, &found.message[..], &found.payload[..]), (7, "first", &b"pay"[..]));
    assert_eq!(stream, b"behind");
    assert!(frame::read::<String>(&mut &bytes[..5], LONGEST).await.is_err());
    assert!(frame::read::<String>(&mut &bytes[..0], LONGEST).await.unwrap().is_none());
    assert!(frame::read::<String>(&mut &[0xff; 99][..], LONGEST).await.is_err());
}

#[test]
fn a_hello_of_another_kind_is_refused() {
    let own = Hello { magic: *b"thwgtest", version: 3 };
    assert_eq!(own.check(&own.encode()), Ok(()));
    let newer = Hello { version: 4, ..own };
    assert_eq!(own.check(&newer.encode()), Err(HelloError::Version { theirs: 4, own: 3 }));
    assert_eq!(own.check(b"GET / HTTP/1"), Err(HelloError::Foreign));
}

proptest! {
    #[test]
    fn frames_survive_any_cut(
        sent in prop::collection::vec(
            (any::<u64>(), ".{0,40}", prop::collection::vec(any::<u8>(), 0..200)), 1..20),
        cut in 1..64usize,
    ) {
        let bytes: Vec<u8> =
            sent.iter().flat_map(|(id, text, payload)| encoded(*id, text, payload)).collect();
        let (mut input, mut found) = (BytesMut::new(), Vec::new());
        for part in bytes.chunks(cut) {
            input.extend_from_slice(part);
            while let Some(it) = frame::decode::<String>(&mut input, LONGEST).unwrap() {
                found.push((it.id, it.message, it.payload.to_vec()));
            }
        }
        prop_assert_eq!(found, sent);
        prop_assert!(input.is_empty());
    }

    #[test]
    fn any_bytes_decode_to_a_frame_or_an_error(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        len in 0..40u32,
    ) {
        for honest in [false, true] {
            if let (true, Some(lengths)) = (honest, bytes.get_mut(..6)) {
                lengths[..4].copy_from_slice(&len.to_le_bytes());
                lengths[4..].copy_from_slice(&(len as u16 / 2).to_le_bytes());
            }
            let mut input = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = frame::decode::<String>(&mut input, LONGEST) {}
        }
    }
}
