//! Calls about names. The order of the checks is Linux's, so that a call that may fail in several ways fails in the
//! same way.

use bytes::Bytes;
use thalweg_fs::access::{SEARCH, WRITE};
use thalweg_fs::filesystem::MAX_TARGET;
use thalweg_fs::{Attributes, FsError, Kind, Lookup, NewNode, Node, Rename};

use super::access::UserView;
use super::error::{FileError, invalid};
use super::path::{End, Last, Walk};

impl UserView<'_> {
    /// The attributes of a name, if it is there.
    pub(super) async fn look_up(
        &self,
        parent: &Attributes,
        name: &[u8],
    ) -> Result<Option<Attributes>, FileError> {
        Ok(match self.files.lookup(parent.ino, name).await? {
            Lookup::Found(found) => Some(found.attributes),
            Lookup::Absent(_) => None,
        })
    }

    /// The directory and the name of a path where something is to be made.
    async fn free_place(
        &self,
        path: &[u8],
        is_directory: bool,
    ) -> Result<(Attributes, Bytes), FileError> {
        let (walk, End { last, slash }) = Walk::along(*self, path).await?;
        let parent = walk.current();
        let Last::Name(name) = last else { return Err(FsError::Exists.into()) };
        if self.look_up(&parent, &name).await?.is_some() {
            return Err(FsError::Exists.into());
        }
        if slash && !is_directory {
            return Err(FsError::NotFound.into());
        }
        Ok((parent, name))
    }

    /// Makes an inode in a directory, which the user has to be permitted to change.
    pub(super) async fn make_in(
        &self,
        parent: &Attributes,
        name: &[u8],
        node: Node,
        mode: u16,
    ) -> Result<Attributes, FileError> {
        self.check_writable()?;
        self.check(parent, WRITE | SEARCH).await?;
        let umask = self.umask & 0o777;
        let mode = self.mode_of_new(parent, &node, mode, umask);
        let new = NewNode { node, mode, umask, uid: self.user.uid, gid: self.user.gid };
        Ok(self.files.create(parent.ino, name, &new).await?.attributes)
    }

    pub(super) async fn make(&self, path: &[u8], node: Node, mode: u16) -> Result<(), FileError> {
        if let Node::Symlink(target) = &node {
            match target.len() {
                0 => return Err(FsError::NotFound.into()),
                len if len > MAX_TARGET => return Err(FsError::NameTooLong.into()),
                _ => {}
            }
        }
        self.check_node(&node)?;
        let is_directory = node == Node::Directory;
        let mode = if is_directory { mode & 0o1777 } else { mode };
        let (parent, name) = self.free_place(path, is_directory).await?;
        self.make_in(&parent, &name, node, mode).await.map(drop)
    }

    pub(super) async fn link(&self, from: &[u8], to: &[u8], follow: bool) -> Result<(), FileError> {
        let it = self.resolve(from, follow).await?;
        let (parent, name) = self.free_place(to, false).await?;
        self.check_writable()?;
        self.check(&parent, WRITE | SEARCH).await?;
        if it.kind == Kind::Directory {
            return Err(FsError::NotPermitted.into());
        }
        self.files.link(it.ino, parent.ino, &name).await?;
        Ok(())
    }

    pub(super) async fn unlink(&self, path: &[u8]) -> Result<(), FileError> {
        let (walk, End { last, slash }) = Walk::along(*self, path).await?;
        let parent = walk.current();
        let Last::Name(name) = last else { return Err(FsError::IsDirectory.into()) };
        self.check_writable()?;
        let removed = self.look_up(&parent, &name).await?.ok_or(FsError::NotFound)?;
        if slash {
            return Err(match removed.kind {
                Kind::Directory => FsError::IsDirectory.into(),
                _ => FsError::NotDirectory.into(),
            });
        }
        self.check_removal(&parent, &removed, false).await?;
        Ok(self.files.unlink(parent.ino, &name).await?)
    }

    pub(super) async fn remove_directory(&self, path: &[u8]) -> Result<(), FileError> {
        let (walk, End { last, .. }) = Walk::along(*self, path).await?;
        let parent = walk.current();
        let name = match last {
            Last::Name(name) => name,
            Last::DotDot => return Err(FsError::NotEmpty.into()),
            Last::Dot => return Err(invalid("the path ends with .")),
            Last::Root => return Err(FileError::InUse),
        };
        self.check_writable()?;
        let removed = self.look_up(&parent, &name).await?.ok_or(FsError::NotFound)?;
        self.check_removal(&parent, &removed, true).await?;
        Ok(self.files.remove_directory(parent.ino, &name).await?)
    }

    pub(super) async fn rename(
        &self,
        from: &[u8],
        to: &[u8],
        how: Rename,
    ) -> Result<(), FileError> {
        let (old, old_end) = Walk::along(*self, from).await?;
        let (new, new_end) = Walk::along(*self, to).await?;
        let Last::Name(old_name) = &old_end.last else { return Err(FileError::InUse) };
        let Last::Name(new_name) = &new_end.last else {
            return Err(match how {
                Rename::NoReplace => FsError::Exists.into(),
                _ => FileError::InUse,
            });
        };
        self.check_writable()?;
        let (old_parent, new_parent) = (old.current(), new.current());
        let moved = self.look_up(&old_parent, old_name).await?.ok_or(FsError::NotFound)?;
        let there = self.look_up(&new_parent, new_name).await?;
        match (&there, how) {
            (Some(_), Rename::NoReplace) => return Err(FsError::Exists.into()),
            (None, Rename::Exchange) => return Err(FsError::NotFound.into()),
            _ => {}
        }
        let is_directory = |it: &Attributes| it.kind == Kind::Directory;
        let exchanges = how == Rename::Exchange;
        let to_file = exchanges && !there.as_ref().is_some_and(is_directory);
        let from_file = !is_directory(&moved);
        if to_file && new_end.slash || from_file && (old_end.slash || !exchanges && new_end.slash) {
            return Err(FsError::NotDirectory.into());
        }
        if new.chain.iter().any(|it| it.ino == moved.ino) {
            return Err(invalid("a directory cannot be moved below itself"));
        }
        if let Some(there) = &there
            && old.chain.iter().any(|it| it.ino == there.ino)
        {
            return Err(match exchanges {
                true => invalid("a directory cannot be moved below itself"),
                false => FsError::NotEmpty.into(),
            });
        }
        if there.is_some_and(|there| there.ino == moved.ino) {
            return Ok(());
        }
        self.check_rename((&old_parent, &moved), (&new_parent, there.as_ref()), exchanges).await?;
        let (from, to) = ((old_parent.ino, &old_name[..]), (new_parent.ino, &new_name[..]));
        Ok(self.files.rename(from, to, how).await?)
    }

    pub(super) async fn read_link(&self, path: &[u8]) -> Result<Bytes, FileError> {
        let it = self.resolve(path, false).await?;
        match it.kind {
            Kind::Symlink => Ok(self.files.read_link(it.ino).await?),
            _ => Err(invalid("it is no symbolic link")),
        }
    }
}
