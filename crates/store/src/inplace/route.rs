//! The route of a change: through the journal, or directly in place (3.2).
//!
//! The route is chosen for each block that a transaction changes, and holds for the block's *update
//! sequence*: from its first change until its content is in place (3.2.4). A sequence that began in
//! the journal stays there, or replay would put old bytes over newer ones; one that began directly
//! stays direct, or replay would apply a part of it. A block that is emptied is free to begin anew:
//! replay needs nothing that it held. It has to where a crash would give the block back to its
//! former owner, which must not find there what a later owner wrote.

use super::options::Mode;
use crate::block::{BLOCK_SIZE, Class, Lba, Write};

/// The route of a block's changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// The bytes that changed go into the journal.
    Bytes,
    /// The whole block goes into the journal.
    Whole,
    /// The block is written in place: before its transaction commits, or at some time in writeback
    /// mode.
    Direct,
}

/// How the update sequence of a block began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sequence {
    /// In the journal: the flag that 4.1.1 calls *journalled*.
    Journalled,
    /// Directly.
    Direct,
}

/// A change of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) class: Class,
    /// Bytes that change in the block.
    pub(super) changed: usize,
    /// Bytes that the whole write changes.
    pub(super) written: usize,
    /// How the block's update sequence began, if one is under way.
    pub(super) sequence: Option<Sequence>,
    /// It holds nothing now.
    pub(super) is_empty: bool,
    /// The in-place content may be overwritten: no checksum of it would have to change along with
    /// it, and recovery needs no version of it.
    pub(super) may_overwrite: bool,
}

/// Chooses the route of a change.
pub(super) fn route(mode: Mode, threshold: u32, request: &Request) -> Route {
    let is_data = request.class == Class::Data;
    let wants = match mode {
        _ if !is_data => Route::Bytes,
        Mode::Writeback | Mode::Ordered => Route::Direct,
        Mode::Data => Route::Whole,
        Mode::Wasteless => Route::Bytes,
        Mode::Selective if is_large(threshold, request) => Route::Direct,
        Mode::Selective => Route::Bytes,
    };
    match (request.sequence, wants) {
        (Some(Sequence::Direct), _) if !request.is_empty => Route::Direct,
        (Some(Sequence::Journalled), Route::Direct) => Route::Whole,
        (_, Route::Direct) if !request.may_overwrite => Route::Whole,
        _ => wants,
    }
}

fn is_large(threshold: u32, request: &Request) -> bool {
    let threshold = threshold as usize;
    match threshold <= BLOCK_SIZE {
        true => request.changed >= threshold,
        false => request.written >= threshold,
    }
}

/// For each write the bytes of the whole request that it is a part of: the run of neighbouring data
/// blocks.
pub(super) fn written(writes: &[Write]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..writes.len()).collect();
    order.sort_unstable_by_key(|at| writes[*at].lba);
    let mut written = vec![0; writes.len()];
    let joins = |a: &usize, b: &usize| {
        let (a, b) = (&writes[*a], &writes[*b]);
        a.class == Class::Data && b.class == Class::Data && Lba(a.lba.0 + 1) == b.lba
    };
    for run in order.chunk_by(joins) {
        let bytes = run.iter().map(|at| writes[*at].changed.bytes()).sum();
        run.iter().for_each(|at| written[*at] = bytes);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(class: Class, changed: usize) -> Request {
        let (sequence, is_empty, may_overwrite) = (None, false, true);
        Request { class, changed, written: changed, sequence, is_empty, may_overwrite }
    }

    #[test]
    fn each_mode_sends_data_its_own_way() {
        let ways =
            |changed| Mode::ALL.map(|mode| route(mode, 4096, &request(Class::Data, changed)));
        use Route::{Bytes, Direct, Whole};
        assert_eq!(ways(128), [Direct, Direct, Whole, Bytes, Bytes]);
        assert_eq!(ways(4096), [Direct, Direct, Whole, Bytes, Direct]);
    }

    #[test]
    fn metadata_is_journaled_in_every_mode() {
        for mode in Mode::ALL {
            for changed in [1, 4096] {
                assert_eq!(route(mode, 4096, &request(Class::Metadata, changed)), Route::Bytes);
            }
        }
    }

    #[test]
    fn a_sequence_stays_on_its_way() {
        let way = |sequence, changed| {
            let request = Request { sequence, ..request(Class::Data, changed) };
            route(Mode::Selective, 4096, &request)
        };
        assert_eq!(way(Some(Sequence::Journalled), 4096), Route::Whole);
        assert_eq!(way(Some(Sequence::Journalled), 100), Route::Bytes);
        assert_eq!(way(Some(Sequence::Direct), 100), Route::Direct);
        assert_eq!(way(None, 4096), Route::Direct);
    }

    #[test]
    fn what_must_not_be_overwritten_is_journaled_first() {
        for mode in [Mode::Writeback, Mode::Ordered, Mode::Selective] {
            let request = Request { may_overwrite: false, ..request(Class::Data, 4096) };
            assert_eq!(route(mode, 4096, &request), Route::Whole);
        }
    }

    #[test]
    fn an_empty_block_begins_anew() {
        let way = |class, may_overwrite, changed| {
            let request = request(class, changed);
            let sequence = Some(Sequence::Direct);
            let request = Request { sequence, is_empty: true, may_overwrite, ..request };
            route(Mode::Selective, 4096, &request)
        };
        assert_eq!(way(Class::Data, true, 4096), Route::Direct);
        assert_eq!(way(Class::Data, false, 4096), Route::Whole);
        assert_eq!(way(Class::Data, true, 100), Route::Bytes);
        assert_eq!(way(Class::Metadata, true, 4096), Route::Bytes);
    }

    #[test]
    fn the_threshold_counts_bytes_of_a_block_or_of_the_write() {
        let way = |threshold, changed, written| {
            let request = Request { written, ..request(Class::Data, changed) };
            route(Mode::Selective, threshold, &request)
        };
        assert_eq!(way(512, 511, 9000), Route::Bytes);
        assert_eq!(way(512, 512, 512), Route::Direct);
        assert_eq!(way(16384, 4096, 16383), Route::Bytes);
        assert_eq!(way(16384, 100, 16384), Route::Direct);
    }
}
