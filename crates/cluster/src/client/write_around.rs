//! Writes a journal back around the mutations that conflict with what other clients have done: these are skipped.

use smallvec::SmallVec;
use thalweg_fs::mutation::Mutation;
use thalweg_fs::ranges::Ranges;
use thalweg_fs::session_table::JournalPosition;
use thalweg_fs::{Action, Failure, FsError};

use super::batch::BATCH_BYTES;
use super::found_journal::FoundJournal;
use super::journal_runs::{JournaledMutation, Run, hashes};
use super::record::{batch_bytes_of, room_of};
use super::room::Charge;
use super::stages::Stages;
use super::user::User;
use crate::protocol::{BatchPositions, MAX_MUTATIONS, MAX_SHARES};

/// The server refuses the mutation at a position. It has all before that, but for skipped ones.
pub(super) struct Refused {
    pub(super) position: u64,
    /// The last position that it has.
    pub(super) reached: JournalPosition,
    pub(super) error: FsError,
}

/// Mutations of one user, each with its position.
struct Part {
    user: User,
    positions: Vec<JournalPosition>,
    mutations: Vec<Mutation>,
    charges: Vec<Charge>,
}

impl Part {
    fn of(user: User) -> Part {
        let (positions, mutations, charges) = Default::default();
        Part { user, positions, mutations, charges }
    }

    fn split_off(&mut self, at: usize) -> Part {
        Part {
            user: self.user.clone(),
            positions: self.positions.split_off(at),
            mutations: self.mutations.split_off(at),
            charges: self.charges.split_off(at),
        }
    }
}

/// The mutations of these runs behind a position that are not skipped, as batches. The first run begins behind `after`.
fn parts<'a>(
    runs: &'a [Run],
    after: JournalPosition,
    reached: u64,
    skipped: &'a Ranges,
) -> impl Iterator<Item = Part> + use<'a> {
    let (mut position, mut hashes) = (after.position, hashes(after.hash, runs));
    runs.iter().flat_map(move |run| {
        let user = run.user.clone().map(std::sync::Arc::new);
        let (mut parts, mut bytes) = (Vec::<Part>::new(), 0);
        let mut quotas = SmallVec::<[u64; MAX_SHARES]>::new();
        for JournaledMutation { mutation, blocks, quota } in &run.mutations {
            position += 1;
            let hash = hashes.next().unwrap_or_default();
            if position <= reached || skipped.contains(position) {
                continue;
            }
            let size = batch_bytes_of(&mutation.kind, *blocks);
            let is_new = !quotas.contains(quota);
            // One share is the volume's.
            let fits = parts.last().is_some_and(|part| {
                part.positions.len() < MAX_MUTATIONS
                    && bytes + size <= BATCH_BYTES
                    && (!is_new || quotas.len() < MAX_SHARES - 1)
            });
            if !fits {
                parts.push(Part::of(user.clone()));
                bytes = 0;
                quotas.clear();
            }
            if !quotas.contains(quota) {
                quotas.push(*quota);
            }
            bytes += size;
            let Some(part) = parts.last_mut() else { continue };
            part.positions.push(JournalPosition { position, hash });
            part.charges.push(Charge { quota: *quota, room: room_of(&mutation.kind, *blocks) });
            part.mutations.push(mutation.clone());
        }
        parts
    })
}

/// Sends what is behind a position and not skipped. The caller keeps other batches from being sent.
///
/// # Errors
/// [`Refused`]: the first mutation that the server does not take, or that does not reach it.
pub(super) async fn write_around(
    stages: &Stages,
    found: &FoundJournal,
    mut reached: JournalPosition,
    skipped: &Ranges,
) -> Result<JournalPosition, Refused> {
    for record in &found.records {
        if record.end.position <= reached.position {
            continue;
        }
        let runs = found.read(record).await.map_err(|error| {
            let error = FsError::Store(Failure::new(Action::GiveUp, error));
            Refused { position: record.after.position + 1, reached, error }
        })?;
        reached = write_runs(stages, (&runs, record.after), reached, skipped).await?;
    }
    Ok(reached)
}

async fn write_runs(
    stages: &Stages,
    (runs, after): (&[Run], JournalPosition),
    mut reached: JournalPosition,
    skipped: &Ranges,
) -> Result<JournalPosition, Refused> {
    for part in parts(runs, after, reached.position, skipped) {
        let mut rest = vec![part];
        while let Some(mut part) = rest.pop() {
            let Some(last) = part.positions.last().copied() else { continue };
            let batch = (&part.mutations[..], &part.charges[..]);
            let positions = BatchPositions { after: reached, end: last };
            match pass(stages, batch, &part.user, positions).await {
                Ok(()) => reached = last,
                Err(error) if part.positions.len() > 1 && error.may_divide() => {
                    let half = part.positions.len() / 2;
                    rest.push(part.split_off(half));
                    rest.push(part);
                }
                Err(error) => {
                    let position = part.positions[0].position;
                    return Err(Refused { position, reached, error });
                }
            }
        }
    }
    Ok(reached)
}

/// Sends mutations. Those of the positions that are not among them are skipped.
async fn pass(
    stages: &Stages,
    batch: (&[Mutation], &[Charge]),
    user: &User,
    positions: BatchPositions,
) -> Result<(), FsError> {
    let (after, end) = (positions.after.position, positions.end.position);
    assert!(after < end, "positions are passed in their order");
    assert!(batch.0.len() as u64 <= end - after, "each has a position");
    stages.writeback.pass(batch, user, positions).await
}

/// The mutations up to a position are skipped.
pub(super) async fn pass_skipped(
    stages: &Stages,
    reached: JournalPosition,
    last: JournalPosition,
) -> Result<(), FsError> {
    if reached.position >= last.position {
        return Ok(());
    }
    pass(stages, (&[], &[]), &None, BatchPositions { after: reached, end: last }).await
}
