//! Names that are removed and renamed without the server, and further names of files.
//!
//! The directories and the inodes behind the names have to be this client's alone, so that nothing about them is unknown. The
//! server alone refuses a change, unless its name is known to be absent.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::MutexGuard;
use thalweg_env::Time;
use thalweg_fs::filesystem::MAX_LINKS;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{Attributes, FsError, Ino, Kind, Rename, Timestamp};

use super::base::ClientBase;
use super::cached::NewName;
use super::delegated::Grant;
use super::delegation::{Local, is_name};
use super::inodes::LockedStripes;
use super::record::{Record, room_of};
use super::room::Charge;

/// A directory and a name in it.
pub(super) type DirectoryName<'a> = (Ino, &'a [u8]);

/// What is known of a name of a directory that is this client's alone.
struct OwnName {
    directory: Attributes,
    grant: Arc<Grant>,
    target: Option<Ino>,
}

/// What a rename does.
struct Renaming<'a> {
    from: DirectoryName<'a>,
    to: DirectoryName<'a>,
    how: Rename,
    ino: Ino,
    there: Option<Ino>,
}

/// The attributes of what a rename is about, as they are and then as they become.
struct Renamed {
    from: Attributes,
    /// Unless both names are in one directory.
    to: Option<Attributes>,
    moved: Attributes,
    there: Option<Attributes>,
}

impl Renamed {
    fn come_about(&mut self, how: Rename, time: Timestamp) {
        let (kind, other) = (self.moved.kind, self.there.map(|there| there.kind));
        let (replaced, exchanged) = match how {
            Rename::Exchange => (None, other),
            Rename::Replace | Rename::NoReplace => (other, None),
        };
        match &mut self.to {
            None => self.from.changed_names(None, replaced, time),
            Some(to) => {
                self.from.changed_names(exchanged, Some(kind), time);
                to.changed_names(Some(kind), other, time);
            }
        }
        self.moved.moved(time);
        if let Some(there) = &mut self.there {
            if exchanged.is_some() { there.moved(time) } else { there.lost_name(time) }
        }
    }
}

/// An inode has other attributes, by a mutation that is about to be appended.
fn set_changed(stripes: &mut LockedStripes<'_>, ino: Ino, attributes: Attributes) {
    let node = stripes.node(ino).expect("it was looked at");
    node.cached.set_attributes(attributes);
    node.cached.is_removed |= attributes.links == 0;
    node.delegation.changed();
}

fn set_name(stripes: &mut LockedStripes<'_>, (parent, name): DirectoryName<'_>, now: NewName) {
    let node = stripes.node(parent).expect("it was looked at");
    if let Some(names) = node.cached.names.as_mut() {
        names.set(name, now);
    }
}

impl Renaming<'_> {
    /// The names and inodes are changed, by a mutation that is about to be appended. These are the grants of the directories.
    fn set(&self, stripes: &mut LockedStripes<'_>, renamed: &Renamed, grants: [Arc<Grant>; 2]) {
        let Renaming { from, to, how, ino, there } = *self;
        let exchanged = there.filter(|_| how == Rename::Exchange);
        set_name(stripes, from, exchanged.map_or(NewName::Absent, NewName::Present));
        set_name(stripes, to, NewName::Present(ino));
        set_changed(stripes, from.0, renamed.from);
        renamed.to.inspect(|it| set_changed(stripes, to.0, *it));
        set_changed(stripes, ino, renamed.moved);
        if let (Some(there), Some(it)) = (there, renamed.there) {
            set_changed(stripes, there, it);
        }
        if from.0 == to.0 {
            return;
        }
        // A recall of the directory that it is in now finds it.
        let [old, new] = grants;
        for (ino, directory, grant) in [(Some(ino), to.0, new), (exchanged, from.0, old)] {
            let Some(ino) = ino else { continue };
            let node = stripes.node(ino).expect("it was looked at");
            node.delegation.move_to(directory, grant);
        }
    }
}

impl ClientBase {
    /// What is known of a name; `None` unless this client may change the directory by itself.
    fn own_name(
        &self,
        stripes: &mut LockedStripes<'_>,
        (parent, name): DirectoryName<'_>,
        now: Time,
    ) -> Option<OwnName> {
        let squash = stripes.of(parent).rules.squash;
        let node = stripes.node(parent)?;
        let directory = self.changeable(node, squash, now)?;
        let is_possible = directory.kind == Kind::Directory && directory.links > 0;
        let grant = node.delegation.grant().filter(|_| is_possible)?.clone();
        let target = match node.cached.names.as_ref()?.known(name)? {
            NewName::Present(ino) => Some(ino),
            NewName::Absent => None,
        };
        Some(OwnName { directory, grant, target })
    }

    /// The attributes of an inode that is this client's alone.
    fn own_inode(
        &self,
        stripes: &mut LockedStripes<'_>,
        ino: Ino,
        now: Time,
    ) -> Option<Attributes> {
        let squash = stripes.of(ino).rules.squash;
        self.changeable(stripes.node(ino)?, squash, now).filter(|it| it.links > 0)
    }

    /// Removes a name, if that is possible without the server.
    pub(super) fn unlink_delegated(
        &self,
        (parent, name): DirectoryName<'_>,
        is_directory: bool,
    ) -> Local<Result<(), FsError>> {
        match self.try_unlink((parent, name), is_directory) {
            Some(done) => Local::Made(done),
            None => Local::NeedsCall,
        }
    }

    fn try_unlink(
        &self,
        (parent, name): DirectoryName<'_>,
        is_directory: bool,
    ) -> Option<Result<(), FsError>> {
        if !is_name(name) {
            return None;
        }
        let (now, time) = self.session.clocks();
        let Some(ino) = self.cache.target(parent, name) else {
            let found = self.own_name(&mut self.inodes.lock_all([parent]), (parent, name), now)?;
            return found.target.is_none().then_some(Err(FsError::NotFound));
        };
        let name_of = Bytes::copy_from_slice(name);
        let kind = if is_directory {
            MutationKind::RemoveDirectory { parent, name: name_of, ino }
        } else {
            MutationKind::Unlink { parent, name: name_of, ino }
        };
        let record = Record::small(&Mutation { time, kind });
        let mut stripes = self.inodes.lock_all([parent, ino]);
        let OwnName { mut directory, grant, target } =
            self.own_name(&mut stripes, (parent, name), now)?;
        // Another thread may have changed the name meanwhile.
        target.filter(|target| *target == ino)?;
        let mut removed = self.own_inode(&mut stripes, ino, now)?;
        let is_possible = (removed.kind == Kind::Directory) == is_directory
            && (!is_directory || removed.size == 0)
            && ino != parent;
        if !is_possible {
            return None;
        }
        directory.changed_names(None, Some(removed.kind), time);
        removed.lost_name(time);
        set_name(&mut stripes, (parent, name), NewName::Absent);
        set_changed(&mut stripes, parent, directory);
        set_changed(&mut stripes, ino, removed);
        self.queue.frees(self.queue.append(stripes.of(parent), record, grant.quota, now));
        Some(Ok(()))
    }

    /// Renames, if that is possible without the server.
    pub(super) fn rename_delegated(
        &self,
        from: DirectoryName<'_>,
        to: DirectoryName<'_>,
        how: Rename,
    ) -> Local<Result<(), FsError>> {
        let [ino, there] = [from, to].map(|(parent, name)| self.cache.target(parent, name));
        match ino.filter(|_| is_name(from.1) && is_name(to.1)) {
            Some(ino) => self.try_rename(&Renaming { from, to, how, ino, there }),
            None => None,
        }
        .unwrap_or(Local::NeedsCall)
    }

    fn try_rename(&self, renaming: &Renaming<'_>) -> Option<Local<Result<(), FsError>>> {
        let Renaming { from, to, how, ino, there } = *renaming;
        let (now, time) = self.session.clocks();
        let owned = |(parent, name): DirectoryName<'_>| (parent, Bytes::copy_from_slice(name));
        let kind = MutationKind::Rename { from: owned(from), to: owned(to), how, ino, there };
        let room = room_of(&kind, 0);
        let record = Record::small(&Mutation { time, kind });
        let _alone = self.begin_move(renaming)?;
        let exchanged = there.filter(|_| how == Rename::Exchange);
        let inodes = [Some(from.0), Some(to.0), Some(ino), there];
        let mut stripes = self.inodes.lock_all(inodes.into_iter().flatten());
        let one = self.own_name(&mut stripes, from, now)?;
        let other = self.own_name(&mut stripes, to, now)?;
        // Another thread may have changed the names meanwhile.
        if (one.target, other.target) != (Some(ino), there) {
            return None;
        }
        let is_possible = match how {
            Rename::Replace => true,
            Rename::NoReplace => there.is_none(),
            Rename::Exchange => there.is_some(),
        };
        if !is_possible || [from.0, to.0].contains(&ino) {
            return None;
        }
        let moved = self.own_inode(&mut stripes, ino, now)?;
        if there == Some(ino) {
            // Of two names of one inode none is lost.
            return Some(Local::Made(Ok(())));
        }
        let there_is = match there {
            Some(there) => Some(self.own_inode(&mut stripes, there, now)?),
            None => None,
        };
        if let (Rename::Replace, Some(there)) = (how, &there_is) {
            let is_directory = moved.kind == Kind::Directory;
            if (there.kind == Kind::Directory) != is_directory || is_directory && there.size > 0 {
                return None;
            }
        }
        if from.0 != to.0 {
            self.check_move(&mut stripes, (ino, &moved), (&one, &other))?;
            if let (Rename::Exchange, Some(there), Some(is)) = (how, there, &there_is) {
                self.check_move(&mut stripes, (there, is), (&other, &one))?;
            }
        }
        let charge = Charge { quota: other.grant.quota, room };
        // Under the locks: when room is recalled, what was taken before has its number behind a barrier.
        if !self.room.charge(charge) {
            return Some(Local::NoRoom(charge.quota));
        }
        let to_directory = (from.0 != to.0).then_some(other.directory);
        let mut renamed = Renamed { from: one.directory, to: to_directory, moved, there: there_is };
        renamed.come_about(how, time);
        renaming.set(&mut stripes, &renamed, [one.grant, other.grant]);
        let mutation = self.queue.append(stripes.of(from.0), record, charge.quota, now);
        if there.is_some() && exchanged.is_none() {
            self.queue.frees(mutation);
        }
        Some(Local::Made(Ok(())))
    }

    /// Gives a file another name, if that is possible without the server. A recall of one of the directories takes back the other one
    /// with the file.
    pub(super) fn link_delegated(
        &self,
        ino: Ino,
        (parent, name): DirectoryName<'_>,
    ) -> Local<Attributes> {
        self.try_link(ino, (parent, name)).unwrap_or(Local::NeedsCall)
    }

    fn try_link(&self, ino: Ino, (parent, name): DirectoryName<'_>) -> Option<Local<Attributes>> {
        if !is_name(name) {
            return None;
        }
        let (now, time) = self.session.clocks();
        let kind = MutationKind::Link { parent, name: Bytes::copy_from_slice(name), ino };
        let room = room_of(&kind, 0);
        let record = Record::small(&Mutation { time, kind });
        let mut stripes = self.inodes.lock_all([parent, ino]);
        let OwnName { mut directory, grant, target } =
            self.own_name(&mut stripes, (parent, name), now)?;
        let mut linked = self.own_inode(&mut stripes, ino, now)?;
        let own = &stripes.node(ino)?.delegation;
        let is_possible = target.is_none()
            && linked.kind != Kind::Directory
            && linked.links < MAX_LINKS
            && own.is_made_here(ino)
            && own.grant().is_some_and(|own| Arc::ptr_eq(own, &grant));
        if !is_possible {
            return None;
        }
        let charge = Charge { quota: grant.quota, room };
        // Under the locks: when room is recalled, what was taken before has its number behind a barrier.
        if !self.room.charge(charge) {
            return Some(Local::NoRoom(charge.quota));
        }
        directory.changed_names(Some(linked.kind), None, time);
        linked.got_link(time);
        set_name(&mut stripes, (parent, name), NewName::Present(ino));
        set_changed(&mut stripes, parent, directory);
        set_changed(&mut stripes, ino, linked);
        self.queue.append(stripes.of(parent), record, charge.quota, now);
        Some(Local::Made(linked))
    }

    /// Keeps other directories from going elsewhere while this rename moves one, until it has its number; `None` if it would go below itself, or
    /// if that is not known here.
    fn begin_move(&self, renaming: &Renaming<'_>) -> Option<Option<MutexGuard<'_, ()>>> {
        let Renaming { from, to, how, ino, there } = *renaming;
        let exchanged = there.filter(|_| how == Rename::Exchange);
        let moved = [(Some(ino), to.0), (exchanged, from.0)];
        let moved = moved.map(|(ino, to)| (ino.filter(|ino| self.is_directory(*ino)), to));
        if from.0 == to.0 || moved.iter().all(|(ino, _)| ino.is_none()) {
            return Some(None);
        }
        let alone = self.directory_moves.lock();
        let goes = |(ino, to): (Option<Ino>, Ino)| ino.is_none_or(|ino| self.is_apart(to, ino));
        moved.into_iter().all(goes).then_some(Some(alone))
    }

    fn is_directory(&self, ino: Ino) -> bool {
        let is_one = |it: Attributes| it.kind == Kind::Directory;
        self.inodes.is(ino, |node| node.cached.attributes.is_some_and(is_one))
    }

    /// Whether a directory is neither another one nor below it, which this client has made, and everything below it.
    fn is_apart(&self, mut directory: Ino, other: Ino) -> bool {
        while directory != other {
            let up = self.inodes.with(directory, |node| {
                let own = &node.delegation;
                // What was granted has above it what this client has not made.
                if own.is_granted(directory) { Some(None) } else { own.parent(directory).map(Some) }
            });
            match up.flatten() {
                Some(Some(parent)) => directory = parent,
                Some(None) => return true,
                None => return false,
            }
        }
        false
    }

    /// Whether an inode may go from one directory to another one: no client was told of what this one has made. A directory stays under
    /// its grant, which is that of all below it.
    fn check_move(
        &self,
        stripes: &mut LockedStripes<'_>,
        (ino, it): (Ino, &Attributes),
        (from, to): (&OwnName, &OwnName),
    ) -> Option<()> {
        let own = &stripes.node(ino)?.delegation;
        let is_directory = it.kind == Kind::Directory;
        let is_possible = own.is_made_here(ino)
            && own.grant().is_some_and(|grant| Arc::ptr_eq(grant, &from.grant))
            // Its other names stay in directories that have the grant.
            && (!is_directory && it.links == 1 || Arc::ptr_eq(&from.grant, &to.grant))
            && (!is_directory || own.parent(ino).is_some() && to.directory.links < MAX_LINKS)
            && from.grant.quota == to.grant.quota;
        is_possible.then_some(())
    }
}
