//! Changes that may not survive a crash yet.
//!
//! No client sees such a change of another one: an answer that depends on it waits until it is durable. So the changes that
//! a crash undoes are known to their own clients alone, and each client can make its own again without regard to the
//! others. Lustre calls that commit on share.

use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_env::HashMap;
use thalweg_fs::{FsError, Ino};

use crate::protocol::Changed;

/// Something that is changed or seen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Dependency {
    /// An inode: attributes, bytes, or all names of a directory.
    Inode(Ino),
    /// A name of a directory.
    Name(Ino, bytes::Bytes),
    /// The bytes of a file, beside its inode.
    Content(Ino),
}

impl Dependency {
    /// The inode, or the directory of the name.
    pub(super) fn ino(&self) -> Ino {
        match self {
            Dependency::Inode(ino) | Dependency::Name(ino, _) | Dependency::Content(ino) => *ino,
        }
    }
}

/// A few of them.
pub(super) type Dependencies = SmallVec<[Dependency; 4]>;

/// More than one session.
const SEVERAL: u64 = u64::MAX;

/// The changes of all sessions since the last sync.
#[derive(Debug, Default)]
pub(super) struct CommitOnShare {
    state: Mutex<State>,
    /// One sync at a time.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Changes under way: the sessions that make them.
    running: HashMap<Dependency, SmallVec<[u64; 2]>>,
    /// Changes since the last sync began: the session that made them, or [`SEVERAL`].
    recent: HashMap<Dependency, u64>,
    /// Changes that the sync under way makes durable.
    syncing: HashMap<Dependency, u64>,
    /// The highest version of a change.
    committed: u64,
    /// Changes up to this version are durable.
    durable: u64,
}

impl State {
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

/// The things that a change changes.
pub(super) fn dependencies(changes: &[Changed]) -> Dependencies {
    let mut dependencies = Dependencies::new();
    for change in changes {
        let (dependency, content) = match change {
            // Nothing changes by itself.
            Changed::Delegation(_)
            | Changed::Names(_)
            | Changed::Pages(_)
            | Changed::Size { .. } => continue,
            Changed::Attributes(ino) => (Dependency::Inode(*ino), None),
            Changed::Content { ino, .. } => {
                (Dependency::Inode(*ino), Some(Dependency::Content(*ino)))
            }
            Changed::Name { parent, name } => (Dependency::Name(*parent, name.clone()), None),
        };
        for dependency in [Some(dependency), content].into_iter().flatten() {
            if !dependencies.contains(&dependency) {
                dependencies.push(dependency);
            }
        }
    }
    dependencies
}

impl CommitOnShare {
    /// A session begins to change these. [`CommitOnShare::end`] must follow.
    pub(super) fn begin(&self, by: u64, dependencies: &Dependencies) {
        let mut state = self.state.lock();
        dependencies
            .iter()
            .for_each(|dependency| state.running.entry(dependency.clone()).or_default().push(by));
    }

    /// The change has ended, and has become this version if it has committed. Whether its result depends on changes of others:
    /// a name that it changes is not concerned by other names in the directory, so success does not depend on `parents`.
    ///
    /// With `waits`, the answer comes later than the change: after a sync, or after other clients. Then it must be durable before its
    /// own client sees it by another call, too. A crash would have it made again behind later changes of that client.
    pub(super) fn end(
        &self,
        by: u64,
        dependencies: &Dependencies,
        parents: &[Ino],
        committed: Option<u64>,
        waits: bool,
    ) -> bool {
        let mut state = self.state.lock();
        let state = &mut *state;
        let commutes = |dependency: &Dependency| {
            committed.is_some()
                && matches!(dependency, Dependency::Inode(ino) if parents.contains(ino))
        };
        let depends = dependencies
            .iter()
            .any(|dependency| !commutes(dependency) && state.is_of_another(by, dependency));
        let maker = if waits || depends { SEVERAL } else { by };
        for dependency in dependencies {
            let running = state.running.get_mut(dependency);
            let running = running.expect("a change ends that has not begun");
            let own = running.iter().position(|session| *session == by);
            running
                .swap_remove(own.expect("a change is ended by another session than has begun it"));
            if running.is_empty() {
                state.running.remove(dependency);
            }
            if committed.is_some() {
                state.changed(dependency.clone(), maker);
            }
        }
        state.committed = state.committed.max(committed.unwrap_or_default());
        depends
    }

    /// Whether what a session has seen of these may not survive a crash.
    pub(super) fn depends(&self, by: u64, dependencies: &[Dependency]) -> bool {
        let state = self.state.lock();
        let is_clean =
            state.running.is_empty() && state.recent.is_empty() && state.syncing.is_empty();
        !is_clean && dependencies.iter().any(|dependency| state.is_of_another(by, dependency))
    }

    /// Changes up to this version are durable.
    pub(super) fn durable(&self) -> u64 {
        self.state.lock().durable
    }

    /// Whether something has changed since the last sync began.
    pub(super) fn is_dirty(&self) -> bool {
        !self.state.lock().recent.is_empty()
    }

    /// How many things the sessions have changed since the last sync, counted for each session; those that several have are
    /// counted for none of them, under another number.
    pub(super) fn count(&self) -> HashMap<u64, u64> {
        let state = self.state.lock();
        let mut counts = HashMap::default();
        let again = |dependency: &&Dependency| !state.syncing.contains_key(*dependency);
        let recent = state.recent.iter().filter(|(dependency, _)| again(dependency));
        let all = recent.chain(&state.syncing);
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
        self.state.lock().is_of_another(0, &Dependency::Inode(ino))
    }

    /// The same of the bytes of a file. Its client would make such a change again after a crash.
    pub(super) fn has_new_content(&self, ino: Ino) -> bool {
        self.state.lock().is_of_another(0, &Dependency::Content(ino))
    }

    /// Returns when all changes before this call are durable, which `sync` does for all that were made before it: up to
    /// which version they are, if that is news.
    pub(super) async fn sync(
        &self,
        sync: impl AsyncFnOnce() -> Result<(), FsError>,
    ) -> Result<Option<u64>, FsError> {
        let wanted = {
            let state = self.state.lock();
            // A change under way may have committed, with a version that is not known yet.
            if state.running.is_empty() { state.committed } else { u64::MAX }
        };
        let _turn = self.turn.lock().await;
        let reached = {
            let mut state = self.state.lock();
            if state.durable >= wanted {
                return Ok(None);
            }
            assert!(state.syncing.is_empty(), "two syncs at a time");
            assert!(state.durable <= state.committed, "what has not committed is durable");
            state.syncing = std::mem::take(&mut state.recent);
            state.committed
        };
        let synced = sync().await;
        let mut state = self.state.lock();
        let done = std::mem::take(&mut state.syncing);
        match synced {
            Ok(()) => {
                state.durable = state.durable.max(reached);
                Ok(Some(state.durable))
            }
            Err(error) => {
                for (dependency, by) in done {
                    state.changed(dependency, by);
                }
                Err(error)
            }
        }
    }
}
