//! Parts of a large batch, which a client sends before the batch itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::Task;
use thalweg_fs::stored_ahead::StoredPart;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::protocol::MAX_STAGED;

/// Bytes of a permit of [`StagingRoom`].
const UNIT: usize = 4096;
/// Most bytes that are staged for all clients together.
const MAX_STAGED_OF_ALL: usize = 4 * MAX_STAGED;

/// The memory that what all clients stage takes.
#[derive(Clone, Debug)]
pub(in crate::server) struct StagingRoom(Arc<Semaphore>);

impl Default for StagingRoom {
    fn default() -> StagingRoom {
        StagingRoom(Arc::new(Semaphore::new(MAX_STAGED_OF_ALL / UNIT)))
    }
}

#[derive(Debug)]
struct Part {
    bytes: Bytes,
    /// It is stored ahead, too, or was to be.
    stored: Option<StoringPart>,
    _room: OwnedSemaphorePermit,
}

/// Batches of a session that are staged: one, and the next one while that is applied.
const BATCHES: usize = 2;

/// A part that is being stored; `None` if that is of no use, or has failed.
pub(in crate::server) type StoringPart = Task<Option<StoredPart>>;

/// The parts of the last batches of a session, by their numbers.
#[derive(Debug, Default)]
pub(in crate::server) struct Staged(Mutex<BTreeMap<u64, Batch>>);

#[derive(Debug, Default)]
struct Batch {
    parts: BTreeMap<u32, Part>,
    len: usize,
}

impl Staged {
    /// Keeps a part of a batch, and drops those of earlier batches beyond the one before; whether there is room for it.
    pub(in crate::server) fn put(
        &self,
        (batch, part): (u64, u32),
        bytes: Bytes,
        room: &StagingRoom,
    ) -> bool {
        let mut all = self.0.lock();
        let is_next = all.keys().any(|other| *other < batch);
        all.entry(batch).or_default();
        while all.len() > BATCHES {
            all.pop_first();
        }
        let len: usize = all.values().map(|it| it.len).sum();
        let Some(staged) = all.get_mut(&batch) else { return false };
        let before = staged.parts.remove(&part).map_or(0, |before| before.bytes.len());
        staged.len -= before;
        let units = u32::try_from(bytes.len().div_ceil(UNIT)).unwrap_or(u32::MAX);
        // What is to be applied next does not wait for the room of what comes behind it.
        let is_scarce = is_next && room.0.available_permits() < MAX_STAGED_OF_ALL / UNIT / 2;
        if is_scarce || len - before + bytes.len() > MAX_STAGED {
            return false;
        }
        let Ok(_room) = room.0.clone().try_acquire_many_owned(units) else { return false };
        staged.len += bytes.len();
        staged.parts.insert(part, Part { bytes, stored: None, _room });
        true
    }

    /// A part that is kept is being stored ahead.
    pub(in crate::server) fn set_stored(&self, (batch, part): (u64, u32), storing: StoringPart) {
        let mut all = self.0.lock();
        if let Some(part) = all.get_mut(&batch).and_then(|it| it.parts.get_mut(&part)) {
            part.stored = Some(storing);
        }
    }

    /// The bytes of a batch that was staged in so many parts, and what is stored of it; `None` if some are missing. Earlier batches are dropped.
    pub(in crate::server) fn take(
        &self,
        batch: u64,
        parts: u32,
    ) -> Option<(Vec<u8>, Vec<Option<StoringPart>>)> {
        let staged = {
            let mut all = self.0.lock();
            *all = all.split_off(&batch);
            all.remove(&batch)?
        };
        let is_whole = staged.parts.keys().copied().eq(0..parts);
        is_whole.then(|| {
            let (mut bytes, mut stored) = (Vec::with_capacity(staged.len), Vec::new());
            for part in staged.parts.into_values() {
                bytes.extend_from_slice(&part.bytes);
                stored.push(part.stored);
            }
            (bytes, stored)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(taken: Option<(Vec<u8>, Vec<Option<StoringPart>>)>) -> Option<Vec<u8>> {
        taken.map(|(bytes, _)| bytes)
    }

    #[test]
    fn a_batch_has_all_its_parts_or_none() {
        let (staged, room) = (Staged::default(), StagingRoom::default());
        let put = |batch, part, bytes: &'static [u8]| {
            assert!(staged.put((batch, part), Bytes::from_static(bytes), &room));
        };
        assert_eq!(bytes_of(staged.take(7, 1)), None);
        put(7, 1, b"c");
        assert_eq!(bytes_of(staged.take(7, 2)), None, "the first part is missing");
        put(7, 1, b"c");
        put(7, 0, b"x");
        put(7, 0, b"ab");
        assert_eq!(bytes_of(staged.take(7, 2)), Some(b"abc".to_vec()));
        assert_eq!(bytes_of(staged.take(7, 2)), None, "they are gone");
        put(7, 0, b"ab");
        put(8, 0, b"c");
        assert_eq!(bytes_of(staged.take(7, 1)), Some(b"ab".to_vec()), "the next batch has begun");
        assert_eq!(bytes_of(staged.take(8, 1)), Some(b"c".to_vec()));
        put(7, 0, b"ab");
        put(8, 0, b"c");
        put(9, 0, b"d");
        assert_eq!(bytes_of(staged.take(7, 1)), None, "two later batches have begun");
        assert_eq!(bytes_of(staged.take(9, 1)), Some(b"d".to_vec()));
        assert_eq!(bytes_of(staged.take(8, 1)), None, "it is an earlier one");
    }

    #[test]
    fn what_is_staged_is_bounded() {
        let room = StagingRoom::default();
        let part = Bytes::from(vec![1; 1 << 20]);
        let fill = || {
            let staged = Staged::default();
            let parts =
                (0..).take_while(|part_number| staged.put((1, *part_number), part.clone(), &room));
            let len = parts.count() << 20;
            (staged, len)
        };
        let all: Vec<(Staged, usize)> = (0..5).map(|_| fill()).collect();
        let lens: Vec<usize> = all.iter().map(|(_, len)| *len).collect();
        assert_eq!(lens, [MAX_STAGED, MAX_STAGED, MAX_STAGED, MAX_STAGED, 0]);
        drop(all);
        let (staged, len) = fill();
        assert_eq!(len, MAX_STAGED, "their room is free again");
        assert!(!staged.put((2, 0), part.clone(), &room), "two batches have the room of one");
        let _others = [fill(), fill()];
        let staged = Staged::default();
        assert!(staged.put((1, 0), part.clone(), &room));
        assert!(!staged.put((2, 0), part.clone(), &room), "the next batch of another one waits");
    }
}
