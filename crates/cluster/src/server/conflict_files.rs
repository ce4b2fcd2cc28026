//! What a client keeps of conflicts ([`crate::conflicts`]), whatever its users may do.
//!
//! A server that checks users takes a client's own calls for those of a user without rights (`65534`). These calls alone are carried out for the client instead, each with a result that the server chooses:
//!
//! - the folder of conflict sets in the client's root is made. It has the owner of that root and mode 0755;
//! - in it, a folder for a user is made, one that the client's users may be. It is that user's, with mode 0700;
//! - in it, the plan of the session is made, read, written, renamed into place and removed. It has the owner of the root and mode 0600;
//! - all of these are looked up.
//!
//! So a client gets no bytes into a file that a user reads by another name than these. Lists and copies are ordinary files, which it makes as the
//! user that has made the changes.

use bytes::Bytes;
use thalweg_fs::handle::Credentials;
use thalweg_fs::{Attributes, Filesystem, FsError, Ino, Kind, Lookup, NewNode, Node, Rename};

use super::session::Session;
use crate::conflicts::{DIRECTORY, FOLDER_MODE, plan_names, user_of_folder};
use crate::protocol::Request;
use crate::squash::acting;

/// What a name is to a client.
enum OwnName {
    /// That of the folder, in the client's root.
    Folder,
    /// That of its plan, or of the next one.
    Plan,
    /// That of a folder of this user.
    User(Credentials),
}

struct ConflictFiles<'a> {
    files: &'a dyn Filesystem,
    session: &'a Session,
}

/// A call that a client makes for itself, as it is carried out without a check of what its users may do; `None` for one that is
/// checked as any other.
///
/// # Errors
/// Those of the filesystem.
pub(super) async fn permitted(
    files: &dyn Filesystem,
    session: &Session,
    request: &Request,
) -> Result<Option<Request>, FsError> {
    let own = ConflictFiles { files, session };
    if let Request::Lookup { parent, name } = request {
        let is_own = own.name(*parent, name, 0).await?.is_some();
        return Ok(is_own.then(|| request.clone()));
    }
    // It has no plan, and nothing to set aside.
    if !session.journal.is_kept() {
        return Ok(None);
    }
    let is_own = match request {
        Request::Create { parent, name, new } => {
            let new = own.node_of(*parent, name, new.gid).await?;
            return Ok(new.map(|new| Request::Create { parent: *parent, name: name.clone(), new }));
        }
        Request::Read { ino, .. } | Request::Write { ino, .. } => own.is_plan(*ino).await?,
        Request::Unlink { parent, name, .. } => own.is_plan_name(*parent, name).await?,
        Request::Rename { from, to, how: Rename::Replace, .. } => {
            own.is_plan_name(from.0, &from.1).await? && own.is_plan_name(to.0, &to.1).await?
        }
        _ => false,
    };
    Ok(is_own.then(|| request.clone()))
}

impl ConflictFiles<'_> {
    async fn root(&self) -> Result<Attributes, FsError> {
        Ok(self.files.attributes(self.session.root).await?.attributes)
    }

    async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<Attributes>, FsError> {
        Ok(match self.files.lookup(parent, name).await? {
            Lookup::Found(found) => Some(found.attributes),
            Lookup::Absent(_) => None,
        })
    }

    /// The folder of the sets. One that a user has made is none: that user could put anything there. Of a client that is trusted it may be
    /// root's.
    async fn folder(&self) -> Result<Option<Ino>, FsError> {
        let owner = self.root().await?.uid;
        let found = self.lookup(self.session.root, DIRECTORY.as_bytes()).await?;
        let is_own =
            |it: &Attributes| it.kind == Kind::Directory && (it.uid == owner || it.uid == 0);
        Ok(found.filter(is_own).map(|it| it.ino))
    }

    /// A user of the client with this name for its folder.
    fn user(&self, name: &[u8], gid: u32) -> Option<Credentials> {
        let uid = user_of_folder(std::str::from_utf8(name).ok()?)?;
        let user = acting(self.session.visitor.squash, Some(&Credentials::new(uid, gid, &[])))?;
        (user.uid == uid).then_some(user)
    }

    async fn name(&self, parent: Ino, name: &[u8], gid: u32) -> Result<Option<OwnName>, FsError> {
        if parent == self.session.root {
            return Ok((name == DIRECTORY.as_bytes()).then_some(OwnName::Folder));
        }
        let own = match self.user(name, gid) {
            Some(user) => OwnName::User(user),
            None if self.plan_names().iter().any(|plan| plan == name) => OwnName::Plan,
            None => return Ok(None),
        };
        Ok((self.folder().await? == Some(parent)).then_some(own))
    }

    fn plan_names(&self) -> [Bytes; 2] {
        plan_names(self.session.id())
    }

    async fn is_plan_name(&self, parent: Ino, name: &[u8]) -> Result<bool, FsError> {
        Ok(matches!(self.name(parent, name, 0).await?, Some(OwnName::Plan)))
    }

    async fn is_plan(&self, ino: Ino) -> Result<bool, FsError> {
        let Some(folder) = self.folder().await? else { return Ok(false) };
        for name in self.plan_names() {
            if self.lookup(folder, &name).await?.is_some_and(|found| found.ino == ino) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What is made under a name.
    async fn node_of(
        &self,
        parent: Ino,
        name: &[u8],
        gid: u32,
    ) -> Result<Option<NewNode>, FsError> {
        let Some(own) = self.name(parent, name, gid).await? else { return Ok(None) };
        let (node, mode, (uid, gid)) = match own {
            OwnName::User(user) => (Node::Directory, 0o700, (user.uid, user.gid)),
            own => {
                let root = self.root().await?;
                let (node, mode) = match own {
                    OwnName::Plan => (Node::File, 0o600),
                    _ => (Node::Directory, FOLDER_MODE),
                };
                (node, mode, (root.uid, root.gid))
            }
        };
        Ok(Some(NewNode { node, mode, umask: 0, uid, gid }))
    }
}
