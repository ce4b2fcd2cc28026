//! Contents of files that this client reads and writes itself, where the server keeps them elsewhere.
//!
//! Before it writes, the server has its address at the store on record, and shuts that out before anything that was this
//! client's alone is another one's. Mutations follow the bytes that they are about. Bytes that cannot be stored here go to the
//! server with their mutations.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use thalweg_env::HashSet;
use thalweg_fs::mutation::Mutation;
use thalweg_fs::mutation::runs::{Run, Runs, runs_of};
use thalweg_fs::{Contents, ContentsFinder, FsError, Ino};
use tokio::sync::Notify;

use super::base::ClientBase;
use super::error::unexpected;
use super::queue::store;
use super::rpc::Rpc;
use super::session::SessionInfo;
use crate::protocol::{Answer, Request};

const FILES_AT_ONCE: usize = 64;
/// The pause before the contents are looked for again after a failure, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

#[derive(Clone, Debug)]
pub(super) struct ReachedContents {
    pub(super) contents: Arc<dyn Contents>,
    location: Bytes,
    /// Of the session that the server has the address of.
    pub(super) generation: u64,
}

pub(super) struct Storing {
    pub(super) reached: ReachedContents,
    runs: Runs,
    made: HashSet<Ino>,
}

impl Storing {
    pub(super) async fn store(self) -> Result<(), FsError> {
        let Storing { reached, runs, made } = self;
        let (contents, made) = (&*reached.contents, &made);
        let files = runs.into_iter().map(|(ino, runs)| async move {
            let writes: Vec<_> = runs.into_iter().map(Run::into_write).collect();
            let absent_from = if made.contains(&ino) { 0 } else { u64::MAX };
            contents.write_all(ino, &writes, absent_from).await
        });
        stream::iter(files).buffer_unordered(FILES_AT_ONCE).try_collect().await
    }
}

/// Finds the contents of files, and stores what it can there.
pub(super) struct DirectIo {
    base: Arc<ClientBase>,
    rpc: Arc<Rpc>,
    reached: Mutex<Option<ReachedContents>>,
    /// One task at a time finds the contents, or leaves them.
    reaching: tokio::sync::Mutex<()>,
    /// Contents are not reached any more.
    lost: Notify,
}

impl DirectIo {
    pub(super) fn new(base: Arc<ClientBase>, rpc: Arc<Rpc>) -> DirectIo {
        let (reached, reaching) = (Mutex::default(), tokio::sync::Mutex::default());
        DirectIo { base, rpc, reached, reaching, lost: Notify::new() }
    }

    /// The contents, if this client reaches them now.
    pub(super) fn contents(&self) -> Option<ReachedContents> {
        let direct = self.reached.lock().clone()?;
        let session = self.base.session.info();
        let is_valid =
            direct.generation == session.generation && direct.location == session.contents;
        is_valid.then_some(direct)
    }

    /// Looks for the contents whenever the server says where they are.
    pub(super) async fn run(&self) {
        let Some(finder) = &self.base.options.contents else { return };
        let (mut pause, mut has_warned) = (PAUSES.0, false);
        let mut links = self.base.links.subscribe();
        loop {
            drop(links.borrow_and_update());
            if self.base.links.is_closed() {
                return;
            }
            match self.find(&**finder).await {
                Ok(()) => {
                    has_warned = false;
                    let found = self.base.now();
                    tokio::select! {
                        biased;
                        () = self.lost.notified() => {
                            // Each time the server has an address refused, which must not happen with every batch.
                            let is_rare = self.base.now().since(found) > PAUSES.1;
                            pause = if is_rare { PAUSES.0 } else { pause };
                        }
                        changed = links.changed() => match changed {
                            Ok(()) => continue,
                            Err(_) => return,
                        },
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut has_warned, true) {
                        tracing::warn!(
                            %error,
                            "the contents of files are not reachable from here; the server reads and writes them"
                        );
                    }
                }
            }
            self.base.env.sleep(pause).await;
            pause = (2 * pause).min(PAUSES.1);
        }
    }

    async fn find(&self, finder: &dyn ContentsFinder) -> Result<(), FsError> {
        let _turn = self.reaching.lock().await;
        let SessionInfo { contents: location, generation, .. } = self.base.session.info();
        if location.is_empty() || self.contents().is_some() {
            return Ok(());
        }
        let before = self.reached.lock().take();
        // Another server of the same session lets the same address in.
        let is_fresh = before.is_none_or(|before| before.generation != generation);
        let contents = finder.find(&location, is_fresh).await?;
        let address = contents.address().await?;
        self.admit(address).await?;
        *self.reached.lock() = Some(ReachedContents { contents, location, generation });
        tracing::info!("this client reads and writes contents of files itself");
        Ok(())
    }

    /// Has the server let this address write, and no other one of this client.
    async fn admit(&self, address: String) -> Result<(), FsError> {
        self.rpc.own(Request::ReachContents { address }).await.map(drop)
    }

    /// Something could not be stored in a session. Returns when nothing that is under way can be stored any more.
    pub(super) async fn leave(&self, generation: u64, error: &FsError) -> Result<(), FsError> {
        tracing::warn!(%error, "contents of files could not be written from here; the server does");
        let _turn = self.reaching.lock().await;
        if self.base.session.generation() != generation {
            // The server has shut that session out. The present one has another address.
            return Ok(());
        }
        *self.reached.lock() = None;
        let left = self.admit(String::new()).await;
        self.lost.notify_one();
        left
    }

    /// What this client stores itself of a batch of mutations. These are about stored bytes then.
    pub(super) async fn split_bytes(
        &self,
        batch: &mut [Mutation],
    ) -> Result<Option<Storing>, FsError> {
        let Some(reached) = self.contents() else { return Ok(None) };
        let mut runs = runs_of(&*batch);
        for (ino, runs) in &runs {
            let end = runs.iter().map(|run| run.end).max().unwrap_or_default();
            if self.base.bounds.are_short(*ino, end, self.base.now()) {
                self.extend_write_bound(*ino, end).await?;
            }
        }
        runs.retain(|ino, runs| {
            let bound = self.base.bounds.of(*ino);
            runs.iter().all(|run| run.end <= bound)
        });
        if runs.is_empty() {
            return Ok(None);
        }
        for mutation in batch.iter_mut().filter(|it| runs.contains_key(&it.kind.ino())) {
            store(&mut mutation.kind, false);
        }
        let made = batch.iter().filter_map(|mutation| mutation.kind.made()).collect();
        Ok(Some(Storing { reached, runs, made }))
    }

    async fn extend_write_bound(&self, ino: Ino, end: u64) -> Result<(), FsError> {
        let asked = (self.base.bounds.query(ino), self.base.now());
        let bound = match self.rpc.own(Request::ExtendWriteBound { ino, end }).await {
            Ok(Answer::Number(bound)) => bound,
            Ok(_) => return unexpected(),
            Err(error @ FsError::Store(_)) => return Err(error),
            // The mutations themselves say what is wrong.
            Err(_) => 0,
        };
        self.base.bounds.set(ino, bound, asked);
        Ok(())
    }
}
