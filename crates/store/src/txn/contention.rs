//! The queue of retries after a conflict.
//!
//! A conflict costs the work of an attempt, and an attempt that waits for a processor meets more conflicts:
//! with many threads on a few keys nearly all work would soon be wasted. So retries run one after the other,
//! while first attempts run freely.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use thalweg_env::Env;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Durability, Transaction, TxnError};
use crate::block::EpochVersion;

/// The longest wait for a turn: its holder may itself wait for the waiter.
const PATIENCE: Duration = Duration::from_millis(10);

/// Admits retries one at a time.
pub struct Contention {
    env: Env,
    turns: Arc<Semaphore>,
}

impl fmt::Debug for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contention").field("turns", &self.turns).finish_non_exhaustive()
    }
}

/// The turn of a retry; empty at a first attempt, and when the wait timed out. Dropping it admits the next
/// retry.
#[derive(Debug, Default)]
pub struct Turn {
    permit: Option<OwnedSemaphorePermit>,
}

impl Contention {
    /// A queue without waiters.
    pub fn new(env: &Env) -> Contention {
        Contention { env: env.clone(), turns: Arc::new(Semaphore::new(1)) }
    }

    /// Waits for a turn to retry, first come, first served.
    pub async fn turn(&self) -> Turn {
        let turn = self.env.timeout(PATIENCE, self.turns.clone().acquire_owned()).await;
        Turn { permit: turn.and_then(Result::ok) }
    }
}

impl Turn {
    /// Whether other retries wait for this one.
    pub fn is_held(&self) -> bool {
        self.permit.is_some()
    }

    /// Commits, and passes the turn on as soon as the commit is decided, without waiting for devices.
    ///
    /// # Errors
    /// Those of [`Transaction::commit`].
    pub async fn commit(
        self,
        txn: &dyn Transaction,
        durability: Durability,
    ) -> Result<EpochVersion, TxnError> {
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
