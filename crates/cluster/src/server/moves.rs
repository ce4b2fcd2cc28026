//! What is moved out of the directory that a client sees as its root.
//!
//! A client names inodes, and the server remembers which ones it was told of: no call asks where an inode lies. So a rename
//! that takes something out of a client's root *revokes* it first: the client does not know the inode any more, nor those below
//! it, drops what it caches of them, and its open files of them are closed. A record of that makes worthless what the client
//! would show the next server as proof. A client whose root itself is moved, or a directory above it, loses its session.
//!
//! Only a rename that crosses the root of a client that does not see everything takes the time for that, which is in
//! proportion to the entries below what is moved.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use thalweg_env::{HashMap, HashSet};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{Cookie, Entry, FsError, Ino, Kind, Rename};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::base::Base;
use super::commit_on_share::CommitOnShare;
use super::context::RequestContext;
use super::grace_period::GracePeriod;
use super::recall::Recall;
use super::session::Session;
use super::sessions::{Ending, Sessions};
use crate::protocol::{Changed, MAX_ENTRIES};

/// Entries that are looked at for another name of a file with several names, one of which leaves a client's root. A file whose
/// other name is not found among these is revoked: the client can look it up again.
const MAX_SEARCHED: usize = 1 << 16;
/// Most changes in one invalidation.
const MAX_CHANGES: usize = 1024;

/// The renames that may cross the roots of clients.
#[derive(Debug)]
pub(super) struct Moves {
    base: Base,
    sessions: Arc<Sessions>,
    recall: Arc<Recall>,
    commit_on_share: Arc<CommitOnShare>,
    grace_period: Arc<GracePeriod>,
    /// Keeps renames between directories away while one of them crosses a client's root.
    crossing: RwLock<()>,
}

/// A rename, as far as it matters to clients that do not see everything.
#[derive(Debug, Default)]
pub(super) struct Move<'a> {
    _steady: Option<RwLockReadGuard<'a, ()>>,
    _alone: Option<RwLockWriteGuard<'a, ()>>,
    /// The clients that could lose sight of something.
    confined: Vec<Arc<Session>>,
    /// Those that lose sight of the first inode of the rename, and of the second one.
    leaves: [Vec<Arc<Session>>; 2],
}

#[derive(Debug)]
struct Revoked {
    session: Arc<Session>,
    /// The inode that is moved.
    top: Ino,
    /// The inodes, and the stamps of the last answers that named them.
    inodes: Vec<(Ino, u64)>,
}

impl Moves {
    pub(super) fn new(
        base: &Base,
        sessions: &Arc<Sessions>,
        recall: &Arc<Recall>,
        commit_on_share: &Arc<CommitOnShare>,
        grace_period: &Arc<GracePeriod>,
    ) -> Moves {
        Moves {
            base: base.clone(),
            sessions: sessions.clone(),
            recall: recall.clone(),
            commit_on_share: commit_on_share.clone(),
            grace_period: grace_period.clone(),
            crossing: RwLock::default(),
        }
    }

    /// The sessions whose roots are below that of a client. Nothing that it renames leaves the root of another one.
    fn confined(&self, by: &Session) -> Vec<Arc<Session>> {
        self.sessions.matching(|it| it.root != by.root && it.path.contains(&by.root))
    }

    async fn above(&self, directory: Ino) -> Result<Vec<Ino>, FsError> {
        let mut above = vec![directory];
        let mut at = directory;
        while at != Ino::ROOT {
            at = self.base.files.parent(at).await?;
            above.push(at);
        }
        Ok(above)
    }

    pub(super) async fn begin(
        &self,
        ctx: &RequestContext<'_>,
        [from, to]: [Ino; 2],
        how: Rename,
    ) -> Result<Move<'_>, FsError> {
        let mut moving = Move { confined: self.confined(ctx.session), ..Move::default() };
        if from == to {
            return Ok(moving);
        }
        // Also when it crosses no root itself: it could carry something behind the walk of a rename that does.
        moving._steady = Some(self.crossing.read().await);
        if moving.confined.is_empty() {
            return Ok(moving);
        }
        self.find_leaving(&mut moving, [from, to], how).await?;
        if moving.leaves.iter().any(|leaves| !leaves.is_empty()) {
            moving._steady = None;
            moving._alone = Some(self.crossing.write().await);
            self.find_leaving(&mut moving, [from, to], how).await?;
        }
        Ok(moving)
    }

    async fn find_leaving(
        &self,
        moving: &mut Move<'_>,
        [from, to]: [Ino; 2],
        how: Rename,
    ) -> Result<(), FsError> {
        let (from, to) = (self.above(from).await?, self.above(to).await?);
        let leaves = |one: &[Ino], other: &[Ino]| {
            let confined = moving.confined.iter();
            let leaves = confined.filter(|it| one.contains(&it.root) && !other.contains(&it.root));
            leaves.cloned().collect::<Vec<_>>()
        };
        let back = if how == Rename::Exchange { leaves(&to, &from) } else { Vec::new() };
        moving.leaves = [leaves(&from, &to), back];
        Ok(())
    }

    /// Makes a rename of these inodes, of which the first one is moved, and the second one if they are exchanged. An inode
    /// that leaves a client's root is revoked before.
    pub(super) async fn carry_out(
        &self,
        ctx: &RequestContext<'_>,
        moving: Move<'_>,
        targets: [Option<Ino>; 2],
        rename: impl AsyncFnOnce() -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let mut revoked = Vec::new();
        let renamed = async {
            // What is made again was revoked the first time, and the record of that has survived.
            if !ctx.is_replay() {
                for (leaves, target) in moving.leaves.iter().zip(targets) {
                    if let Some(target) = target.filter(|_| !leaves.is_empty()) {
                        self.revoke(ctx, leaves, target, &mut revoked).await?;
                    }
                }
            }
            rename().await
        };
        if let Err(error) = renamed.await {
            for it in revoked {
                it.session.restore(&it.inodes);
                it.end(false);
            }
            return Err(error);
        }
        // A call that has found the top in its old place began before, and tells nothing of it.
        revoked.iter().for_each(|it| it.end(true));
        self.close_revoked(revoked).await;
        self.root_is_moved(ctx, targets);
        Ok(())
    }

    /// A directory was removed: clients that see it as their root have none.
    pub(super) fn root_is_gone(&self, ctx: &RequestContext<'_>, directory: Ino) {
        let gone = self.confined(ctx.session).into_iter().filter(|it| it.root == directory);
        gone.for_each(|session| self.end_moved(&session, "its directory was removed"));
    }

    /// Refuses mutations that move an inode between directories of which a client was told that does not see everything: no owner of
    /// directories moves such a one without a call, which finds what leaves the root of that client.
    pub(super) fn check_mutations(
        &self,
        ctx: &RequestContext<'_>,
        mutations: &[Mutation],
    ) -> Result<(), FsError> {
        let moved = mutations.iter().filter_map(|mutation| match &mutation.kind {
            MutationKind::Rename { from, to, how, ino, there } if from.0 != to.0 => {
                Some([Some(*ino), there.filter(|_| *how == Rename::Exchange)])
            }
            _ => None,
        });
        let moved: Vec<Ino> = moved.flatten().flatten().collect();
        let is_known = |it: &Arc<Session>| moved.iter().any(|ino| it.knows(*ino).is_ok());
        if !moved.is_empty() && self.confined(ctx.session).iter().any(is_known) {
            return Err(FsError::Invalid("another client was told of what moves"));
        }
        Ok(())
    }

    /// Inodes have other names: clients that see one as their root, or what is below it, lose that.
    pub(super) fn root_is_moved(&self, ctx: &RequestContext<'_>, moved: [Option<Ino>; 2]) {
        for session in self.confined(ctx.session) {
            if moved.iter().flatten().any(|ino| session.path.contains(ino)) {
                self.end_moved(&session, "its directory was moved");
            }
        }
    }

    fn end_moved(&self, session: &Arc<Session>, why: &'static str) {
        self.sessions.end(session, Ending::Evicted(why));
        self.grace_period.is_gone(session.serial);
    }

    async fn revoke(
        &self,
        ctx: &RequestContext<'_>,
        sessions: &[Arc<Session>],
        top: Ino,
        revoked: &mut Vec<Revoked>,
    ) -> Result<(), FsError> {
        // No later call would ask where the changes of a journal lie that has lapsed.
        for session in sessions.iter().filter(|it| it.journal.has_lapsed()) {
            self.sessions.left(session.serial).await;
            let why = "something of it was moved out of its client's directory";
            self.sessions.end(session, Ending::Forgotten(why));
            self.sessions.left(session.serial).await;
        }
        // What these clients have made there by themselves is to be here first.
        let owned =
            sessions.iter().map(|it| (it.serial, self.base.capabilities.recalls_from(it.serial)));
        let owned = owned.filter(|(_, owned)| !owned.is_empty()).collect();
        self.recall.invalidate(ctx, owned).await;
        let first = revoked.len();
        revoked.extend(sessions.iter().map(|session| Revoked::begin(session, top)));
        let revoked = &mut revoked[first..];
        let found = self.revoke_below(top, revoked).await?;
        self.revoke_files(top, &found, revoked).await?;
        for Revoked { session, inodes, .. } in revoked.iter() {
            // Changes of these that have passed the check.
            session.changes_ended().await;
            self.drop_revoked(ctx, session.serial, inodes).await;
            if let Some(table) = self.base.files.session_table().filter(|_| !inodes.is_empty()) {
                let generations = inodes.iter().map(|(ino, _)| (*ino, session.generation(*ino)));
                let records: Vec<(Ino, u64)> = generations.collect();
                table.revoke(session.serial, &records).await?;
            }
        }
        // Its clients would make their changes of these again, and could not.
        self.commit_on_share.make_durable().await
    }

    /// Revokes the directories, from the top on: the sessions are told of no inode below one that was revoked. The other inodes, and how
    /// many names each has there.
    async fn revoke_below(
        &self,
        top: Ino,
        revoked: &mut [Revoked],
    ) -> Result<HashMap<Ino, u32>, FsError> {
        if self.base.files.attributes(top).await?.attributes.kind != Kind::Directory {
            return Ok(HashMap::from_iter([(top, 1)]));
        }
        let mut files: HashMap<Ino, u32> = HashMap::default();
        revoked.iter_mut().for_each(|it| it.add(top));
        self.walk(top, None, |entry| {
            if entry.kind == Kind::Directory {
                revoked.iter_mut().for_each(|it| it.add(entry.ino));
            } else {
                *files.entry(entry.ino).or_default() += 1;
            }
            ControlFlow::Continue(())
        })
        .await?;
        Ok(files)
    }

    /// Visits the entries below a directory, without those of the inode `except`, until `visit` wants no more. A directory is visited
    /// before what is in it.
    async fn walk(
        &self,
        top: Ino,
        except: Option<Ino>,
        mut visit: impl FnMut(&Entry) -> ControlFlow<()>,
    ) -> Result<(), FsError> {
        let mut directories = VecDeque::from([(top, Cookie::START)]);
        while let Some((directory, from)) = directories.pop_front() {
            let files = &self.base.files;
            let entries = files.read_directory(directory, from, MAX_ENTRIES, false).await?;
            let Some(last) = entries.last() else { continue };
            directories.push_front((directory, last.cookie));
            for entry in entries.iter().filter(|entry| Some(entry.ino) != except) {
                if visit(entry).is_break() {
                    return Ok(());
                }
                if entry.kind == Kind::Directory {
                    directories.push_back((entry.ino, Cookie::START));
                }
            }
        }
        Ok(())
    }

    /// Revokes files that have no other name below the session's root.
    async fn revoke_files(
        &self,
        top: Ino,
        found: &HashMap<Ino, u32>,
        revoked: &mut [Revoked],
    ) -> Result<(), FsError> {
        for it in revoked {
            let known = |ino: &Ino| it.session.knows(*ino).is_ok();
            let mut named = HashSet::default();
            for (ino, names) in found.iter().filter(|(ino, _)| known(ino)) {
                if self.base.files.attributes(*ino).await?.attributes.links > *names {
                    named.insert(*ino);
                }
            }
            if !named.is_empty() {
                let stays = self.named_below(it.session.root, top, &named).await?;
                named.retain(|ino| stays.contains(ino));
            }
            if named.contains(&top) {
                // The client may be told of it by the other name.
                it.end(false);
            }
            let mut leaves: Vec<Ino> = found.keys().copied().collect();
            leaves.sort_unstable();
            leaves.into_iter().filter(|ino| !named.contains(ino)).for_each(|ino| it.add(ino));
        }
        Ok(())
    }

    /// The ones of these files that have a name below a directory, and not below another one.
    async fn named_below(
        &self,
        directory: Ino,
        except: Ino,
        wanted: &HashSet<Ino>,
    ) -> Result<HashSet<Ino>, FsError> {
        let (mut named, mut searched) = (HashSet::default(), 0);
        self.walk(directory, Some(except), |entry| {
            searched += 1;
            if entry.kind != Kind::Directory && wanted.contains(&entry.ino) {
                named.insert(entry.ino);
            }
            if named.len() == wanted.len() || searched >= MAX_SEARCHED {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })
        .await?;
        Ok(named)
    }

    /// A client drops what it caches of revoked inodes.
    async fn drop_revoked(&self, ctx: &RequestContext<'_>, serial: u64, inodes: &[(Ino, u64)]) {
        let mut changes = Vec::new();
        for (ino, _) in inodes {
            let holders = self.base.capabilities.holders(*ino);
            if holders.iter().any(|(holder, ..)| *holder == serial) {
                let all =
                    [Changed::Delegation, Changed::Attributes, Changed::Names, Changed::Pages];
                changes.extend(all.map(|change| change(*ino)));
            }
        }
        for some in changes.chunks(MAX_CHANGES) {
            self.recall.invalidate(ctx, vec![(serial, some.to_vec())]).await;
        }
    }

    /// The rename is made: what was open of revoked inodes is closed.
    async fn close_revoked(&self, revoked: Vec<Revoked>) {
        for Revoked { session, inodes, .. } in revoked {
            let gone: HashSet<Ino> = inodes.iter().map(|(ino, _)| *ino).collect();
            for file in session.handles.close_all(&gone) {
                self.base.open_files.close(session.serial, file).await;
            }
            for ino in gone {
                {
                    // With the session locked: it may have been told of another name, and granted something with that.
                    let state = session.lock();
                    if !state.known.has(ino) {
                        self.base.capabilities.forget(session.serial, ino);
                    }
                }
                self.base.files.unreference(ino, 1);
            }
        }
    }
}

impl Revoked {
    /// Nothing yet. The client is not told of the top from here on, and so of nothing below it that it has lost.
    fn begin(session: &Arc<Session>, top: Ino) -> Revoked {
        session.lock().known.begin_move(top);
        Revoked { session: session.clone(), top, inodes: Vec::new() }
    }

    /// The top is where it was, or out of the client's root.
    fn end(&self, has_left: bool) {
        self.session.lock().known.end_move(self.top, has_left);
    }

    fn add(&mut self, ino: Ino) {
        let revoked = self.session.revoke(ino);
        self.inodes.extend(revoked.map(|stamp| (ino, stamp)));
    }
}
