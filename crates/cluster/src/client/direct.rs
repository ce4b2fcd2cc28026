//! Contents of files that this client reads and writes itself, where the server keeps them elsewhere.
//!
//! Before it writes, the server has its address at the store on record, and shuts that out before anything that was this
//! client's alone is another one's. Mutations follow the bytes that they are about. Bytes that cannot be stored here go to the
//! server with their mutations.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use thalweg_env::HashSet;
use thalweg_fs::mutation::runs::{Run, Runs, runs_of};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{Contents, ContentsFinder, FsError, Ino};

use super::{LinkError, Shared};
use crate::protocol::{Answer, Request};

/// Files that are written concurrently, at most.
const FILES_AT_ONCE: usize = 64;
/// The pause before the contents are looked for again after a failure, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Contents that this client reaches.
#[derive(Clone, Debug)]
pub(super) struct Direct {
    pub(super) contents: Arc<dyn Contents>,
    location: Bytes,
    /// Of the session that the server has the address of.
    pub(super) generation: u64,
}

/// The bytes of a batch that this client stores itself.
#[derive(Debug)]
pub(super) struct Storing {
    contents: Arc<dyn Contents>,
    /// Of the session.
    pub(super) generation: u64,
    runs: Runs,
    made: HashSet<Ino>,
}

impl Storing {
    /// Stores the bytes.
    pub(super) async fn store(self) -> Result<(), FsError> {
        let Storing { contents, runs, made, .. } = self;
        let (contents, made) = (&*contents, &made);
        let files = runs.into_iter().map(|(ino, runs)| async move {
            for (number, Run { offset, data, .. }) in runs.into_iter().enumerate() {
                match number == 0 && made.contains(&ino) {
                    true => contents.write_first(ino, offset, &data).await?,
                    false => contents.write(ino, offset, &data).await?,
                }
            }
            Ok(())
        });
        stream::iter(files).buffer_unordered(FILES_AT_ONCE).try_collect().await
    }
}

impl Shared {
    /// The contents, if this client reaches them now.
    pub(super) fn contents(&self) -> Option<Direct> {
        let direct = self.direct.lock().clone()?;
        let session = self.session.lock();
        let is_valid =
            direct.generation == session.generation && direct.location == session.contents;
        is_valid.then_some(direct)
    }

    /// Looks for the contents whenever the server says where they are.
    pub(super) async fn keep_contents(self: &Arc<Self>) {
        let Some(finder) = self.options.contents.clone() else { return };
        let (mut pause, mut has_warned) = (PAUSES.0, false);
        let mut links = self.link.subscribe();
        loop {
            drop(links.borrow_and_update());
            if self.is_closed() {
                return;
            }
            match self.find_contents(&*finder).await {
                Ok(()) => {
                    has_warned = false;
                    let found = self.env.now();
                    tokio::select! {
                        biased;
                        () = self.lost_contents.notified() => {
                            // Each time the server has an address refused, which must not happen with every batch.
                            let is_rare = self.env.now().since(found) > PAUSES.1;
                            pause = if is_rare { PAUSES.0 } else { pause };
                            self.env.sleep(pause).await;
                            pause = (2 * pause).min(PAUSES.1);
                        }
                        changed = links.changed() => if changed.is_err() { return },
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut has_warned, true) {
                        tracing::warn!(
                            %error,
                            "the contents of files are not reachable from here; the server reads and writes them"
                        );
                    }
                    self.env.sleep(pause).await;
                    pause = (2 * pause).min(PAUSES.1);
                }
            }
        }
    }

    async fn find_contents(self: &Arc<Self>, finder: &dyn ContentsFinder) -> Result<(), FsError> {
        let _turn = self.reaching.lock().await;
        let (location, generation) = {
            let session = self.session.lock();
            (session.contents.clone(), session.generation)
        };
        if location.is_empty() || self.contents().is_some() {
            return Ok(());
        }
        let before = self.direct.lock().take();
        // Another server of the same session lets the same address in.
        let is_fresh = before.is_none_or(|before| before.generation != generation);
        let contents = finder.find(&location, is_fresh).await?;
        let address = contents.address().await?;
        self.admit(address).await?;
        *self.direct.lock() = Some(Direct { contents, location, generation });
        tracing::info!("this client reads and writes contents of files itself");
        Ok(())
    }

    async fn admit(self: &Arc<Self>, address: String) -> Result<(), FsError> {
        let call = (Request::ReachContents { address }, Vec::new());
        self.call_in((None, None), [].into(), call, |_, _, _| {}).await.map(|_| ())
    }

    /// Something could not be stored in a session. Returns when nothing that is under way can be stored any more.
    pub(super) async fn leave_contents(
        self: &Arc<Self>,
        generation: u64,
        error: &FsError,
    ) -> Result<(), FsError> {
        tracing::warn!(%error, "contents of files could not be written from here; the server does");
        let _turn = self.reaching.lock().await;
        if self.session.lock().generation != generation {
            // The server has shut that session out. The present one has another address.
            return Ok(());
        }
        *self.direct.lock() = None;
        let left = self.admit(String::new()).await;
        self.lost_contents.notify_one();
        left
    }

    /// What this client stores itself of a batch of mutations. These are about stored bytes then.
    pub(super) async fn split_bytes(
        self: &Arc<Self>,
        batch: &mut [Mutation],
    ) -> Result<Option<Storing>, FsError> {
        let Some(Direct { contents, generation, .. }) = self.contents() else { return Ok(None) };
        let mut runs = runs_of(&*batch);
        for (ino, runs) in &runs {
            let end = runs.iter().map(|run| run.end).max().unwrap_or_default();
            if self.cache.lock().wants_write_bound(*ino, end, self.env.now()) {
                self.extend_write_bound(*ino, end).await?;
            }
        }
        {
            let cache = self.cache.lock();
            runs.retain(|ino, runs| runs.iter().all(|run| run.end <= cache.write_bound(*ino)));
        }
        if runs.is_empty() {
            return Ok(None);
        }
        for mutation in batch.iter_mut() {
            let MutationKind::Write { ino, offset, data, clear_suid } = &mutation.kind else {
                continue;
            };
            if runs.contains_key(ino) {
                let (ino, offset, len) = (*ino, *offset, data.len() as u64);
                let clear_suid = *clear_suid;
                mutation.kind =
                    MutationKind::Stored { ino, offset, len, clear_suid, by_size_record: false };
            }
        }
        let made = batch.iter().filter_map(|mutation| mutation.kind.made()).collect();
        Ok(Some(Storing { contents, generation, runs, made }))
    }

    async fn extend_write_bound(self: &Arc<Self>, ino: Ino, end: u64) -> Result<(), FsError> {
        let call = (Request::ExtendWriteBound { ino, end }, Vec::new());
        let asked = (self.cache.lock().query_write_bound(ino), self.env.now());
        match self.call_in((None, None), [].into(), call, |_, _, _| {}).await {
            Ok((reply, _)) => match reply.answer {
                Answer::Number(write_bound) => {
                    self.cache.lock().set_write_bound(ino, write_bound, asked)
                }
                _ => return Err(LinkError::Unexpected.into()),
            },
            Err(error @ FsError::Store(_)) => return Err(error),
            // The mutations themselves say what is wrong.
            Err(_) => self.cache.lock().set_write_bound(ino, 0, asked),
        }
        Ok(())
    }

    /// Reads bytes of a file past the server, if its attributes are known before and after that: nothing of the file has
    /// changed in between.
    pub(super) async fn read_directly(
        self: &Arc<Self>,
        ino: Ino,
        offset: u64,
        len: usize,
    ) -> Option<Vec<Bytes>> {
        let Direct { contents, .. } = self.contents().filter(|_| len > 0)?;
        if self.cache.lock().is_unsent(ino) {
            self.send_mutations(true).await.ok()?;
        }
        let now = self.env.wall_nanos();
        let before = self.cache.lock().before_read(ino, self.env.now(), now)?;
        let end = offset.saturating_add(len as u64).min(before.size);
        if offset >= end {
            return Some(Vec::new());
        }
        assert!(end - offset <= len as u64, "more is read than was asked for");
        let read = contents.read(ino, offset, (end - offset) as usize).await;
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::debug!(%error, "contents of a file could not be read from here");
                return None;
            }
        };
        let is_same = self.cache.lock().steady(ino, self.env.now()) == Some(before);
        is_same.then(|| vec![bytes])
    }
}
