//! What a user may do: the checks that Linux makes for files.
//!
//! They are made where no kernel makes them: in the library for programs without a mount, and in a server for clients that
//! it does not trust.

use parking_lot::Mutex;
use thalweg_env::HashMap;

use crate::acl::Acl;
use crate::attributes::{Attributes, Ino, Kind, TimeChange, Timestamp};
use crate::error::FsError;
use crate::filesystem::{Filesystem, Node};
use crate::handle::Credentials;

/// May be read.
pub const READ: u16 = 4;
/// May be changed.
pub const WRITE: u16 = 2;
/// May be executed; of a directory, searched.
pub const SEARCH: u16 = 1;

/// The extended attribute with the access control list.
pub const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

const SET_GROUP_ID: u16 = 0o2000;
const STICKY: u16 = 0o1000;
/// Set-group-id, and execution by the group.
const GROUP_PRIVILEGES: u16 = 0o2010;
/// Inodes of which the list is cached; when there are more, all are dropped.
const CACHED: usize = 4096;

/// The user of [`Rules`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Actor<'a> {
    /// The user; 0 is root.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
}

impl<'a> Actor<'a> {
    /// The user that a call is made for.
    pub fn of(user: &'a Credentials) -> Actor<'a> {
        Actor { uid: user.uid, gid: user.gid, groups: &user.groups }
    }

    /// Whether it is root.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the user is in a group.
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

/// Access control lists by inode, each with the time of the inode's last change: no two states of an inode have the
/// same.
#[derive(Debug, Default)]
pub struct AccessLists(Mutex<HashMap<Ino, (Timestamp, Option<Acl>)>>);

impl AccessLists {
    async fn of(&self, files: &dyn Filesystem, it: &Attributes) -> Result<Option<Acl>, FsError> {
        let cached = self.0.lock().get(&it.ino).cloned();
        if let Some((_, acl)) = cached.filter(|(changed, _)| *changed == it.changed) {
            return Ok(acl);
        }
        let acl = match files.xattr(it.ino, ACCESS_LIST).await {
            Ok(value) => Some(Acl::decode(&value)?),
            Err(FsError::NoAttribute | FsError::NotSupported) => None,
            Err(error) => return Err(error),
        };
        let mut all = self.0.lock();
        if all.len() >= CACHED {
            all.clear();
        }
        all.insert(it.ino, (it.changed, acl.clone()));
        Ok(acl)
    }
}

/// What one user may do in a filesystem. Root may do everything that Linux permits root.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// The filesystem, for access control lists.
    pub files: &'a dyn Filesystem,
    /// The user.
    pub user: Actor<'a>,
    /// The lists of the filesystem.
    pub lists: &'a AccessLists,
}

impl Rules<'_> {
    /// Fails unless the user may do all of `wanted`: [`READ`], [`WRITE`], [`SEARCH`].
    ///
    /// # Errors
    /// [`FsError::Denied`]
    pub async fn check(&self, it: &Attributes, wanted: u16) -> Result<(), FsError> {
        if self.permits(it, wanted).await? { Ok(()) } else { Err(FsError::Denied) }
    }

    /// Whether the user may do all of `wanted`.
    ///
    /// # Errors
    /// Those of the filesystem, for the access control list.
    pub async fn permits(&self, it: &Attributes, wanted: u16) -> Result<bool, FsError> {
        let user = self.user;
        if user.is_root() {
            let executable = it.kind == Kind::Directory || it.mode & 0o111 != 0;
            return Ok(wanted & SEARCH == 0 || executable);
        }
        let bits = |shift: u16| (it.mode >> shift) & wanted == wanted;
        if user.uid == it.uid {
            return Ok(bits(6));
        }
        // With a list, the group's bits are the list's mask: without any, nothing in it permits more than the mode.
        if it.mode & 0o070 != 0
            && let Some(list) = self.lists.of(self.files, it).await?
        {
            return Ok(list.permits(user.uid, it.gid, |group| user.is_in(group), wanted));
        }
        Ok(if user.is_in(it.gid) { bits(3) } else { bits(0) })
    }

    /// Whether the user owns an inode, or may do what its owner may.
    pub fn owns(&self, it: &Attributes) -> bool {
        self.user.is_root() || self.user.uid == it.uid
    }

    /// Fails unless the user owns an inode.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`]
    pub fn check_owner(&self, it: &Attributes) -> Result<(), FsError> {
        if self.owns(it) { Ok(()) } else { Err(FsError::NotPermitted) }
    }

    /// Fails unless the user may remove a name in `parent`, of an inode that has to be a directory, or no directory.
    ///
    /// # Errors
    /// [`FsError::Denied`], [`FsError::NotPermitted`] in a directory with the sticky bit,
    /// [`FsError::NotDirectory`], [`FsError::IsDirectory`].
    pub async fn check_removal(
        &self,
        parent: &Attributes,
        removed: &Attributes,
        is_directory: bool,
    ) -> Result<(), FsError> {
        self.check(parent, WRITE | SEARCH).await?;
        if parent.mode & STICKY != 0 && !self.owns(removed) && !self.owns(parent) {
            return Err(FsError::NotPermitted);
        }
        match (is_directory, removed.kind == Kind::Directory) {
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            _ => Ok(()),
        }
    }

    /// Fails unless the user may give `moved` in one directory a name in another one, where `there` has that name;
    /// `exchanges`: and the other way round.
    ///
    /// # Errors
    /// As [`Rules::check_removal`].
    pub async fn check_rename(
        &self,
        (old_parent, moved): (&Attributes, &Attributes),
        (new_parent, there): (&Attributes, Option<&Attributes>),
        exchanges: bool,
    ) -> Result<(), FsError> {
        let is_directory = moved.kind == Kind::Directory;
        self.check_removal(old_parent, moved, is_directory).await?;
        match there {
            None => self.check(new_parent, WRITE | SEARCH).await?,
            Some(there) if exchanges => {
                let is_directory = there.kind == Kind::Directory;
                self.check_removal(new_parent, there, is_directory).await?;
            }
            Some(there) => self.check_removal(new_parent, there, is_directory).await?,
        }
        if old_parent.ino == new_parent.ino {
            return Ok(());
        }
        // The entry .. of a directory that moves is changed.
        if is_directory {
            self.check(moved, WRITE).await?;
        }
        match there.filter(|there| exchanges && there.kind == Kind::Directory) {
            Some(there) => self.check(there, WRITE).await,
            None => Ok(()),
        }
    }

    /// Fails for a device, which only root makes.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`]
    pub fn check_node(&self, node: &Node) -> Result<(), FsError> {
        match node {
            Node::BlockDevice(_) | Node::CharDevice(_) if !self.user.is_root() => {
                Err(FsError::NotPermitted)
            }
            _ => Ok(()),
        }
    }

    /// The mode of a new inode in `parent` that asks for `mode`: a program does not get the privileges of a group that
    /// its maker is not in.
    pub fn mode_of_new(&self, parent: &Attributes, node: &Node, mode: u16, umask: u16) -> u16 {
        let mode = mode & 0o7777;
        let inherits = parent.mode & SET_GROUP_ID != 0 && *node != Node::Directory;
        let is_privileged = mode & !umask & GROUP_PRIVILEGES == GROUP_PRIVILEGES;
        if is_privileged && inherits && !self.may_keep_set_group_id(parent) {
            mode & !SET_GROUP_ID
        } else {
            mode
        }
    }

    /// Whether a change of the mode may leave set-group-id.
    pub fn may_keep_set_group_id(&self, it: &Attributes) -> bool {
        self.user.is_root() || self.user.is_in(it.gid)
    }

    /// The mode that an inode gets when the user sets `mode`: without set-group-id for a group that the user is not in.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`] for another user's inode.
    pub fn mode_to_set(&self, it: &Attributes, mode: u16) -> Result<u16, FsError> {
        self.check_owner(it)?;
        let mode = mode & 0o7777;
        Ok(if self.may_keep_set_group_id(it) { mode } else { mode & !SET_GROUP_ID })
    }

    /// Fails unless the user may set owner and group; `None` keeps one.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`]
    pub fn check_owner_change(
        &self,
        it: &Attributes,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), FsError> {
        let user = self.user;
        let owns = user.uid == it.uid;
        let may = user.is_root()
            || uid.is_none_or(|uid| owns && uid == it.uid)
                && gid.is_none_or(|gid| owns && (gid == it.gid || user.is_in(gid)))
                && (owns || it.kind == Kind::Directory || it.mode & 0o6000 == 0);
        if may { Ok(()) } else { Err(FsError::NotPermitted) }
    }

    /// Fails unless the user may set times. Of an inode that the user may write, both may be set to the time of the call.
    ///
    /// # Errors
    /// [`FsError::Denied`], [`FsError::NotPermitted`]
    pub async fn check_times(
        &self,
        it: &Attributes,
        accessed: Option<TimeChange>,
        modified: Option<TimeChange>,
    ) -> Result<(), FsError> {
        let now = Some(TimeChange::Now);
        match self.owns(it) {
            true => Ok(()),
            false if (accessed, modified) == (now, now) => self.check(it, WRITE).await,
            false => Err(FsError::NotPermitted),
        }
    }

    /// Fails unless the user may use an extended attribute (xattr(7)).
    ///
    /// # Errors
    /// [`FsError::Denied`], [`FsError::NotPermitted`]; [`FsError::NoAttribute`] for one that the user may not know of.
    pub async fn check_xattr(
        &self,
        it: &Attributes,
        name: &[u8],
        changes: bool,
    ) -> Result<(), FsError> {
        let refused =
            || if changes { Err(FsError::NotPermitted) } else { Err(FsError::NoAttribute) };
        let is_root = self.user.is_root();
        if name.starts_with(b"security.") {
            return if changes && !is_root { refused() } else { Ok(()) };
        }
        if name.starts_with(b"trusted.") {
            return if is_root { Ok(()) } else { refused() };
        }
        if name.starts_with(b"system.") {
            if changes && it.kind == Kind::Symlink {
                return Err(FsError::NotSupported);
            }
            return if changes { self.check_owner(it) } else { Ok(()) };
        }
        if name.starts_with(b"user.") {
            if !matches!(it.kind, Kind::File | Kind::Directory) {
                return refused();
            }
            if it.kind == Kind::Directory && it.mode & STICKY != 0 && changes {
                self.check_owner(it)?;
            }
        }
        self.check(it, if changes { WRITE } else { READ }).await
    }

    /// Whether the user may know that an inode has an extended attribute of this name.
    pub fn may_know(&self, name: &[u8]) -> bool {
        self.user.is_root() || !name.starts_with(b"trusted.")
    }
}
