//! Proofs that clients know inodes, in the answers that name these.

use parking_lot::MutexGuard;
use thalweg_fs::Ino;

use super::Shared;
use super::capabilities::Table;
use super::response::Response;
use super::session::{Session, SessionState};
use crate::protocol::{Answer, encode_list};

/// The inode tokens of an outcome.
#[derive(Clone, Copy, Debug)]
struct Proved {
    /// That of the inode that the answer names; 0 for none.
    inode_token: u64,
    /// How many inodes the client had lost by then. When it has lost more, the inode tokens are to be made anew.
    lost: u64,
}

impl Shared {
    /// Locks what an answer is granted and told under, with the inode tokens of an outcome: they are hashed and encoded before, since every
    /// call of every client takes these locks.
    pub(super) fn lock_proved<'a>(
        &'a self,
        session: &'a Session,
        outcome: &mut Response,
    ) -> (MutexGuard<'a, Table>, MutexGuard<'a, SessionState>, u64) {
        loop {
            let proved = self.prove(session, outcome);
            let table = self.capabilities.lock();
            let state = session.state.lock();
            if proved.lost == state.lost() {
                return (table, state, proved.inode_token);
            }
        }
    }

    /// Proves that the client is told of the inodes in an outcome, and encodes those of a list.
    fn prove(&self, session: &Session, outcome: &mut Response) -> Proved {
        let (lost, told) = {
            let state = session.state.lock();
            let told = outcome.tells().into_iter().map(|ino| (ino, state.generation(ino)));
            (state.lost(), told.collect::<Vec<(Ino, u64)>>())
        };
        let session_table = self.filesystem.session_table();
        let inode_token = |(ino, generation): (Ino, u64)| {
            session_table.map_or(0, |session_table| {
                session_table.inode_token(session.serial, ino, generation)
            })
        };
        if let Some(entries) = &mut outcome.entries {
            let shown = entries.iter_mut().filter_map(|entry| entry.attributes.as_mut());
            for ((_, shown), told) in shown.zip(told) {
                *shown = inode_token(told);
            }
            outcome.payload = vec![encode_list(entries)];
            return Proved { inode_token: 0, lost };
        }
        let inode_token = match &outcome.answer {
            Answer::Inode(_) => told.first().map_or(0, |told| inode_token(*told)),
            Answer::Made => {
                let inode_tokens: Vec<u64> = told.into_iter().map(inode_token).collect();
                outcome.payload = vec![encode_list(&inode_tokens)];
                0
            }
            _ => 0,
        };
        Proved { inode_token, lost }
    }
}
