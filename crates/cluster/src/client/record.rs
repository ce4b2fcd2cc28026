//! A mutation in the queue of those that the server does not have.

use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::room::Room;

/// Bytes that a mutation takes beside names and data, about.
const MUTATION_BYTES: usize = 128;

/// A mutation with its charge. Many wait, and most are small: so those without bytes of a file are encoded, and of a charge there
/// is only what does not follow from the mutation.
#[derive(Debug)]
pub(super) enum Record {
    /// The root of the quota and the mutation, by which no file gets blocks and none becomes longer.
    Small(Box<[u8]>),
    Bytes(Box<Parts>),
}

#[derive(Debug)]
pub(super) struct Parts {
    pub(super) mutation: Mutation,
    /// The root of the quota that it counts for.
    pub(super) quota: u64,
    /// Blocks that the file gets.
    pub(super) blocks: u64,
    /// It makes the file longer.
    pub(super) grows: bool,
}

impl Record {
    pub(super) fn of(mutation: Mutation, quota: u64, blocks: u64, grows: bool) -> Record {
        match &mutation.kind {
            MutationKind::Write { .. } | MutationKind::Stored { .. } => {
                Record::Bytes(Box::new(Parts { mutation, quota, blocks, grows }))
            }
            MutationKind::Create { .. } | MutationKind::SetAttributes { .. } => {
                assert!(blocks == 0 && !grows, "without bytes no file gets longer");
                let encoded = postcard::to_allocvec(&(quota, &mutation));
                Record::Small(encoded.expect("memory takes any mutation").into_boxed_slice())
            }
        }
    }

    /// The root of the quota that it counts for.
    pub(super) fn quota(&self) -> u64 {
        match self {
            Record::Bytes(record) => record.quota,
            Record::Small(bytes) => {
                let taken = postcard::take_from_bytes::<u64>(bytes);
                taken.expect("a mutation that was encoded here").0
            }
        }
    }

    pub(super) fn into_parts(self) -> Parts {
        match self {
            Record::Bytes(record) => *record,
            Record::Small(bytes) => {
                let parts = postcard::from_bytes::<(u64, Mutation)>(&bytes);
                let (quota, mutation) = parts.expect("a mutation that was encoded here");
                Parts { mutation, quota, blocks: 0, grows: false }
            }
        }
    }

    /// Bytes that it counts for in a batch.
    pub(super) fn bytes(&self) -> usize {
        MUTATION_BYTES
            + match self {
                Record::Small(bytes) => bytes.len(),
                Record::Bytes(record) => match &record.mutation.kind {
                    MutationKind::Write { data, .. } => data.len(),
                    _ => 0,
                },
            }
    }
}

/// What a mutation takes by which a file gets so many blocks.
pub(super) fn room_of(kind: &MutationKind, blocks: u64) -> Room {
    match kind {
        MutationKind::Create { name, new, .. } => Room::of_new(name, &new.node),
        MutationKind::Write { .. } | MutationKind::Stored { .. } => Room::of_bytes(blocks),
        MutationKind::SetAttributes { .. } => Room::NONE,
    }
}
