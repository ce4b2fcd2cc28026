//! Calls about names.

use bytes::Bytes;
use thalweg_fs::{Cookie, FsError, Ino, Kind, Lookup, NewNode, Node, Rename};

use super::Shared;
use super::job::Job;
use super::outcome::{Outcome, Wants};
use super::undurable::Item;
use crate::protocol::{Answer, Changed, Footprint, ListedEntry, MAX_ENTRIES, RemovedInode};

/// The inodes behind the names that a call writes of which its client does not know that.
fn surprising(print: &Footprint<'_>, targets: &[Option<Ino>]) -> Vec<Ino> {
    let pairs = print.names.iter().zip(targets);
    pairs.filter_map(|((.., expected), target)| target.filter(|_| target != expected)).collect()
}

impl Shared {
    pub(super) async fn look_up(
        &self,
        job: &Job<'_>,
        parent: Ino,
        name: &[u8],
    ) -> Result<Outcome, FsError> {
        match name {
            b"." => return self.directory(job, parent).await,
            // No filesystem knows where the client's root is; and a rename does not invalidate this name.
            b".." => return self.directory(job, self.parent_of(job, parent).await?).await,
            _ => {}
        }
        let since = self.capabilities.now();
        let names = Some(parent);
        let looked_up = self.filesystem.lookup(parent, name).await;
        job.sees(&self.undurable, &[Item::Name(parent, Bytes::copy_from_slice(name))]);
        match looked_up? {
            Lookup::Found(found) => {
                self.filesystem.reference(found.ino);
                job.sees_inodes(&self.undurable, &[found.ino]);
                let attributes = Some(found.ino);
                let wants = Wants { since, attributes, names, ..Wants::default() };
                let answer = Answer::Inode(found.attributes);
                Ok(Outcome { wants, referenced: Some(found.ino), ..Outcome::of(answer) })
            }
            Lookup::Absent(_) => {
                let wants = Wants { since, names, ..Wants::default() };
                Ok(Outcome { wants, ..Outcome::of(Answer::Absent) })
            }
        }
    }

    /// The attributes of a directory that the client knows.
    async fn directory(&self, job: &Job<'_>, ino: Ino) -> Result<Outcome, FsError> {
        let outcome = self.attributes(job, ino).await?;
        match &outcome.answer {
            Answer::Inode(found) if found.kind != Kind::Directory => Err(FsError::NotDirectory),
            _ => Ok(outcome),
        }
    }

    /// The directory above one; its client sees nothing above its root.
    async fn parent_of(&self, job: &Job<'_>, directory: Ino) -> Result<Ino, FsError> {
        if directory == job.session.root {
            return Ok(directory);
        }
        let parent = self.filesystem.parent(directory).await?;
        job.sees_inodes(&self.undurable, &[directory]);
        // It was moved out of what the client sees.
        job.session.knows(parent)?;
        Ok(parent)
    }

    pub(super) async fn parent(&self, job: &Job<'_>, directory: Ino) -> Result<Outcome, FsError> {
        let parent = self.parent_of(job, directory).await?;
        Ok(Outcome::of(Answer::Directory(parent)))
    }

    pub(super) async fn create(
        &self,
        job: &Job<'_>,
        print: &Footprint<'_>,
        (parent, name): (Ino, &Bytes),
        new: &NewNode,
        payload: Bytes,
    ) -> Result<Outcome, FsError> {
        let new = match new.node {
            Node::Symlink(_) => NewNode { node: Node::Symlink(payload), ..new.clone() },
            _ => new.clone(),
        };
        let is_directory = new.node == Node::Directory;
        let since = self.capabilities.now();
        let _names = self.names.lock(&[(parent, name)]).await;
        let change = self.begin(job, print.changed()).await?;
        let made = job.filesystem.create(parent, name, &new).await?;
        self.filesystem.reference(made.ino);
        drop(change);
        let wants = Wants {
            since,
            attributes: Some(made.ino),
            // The new directory is empty.
            names: is_directory.then_some(made.ino),
            ..Wants::default()
        };
        let answer = Answer::Inode(made.attributes);
        Ok(Outcome { wants, referenced: Some(made.ino), ..Outcome::of(answer) })
    }

    pub(super) async fn link(
        &self,
        job: &Job<'_>,
        print: &Footprint<'_>,
        ino: Ino,
        (parent, name): (Ino, &Bytes),
    ) -> Result<Outcome, FsError> {
        let _names = self.names.lock(&[(parent, name)]).await;
        let _change = self.begin(job, print.changed()).await?;
        let linked = job.filesystem.link(ino, parent, name).await?;
        Ok(Outcome::of(Answer::Inode(linked.attributes)))
    }

    pub(super) async fn unlink(
        &self,
        job: &Job<'_>,
        print: &Footprint<'_>,
        (parent, name): (Ino, &Bytes),
        is_directory: bool,
    ) -> Result<Outcome, FsError> {
        // What the name leads to is not known before the directory is no other client's alone.
        let _shared = self.begin(job, vec![Changed::Exclusive(parent)]).await?;
        let _names = self.names.lock(&[(parent, name)]).await;
        let target = self.target(parent, name).await?;
        self.permit_removal(job, parent, target, is_directory).await?;
        let surprising = surprising(print, &[target]);
        let _change = self.begin_with(job, print.changed_with([target]), &surprising).await?;
        match is_directory {
            true => {
                job.filesystem.remove_directory(parent, name).await?;
                target.into_iter().for_each(|directory| self.root_is_gone(job, directory));
            }
            false => job.filesystem.unlink(parent, name).await?,
        }
        if let Some(ino) = target {
            self.tell_removed(job, RemovedInode { parent, name: name.clone(), ino }).await;
        }
        Ok(Outcome::done())
    }

    pub(super) async fn rename(
        &self,
        job: &Job<'_>,
        print: &Footprint<'_>,
        from: &(Ino, Bytes),
        to: &(Ino, Bytes),
        how: Rename,
    ) -> Result<Outcome, FsError> {
        let moving = self.begin_move(job, [from.0, to.0], how).await?;
        let parents = [from.0, to.0].map(Changed::Exclusive);
        let _shared = self.begin(job, parents.to_vec()).await?;
        let _names = self.names.lock(&[(from.0, &from.1), (to.0, &to.1)]).await;
        let targets = [self.target(from.0, &from.1).await?, self.target(to.0, &to.1).await?];
        self.permit_rename(job, [from.0, to.0], targets, how).await?;
        let surprising = surprising(print, &targets);
        let _change = self.begin_with(job, print.changed_with(targets), &surprising).await?;
        let moved = if how == Rename::Exchange { targets } else { [targets[0], None] };
        let rename = async || job.filesystem.rename((from.0, &from.1), (to.0, &to.1), how).await;
        self.make_move(job, moving, moved, rename).await?;
        if let Some(ino) = targets[1].filter(|it| how == Rename::Replace && targets[0] != Some(*it))
        {
            self.tell_removed(job, RemovedInode { parent: to.0, name: to.1.clone(), ino }).await;
        }
        Ok(Outcome::done())
    }

    pub(super) async fn list(
        &self,
        job: &Job<'_>,
        ino: Ino,
        from: Cookie,
        most: usize,
        attributes: bool,
    ) -> Result<Outcome, FsError> {
        let since = self.capabilities.now();
        let most = most.min(MAX_ENTRIES);
        let found = self.filesystem.read_directory(ino, from, most, attributes).await;
        job.sees_inodes(&self.undurable, &[ino]);
        let found = found?;
        let shown = found.iter().filter(|entry| entry.attributes.is_some());
        shown.for_each(|entry| job.sees_inodes(&self.undurable, &[entry.ino]));
        let entries = found.into_iter().map(|entry| ListedEntry {
            name: entry.name,
            ino: entry.ino,
            kind: entry.kind,
            cookie: entry.cookie,
            attributes: entry.attributes.map(|answer| (answer.attributes, 0)),
        });
        let entries = Some(entries.collect());
        let wants = Wants { since, names: Some(ino), ..Wants::default() };
        Ok(Outcome { wants, entries, ..Outcome::of(Answer::Entries) })
    }
}
