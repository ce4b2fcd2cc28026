//! Records of changes: what is encoded is what is decoded, and nothing else is taken for one.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use thalweg_replica::record::{self, Changes, Malformed, Part, Record};
use thalweg_store::block::{BLOCK_SIZE, ByteRanges, Lba, Version, Write, WriteList};
use thalweg_store::chain::Change;

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let ranges = prop::collection::vec((0..BLOCK_SIZE, 1..200usize), 0..5);
    let write =
        (any::<u32>(), prop::option::of(any::<u8>()), ranges).prop_map(|(lba, byte, ranges)| {
            let mut changed = ByteRanges::none();
            ranges.iter().for_each(|(at, len)| changed.add(*at..(at + len).min(BLOCK_SIZE)));
            if changed.is_empty() {
                changed = ByteRanges::whole();
            }
            let content = byte.map(|byte| Bytes::from(vec![byte; BLOCK_SIZE]));
            Write { content, changed, ..Write::block(Lba(u64::from(lba)), Bytes::new()) }
        });
    prop::collection::vec(write, 1..6)
}

/// What a follower makes of a part, over a block of zeros.
fn content(part: &Part) -> Option<Vec<u8>> {
    match part {
        Part::Discard => None,
        Part::Whole(content) => Some(content.to_vec()),
        Part::Bytes(parts) => {
            let mut block = vec![0; BLOCK_SIZE];
            parts
                .iter()
                .for_each(|(at, bytes)| block[*at..at + bytes.len()].copy_from_slice(bytes));
            Some(block)
        }
    }
}

/// What a write makes of a block of zeros.
fn expected(write: &Write) -> Option<Vec<u8>> {
    let content = write.content.as_ref()?;
    let mut block = vec![0; BLOCK_SIZE];
    write.changed.iter().for_each(|range| block[range.clone()].copy_from_slice(&content[range]));
    Some(block)
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(lists in prop::collection::vec((1..1000u64, writes()), 1..5)) {
        let (mut bytes, mut version) = (BytesMut::new(), Version(7));
        let mut all = Vec::new();
        for (step, writes) in lists {
            let next = Version(version.0 + step);
            let list = WriteList::new(writes).unwrap();
            record::encode(version, next, Change::Writes(&list), &mut bytes);
            all.push((next, list));
            version = next;
        }
        let mut bytes = bytes.freeze();
        let mut before = Version(7);
        for (version, list) in all {
            let found = record::decode(before, &mut bytes).unwrap();
            prop_assert_eq!(found.version, version);
            before = version;
            let Changes::Blocks(blocks) = found.changes else { panic!() };
            prop_assert_eq!(blocks.len(), list.len());
            for ((lba, part), write) in blocks.iter().zip(list.iter()) {
                prop_assert_eq!(*lba, write.lba);
                prop_assert_eq!(content(part), expected(write));
            }
        }
        prop_assert!(bytes.is_empty());
    }

    #[test]
    fn bytes_that_are_no_record_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        // It returns, and never with more than there is.
        let mut from = Bytes::from(bytes.clone());
        if record::decode(Version(1), &mut from).is_ok() {
            prop_assert!(from.len() < bytes.len());
        }
    }
}

#[test]
fn a_record_has_these_bytes() {
    let mut bytes = BytesMut::new();
    let change = Change::Discard { lba: Lba(5), count: 300 };
    record::encode(Version(10), Version(12), change, &mut bytes);
    assert_eq!(bytes[..], [5, 0, 0, 0, 1, 2, 5, 172, 2]);
    let found = record::decode(Version(10), &mut bytes.clone().freeze());
    let changes = Changes::Discard { lba: Lba(5), count: 300 };
    assert_eq!(found, Ok(Record { version: Version(12), changes }));
    // A record that is cut short, and one of the version that there is.
    assert_eq!(record::decode(Version(10), &mut bytes.split_to(8).freeze()), Err(Malformed));
    let again = Bytes::from_static(&[5, 0, 0, 0, 1, 0, 5, 172, 2]);
    assert_eq!(record::decode(Version(10), &mut again.clone()), Err(Malformed));
}
