//! Writes a journal back around the mutations that conflict with what other clients have done: these are skipped.

use smallvec::SmallVec;
use thalweg_fs::FsError;
use thalweg_fs::mutation::Mutation;
use thalweg_fs::ranges::Ranges;

use super::batch::BATCH_BYTES;
use super::journal_format::{JournaledMutation, Run};
use super::record::{MUTATION_BYTES, room_of};
use super::room::Charge;
use super::stages::Stages;
use super::user::User;
use crate::protocol::{MAX_MUTATIONS, MAX_SHARES};

/// The server refuses the mutation at a position. It has all before that, but for skipped ones.
pub(super) struct Refused {
    pub(super) position: u64,
    pub(super) error: FsError,
}

/// Mutations of one user, each with its position.
struct Part {
    user: User,
    positions: Vec<u64>,
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

/// The mutations of these runs behind a position that are not skipped, as batches. The first one has the position `first`.
fn parts<'a>(
    runs: &'a [Run],
    first: u64,
    reached: u64,
    skipped: &'a Ranges,
) -> impl Iterator<Item = Part> + use<'a> {
    let mut position = first - 1;
    runs.iter().flat_map(move |run| {
        let user = run.user.clone().map(std::sync::Arc::new);
        let (mut parts, mut bytes) = (Vec::<Part>::new(), 0);
        let mut quotas = SmallVec::<[u64; MAX_SHARES]>::new();
        for JournaledMutation { mutation, blocks, quota } in &run.mutations {
            position += 1;
            if position <= reached || skipped.contains(position) {
                continue;
            }
            let size = MUTATION_BYTES + mutation.kind.data_len();
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
            part.positions.push(position);
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
    (runs, first): (&[Run], u64),
    mut reached: u64,
    skipped: &Ranges,
) -> Result<u64, Refused> {
    for part in parts(runs, first, reached, skipped) {
        let mut rest = vec![part];
        while let Some(mut part) = rest.pop() {
            let Some(last) = part.positions.last().copied() else { continue };
            let batch = (&part.mutations[..], &part.charges[..]);
            match pass(stages, batch, &part.user, (reached + 1, last)).await {
                Ok(()) => reached = last,
                Err(error) if part.positions.len() > 1 && error.may_divide() => {
                    let half = part.positions.len() / 2;
                    rest.push(part.split_off(half));
                    rest.push(part);
                }
                Err(error) => return Err(Refused { position: part.positions[0], error }),
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
    positions: (u64, u64),
) -> Result<(), FsError> {
    assert!(positions.0 <= positions.1, "positions are passed in their order");
    assert!(batch.0.len() as u64 <= positions.1 - positions.0 + 1, "each has a position");
    stages.writeback.pass(batch, user, positions).await
}

/// The mutations up to a position are skipped.
pub(super) async fn pass_skipped(stages: &Stages, reached: u64, last: u64) -> Result<(), FsError> {
    if reached >= last {
        return Ok(());
    }
    pass(stages, (&[], &[]), &None, (reached + 1, last)).await
}
