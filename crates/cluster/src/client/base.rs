//! The stages that make no calls: what a client has in memory. Each has its own lock.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use thalweg_env::{Env, Time};
use thalweg_fs::{Change, FsError, Ino, Invalidation, Timestamp, Watcher};
use tokio::sync::oneshot;

use super::cache::Cache;
use super::call_numbers::CallNumbers;
use super::dirty_limit::DirtyLimit;
use super::error::LinkError;
use super::inodes::Inodes;
use super::journal_slot::JournalSlot;
use super::link::Links;
use super::listings::Listings;
use super::losses::Losses;
use super::numbers::InodeNumbers;
use super::options::Options;
use super::partial_pages::PageMemory;
use super::pending::{self, Changes, JournalSide, MountedJournal, PendingReport};
use super::queue::WritebackQueue;
use super::refusals::Refusals;
use super::replay_log::ReplayLog;
use super::room::PromisedRoom;
use super::session::Session;
use super::write_bounds::WriteBounds;
use crate::protocol::JournalMount;

pub(super) struct ClientBase {
    pub(super) env: Env,
    pub(super) options: Options,
    pub(super) session: Arc<Session>,
    pub(super) links: Links,
    pub(super) inodes: Arc<Inodes>,
    pub(super) cache: Arc<Cache>,
    pub(super) numbers: InodeNumbers,
    pub(super) room: PromisedRoom,
    pub(super) queue: Arc<WritebackQueue>,
    pub(super) journal: JournalSlot,
    pub(super) bounds: WriteBounds,
    pub(super) page_memory: Arc<PageMemory>,
    pub(super) listings: Listings,
    /// One directory at a time goes to another one. The lock is taken before those of stripes.
    pub(super) directory_moves: Mutex<()>,
    pub(super) losses: Losses,
    pub(super) refusals: Refusals,
    pub(super) replay_log: ReplayLog,
    pub(super) call_numbers: CallNumbers,
    /// The caller's cache, such as a kernel's, if it asks to be told of what it may not use any more.
    pub(super) watcher: RwLock<Option<Watcher>>,
}

impl ClientBase {
    pub(super) fn now(&self) -> Time {
        self.env.now()
    }

    /// Tells the caller's cache of changes; the invalidations that have begun.
    pub(super) fn notify_caller(
        &self,
        changes: impl IntoIterator<Item = Change>,
    ) -> Vec<Invalidation> {
        let watcher = self.watcher.read();
        let Some(watcher) = &*watcher else { return Vec::new() };
        changes.into_iter().map(watcher).collect()
    }

    /// What the caller caches of these is wrong. Nothing waits for its cache: what it may still have of these was to be used
    /// until the lease ended.
    pub(super) fn drop_from_caller(&self, inodes: Vec<Ino>) {
        let changes = inodes.into_iter().map(|ino| Change::content(self.session.ours(ino)));
        drop(self.notify_caller(changes));
    }

    /// The session has ended: it has no numbers and no room any more, and the server refuses nothing of it.
    pub(super) fn end_session(&self) {
        self.refusals.end();
        self.numbers.end_session();
        self.room.end_session();
    }

    /// Runs something that goes on by itself when its caller has gone.
    pub(super) async fn run_apart<T: Send + 'static>(
        &self,
        step: impl Future<Output = Result<T, FsError>> + Send + 'static,
    ) -> Result<T, FsError> {
        let (told, done) = oneshot::channel();
        // The caller may be gone.
        let running = async move { drop(told.send(step.await)) };
        self.env.spawn(running).detach();
        done.await.unwrap_or_else(|_| Err(LinkError::Closed.into()))
    }

    /// What is not durable at the server yet.
    pub(super) fn pending(&self) -> PendingReport {
        let queued = self.queue.report();
        let now = Timestamp::of_nanos(self.env.wall_nanos());
        let journal = self.journal.live().map(|journal| MountedJournal {
            session: journal.session,
            incarnation: match self.session.info().journal {
                Some(JournalMount::Incarnation(number)) => Some(number),
                _ => None,
            },
            room: journal.room(),
            copies: journal.copies.reports(),
            sides: self.options.mirror.iter().flat_map(JournalSide::all).collect(),
        });
        PendingReport {
            unsent: queued.unsent,
            files: self.inodes.unsent(),
            memory: self.queue.in_memory() as u64,
            oldest_ms: queued.oldest.map(|then| pending::age(then, now).as_millis() as u64),
            in_journal: if journal.is_some() { queued.journaled } else { Changes::default() },
            undurable: self.replay_log.len() as u64,
            refused: self.refusals.current().map(|error| error.to_string()),
            journal,
            journal_failed: self.journal.has_failed(),
        }
    }

    pub(super) fn new(env: &Env, options: Options) -> ClientBase {
        let (session, inodes) = (Arc::new(Session::new(env)), Arc::new(Inodes::new()));
        let limit = DirtyLimit::new((options.memory, options.background), options.recall);
        let page_memory = Arc::new(PageMemory::new(limit.page_memory()));
        let queue = Arc::new(WritebackQueue::new(inodes.clone(), limit));
        ClientBase {
            env: env.clone(),
            options,
            links: Links::new(),
            cache: Arc::new(Cache::new(inodes.clone(), session.clone())),
            bounds: WriteBounds::new(inodes.clone(), queue.clone()),
            page_memory,
            listings: Listings::default(),
            directory_moves: Mutex::default(),
            numbers: InodeNumbers::default(),
            room: PromisedRoom::default(),
            losses: Losses::default(),
            refusals: Refusals::default(),
            replay_log: ReplayLog::default(),
            call_numbers: CallNumbers::default(),
            watcher: RwLock::default(),
            session,
            inodes,
            queue,
            journal: JournalSlot::default(),
        }
    }
}
