//! Proofs that clients know inodes, in the answers that name these.

use parking_lot::MutexGuard;
use thalweg_fs::Ino;

use super::Shared;
use super::capabilities::Table;
use super::outcome::Outcome;
use super::session::{Session, SessionState};
use crate::protocol::{Answer, encode_list};

/// The proofs of an outcome.
#[derive(Clone, Copy, Debug)]
struct Proved {
    /// That of the inode that the answer names; 0 for none.
    proof: u64,
    /// How many inodes the client had lost by then. When it has lost more, the proofs are to be made anew.
    lost: u64,
}

impl Shared {
    /// Locks what an answer is granted and told under, with the proofs of an outcome: they are hashed and encoded before, since every
    /// call of every client takes these locks.
    pub(super) fn lock_proved<'a>(
        &'a self,
        session: &'a Session,
        outcome: &mut Outcome,
    ) -> (MutexGuard<'a, Table>, MutexGuard<'a, SessionState>, u64) {
        loop {
            let proved = self.prove(session, outcome);
            let table = self.capabilities.lock();
            let state = session.state.lock();
            if proved.lost == state.lost() {
                return (table, state, proved.proof);
            }
        }
    }

    /// Proves that the client is told of the inodes in an outcome, and encodes those of a list.
    fn prove(&self, session: &Session, outcome: &mut Outcome) -> Proved {
        let (lost, told) = {
            let state = session.state.lock();
            let told = outcome.tells().into_iter().map(|ino| (ino, state.generation(ino)));
            (state.lost(), told.collect::<Vec<(Ino, u64)>>())
        };
        let ledger = self.filesystem.ledger();
        let proof = |(ino, generation): (Ino, u64)| {
            ledger.map_or(0, |ledger| ledger.proof(session.serial, ino, generation))
        };
        if let Some(entries) = &mut outcome.entries {
            let shown = entries.iter_mut().filter_map(|entry| entry.attributes.as_mut());
            for ((_, shown), told) in shown.zip(told) {
                *shown = proof(told);
            }
            outcome.payload = vec![encode_list(entries)];
            return Proved { proof: 0, lost };
        }
        let proof = match &outcome.answer {
            Answer::Inode(_) => told.first().map_or(0, |told| proof(*told)),
            Answer::Made => {
                let proofs: Vec<u64> = told.into_iter().map(proof).collect();
                outcome.payload = vec![encode_list(&proofs)];
                0
            }
            _ => 0,
        };
        Proved { proof, lost }
    }
}
