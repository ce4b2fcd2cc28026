//! What the users of a client may do that is not trusted with that.
//!
//! A client's kernel checks permissions. The server checks them again for the user of each call, by the rules of
//! [`thalweg_fs::access`], unless the client's users are not squashed. As with NFS, some things are left to the client's
//! kernel, since a call does not say enough:
//!
//! - A user may read and write its own files whatever their mode: it could change that, and a program that makes a file with
//!   mode 0444 goes on to write it.
//! - A user that may execute a file may read it.
//! - All users of the client may use a file that one of them has opened: programs pass open files on.

use std::borrow::Cow;
use std::sync::Arc;

use thalweg_env::HashSet;
use thalweg_fs::access::{AccessLists, Actor, READ, Rules, SEARCH, WRITE};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{
    AttributeChange, Attributes, Filesystem, FsError, Ino, Kind, NewNode, Node, OpenFlags, Rename,
    TimeChange, WriteHow,
};

use super::base::Base;
use super::context::RequestContext;
use super::open_files::OpenFiles;
use crate::protocol::{Request, session_request};

/// Names are made in a directory, or removed from it.
const MAKE: u16 = WRITE | SEARCH;
/// Set-user-id and set-group-id.
const PRIVILEGES: u16 = 0o6000;
/// The extended attribute with the capabilities of a program, which a write takes away.
const CAPABILITIES: &[u8] = b"security.capability";
/// The kinds of extended attributes that users have. The others set quotas.
const NAMESPACES: [&[u8]; 4] = [b"user.", b"system.", b"security.", b"trusted."];

#[derive(Debug)]
pub(super) struct Authorize {
    files: Arc<dyn Filesystem>,
    open_files: Arc<OpenFiles>,
    lists: AccessLists,
}

/// The user of a call, where the server checks what users may do.
pub(super) struct User<'a> {
    pub(super) rules: Rules<'a>,
    open_files: &'a OpenFiles,
    session: u64,
}

impl Authorize {
    pub(super) fn new(Base { files, open_files, .. }: &Base) -> Authorize {
        let (files, open_files) = (files.clone(), open_files.clone());
        Authorize { files, open_files, lists: AccessLists::default() }
    }

    /// The user of a call; `None` if its client is trusted to have checked what that may do.
    pub(super) fn user<'a>(&'a self, ctx: &'a RequestContext<'_>) -> Option<User<'a>> {
        let user = Actor::of(ctx.user.as_ref()?);
        let rules = Rules { files: &*self.files, user, lists: &self.lists };
        Some(User { rules, open_files: &self.open_files, session: ctx.session.serial })
    }

    /// Fails unless the user of a call may do it; the call as it is carried out for that user. The inodes that it removes or
    /// renames are checked when they are known, and so are the mutations of a batch. Each kind is named: a new one does not
    /// compile before it is checked or listed here.
    pub(super) async fn call<'a>(
        &self,
        ctx: &RequestContext<'_>,
        request: &'a Request,
    ) -> Result<Cow<'a, Request>, FsError> {
        let Some(user) = self.user(ctx) else { return Ok(Cow::Borrowed(request)) };
        match *request {
            Request::Lookup { parent, .. } => user.in_directory(parent, SEARCH).await?,
            Request::Link { parent, .. } => user.in_directory(parent, MAKE).await?,
            Request::Open { ino, flags, .. } => user.open(ino, flags).await?,
            Request::Read { ino, .. } => user.use_of(ino, READ).await?,
            Request::Seek { ino, .. } => user.use_of(ino, READ | WRITE).await?,
            Request::Allocate { ino, .. } => user.use_of(ino, WRITE).await?,
            Request::Copy { from, to, .. } => {
                user.use_of(from.0, READ).await?;
                user.use_of(to.0, WRITE).await?;
            }
            Request::Xattr { ino, ref name } => user.xattr(ino, name, false).await?,
            Request::RemoveXattr { ino, ref name } if name == CAPABILITIES => {
                user.use_of(ino, WRITE).await?;
            }
            Request::SetXattr { ino, ref name, .. } | Request::RemoveXattr { ino, ref name } => {
                if !NAMESPACES.iter().any(|namespace| name.starts_with(namespace)) {
                    return Err(FsError::NotPermitted);
                }
                user.xattr(ino, name, true).await?;
            }
            Request::Create { .. }
            | Request::SetAttributes { .. }
            | Request::Write { .. }
            | Request::ReadDirectory { .. }
            | Request::RequestDelegation { .. } => {
                return user.adapt(request.clone()).await.map(Cow::Owned);
            }
            // When their inodes or mutations are known.
            Request::Unlink { .. }
            | Request::RemoveDirectory { .. }
            | Request::Rename { .. }
            | Request::Batch { .. }
            // Of a client, not of one of its users.
            | session_request!()
            | Request::Stage { .. }
            | Request::Reserve
            | Request::Room { .. }
            | Request::ReachContents { .. }
            | Request::Path { .. }
            | Request::UsedMeanwhile
            | Request::ExtendWriteBound { .. }
            | Request::KeepSizeRecord { .. }
            // All users may.
            | Request::Parent { .. }
            | Request::Attributes { .. }
            | Request::ReadLink { .. }
            | Request::Sync { .. }
            | Request::SyncAll
            | Request::Level { .. }
            | Request::Xattrs { .. }
            | Request::Statistics
            // They name an open file.
            | Request::Flush { .. }
            | Request::Release { .. }
            | Request::Lock { .. }
            | Request::Unlock { .. }
            | Request::ConflictingLock { .. } => {}
        }
        Ok(Cow::Borrowed(request))
    }
}

impl User<'_> {
    async fn inode(&self, ino: Ino) -> Result<Attributes, FsError> {
        Ok(self.rules.files.attributes(ino).await?.attributes)
    }

    async fn in_directory(&self, directory: Ino, wanted: u16) -> Result<(), FsError> {
        self.rules.check(&self.inode(directory).await?, wanted).await
    }

    async fn xattr(&self, ino: Ino, name: &[u8], writes: bool) -> Result<(), FsError> {
        self.rules.check_xattr(&self.inode(ino).await?, name, writes).await
    }

    pub(super) async fn open(&self, ino: Ino, flags: OpenFlags) -> Result<(), FsError> {
        let it = self.inode(ino).await?;
        if flags.read {
            self.check_use(&it, READ).await?;
        }
        if flags.write {
            self.check_use(&it, WRITE).await?;
        }
        Ok(())
    }

    /// Fails unless a file is open for one of these, [`READ`] or [`WRITE`], or the user may open it for the first.
    async fn use_of(&self, ino: Ino, wanted: u16) -> Result<(), FsError> {
        let (reads, writes) = self.open_files.of(self.session, ino);
        if wanted & READ != 0 && reads || wanted & WRITE != 0 && writes {
            return Ok(());
        }
        let wanted = if wanted & READ != 0 { READ } else { WRITE };
        self.check_use(&self.inode(ino).await?, wanted).await
    }

    /// Fails unless the user may use a file so when it is not open; a directory as any other.
    async fn check_use(&self, it: &Attributes, wanted: u16) -> Result<(), FsError> {
        let (rules, is_file) = (&self.rules, it.kind == Kind::File);
        if is_file && rules.owns(it)
            || is_file && wanted == READ && rules.permits(it, SEARCH).await?
        {
            return Ok(());
        }
        rules.check(it, wanted).await
    }

    /// A call that is carried out in another way for some users.
    async fn adapt(&self, request: Request) -> Result<Request, FsError> {
        let rules = &self.rules;
        Ok(match request {
            Request::Create { parent, name, new } => {
                let it = self.inode(parent).await?;
                rules.check(&it, MAKE).await?;
                rules.check_node(&new.node)?;
                let mode = rules.mode_of_new(&it, &new.node, new.mode, new.umask);
                let new = NewNode { mode, uid: rules.user.uid, gid: rules.user.gid, ..new };
                Request::Create { parent, name, new }
            }
            Request::SetAttributes { ino, change } => {
                Request::SetAttributes { ino, change: self.change(ino, change).await? }
            }
            Request::Write { ino, at, how } => {
                self.use_of(ino, WRITE).await?;
                Request::Write { ino, at, how: WriteHow { clear_suid: true, ..how } }
            }
            Request::ReadDirectory { ino, from, most, attributes } => {
                let it = self.inode(ino).await?;
                if !self.open_files.of(self.session, ino).0 {
                    rules.check(&it, READ).await?;
                }
                let attributes = attributes && rules.permits(&it, SEARCH).await?;
                Request::ReadDirectory { ino, from, most, attributes }
            }
            // A client makes files by itself for the directory's owner only.
            Request::RequestDelegation { ino } => {
                let it = self.inode(ino).await?;
                if it.uid == rules.user.uid && rules.permits(&it, MAKE).await? {
                    Request::RequestDelegation { ino }
                } else {
                    Request::Attributes { ino, shown: false }
                }
            }
            _ => return Err(FsError::NotPermitted),
        })
    }

    /// The change of attributes that the user may make instead of `change`.
    async fn change(&self, ino: Ino, change: AttributeChange) -> Result<AttributeChange, FsError> {
        let (rules, it) = (&self.rules, self.inode(ino).await?);
        let AttributeChange { mut mode, uid, gid, size, accessed, mut clear_suid, .. } = change;
        if let Some(asked) = mode {
            mode = Some(rules.mode_to_set(&it, asked)?);
        }
        if uid.is_some() || gid.is_some() {
            rules.check_owner_change(&it, uid, gid)?;
            clear_suid |= mode.is_none();
        }
        if size.is_some() || clear_suid && !rules.owns(&it) {
            self.use_of(ino, WRITE).await?;
            clear_suid |= mode.is_none();
        }
        // A change of the content sets this time.
        let modified = change.modified.filter(|it| size.is_none() || *it != TimeChange::Now);
        if accessed.is_some() || modified.is_some() {
            rules.check_times(&it, accessed, modified).await?;
        }
        Ok(AttributeChange { mode, clear_suid, ..change })
    }

    /// Clears set-group-id, before a user outside of the inode's group sets its access control list.
    pub(super) async fn lose_group(&self, ino: Ino) -> Result<(), FsError> {
        let it = self.inode(ino).await?;
        let mode = self.rules.mode_to_set(&it, it.mode)?;
        if mode != it.mode {
            let change = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
            self.rules.files.set_attributes(ino, &change).await?;
        }
        Ok(())
    }

    /// Fails unless the user may remove a name of this inode.
    pub(super) async fn remove(
        &self,
        parent: Ino,
        target: Option<Ino>,
        is_directory: bool,
    ) -> Result<(), FsError> {
        let Some(target) = target else { return Ok(()) };
        let (parent, removed) = (self.inode(parent).await?, self.inode(target).await?);
        self.rules.check_removal(&parent, &removed, is_directory).await
    }

    /// Fails unless the user may rename the first of these inodes to the second one.
    pub(super) async fn rename(
        &self,
        parents: [Ino; 2],
        targets: [Option<Ino>; 2],
        how: Rename,
    ) -> Result<(), FsError> {
        let [Some(moved), there] = targets else { return Ok(()) };
        let [from, to] = [self.inode(parents[0]).await?, self.inode(parents[1]).await?];
        let moved = self.inode(moved).await?;
        let there = match there {
            Some(there) => Some(self.inode(there).await?),
            None => None,
        };
        let exchanges = how == Rename::Exchange;
        self.rules.check_rename((&from, &moved), (&to, there.as_ref()), exchanges).await
    }

    /// Fails unless the user may have made the mutations of a batch: all are about that user's own inodes, and about no
    /// privileges.
    pub(super) async fn make(&self, mutations: &[Mutation]) -> Result<(), FsError> {
        let (user, mut own) = (&self.rules.user, HashSet::default());
        for Mutation { kind, .. } in mutations {
            for ino in kind.inodes().filter(|ino| kind.made() != Some(*ino)) {
                if !own.contains(&ino) && self.inode(ino).await?.uid != user.uid {
                    return Err(FsError::NotPermitted);
                }
                own.insert(ino);
            }
            if !is_unprivileged(kind, user) {
                return Err(FsError::NotPermitted);
            }
            own.extend(kind.made());
        }
        Ok(())
    }
}

/// Whether a mutation gives no privileges that a user does not have; what it is about is that user's own.
fn is_unprivileged(kind: &MutationKind, user: &Actor<'_>) -> bool {
    match kind {
        MutationKind::Create { new, .. } => {
            let is_device = matches!(new.node, Node::BlockDevice(_) | Node::CharDevice(_));
            let has_delegation = (new.uid, new.gid) == (user.uid, user.gid);
            has_delegation && !is_device && new.mode & PRIVILEGES == 0
        }
        MutationKind::SetAttributes { change, .. } => {
            let keeps_owner = change.uid.is_none() && change.gid.is_none();
            keeps_owner && change.mode.is_none_or(|mode| mode & PRIVILEGES == 0)
        }
        // The others are root's, or access control lists.
        MutationKind::SetXattr { name, .. } | MutationKind::RemoveXattr { name, .. } => {
            name.starts_with(b"user.")
        }
        MutationKind::Write { .. }
        | MutationKind::Stored { .. }
        | MutationKind::Reserve { .. }
        | MutationKind::Unlink { .. }
        | MutationKind::RemoveDirectory { .. }
        | MutationKind::Link { .. }
        | MutationKind::Rename { .. } => true,
    }
}
