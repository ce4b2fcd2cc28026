//! The bytes of lists of versions.

use thalweg_ipc::protocol::{MAX_ANSWER_PAYLOAD, MAX_VERSIONS, decode_versions, encode_versions};
use thalweg_store::block::{BlockVersion, Version};

fn content(oldest: u64, newest: u64, stored: bool) -> BlockVersion {
    BlockVersion { oldest: Version(oldest), newest: Version(newest), stored }
}

#[test]
fn versions_have_their_bytes() {
    let versions = [content(1, 0x0203, false), content(4, 5, true)];
    let bytes = encode_versions(&versions);
    let golden = [
        [1, 0, 0, 0, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0, 0],
        [4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1],
    ];
    assert_eq!(bytes, golden.concat());
    assert_eq!(decode_versions(&bytes).unwrap(), versions);
    assert_eq!(decode_versions(&[]).unwrap(), []);
    assert_eq!(decode_versions(&bytes[1..]), None);
}

#[test]
fn of_too_many_versions_the_newest_are_sent() {
    let count = MAX_VERSIONS as u64 + 3;
    let versions: Vec<_> = (0..count).map(|nth| content(nth, nth, true)).collect();
    let bytes = encode_versions(&versions);
    assert!(bytes.len() <= MAX_ANSWER_PAYLOAD);
    assert_eq!(decode_versions(&bytes).unwrap(), versions[3..]);
}
