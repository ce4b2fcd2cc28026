//! A batch: mutations of one user that are sent together, and how many these are.

use std::ops::Range;

use thalweg_env::HashMap;
use thalweg_fs::Ino;
use thalweg_fs::coalesce::Coalesced;
use thalweg_fs::mutation::Mutation;
use thalweg_fs::ranges::Ranges;

use super::record::{MUTATION_BYTES, Parts, Record, SpilledWrite, Waiting, room_of};
use super::room::Charge;
use super::user::User;
use crate::protocol::{MAX_MUTATIONS, MAX_STAGED, MAX_STAGED_INODES};

/// Bytes of mutations in one message at most, about.
pub(super) const BATCH_BYTES: usize = 512 << 10;
/// Of a batch that is staged: half of what may be, since mutations take more than they are counted for.
pub(super) const MOST_STAGED: usize = MAX_STAGED / 2;

/// Mutations of one batch, each with what it takes.
pub(super) type Part<'a> = (&'a [Mutation], &'a [Charge]);

/// Mutations of one user that are sent together.
pub(super) struct Batch {
    pub(super) mutations: Vec<Mutation>,
    pub(super) charges: Vec<Charge>,
    /// The hash up to each mutation, of those that are in the journal.
    pub(super) hashes: Vec<u64>,
    pub(super) user: User,
    /// No name changes and no file becomes longer, so that bytes may be stored before or after.
    pub(super) only_replaces: bool,
    /// The same as far as is known: of a journal that is written back, what takes no blocks replaces others.
    pub(super) replaces: bool,
    /// With it the server has all mutations up to this one.
    pub(super) last: u64,
    /// Bytes of files that its mutations write.
    pub(super) bytes: usize,
    pub(super) releases: Vec<u64>,
    /// Writes that have their bytes in the journal alone, in their order.
    pub(super) spilled: Vec<SpilledWrite>,
    /// Those that had, and were taken out.
    pub(super) taken_out: Vec<SpilledWrite>,
}

/// How much a batch takes.
#[derive(Clone, Copy)]
pub(super) struct BatchLimit {
    pub(super) mutations: usize,
    /// Bytes, about.
    bytes: usize,
    /// Bytes that others replace are not sent.
    is_coalesced: bool,
}

impl BatchLimit {
    /// Of a batch in one message.
    pub(super) const MESSAGE: BatchLimit =
        BatchLimit { mutations: MAX_MUTATIONS, bytes: BATCH_BYTES, is_coalesced: false };

    /// Of a batch that is staged with so many bytes, if that is worth while.
    pub(super) fn staged(bytes: usize, is_coalesced: bool) -> BatchLimit {
        let bytes = bytes.clamp(BATCH_BYTES, MOST_STAGED);
        BatchLimit { mutations: MAX_STAGED_INODES, bytes, is_coalesced }
    }

    /// Of a batch with just so many mutations, which were in one before.
    pub(super) fn again(self, mutations: usize) -> BatchLimit {
        BatchLimit { mutations, bytes: usize::MAX, ..self }
    }
}

/// What a batch has of a limit.
#[derive(Default)]
pub(super) struct Taking {
    /// Bytes of the mutations, and those of them that are sent.
    pub(super) bytes: usize,
    pub(super) sent: usize,
    written: HashMap<Ino, Ranges>,
}

impl Taking {
    /// Counts a mutation, if it is the first one or within the limit.
    pub(super) fn add(&mut self, record: &Record, limit: &BatchLimit) -> bool {
        if self.bytes > 0 && self.sent >= limit.bytes {
            return false;
        }
        let all = record.batch_bytes();
        let sent = match record.write_range().filter(|_| limit.is_coalesced) {
            Some((ino, range)) => match self.written.entry(ino).or_default().add(range) {
                0 => 0,
                new => MUTATION_BYTES + new as usize,
            },
            None if self.bytes > 0 && self.sent + all > limit.bytes => return false,
            None => all,
        };
        self.sent += sent;
        self.bytes += all;
        true
    }
}

impl Batch {
    /// These mutations, which are of one user.
    pub(super) fn of(taken: Vec<Waiting>) -> Batch {
        let (mut only_replaces, mut replaces) = (true, true);
        let mut hashes = Vec::with_capacity(taken.len());
        let last = taken.last().map_or(0, |last| last.number);
        let user = taken.first().and_then(|first| first.user.clone());
        let bytes = taken.iter().map(|it| it.record.data_bytes() as usize).sum();
        let spilled = taken.iter().enumerate().filter_map(|(at, it)| it.spilled(at)).collect();
        let parts = taken.into_iter().map(|Waiting { hash, record, quota, .. }| {
            hashes.push(hash);
            let Parts { mutation, blocks, grows } = record.into_parts();
            let is_named = mutation.kind.names().next().is_some();
            only_replaces &= !grows && !is_named;
            replaces &= !is_named && (!grows || blocks == 0);
            let room = room_of(&mutation.kind, blocks);
            (mutation, Charge { quota, room })
        });
        let (mutations, charges) = parts.unzip();
        let (releases, taken_out) = Default::default();
        Batch {
            mutations,
            charges,
            hashes,
            user,
            only_replaces,
            replaces,
            last,
            bytes,
            releases,
            spilled,
            taken_out,
        }
    }

    /// The hash up to a mutation of it.
    pub(super) fn hash_up_to(&self, number: u64) -> u64 {
        let behind = usize::try_from(self.last - number).unwrap_or(usize::MAX);
        let at = self.hashes.len().checked_sub(behind + 1);
        at.map_or(0, |at| self.hashes[at])
    }

    /// A part, with what each mutation takes.
    pub(super) fn part(&self, part: &Range<usize>) -> Part<'_> {
        (&self.mutations[part.clone()], &self.charges[part.clone()])
    }

    /// The writes of a part that have their bytes in the journal alone.
    fn spilled_in(&self, part: &Range<usize>) -> Range<usize> {
        let at = |index| self.spilled.partition_point(|it| it.index < index);
        at(part.start)..at(part.end)
    }

    /// What is left of a part that is applied as one transaction.
    pub(super) fn coalesced(&self, part: &Range<usize>) -> Coalesced {
        let mutations = &self.mutations[part.clone()];
        let mut lens: Vec<u64> = mutations.iter().map(|it| it.kind.data_len() as u64).collect();
        for spilled in &self.spilled[self.spilled_in(part)] {
            lens[spilled.index - part.start] = spilled.len;
        }
        Coalesced::of(mutations.iter().zip(lens))
    }

    /// Takes out those of a part that are wanted.
    pub(super) fn take_spilled(
        &mut self,
        part: &Range<usize>,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Vec<SpilledWrite> {
        let range = self.spilled_in(part);
        let is_wanted = |it: &mut SpilledWrite| is_wanted(it.index - part.start);
        let taken: Vec<SpilledWrite> = self.spilled.extract_if(range, is_wanted).collect();
        self.taken_out.extend_from_slice(&taken);
        taken
    }
}
