//! A mutation in the queue of those that the server does not have.

use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::room::Room;

use super::user::User;

/// Bytes that a mutation takes beside names and data, about.
const MUTATION_BYTES: usize = 128;

pub(super) struct Waiting {
    /// Mutations of a client are counted from 1 on.
    pub(super) number: u64,
    pub(super) record: Record,
    /// The root of the quota that it counts for; 0 for none.
    pub(super) quota: u64,
    pub(super) user: User,
}

/// A mutation. Many wait, and most are small: so those without bytes of a file are encoded, and of what one takes there is only what
/// does not follow from the mutation.
pub(super) enum Record {
    /// One by which no file gets blocks and none becomes longer.
    Small(Box<[u8]>),
    Bytes(Box<Parts>),
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

    pub(super) fn into_parts(self) -> Parts {
        match self {
            Record::Bytes(record) => *record,
            Record::Small(bytes) => Record::decode(&bytes),
        }
    }

    /// The parts of one that stays; its data are shared.
    pub(super) fn parts(&self) -> Parts {
        match self {
            Record::Bytes(record) => (**record).clone(),
            Record::Small(bytes) => Record::decode(bytes),
        }
    }

    fn decode(bytes: &[u8]) -> Parts {
        let mutation = postcard::from_bytes(bytes).expect("a mutation encoded here");
        Parts { mutation, blocks: 0, grows: false }
    }

    /// Bytes that it counts for in a batch.
    pub(super) fn bytes(&self) -> usize {
        let own = match self {
            Record::Small(bytes) => bytes.len(),
            Record::Bytes(record) => match &record.mutation.kind {
                MutationKind::Write { data, .. } => data.len(),
                _ => 0,
            },
        };
        MUTATION_BYTES + own
    }
}

/// What a mutation takes by which a file gets so many blocks.
pub(super) fn room_of(kind: &MutationKind, blocks: u64) -> Room {
    match kind {
        MutationKind::Create { name, new, .. } => Room::of_new(name, &new.node),
        MutationKind::Write { .. } | MutationKind::Stored { .. } => Room::of_bytes(blocks),
        // Without an inode that has the name it is a further one.
        MutationKind::Rename { to, there: None, .. } => Room::of_name(&to.1),
        MutationKind::Link { name, .. } => Room::of_name(name),
        MutationKind::SetAttributes { .. }
        | MutationKind::Unlink { .. }
        | MutationKind::RemoveDirectory { .. }
        | MutationKind::Rename { .. } => Room::NONE,
    }
}
