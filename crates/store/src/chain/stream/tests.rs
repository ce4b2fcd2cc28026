//! Which entries and names each round makes durable.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use zerocopy::FromBytes;

use super::super::format::{Kind, LinkRecord, Placement};
use super::*;
use crate::block::{Lba, Version};
use crate::device::MemoryDevice;

const PER: u32 = 2 * ENTRIES_PER_SECTOR;
const TAG: u32 = 7;

fn pad() -> MapEntry {
    MapEntry { kind: Kind::Pad, last: true, lba: Lba(0), version: Version(1), check: 0 }
}

fn seal(stream: &mut Stream) -> Sealed {
    stream.seal(stream.tail(), SECTOR, Position::default())
}

/// The field `uncommitted` in the first sector of the log's second segment.
fn said_by_second(stream: &mut Stream) -> u16 {
    let sealed = seal(stream);
    let second = sealed.writes.iter().find(|write| write.segment == 4).unwrap();
    let sector = MapSector::ref_from_bytes(&second.bytes[..SECTOR]).unwrap();
    sector.verify(TAG, 0).unwrap().uncommitted
}

fn full() -> Stream {
    let mut stream = Stream::new(USERS, TAG, PER, SegmentMap::fresh(3, 10));
    for _ in 0..PER {
        stream.append(&pad(), None, Purpose::Map);
    }
    stream
}

#[test]
fn links_of_entries_that_are_not_durable_are_still_to_be_flushed() {
    let mut segments = Segments::new(PER, Placement::Chained);
    for (number, base) in [(1, 3), (2, 4), (3, 5)] {
        let record = LinkRecord {
            id: [number; 16],
            base: base.into(),
            segments: 1.into(),
            leaving: 0,
            reserved: [0; 7],
        };
        segments.add_link(&record, Arc::new(MemoryDevice::new(0)));
    }
    let links = |stream: &Stream| Vec::from_iter(stream.links_of_uncommitted(&segments));
    let mut stream = full();
    assert_eq!(links(&stream), [0]);
    stream.set_next(4);
    let first = seal(&mut stream);
    stream.roll(4, 11);
    stream.append(&pad(), None, Purpose::Map);
    let second = seal(&mut stream);
    assert_eq!(links(&stream), [0, 1], "a round that took them may not have flushed them");
    stream.commit(&first);
    assert_eq!(links(&stream), [1]);
    stream.commit(&second);
    assert_eq!(links(&stream), [1], "the open segment is written again");
}

#[test]
fn a_segment_is_reached_when_its_name_is_durable() {
    let mut stream = full();
    stream.set_next(4);
    let round = seal(&mut stream);
    stream.commit(&round);
    stream.roll(4, 11);
    stream.append(&pad(), None, Purpose::Map);
    assert_eq!(said_by_second(&mut stream), 0);
}

#[test]
fn a_segment_without_a_durable_name_is_not_reached() {
    // The name comes when all entries are durable.
    let mut stream = full();
    let round = seal(&mut stream);
    stream.commit(&round);
    stream.roll(4, 11);
    stream.append(&pad(), None, Purpose::Map);
    assert_eq!(said_by_second(&mut stream), u16::MAX);
    // It comes while they are under way.
    let mut stream = full();
    let round = seal(&mut stream);
    stream.roll(4, 11);
    stream.commit(&round);
    stream.append(&pad(), None, Purpose::Map);
    assert_eq!(said_by_second(&mut stream), u16::MAX);
}

#[test]
fn a_name_is_durable_when_the_round_that_wrote_it_is() {
    let mut stream = full();
    let first = seal(&mut stream);
    stream.roll(4, 11);
    let second = seal(&mut stream);
    stream.append(&pad(), None, Purpose::Map);
    stream.commit(&first);
    assert_eq!(said_by_second(&mut stream), u16::MAX, "the name is under way");
    assert!(stream.holds_map_of(3), "its entries are not let go of before");
    stream.commit(&second);
    stream.append(&pad(), None, Purpose::Map);
    assert_eq!(said_by_second(&mut stream), 0);
    assert!(!stream.holds_map_of(3));
}

#[test]
fn what_is_wanted_soon_is_written_however_little_it_is() {
    let mut stream = Stream::new(USERS, TAG, PER, SegmentMap::fresh(3, 10));
    let content = || Some(Bytes::from(vec![0; BLOCK_SIZE]));
    stream.append(&pad(), content(), Purpose::UserData);
    assert!(!stream.wants_writing(2));
    stream.hurry();
    assert!(stream.wants_writing(2));
    let batch = stream.take_batch(stream.tail(), 8).unwrap();
    assert_eq!(batch.contents.len(), 1);
    stream.append(&pad(), content(), Purpose::UserData);
    assert!(!stream.wants_writing(2), "what came later is not meant");
}

#[test]
fn each_round_takes_what_the_one_before_has_not() {
    let mut stream = Stream::new(USERS, TAG, PER, SegmentMap::fresh(3, 10));
    let mut offsets = Vec::new();
    for appended in [ENTRIES_PER_SECTOR + 1, 1, 0] {
        for _ in 0..appended {
            stream.append(&pad(), None, Purpose::Map);
        }
        assert_eq!(stream.is_sealed(), appended == 0);
        let sealed = seal(&mut stream);
        offsets.extend(sealed.writes.iter().map(|write| (write.offset, write.bytes.len())));
    }
    let sector = SECTOR as u64;
    assert_eq!(offsets, [(0, 2 * SECTOR), (sector, SECTOR)]);
    assert!(!stream.is_committed());
}
