//! Which segment a log takes, and when.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use uuid::Uuid;

use super::super::format::{Cleaning, ENTRIES_PER_PAGE};
use super::super::recovery::{empty_state, link_record, open_stream};
use super::super::{Link, Parts};
use super::*;
use crate::block::BLOCK_SIZE;
use crate::device::{DeviceRef, MemoryDevice};

const PER: u32 = ENTRIES_PER_PAGE;

/// A chain with this many segments on each of its links; the users' log begins in segment 0.
fn state(cleaning: Cleaning, links: &[u32]) -> State {
    let bytes = |segments: u32| u64::from(segments * PER) * BLOCK_SIZE as u64;
    let device = |segments| -> DeviceRef { Arc::new(MemoryDevice::new(bytes(segments))) };
    let numbered = links.iter().zip(1..);
    let links: Vec<Link> = numbered
        .map(|(segments, id)| Link { id: Uuid::from_u128(id), device: device(*segments) })
        .collect();
    let mut base = 0;
    let records = links.iter().map(|link| {
        let record = link_record(link, base, PER).unwrap();
        base += record.segments.get();
        record
    });
    let label = Label {
        sequence: 0,
        volume: Uuid::from_u128(7),
        blocks: u64::from(PER),
        segment_blocks: PER,
        max_segments: 100,
        checkpoint_half: 0,
        cleaning,
        placement: Default::default(),
        created: 0,
        links: records.collect(),
        snapshots: Vec::new(),
        voids: Vec::new(),
        cuts: Vec::new(),
        history: Default::default(),
        follows: false,
        whole_from: Version(0),
        term: 0,
        fence: None,
        shrink: None,
        replica: 0,
        damaged: false,
    };
    let parts = Parts { links, map: device(1), map_link: None, tail_cache: None, body_cache: None };
    let mut state = empty_state(label, &parts).unwrap();
    state.users = open_stream(&mut state, USERS, 0);
    state
}

fn pad() -> MapEntry {
    MapEntry { kind: Kind::Pad, last: true, lba: Lba(0), version: Version(0), check: 0 }
}

#[test]
fn compaction_leaves_the_last_segments_to_what_the_users_log_owes() {
    let mut state = state(Cleaning::CompactInBody, &[4, 4]);
    assert_eq!(state.choose(BODY, true), Some(4), "the first of the link without the tail");
    for id in [1, 2, 3, 5, 6, 7] {
        state.segments.open(id);
    }
    state.close_segment(USERS);
    assert_eq!(state.appendable(), u64::from(PER));
    assert_eq!(state.choose(BODY, true), Some(4), "nothing is owed");
    // The entry that ends a settling needs one block of the last segment.
    state.minis.since = 1;
    assert_eq!((state.owed(), state.choose(BODY, true)), (1, None));
    assert_eq!(state.choose(USERS, true), Some(4), "cleaning at the tail may take it");
    assert_eq!(state.choose(USERS, false), None, "users leave one on each link");
}

#[test]
fn users_stay_on_the_tails_link_until_its_last_segment() {
    let mut state = state(Cleaning::MoveToTail, &[4, 4]);
    assert_eq!(state.choose(USERS, false), Some(1));
    state.segments.open(1);
    assert_eq!(state.choose(USERS, false), Some(2));
    state.segments.open(2);
    assert_eq!(state.choose(USERS, false), Some(4), "one is left for cleaning");
    assert_eq!(state.choose(USERS, true), Some(3));
    state.segments.open(3);
    assert_eq!(state.choose(USERS, true), Some(4));
}

#[test]
fn the_next_segment_is_reserved_when_a_quarter_of_the_open_one_is_left() {
    let mut state = state(Cleaning::MoveToTail, &[5]);
    let free = state.segments.free_count();
    while state.users.room() > PER / 4 {
        state.reserve(USERS);
        assert_eq!(state.users.open().next, NO_SEGMENT, "{} blocks left", state.users.room());
        state.append(USERS, &pad(), None, Purpose::Map).unwrap();
    }
    assert_eq!(state.segments.free_count(), free);
    state.reserve(USERS);
    assert_eq!(state.users.open().next, 1);
    assert_eq!(state.segments.get(1).state, SegmentState::Open);
    state.reserve(USERS);
    assert_eq!((state.users.open().next, state.segments.free_count()), (1, free - 1));
    while state.users.open().id == 0 {
        state.append(USERS, &pad(), None, Purpose::Map).unwrap();
    }
    assert_eq!((state.users.open().id, state.users.open().next), (1, NO_SEGMENT));
}
