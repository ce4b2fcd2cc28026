//! Changes that may not survive a crash yet.
//!
//! No client sees such a change of another one: an answer that depends on it waits until it is durable. So the changes that
//! a crash undoes are known to their own clients alone, and each client can make its own again without regard to the
//! others. Lustre calls that commit on share.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_env::HashMap;
use thalweg_fs::{FsError, Ino};

use super::base::Base;
use super::context::RequestContext;
use super::sessions::Sessions;
use crate::protocol::Changed;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Dependency {
    /// An inode: attributes, bytes, or all names of a directory.
    Inode(Ino),
    Name(Ino, Bytes),
    /// The bytes of a file, beside its inode.
    Content(Ino),
}

type Dependencies = SmallVec<[Dependency; 4]>;

/// More than one session.
const SEVERAL: u64 = u64::MAX;

/// A change under way: [`CommitOnShare::end`] must follow.
#[derive(Debug)]
pub(super) struct Undurable(Dependencies);

/// The changes of all sessions since the last sync.
#[derive(Debug)]
pub(super) struct CommitOnShare {
    base: Base,
    sessions: Arc<Sessions>,
    changes: Mutex<Changes>,
    /// One sync at a time.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Changes {
    /// Changes under way: the sessions that make them.
    running: HashMap<Dependency, SmallVec<[u64; 2]>>,
    /// Changes since the last sync began: the session that made them, or [`SEVERAL`].
    recent: HashMap<Dependency, u64>,
    /// Changes that the sync under way makes durable.
    syncing: HashMap<Dependency, u64>,
    committed: u64,
    durable: u64,
}

impl Changes {
    fn is_clean(&self) -> bool {
        self.running.is_empty() && self.recent.is_empty() && self.syncing.is_empty()
    }

    /// Something has changed since the last sync began: a session, or [`SEVERAL`], has made that.
    fn changed(&mut self, dependency: Dependency, maker: u64) {
        let last = self.recent.entry(dependency).or_insert(maker);
        if *last != maker {
            *last = SEVERAL;
        }
    }

    /// Whether another session has changed it, or is about to.
    fn is_of_another(&self, by: u64, dependency: &Dependency) -> bool {
        let others = |session: &u64| *session != by;
        self.running.get(dependency).is_some_and(|running| running.iter().any(others))
            || self.recent.get(dependency).is_some_and(others)
            || self.syncing.get(dependency).is_some_and(others)
    }
}

/// The things that a change changes, perhaps one of them twice.
fn dependencies(changes: &[Changed]) -> Dependencies {
    let mut dependencies = Dependencies::with_capacity(changes.len());
    for change in changes {
        match change {
            // Nothing changes by itself.
            Changed::Delegation(_)
            | Changed::Names(_)
            | Changed::Pages(_)
            | Changed::Size { .. } => {}
            Changed::Attributes(ino) => dependencies.push(Dependency::Inode(*ino)),
            Changed::Content { ino, .. } => {
                dependencies.extend([Dependency::Inode(*ino), Dependency::Content(*ino)]);
            }
            Changed::Name { parent, name } => {
                dependencies.push(Dependency::Name(*parent, name.clone()));
            }
        }
    }
    dependencies
}

impl CommitOnShare {
    pub(super) fn new(base: &Base, sessions: &Arc<Sessions>) -> CommitOnShare {
        CommitOnShare {
            base: base.clone(),
            sessions: sessions.clone(),
            changes: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// A session begins to change these. `None` if the filesystem keeps no records: then no client makes a change again.
    pub(super) fn begin(&self, by: u64, changes: &[Changed]) -> Option<Undurable> {
        self.base.files.session_table()?;
        let dependencies = dependencies(changes);
        let mut all = self.changes.lock();
        for dependency in &dependencies {
            all.running.entry(dependency.clone()).or_default().push(by);
        }
        Some(Undurable(dependencies))
    }

    /// The change of a call has ended. Its answer depends on changes of others, if it has changed something besides: a name that
    /// it changes is not concerned by other names in the directory, so success does not depend on these `parents`.
    ///
    /// The answer may come later than the change: after a sync, or after other clients. Then it must be durable before its
    /// own client sees it by another call, too. A crash would have it made again behind later changes of that client.
    pub(super) fn end(&self, ctx: &RequestContext<'_>, undurable: Undurable, parents: &[Ino]) {
        let committed = ctx.committed().map(|it| it.version);
        let (by, waits) = (ctx.session.serial, ctx.is_answered_later());
        let commutes = |dependency: &Dependency| {
            committed.is_some()
                && matches!(dependency, Dependency::Inode(ino) if parents.contains(ino))
        };
        let changes = &mut *self.changes.lock();
        let Undurable(dependencies) = undurable;
        let depends = dependencies.iter().any(|it| !commutes(it) && changes.is_of_another(by, it));
        let maker = if waits || depends { SEVERAL } else { by };
        for dependency in dependencies {
            let running = changes.running.get_mut(&dependency);
            let running = running.expect("a change ends that has not begun");
            let own = running.iter().position(|session| *session == by);
            running
                .swap_remove(own.expect("a change is ended by another session than has begun it"));
            if running.is_empty() {
                changes.running.remove(&dependency);
            }
            if committed.is_some() {
                changes.changed(dependency, maker);
            }
        }
        changes.committed = changes.committed.max(committed.unwrap_or_default());
        if depends {
            ctx.depend();
        }
    }

    fn see(&self, ctx: &RequestContext<'_>, ino: Ino, dependency: impl FnOnce() -> Dependency) {
        let depends = {
            let changes = self.changes.lock();
            !changes.is_clean() && changes.is_of_another(ctx.session.serial, &dependency())
        };
        ctx.saw(ino, depends);
    }

    pub(super) fn saw(&self, ctx: &RequestContext<'_>, inodes: impl IntoIterator<Item = Ino>) {
        inodes.into_iter().for_each(|ino| self.see(ctx, ino, || Dependency::Inode(ino)));
    }

    pub(super) fn saw_name(&self, ctx: &RequestContext<'_>, parent: Ino, name: &Bytes) {
        self.see(ctx, parent, || Dependency::Name(parent, name.clone()));
    }

    pub(super) fn durable(&self) -> u64 {
        self.changes.lock().durable
    }

    /// How many things the sessions have changed since the last sync, counted for each session; those that several have are
    /// counted for none of them, under another number.
    pub(super) fn count(&self) -> HashMap<u64, u64> {
        let changes = self.changes.lock();
        let mut counts = HashMap::default();
        let again = |dependency: &&Dependency| !changes.syncing.contains_key(*dependency);
        let recent = changes.recent.iter().filter(|(dependency, _)| again(dependency));
        let all = recent.chain(&changes.syncing);
        for (_, session) in
            all.filter(|(dependency, _)| !matches!(dependency, Dependency::Content(_)))
        {
            *counts.entry(*session).or_default() += 1;
        }
        counts
    }

    /// Whether an inode has changed, or is about to.
    pub(super) fn has_changed(&self, ino: Ino) -> bool {
        // No session has this number.
        self.changes.lock().is_of_another(0, &Dependency::Inode(ino))
    }

    /// The same of the bytes of a file. Its client would make such a change again after a crash.
    pub(super) fn has_new_content(&self, ino: Ino) -> bool {
        self.changes.lock().is_of_another(0, &Dependency::Content(ino))
    }

    /// Returns when all changes before this call are durable. The clients that have to know are told.
    pub(super) async fn make_durable(&self) -> Result<(), FsError> {
        if let Some(version) = self.sync().await? {
            self.sessions.all().iter().for_each(|session| session.notify_durable(version));
        }
        Ok(())
    }

    /// Makes changes durable before long, for ever.
    pub(super) async fn run(&self) {
        loop {
            self.base.env.sleep(self.base.options.commit).await;
            let is_dirty = !self.changes.lock().recent.is_empty();
            if is_dirty && let Err(error) = self.make_durable().await {
                tracing::error!(%error, "changes of clients could not be made durable");
            }
        }
    }

    /// Returns when all changes before this call are durable: up to which version they are, if that is news.
    async fn sync(&self) -> Result<Option<u64>, FsError> {
        let wanted = {
            let changes = self.changes.lock();
            // A change under way may have committed, with a version that is not known yet.
            if changes.running.is_empty() { changes.committed } else { u64::MAX }
        };
        let _turn = self.turn.lock().await;
        let reached = {
            let mut changes = self.changes.lock();
            if changes.durable >= wanted {
                return Ok(None);
            }
            assert!(changes.syncing.is_empty(), "two syncs at a time");
            assert!(changes.durable <= changes.committed, "what has not committed is durable");
            changes.syncing = std::mem::take(&mut changes.recent);
            changes.committed
        };
        let synced = self.base.files.sync_all().await;
        let mut changes = self.changes.lock();
        let done = std::mem::take(&mut changes.syncing);
        if let Err(error) = synced {
            done.into_iter().for_each(|(dependency, by)| changes.changed(dependency, by));
            return Err(error);
        }
        assert!(reached >= changes.durable, "what was durable is so no more");
        changes.durable = reached;
        Ok(Some(changes.durable))
    }
}
