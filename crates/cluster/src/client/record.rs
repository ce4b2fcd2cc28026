//! A mutation in the queue of those that the server does not have.

use std::ops::Range;

use bytes::Bytes;
use thalweg_env::Time;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::room::Room;
use thalweg_fs::{Ino, Timestamp};
use thalweg_store::journal::log::RecordPlace;

use super::user::User;

/// Bytes that a mutation takes beside names and data, about.
pub(super) const MUTATION_BYTES: usize = 128;
/// Bytes of records that a block takes at the server which is reserved, at most.
const BYTES_OF_A_BLOCK: usize = 48;
/// A write of fewer bytes keeps them in memory.
const LEAST_SPILLED: usize = 256;

pub(super) struct Waiting {
    /// Mutations of a client are counted from 1 on.
    pub(super) number: u64,
    /// When it was made; of one that waits again, before everything.
    pub(super) made: Time,
    /// The hash up to it, once it is in the journal; else 0.
    pub(super) hash: u64,
    pub(super) record: Record,
    /// The root of the quota that it counts for; 0 for none.
    pub(super) quota: u64,
    pub(super) user: User,
}

/// A write of a batch that has its bytes in the journal alone.
#[derive(Clone, Copy)]
pub(super) struct SpilledWrite {
    /// The mutation in the batch.
    pub(super) index: usize,
    pub(super) number: u64,
    /// Bytes.
    pub(super) len: u64,
    /// The record of the journal.
    pub(super) place: RecordPlace,
}

impl Waiting {
    /// If the journal alone has its bytes: where, of the mutation that has this index in a batch.
    pub(super) fn spilled(&self, index: usize) -> Option<SpilledWrite> {
        let place = self.record.spilled_to()?;
        Some(SpilledWrite { index, number: self.number, len: self.record.data_bytes(), place })
    }
}

/// A mutation. Many wait, and most are small: so those by which no file gets blocks are encoded, and of what one takes there is only what
/// does not follow from the mutation.
pub(super) enum Record {
    /// One by which no file gets blocks and none becomes longer.
    Small(Box<[u8]>),
    Bytes(Box<Parts>),
    /// A write whose bytes are in the journal alone.
    Spilled(Box<Spilled>),
}

/// A write without its bytes.
pub(super) struct Spilled {
    /// Its data are empty.
    parts: Parts,
    len: u32,
    /// The record of the journal that has them.
    place: RecordPlace,
}

#[derive(Clone)]
pub(super) struct Parts {
    pub(super) mutation: Mutation,
    /// Blocks that the file gets.
    pub(super) blocks: u64,
    pub(super) grows: bool,
}

impl Record {
    /// Of a mutation without bytes of a file.
    pub(super) fn small(mutation: &Mutation) -> Record {
        let encoded = postcard::to_allocvec(mutation);
        Record::Small(encoded.expect("memory takes any mutation").into_boxed_slice())
    }

    /// Of a mutation of a journal. The server knows which files grow: it alone stores bytes beside a journal.
    pub(super) fn recovered(mutation: Mutation, blocks: u64) -> Record {
        if blocks == 0 && mutation.kind.data_len() == 0 {
            return Record::small(&mutation);
        }
        Record::Bytes(Box::new(Parts { mutation, blocks, grows: true }))
    }

    /// Of a mutation that waits again; of a write that this record of the journal has so many bytes of, they stay there alone.
    pub(super) fn again(
        mut mutation: Mutation,
        blocks: u64,
        spilled: Option<(RecordPlace, u64)>,
    ) -> Record {
        let (Some((place, len)), MutationKind::Write { data, .. }) = (spilled, &mut mutation.kind)
        else {
            return Record::recovered(mutation, blocks);
        };
        *data = Bytes::new();
        let len = u32::try_from(len).expect("a write is no longer than a message");
        let parts = Parts { mutation, blocks, grows: true };
        Record::Spilled(Box::new(Spilled { parts, len, place }))
    }

    pub(super) fn into_parts(self) -> Parts {
        match self {
            Record::Bytes(record) => *record,
            Record::Small(bytes) => Record::decode(&bytes),
            Record::Spilled(record) => record.parts,
        }
    }

    /// The parts of one that stays; its data are shared.
    pub(super) fn parts(&self) -> Parts {
        match self {
            Record::Bytes(record) => (**record).clone(),
            Record::Small(bytes) => Record::decode(bytes),
            Record::Spilled(record) => record.parts.clone(),
        }
    }

    /// Its bytes stay in this record of the journal alone, if they are many; how many bytes less it takes.
    pub(super) fn spill(&mut self, place: RecordPlace) -> usize {
        let Record::Bytes(record) = self else { return 0 };
        let MutationKind::Write { data, .. } = &mut record.mutation.kind else { return 0 };
        if data.len() < LEAST_SPILLED {
            return 0;
        }
        let freed = data.len();
        let len = u32::try_from(freed).expect("a write is no longer than a message");
        *data = Bytes::new();
        let parts = (**record).clone();
        *self = Record::Spilled(Box::new(Spilled { parts, len, place }));
        freed
    }

    /// The record of the journal that alone has its bytes.
    pub(super) fn spilled_to(&self) -> Option<RecordPlace> {
        match self {
            Record::Spilled(record) => Some(record.place),
            Record::Small(_) | Record::Bytes(_) => None,
        }
    }

    fn decode(bytes: &[u8]) -> Parts {
        let mutation = postcard::from_bytes(bytes).expect("a mutation encoded here");
        Parts { mutation, blocks: 0, grows: false }
    }

    /// Bytes of a file that it writes.
    pub(super) fn data_bytes(&self) -> u64 {
        match self {
            Record::Bytes(record) => record.mutation.kind.data_len() as u64,
            Record::Spilled(record) => u64::from(record.len),
            Record::Small(_) => 0,
        }
    }

    /// The bytes of a file that it writes, and does not clear privileges by that.
    pub(super) fn write_range(&self) -> Option<(Ino, Range<u64>)> {
        let (kind, len) = match self {
            Record::Bytes(record) => (&record.mutation.kind, self.data_bytes()),
            Record::Spilled(record) => (&record.parts.mutation.kind, u64::from(record.len)),
            Record::Small(_) => return None,
        };
        match kind {
            MutationKind::Write { ino, offset, clear_suid: false, .. } => {
                Some((*ino, *offset..offset.saturating_add(len)))
            }
            _ => None,
        }
    }

    /// Blocks that a file gets by becoming longer.
    pub(super) fn growth_blocks(&self) -> u64 {
        match self {
            Record::Bytes(record) if record.grows => record.blocks,
            Record::Spilled(record) if record.parts.grows => record.parts.blocks,
            Record::Bytes(_) | Record::Spilled(_) | Record::Small(_) => 0,
        }
    }

    /// When it was made.
    pub(super) fn time(&self) -> Timestamp {
        match self {
            Record::Bytes(record) => record.mutation.time,
            Record::Small(bytes) => Record::decode(bytes).mutation.time,
            Record::Spilled(record) => record.parts.mutation.time,
        }
    }

    /// Bytes of memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        let own = match self {
            Record::Small(bytes) => bytes.len(),
            Record::Bytes(_) => self.data_bytes() as usize,
            Record::Spilled(_) => 0,
        };
        MUTATION_BYTES + own
    }

    /// Bytes that it counts for in a batch, which is one transaction at the server.
    pub(super) fn batch_bytes(&self) -> usize {
        match self {
            Record::Bytes(record) => {
                self.sent_bytes() + reserved_bytes(&record.mutation.kind, record.blocks)
            }
            Record::Small(_) | Record::Spilled(_) => self.sent_bytes(),
        }
    }

    /// Bytes that are sent of it, about.
    pub(super) fn sent_bytes(&self) -> usize {
        match self {
            Record::Spilled(record) => MUTATION_BYTES + record.len as usize,
            Record::Small(_) | Record::Bytes(_) => self.bytes(),
        }
    }
}

/// Bytes of the records of blocks that a mutation reserves: it sends none of them.
fn reserved_bytes(kind: &MutationKind, blocks: u64) -> usize {
    match kind {
        MutationKind::Reserve { .. } => blocks as usize * BYTES_OF_A_BLOCK,
        _ => 0,
    }
}

/// Bytes that a mutation counts for in a batch, by which a file gets so many blocks.
pub(super) fn batch_bytes_of(kind: &MutationKind, blocks: u64) -> usize {
    MUTATION_BYTES + kind.data_len() + kind.xattr_len() + reserved_bytes(kind, blocks)
}

/// What a mutation takes by which a file gets so many blocks.
pub(super) fn room_of(kind: &MutationKind, blocks: u64) -> Room {
    match kind {
        MutationKind::Create { name, new, .. } => Room::of_new(name, &new.node),
        MutationKind::Write { .. } | MutationKind::Stored { .. } | MutationKind::Reserve { .. } => {
            Room::of_bytes(blocks)
        }
        MutationKind::SetXattr { name, value, .. } => Room::of_xattr(name, value.len()),
        // Without an inode that has the name it is a further one.
        MutationKind::Rename { to, there: None, .. } => Room::of_name(&to.1),
        MutationKind::Link { name, .. } => Room::of_name(name),
        MutationKind::SetAttributes { .. }
        | MutationKind::RemoveXattr { .. }
        | MutationKind::Unlink { .. }
        | MutationKind::RemoveDirectory { .. }
        | MutationKind::Rename { .. } => Room::NONE,
    }
}
