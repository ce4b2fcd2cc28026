//! What attempts that met a conflict wait for before they try again.
//!
//! A conflict costs the work of an attempt, and an attempt that waits for a processor meets more of
//! them: with many threads on a few keys nearly all work is soon done in vain. So those who try again do
//! it one after the other, while those who try for the first time go on as they come.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Durability, Transaction, TxnError};
use crate::env::Env;

/// How long anybody waits for a turn: its holder may itself wait for the one who wants it.
const PATIENCE: Duration = Duration::from_millis(10);

/// Turns for those who try again.
pub struct Contention {
    env: Env,
    turns: Arc<Semaphore>,
}

impl fmt::Debug for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contention").field("turns", &self.turns).finish_non_exhaustive()
    }
}

/// The turn of one who tries again; nothing at a first attempt, and when it did not come in time.
/// Dropped, it goes to the next.
#[derive(Debug, Default)]
pub struct Turn {
    permit: Option<OwnedSemaphorePermit>,
}

impl Contention {
    /// Nobody is in anybody's way yet.
    pub fn new(env: &Env) -> Contention {
        Contention { env: env.clone(), turns: Arc::new(Semaphore::new(1)) }
    }

    /// Waits for a turn to try again, in the order in which they ask.
    pub async fn turn(&self) -> Turn {
        let turn = self.env.timeout(PATIENCE, self.turns.clone().acquire_owned()).await;
        Turn { permit: turn.and_then(Result::ok) }
    }
}

impl Turn {
    /// Whether it keeps others waiting.
    pub fn is_held(&self) -> bool {
        self.permit.is_some()
    }

    /// Commits, and gives the turn on as soon as that is decided: it does not wait for devices.
    ///
    /// # Errors
    /// Those of [`Transaction::commit`].
    pub async fn commit(
        self,
        txn: &dyn Transaction,
        durability: Durability,
    ) -> Result<(), TxnError> {
        let mut commit = pin!(txn.commit(durability));
        match futures::poll!(commit.as_mut()) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => {
                drop(self);
                commit.await
            }
        }
    }
}
