//! Calls about names.

use bytes::Bytes;
use thalweg_fs::{Cookie, FsError, Ino, Kind, Lookup, NewNode, Node, Rename};

use super::Shared;
use super::commit_on_share::Dependency;
use super::context::RequestContext;
use super::response::{GrantRequest, Response};
use crate::protocol::{Answer, Changed, Footprint, ListedEntry, MAX_ENTRIES, RemovedInode};

/// The inodes behind the names that a call writes of which its client does not know that.
fn surprising(print: &Footprint<'_>, targets: &[Option<Ino>]) -> Vec<Ino> {
    let pairs = print.names.iter().zip(targets);
    pairs.filter_map(|((.., expected), target)| target.filter(|_| target != expected)).collect()
}

impl Shared {
    pub(super) async fn look_up(
        &self,
        ctx: &RequestContext<'_>,
        parent: Ino,
        name: &[u8],
    ) -> Result<Response, FsError> {
        match name {
            b"." => return self.directory(ctx, parent).await,
            // No filesystem knows where the client's root is; and a rename does not invalidate this name.
            b".." => return self.directory(ctx, self.parent_of(ctx, parent).await?).await,
            _ => {}
        }
        let since = self.capabilities.now();
        let names = Some(parent);
        let looked_up = self.filesystem.lookup(parent, name).await;
        ctx.sees(&self.commit_on_share, &[Dependency::Name(parent, Bytes::copy_from_slice(name))]);
        match looked_up? {
            Lookup::Found(found) => {
                self.filesystem.reference(found.ino);
                ctx.sees_inodes(&self.commit_on_share, &[found.ino]);
                let attributes = Some(found.ino);
                let wants = GrantRequest { since, attributes, names, ..GrantRequest::default() };
                let answer = Answer::Inode(found.attributes);
                Ok(Response { wants, referenced: Some(found.ino), ..Response::of(answer) })
            }
            Lookup::Absent(_) => {
                let wants = GrantRequest { since, names, ..GrantRequest::default() };
                Ok(Response { wants, ..Response::of(Answer::Absent) })
            }
        }
    }

    /// The attributes of a directory that the client knows.
    async fn directory(&self, ctx: &RequestContext<'_>, ino: Ino) -> Result<Response, FsError> {
        let outcome = self.attributes(ctx, ino).await?;
        match &outcome.answer {
            Answer::Inode(found) if found.kind != Kind::Directory => Err(FsError::NotDirectory),
            _ => Ok(outcome),
        }
    }

    /// The directory above one; its client sees nothing above its root.
    async fn parent_of(&self, ctx: &RequestContext<'_>, directory: Ino) -> Result<Ino, FsError> {
        if directory == ctx.session.root {
            return Ok(directory);
        }
        let parent = self.filesystem.parent(directory).await?;
        ctx.sees_inodes(&self.commit_on_share, &[directory]);
        // It was moved out of what the client sees.
        ctx.session.knows(parent)?;
        Ok(parent)
    }

    pub(super) async fn parent(
        &self,
        ctx: &RequestContext<'_>,
        directory: Ino,
    ) -> Result<Response, FsError> {
        let parent = self.parent_of(ctx, directory).await?;
        Ok(Response::of(Answer::Directory(parent)))
    }

    pub(super) async fn create(
        &self,
        ctx: &RequestContext<'_>,
        print: &Footprint<'_>,
        (parent, name): (Ino, &Bytes),
        new: &NewNode,
        payload: Bytes,
    ) -> Result<Response, FsError> {
        let new = match new.node {
            Node::Symlink(_) => NewNode { node: Node::Symlink(payload), ..new.clone() },
            _ => new.clone(),
        };
        let is_directory = new.node == Node::Directory;
        let since = self.capabilities.now();
        let _names = self.names.lock(&[(parent, name)]).await;
        let change = self.recall(ctx, print.changed()).await?;
        let made = ctx.filesystem.create(parent, name, &new).await?;
        self.filesystem.reference(made.ino);
        drop(change);
        let wants = GrantRequest {
            since,
            attributes: Some(made.ino),
            // The new directory is empty.
            names: is_directory.then_some(made.ino),
            ..GrantRequest::default()
        };
        let answer = Answer::Inode(made.attributes);
        Ok(Response { wants, referenced: Some(made.ino), ..Response::of(answer) })
    }

    pub(super) async fn link(
        &self,
        ctx: &RequestContext<'_>,
        print: &Footprint<'_>,
        ino: Ino,
        (parent, name): (Ino, &Bytes),
    ) -> Result<Response, FsError> {
        let _names = self.names.lock(&[(parent, name)]).await;
        let _change = self.recall(ctx, print.changed()).await?;
        let linked = ctx.filesystem.link(ino, parent, name).await?;
        Ok(Response::of(Answer::Inode(linked.attributes)))
    }

    pub(super) async fn unlink(
        &self,
        ctx: &RequestContext<'_>,
        print: &Footprint<'_>,
        (parent, name): (Ino, &Bytes),
        is_directory: bool,
    ) -> Result<Response, FsError> {
        // What the name leads to is not known before the directory is no other client's alone.
        let _shared = self.recall(ctx, vec![Changed::Delegation(parent)]).await?;
        let _names = self.names.lock(&[(parent, name)]).await;
        let target = self.target(parent, name).await?;
        self.authorize_removal(ctx, parent, target, is_directory).await?;
        let surprising = surprising(print, &[target]);
        let _change = self.recall_with(ctx, print.changed_with([target]), &surprising).await?;
        match is_directory {
            true => {
                ctx.filesystem.remove_directory(parent, name).await?;
                target.into_iter().for_each(|directory| self.root_is_gone(ctx, directory));
            }
            false => ctx.filesystem.unlink(parent, name).await?,
        }
        if let Some(ino) = target {
            self.tell_removed(ctx, RemovedInode { parent, name: name.clone(), ino }).await;
        }
        Ok(Response::done())
    }

    pub(super) async fn rename(
        &self,
        ctx: &RequestContext<'_>,
        print: &Footprint<'_>,
        from: &(Ino, Bytes),
        to: &(Ino, Bytes),
        how: Rename,
    ) -> Result<Response, FsError> {
        let moving = self.begin_move(ctx, [from.0, to.0], how).await?;
        let parents = [from.0, to.0].map(Changed::Delegation);
        let _shared = self.recall(ctx, parents.to_vec()).await?;
        let _names = self.names.lock(&[(from.0, &from.1), (to.0, &to.1)]).await;
        let targets = [self.target(from.0, &from.1).await?, self.target(to.0, &to.1).await?];
        self.authorize_rename(ctx, [from.0, to.0], targets, how).await?;
        let surprising = surprising(print, &targets);
        let _change = self.recall_with(ctx, print.changed_with(targets), &surprising).await?;
        let moved = if how == Rename::Exchange { targets } else { [targets[0], None] };
        let rename = async || ctx.filesystem.rename((from.0, &from.1), (to.0, &to.1), how).await;
        self.make_move(ctx, moving, moved, rename).await?;
        if let Some(ino) = targets[1].filter(|it| how == Rename::Replace && targets[0] != Some(*it))
        {
            self.tell_removed(ctx, RemovedInode { parent: to.0, name: to.1.clone(), ino }).await;
        }
        Ok(Response::done())
    }

    pub(super) async fn list(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
        from: Cookie,
        most: usize,
        attributes: bool,
    ) -> Result<Response, FsError> {
        let since = self.capabilities.now();
        let most = most.min(MAX_ENTRIES);
        let found = self.filesystem.read_directory(ino, from, most, attributes).await;
        ctx.sees_inodes(&self.commit_on_share, &[ino]);
        let found = found?;
        let shown = found.iter().filter(|entry| entry.attributes.is_some());
        shown.for_each(|entry| ctx.sees_inodes(&self.commit_on_share, &[entry.ino]));
        let entries = found.into_iter().map(|entry| ListedEntry {
            name: entry.name,
            ino: entry.ino,
            kind: entry.kind,
            cookie: entry.cookie,
            attributes: entry.attributes.map(|answer| (answer.attributes, 0)),
        });
        let entries = Some(entries.collect());
        let wants = GrantRequest { since, names: Some(ino), ..GrantRequest::default() };
        Ok(Response { wants, entries, ..Response::of(Answer::Entries) })
    }
}
