//! The one trait that adapters see.
//!
//! Calls name inodes, not paths. They check no permissions: an adapter that serves several users has the
//! kernel check modes and access control lists. The owner of a new inode is an argument. A filesystem behind a server that
//! checks calls again has to know the user of each one ([`Filesystem::for_user`]).
//!
//! A change is visible to all readers when its call returns, and survives a crash after a later
//! [`Filesystem::sync`] of the inode; for a change of names, of the directory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::answer::{Answer, Lookup};
use crate::attributes::{AttributeChange, Ino};
use crate::direct::DirectContents;
pub use crate::entry::{Cookie, Entry};
use crate::error::FsError;
use crate::handle::{Caller, Credentials, Handle, OpenFlags, Opened};
use crate::invalidation::Watcher;
use crate::level::Level;
use crate::locks::{Lock, LockKind, LockOwner, LockRange};
use crate::mutation::{ByteMutations, Mutation};
pub use crate::node::{NewNode, Node, Rename};
use crate::room::{Promises, RoomShare};
use crate::session_table::{Held, JournalPosition, Recorder, SessionRecord};
use crate::stored_ahead::StoreAhead;

/// Longest name in bytes.
pub const MAX_NAME: usize = 255;
/// Longest target of a symbolic link in bytes.
pub const MAX_TARGET: usize = 4095;
/// Longest name of an extended attribute in bytes.
pub const MAX_XATTR_NAME: usize = 255;
/// Longest value of an extended attribute in bytes.
pub const MAX_XATTR_VALUE: usize = 65536;
/// Names of an inode.
pub const MAX_LINKS: u32 = 65_000_000;
/// Largest file in bytes: 16 TiB.
pub const MAX_FILE: u64 = 16 << 40;

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum WriteAt {
    /// To a byte of the file.
    Offset(u64),
    /// To its end, wherever that is when the write takes effect.
    End,
}

/// Options of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WriteHow {
    /// Return when it survives a crash.
    pub sync: bool,
    /// As [`AttributeChange::clear_suid`].
    pub clear_suid: bool,
}

/// A change of the storage of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Allocation {
    /// Reserves it; content stays.
    Reserve {
        /// Whether the file may not grow by it.
        keep_size: bool,
    },
    /// Frees it, and the range reads as zeros. The size stays.
    Punch,
    /// It is reserved, and the range reads as zeros.
    Zero {
        /// Whether the file may not grow by it.
        keep_size: bool,
    },
}

/// The target of a seek.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Seek {
    /// A byte with storage.
    Data,
    /// A byte without; the end of the file is one.
    Hole,
}

/// How setting an extended attribute treats an existing one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SetXattr {
    /// Either way it is set.
    Any,
    /// It must not be there: [`FsError::Exists`].
    Create,
    /// It must be there: [`FsError::NoAttribute`].
    Replace,
}

/// How full the filesystem is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Statistics {
    /// Bytes in a block.
    pub block: u32,
    /// Blocks for files and metadata.
    pub blocks: u64,
    /// Free blocks of these, as far as the volume below has room for them.
    pub free: u64,
    /// Inodes in use, and the maximum.
    pub inodes: (u64, u64),
}

/// Files and directories. A handle to the same ones may be shared by any number of tasks.
#[async_trait]
pub trait Filesystem: Send + Sync + fmt::Debug + 'static {
    /// Whether changes are refused.
    fn is_read_only(&self) -> bool;

    /// The inode of a name.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::NameTooLong`].
    async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Lookup, FsError>;

    /// [`Filesystem::lookup`] for callers that do not cache.
    ///
    /// # Errors
    /// [`FsError::NotFound`] also for an absent name.
    async fn find(&self, parent: Ino, name: &[u8]) -> Result<Answer, FsError> {
        match self.lookup(parent, name).await? {
            Lookup::Found(answer) => Ok(answer),
            Lookup::Absent(_) => Err(FsError::NotFound),
        }
    }

    /// The parent of a directory; of the root, the root.
    async fn parent(&self, directory: Ino) -> Result<Ino, FsError>;

    /// The attributes of an inode.
    ///
    /// # Errors
    /// [`FsError::Stale`]
    async fn attributes(&self, ino: Ino) -> Result<Answer, FsError>;

    /// As [`Filesystem::attributes`], for a cache that shows them to programs: it has dropped the pages that were changed before
    /// ([`Filesystem::watch`]). So never wait for this in a task that holds pages.
    async fn shown_attributes(&self, ino: Ino) -> Result<Answer, FsError> {
        self.attributes(ino).await
    }

    /// Sets attributes.
    async fn set_attributes(&self, ino: Ino, change: &AttributeChange) -> Result<Answer, FsError>;

    /// Makes an inode with a name.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NotFound`] in a directory that was removed.
    async fn create(&self, parent: Ino, name: &[u8], new: &NewNode) -> Result<Answer, FsError>;

    /// Gives an inode another name.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`] for a directory; [`FsError::TooManyLinks`].
    async fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Answer, FsError>;

    /// Removes a name of an inode that is no directory. The inode lives on while it has other names or references.
    async fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), FsError>;

    /// Removes an empty directory.
    async fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<(), FsError>;

    /// Renames atomically.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for a directory that would come below itself.
    async fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Result<(), FsError>;

    /// The target of a symbolic link.
    async fn read_link(&self, ino: Ino) -> Result<Bytes, FsError>;

    /// At most `most` entries after a position, without `.` and `..`; none at the end. An entry that exists
    /// throughout is listed exactly once. With `attributes`, entries carry them.
    async fn read_directory(
        &self,
        ino: Ino,
        from: Cookie,
        most: usize,
        attributes: bool,
    ) -> Result<Vec<Entry>, FsError>;

    /// At most `len` bytes from `offset` on: less only at the end. Buffers follow one another.
    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>, FsError>;

    /// As [`Filesystem::read`], of bytes that a cache of the caller keeps until it is told that they change ([`Filesystem::watch`]).
    async fn read_cached(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>, FsError> {
        self.read(ino, offset, len).await
    }

    /// Writes all of `data`, buffer after buffer; where it went. It is visible, and there after a
    /// crash, all or nothing where the store's mode promises that.
    ///
    /// # Errors
    /// [`FsError::FileTooLarge`], [`FsError::NoSpace`], [`FsError::QuotaExceeded`].
    async fn write(
        &self,
        ino: Ino,
        at: WriteAt,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Result<u64, FsError>;

    /// Reserves, frees or zeroes storage.
    async fn allocate(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        how: Allocation,
    ) -> Result<(), FsError>;

    /// The first byte at or after `offset` of that kind.
    ///
    /// # Errors
    /// [`FsError::NothingThere`] beyond the end, and for data when no data follows.
    async fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, FsError>;

    /// Copies at most `len` bytes from one file to another, or within one; how many.
    async fn copy(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64, FsError>;

    /// Returns when all changes of an inode survive a crash; with `content_only`, its bytes and the metadata needed to read them.
    async fn sync(&self, ino: Ino, content_only: bool) -> Result<(), FsError>;

    /// Returns when everything survives a crash.
    async fn sync_all(&self) -> Result<(), FsError>;

    /// How far all changes of an inode have come that this filesystem shows. It never says more than is true, and may say less:
    /// [`Level::Server`] of a file that the replicas have, while they do not have later changes of other files. Nothing is synced for it.
    ///
    /// # Errors
    /// The one that a [`Filesystem::sync`] of the inode would fail with because changes of it were lost.
    async fn level(&self, ino: Ino) -> Result<Level, FsError>;

    /// Brings all changes of an inode to a level, and says whether they have come to it. The call waits for replicas at most
    /// `within`; what leads to the levels before that takes as long as [`Filesystem::sync`].
    ///
    /// # Errors
    /// Those of a sync; [`FsError::NoReplicas`] when no replica is connected now.
    async fn wait_for(&self, ino: Ino, level: Level, within: Duration) -> Result<bool, FsError>;

    /// The value of an extended attribute. Names carry their namespace: `user.`, `trusted.`, `security.`, or are those of access control
    /// lists, `system.posix_acl_access` and `system.posix_acl_default`.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`], [`FsError::NotSupported`] for other namespaces.
    async fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Bytes, FsError>;

    /// Sets an extended attribute. An access control list that says no more than the mode can becomes the mode.
    async fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: Bytes,
        how: SetXattr,
    ) -> Result<(), FsError>;

    /// The names of an inode's extended attributes.
    async fn xattrs(&self, ino: Ino) -> Result<Vec<Bytes>, FsError>;

    /// Takes an extended attribute away.
    async fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), FsError>;

    /// How full it is.
    async fn statistics(&self) -> Result<Statistics, FsError>;

    /// Takes a reference to an inode: it lives, with or without names, until [`Filesystem::unreference`] has
    /// released all of its references. This is FUSE's lookup count.
    fn reference(&self, ino: Ino);

    /// Releases `count` references. An inode without names is removed with the last.
    fn unreference(&self, ino: Ino, count: u64);

    /// Opens an inode, which the caller has a reference to. The caller's kernel has checked permissions; a server
    /// of untrusted callers checks them again here.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::ReadOnly`].
    async fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened, FsError>;

    /// A descriptor of an open file is closed, by a process that is the owner of POSIX locks: these end. Returns
    /// the errors of earlier writes, if the filesystem delays writes.
    async fn flush(&self, ino: Ino, handle: Handle, owner: LockOwner) -> Result<(), FsError>;

    /// The last descriptor of an open file is closed: its handle and all locks that were taken through it end.
    async fn release(&self, ino: Ino, handle: Handle);

    /// Takes a lock, or changes the owner's own; with `wait`, when it is free. To end the wait, drop the future.
    ///
    /// # Errors
    /// [`FsError::Locked`] without `wait`; [`FsError::Deadlock`] when owners of POSIX locks would wait for each
    /// other; [`FsError::TooManyLocks`].
    async fn lock(&self, ino: Ino, lock: &Lock, wait: bool) -> Result<(), FsError>;

    /// Releases an owner's locks of a range of bytes.
    ///
    /// # Errors
    /// [`FsError::TooManyLocks`] when that would split one.
    async fn unlock(
        &self,
        ino: Ino,
        kind: LockKind,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<(), FsError>;

    /// A lock of another owner that excludes this one, if there is one.
    async fn conflicting_lock(&self, ino: Ino, lock: &Lock) -> Result<Option<Lock>, FsError>;

    /// The locks on an inode, by their ranges. A filesystem behind a server knows those of its own callers only.
    fn locks(&self, ino: Ino) -> Vec<Lock>;

    /// Sets the watcher, in place of an earlier one: it is told of every change that does not come through this handle.
    fn watch(&self, watcher: Watcher);

    /// Whether calls go to a server on another machine, for which they may have to wait.
    fn is_remote(&self) -> bool {
        false
    }

    /// Whether that server cannot be reached now, so that calls wait for it.
    fn is_away(&self) -> bool {
        false
    }

    /// Whether it also has been away for so long that nothing may be used without it.
    fn is_disconnected(&self) -> bool {
        false
    }

    /// Whether calls are checked again behind this filesystem, so that they are to be made through [`Filesystem::for_user`].
    /// It may change.
    fn checks_users(&self) -> bool {
        false
    }

    /// The same filesystem, for calls that are made for this user; `None` where the user makes no difference. References and
    /// handles are those of all users.
    fn for_user(&self, _user: &Arc<Credentials>) -> Option<Arc<dyn Filesystem>> {
        None
    }

    /// The user that calls for this one count for, if that is another one: permissions are those of that user.
    fn acting(&self, _user: &Credentials) -> Option<Credentials> {
        None
    }

    /// Fails unless this handle's user may use an inode in these ways ([`crate::access`]), where the kernel cannot check that.
    ///
    /// # Errors
    /// [`FsError::Denied`]
    async fn check_access(&self, _ino: Ino, _wanted: u16) -> Result<(), FsError> {
        Ok(())
    }

    /// The records that a server can keep in the filesystem, if these survive a crash as its files do.
    fn session_table(&self) -> Option<&dyn SessionTable> {
        None
    }

    /// Whether the watcher may be told of [`Change::Everything`](crate::Change::Everything). The adapter then
    /// keeps a list of the names that its caller caches.
    fn may_change_everything(&self) -> bool {
        false
    }
}

/// A filesystem that keeps a server's records.
#[async_trait]
pub trait SessionTable: Promises + Send + Sync + fmt::Debug {
    /// The filesystem for one call: its change and the record of the call are one transaction. A call of several
    /// transactions is recorded with its last change.
    ///
    /// The call fails with [`FsError::Stale`] when the session is not in the records.
    fn recording(&self, recorder: Arc<Recorder>) -> Arc<dyn Filesystem>;

    /// Records a new session; returns its number when that survives a crash.
    ///
    /// # Errors
    /// Those of the transaction.
    async fn begin_session(&self, info: Bytes) -> Result<u64, FsError>;

    /// Removes sessions from the records; returns when that survives a crash.
    ///
    /// # Errors
    /// Those of the transaction.
    async fn end_sessions(&self, sessions: &[u64]) -> Result<(), FsError>;

    /// The sessions that are recorded. From here on a change of an inode is later than the [`Held::all`] of each, so it comes before the first change of an
    /// opening.
    ///
    /// # Errors
    /// Those of the transaction; [`FsError::Damaged`].
    async fn sessions(&self) -> Result<Vec<SessionRecord>, FsError>;

    /// A number for a server that goes on with the sessions on record: greater than those of all before it, also after a crash.
    ///
    /// # Errors
    /// Those of the transaction; [`FsError::Damaged`].
    async fn number_server(&self) -> Result<u64, FsError>;

    /// Notes for a session that the filesystem is about to be used without a server, so that each inode counts as used by others
    /// ([`Held::all`]), and gives it another record. Both are durable together. The filesystem has the mutations of the session's client up to
    /// this position of its journal.
    ///
    /// # Errors
    /// As [`SessionTable::set_session`].
    async fn use_all(&self, session: u64, info: Bytes, position: u64) -> Result<(), FsError>;

    /// Gives a session another record; returns when that survives a crash.
    ///
    /// # Errors
    /// [`FsError::Stale`] when it has none; [`FsError::Invalid`] for one that is too long; those of the transaction.
    async fn set_session(&self, session: u64, info: Bytes) -> Result<(), FsError>;

    /// Records what a session may change by itself ([`SessionRecord::held`]), durably. Errors as above.
    async fn hold(&self, session: u64, held: &Held) -> Result<(), FsError>;

    /// A number that shows that the server told this session of an inode in this generation: it cannot be guessed.
    fn inode_token(&self, session: u64, ino: Ino, generation: u64) -> u64;

    /// Records that a session was shut out of inodes, in the order of changes: inode tokens of the generation beside each are valid.
    ///
    /// # Errors
    /// Those of the transactions.
    async fn revoke(&self, session: u64, inodes: &[(Ino, u64)]) -> Result<(), FsError>;

    /// As [`SessionTable::inode_token`], for inode numbers that were reserved for a session.
    fn inode_range_token(&self, session: u64, numbers: Range<u64>) -> u64;

    /// Reserves inode numbers for [`MutationKind::Create`](crate::mutation::MutationKind::Create); returns them when that survives a crash.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for none; those of the transaction.
    async fn reserve_numbers(&self, count: u64) -> Result<Range<u64>, FsError>;

    /// Returns numbers that were reserved, and that no inode ever had.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when some were never reserved, were returned before, or an inode has one.
    async fn return_numbers(&self, numbers: Range<u64>) -> Result<(), FsError>;

    /// The changes of bytes that [`SessionTable::apply`] takes.
    fn byte_mutations(&self) -> ByteMutations {
        ByteMutations { end: u64::MAX, sizes: true, dense: false }
    }

    /// What clients need that read and write contents themselves; `None` if none can.
    fn direct(&self) -> Option<&dyn DirectContents> {
        None
    }

    /// Applies mutations in their order: all of them in one transaction, or none. When they count, the promise of the session is
    /// less by `charged`, and it refuses nothing that this covers. The record of the call has where they end in their client's journal.
    ///
    /// # Errors
    /// The first one of a mutation: those of the call that would make the same change; [`FsError::Invalid`] for an inode number
    /// that was never reserved, or that an inode has.
    async fn apply(
        &self,
        mutations: &[Mutation],
        charged: &[RoomShare],
        end: JournalPosition,
    ) -> Result<(), FsError>;

    /// What stores bytes of batches before these are there; `None` if that is of no use.
    fn ahead(&self) -> Option<&dyn StoreAhead> {
        None
    }

    /// Removes inodes without names and references that an earlier opening has left. Before that they are kept for sessions
    /// that take references again, if the filesystem was opened so.
    ///
    /// # Errors
    /// Those of the transaction.
    async fn release_orphans(&self) -> Result<(), FsError>;
}
