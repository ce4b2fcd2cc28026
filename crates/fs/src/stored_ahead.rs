//! Bytes of a batch that are stored before the batch itself is there: when the last of its parts has come, nothing is left to be
//! stored.

use std::fmt::Debug;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::HashMap;

use crate::attributes::Ino;
use crate::error::FsError;
use crate::mutation::Mutation;
use crate::room::RoomShare;
use crate::session_table::JournalPosition;

/// A filesystem that stores bytes of batches ahead.
#[async_trait]
pub trait StoreAhead: Send + Sync {
    /// Stores a part of a batch of a session that is to come, whose writes replace bytes, if that is of use now.
    ///
    /// # Errors
    /// Those of the store.
    async fn store_ahead(&self, session: u64, part: Bytes) -> Result<Option<StoredPart>, FsError>;

    /// [`SessionTable::apply`](crate::SessionTable::apply) for mutations of which the bytes of some writes are stored already.
    ///
    /// # Errors
    /// As for that.
    async fn apply_stored(
        &self,
        mutations: &[Mutation],
        charged: &[RoomShare],
        end: JournalPosition,
        stored: &StoredWrites,
    ) -> Result<(), FsError>;
}

/// A part of the encoding of a batch that is stored. Its place may be used again when this is dropped, as far as no file has got
/// bytes of it by then.
#[derive(Debug)]
pub struct StoredPart {
    start: u64,
    len: u64,
    _held: Box<dyn Debug + Send + Sync>,
}

impl StoredPart {
    /// So many bytes, which lie from `start` on while something is `held`.
    pub fn new(start: u64, len: u64, held: Box<dyn Debug + Send + Sync>) -> StoredPart {
        StoredPart { start, len, _held: held }
    }
}

/// Where the bytes of a write are, piece after piece: the first one, and how many.
pub type Places = Vec<(u64, u64)>;

/// The writes of a batch whose bytes are stored.
#[derive(Debug, Default)]
pub struct StoredWrites {
    parts: Vec<Option<StoredPart>>,
    /// By file, offset and length. `None` for one of which there are several.
    writes: HashMap<(Ino, u64, u64), Option<Places>>,
}

impl StoredWrites {
    /// The parts of an encoding, one after the other, as far as they are stored.
    pub fn new(parts: Vec<Option<StoredPart>>) -> StoredWrites {
        StoredWrites { parts, writes: HashMap::default() }
    }

    /// Whether no part is stored.
    pub fn has_none(&self) -> bool {
        self.parts.iter().all(Option::is_none)
    }

    /// Notes a write of the batch, whose bytes are these of the encoding. Parts have `part_len` bytes.
    pub fn add(&mut self, (ino, offset): (Ino, u64), bytes: Range<u64>, part_len: u64) {
        let (mut places, mut at) = (Places::new(), bytes.start);
        while at < bytes.end {
            let part = self.parts.get((at / part_len) as usize).and_then(Option::as_ref);
            let end = bytes.end.min((at / part_len + 1) * part_len);
            let inside = at % part_len..at % part_len + (end - at);
            let Some(part) = part.filter(|part| inside.end <= part.len) else { return };
            places.push((part.start + inside.start, end - at));
            at = end;
        }
        let of = (ino, offset, bytes.end - bytes.start);
        self.writes.entry(of).and_modify(|it| *it = None).or_insert(Some(places));
    }

    /// Where the bytes of a write are; `None` if they are not stored.
    pub(crate) fn of(&self, ino: Ino, offset: u64, len: u64) -> Option<&Places> {
        self.writes.get(&(ino, offset, len))?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_in_the_parts_that_are_stored() {
        let part = |start| Some(StoredPart::new(start, 100, Box::new(())));
        let mut stored = StoredWrites::new(vec![part(1_000), part(5_000), None, part(9_000)]);
        for (offset, bytes) in
            [(0, 10..40), (1, 90..130), (2, 190..210), (3, 150..150), (4, 320..400)]
        {
            stored.add((Ino(2), offset), bytes, 100);
        }
        let of = |offset, len| stored.of(Ino(2), offset, len).map(|it| it.to_vec());
        assert_eq!(of(0, 30), Some(vec![(1_010, 30)]));
        assert_eq!(of(1, 40), Some(vec![(1_090, 10), (5_000, 30)]));
        assert_eq!(of(2, 20), None, "one part is not stored");
        assert_eq!(of(3, 0), Some(vec![]));
        assert_eq!(of(4, 80), Some(vec![(9_020, 80)]));
        assert_eq!(of(0, 31), None);
        stored.add((Ino(2), 0), 50..80, 100);
        assert_eq!(stored.of(Ino(2), 0, 30), None, "two writes are the same but for their bytes");
    }
}
