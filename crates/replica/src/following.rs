//! What the tasks of a follower share, and why they stop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_net::Traffic;
use thalweg_net::channel::CallError;
use thalweg_store::block::{Blocks, StoreError};
use thalweg_store::chain::{Chain, ChainError};
use tokio::sync::oneshot;

use super::protocol::Refusal;
use super::rescuer::Rescuer;
use super::seen::Seen;

/// A primary that does not answer a call for so long is lost.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How a follower treats its primary.
#[derive(Clone, Copy, Debug)]
pub struct FollowerOptions {
    /// It asks at least this often how far the primary is.
    pub beat: Duration,
    /// A primary that says nothing for so long is lost.
    pub patience: Duration,
}

impl Default for FollowerOptions {
    fn default() -> FollowerOptions {
        FollowerOptions { beat: Duration::from_secs(1), patience: PATIENCE }
    }
}

/// Why a follower stopped.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// Give up: the primary does not let it follow.
    #[error("the primary refuses this replica: {0}")]
    Refused(#[from] Refusal),
    /// Retry: the connection ended.
    #[error("the connection to the primary ended: {0}")]
    Lost(String),
    /// Stop: its own volume failed.
    #[error("the replica's volume failed: {0}")]
    Chain(#[from] ChainError),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Stopped {
        Stopped::Chain(error.into())
    }
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Stopped {
        Stopped::Lost(error.to_string())
    }
}

impl From<CallError> for Stopped {
    fn from(error: CallError) -> Stopped {
        Stopped::Lost(error.to_string())
    }
}

pub(super) fn lost(why: impl Into<String>) -> Stopped {
    Stopped::Lost(why.into())
}

/// What the tasks of a follower share.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) env: Env,
    pub(super) chain: Arc<Chain>,
    pub(super) options: FollowerOptions,
    pub(super) seen: Mutex<Seen>,
    /// What it has sent to primaries.
    pub(super) traffic: Traffic,
    /// Asks the primary for the contents of damaged blocks.
    pub(super) rescuer: Arc<Rescuer>,
    /// A block is damaged that the next change keeps in part: the next connection begins with a copy of what has changed,
    /// which has that block whole.
    pub(super) wants_copy: AtomicBool,
    /// The logical blocks that the volume is to have as soon as it has a state of the primary.
    pub(super) size: AtomicU64,
    /// Held while the size changes.
    pub(super) resizing: Arc<tokio::sync::Mutex<()>>,
    /// Held while the state from before a copy gets its snapshot, or loses it.
    pub(super) before_copy: Arc<tokio::sync::Mutex<()>>,
}

impl Following {
    /// Whether the volume is to become smaller.
    pub(super) fn is_too_large(&self) -> bool {
        self.size.load(Ordering::Acquire) < self.chain.blocks()
    }

    /// Makes the volume as small as the primary's, unless readers of older states still need its end: later then.
    pub(super) async fn shrink(&self) -> Result<(), Stopped> {
        if !self.is_too_large() {
            return Ok(());
        }
        let size = self.size.load(Ordering::Acquire);
        match self.resize(size).await {
            Err(Stopped::Chain(ChainError::Invalid(why))) => {
                tracing::debug!(why, "the replica does not become smaller yet");
                Ok(())
            }
            resized => resized,
        }
    }

    /// Changes the volume's size, to the end.
    pub(super) async fn resize(&self, blocks: u64) -> Result<(), Stopped> {
        let resizing = self.resizing.clone().lock_owned().await;
        let chain = self.chain.clone();
        let resize = async move {
            let resized = chain.resize(blocks).await;
            drop(resizing);
            resized
        };
        self.to_the_end(resize).await
    }

    /// Changes the volume's label, to the end: also when the connection ends meanwhile. A change that was given up half way
    /// may be on the drives and not in memory, or leave a version held for ever.
    pub(super) async fn to_the_end<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, ChainError>> + Send + 'static,
    ) -> Result<T, Stopped> {
        let (done, ended) = oneshot::channel();
        let task = async move {
            // The connection may have ended.
            let _ = done.send(change.await);
        };
        self.env.spawn(task).detach();
        Ok(ended.await.map_err(|_| lost("the follower was stopped"))??)
    }

    /// Notes the state that the volume has now, and the primary's count of changed bytes there, if it is told.
    pub(super) fn reach(&self, total: Option<Option<u64>>) {
        let version = self.chain.now();
        let is_whole = version >= self.chain.whole_from();
        self.seen.lock().reach(version, is_whole, total);
    }
}
