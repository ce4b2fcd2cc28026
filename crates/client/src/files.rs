//! Files and directories for threads, without a mount.
//!
//! - `path`: which inode a path leads to; `access`, `user`: what the caller may do;
//! - `names`, `attributes`, `opening`: calls on paths;
//! - `file`, `directory`, `locks`: calls on what is open;
//! - `levels`: how far files have come;
//! - `place`: where the filesystem is.
//!
//! Calls act for a [`User`] and are checked as the kernel checks those on a mount: modes, access control lists, the
//! sticky bit. The checks protect users from each other only as far as the program wants: it has the whole volume open,
//! or the rights of this machine's key.

mod access;
mod attributes;
mod directory;
mod error;
mod file;
mod levels;
mod locks;
mod names;
mod opening;
mod path;
mod place;
mod user;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;
use thalweg_env::process::{Forked, OfProcess, watch_forks};
use thalweg_env::server_threads;
use thalweg_fs::access::{AccessLists, Actor, Rules};
use thalweg_fs::{Attributes, Credentials, FsError, LockOwner, Node, Rename, SetXattr, Statistics};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::RwLock as RwGate;

use crate::OpenError;
use access::UserView;
use attributes::check_attribute;
use place::Opened;

pub use attributes::Times;
pub use directory::Directory;
pub use error::FileError;
pub use file::{File, SeekTo};
pub use opening::How;
pub use place::FilesOptions;
pub use user::User;

/// How often a call is tried again that met an inode which was removed in the meantime.
const STALE_TRIES: usize = 16;

/// An open filesystem, as one user sees it. Clones are the same filesystem and user. It is closed with
/// [`Filesystem::close`], or when the last clone and the last open file are dropped.
///
/// It is of the process that opened it, with its open files. In a child that this process forks each call fails at once with
/// [`FileError::Forked`]; closing and dropping them there has no effect on the filesystem, the parent, and its locks.
#[derive(Clone)]
pub struct Filesystem {
    shared: Arc<OfProcess<Shared>>,
    user: Arc<User>,
    /// The user, for a server.
    credentials: Arc<Credentials>,
}

struct Shared {
    /// `None` when it was closed.
    opened: RwLock<Option<Arc<Opened>>>,
    lists: AccessLists,
    /// Held by opens together, by a removal of a name alone: between its lookup and its reference nothing removes an
    /// inode. The server of a shared filesystem has its own order.
    removals: RwGate<()>,
    /// The owner of the next file's locks.
    owners: AtomicU64,
    /// Dropped last: the other fields need it.
    runtime: Runtime,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("opened", &*self.opened.read()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filesystem").field("shared", &*self.shared).finish()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(opened) = self.opened.get_mut().take() {
            let _ = self.runtime.block_on(opened.close());
        }
    }
}

impl Filesystem {
    /// Opens a filesystem: that of the volume at a path, which no other process may have open, in this process; or at
    /// `SERVER:/PATH` or `SERVER:PORT:/PATH` that of a server, as `thalweg mount` does.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Served`] for a volume that another process has open.
    pub fn open(place: &str, options: &FilesOptions) -> Result<Filesystem, OpenError> {
        let user = match &options.user {
            Some(user) => user.clone(),
            None => User::of_process()?,
        };
        watch_forks()?;
        let threads = server_threads();
        let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
        let opened = runtime.block_on(Opened::open(place, options))?;
        let opened = RwLock::new(Some(Arc::new(opened)));
        let (lists, owners) = (AccessLists::default(), AtomicU64::new(1));
        let removals = RwGate::new(());
        let shared = Shared { opened, lists, removals, owners, runtime };
        let shared = Arc::new(OfProcess::new(shared));
        Ok(Filesystem::of(shared, user))
    }

    /// The same filesystem for another user.
    pub fn as_user(&self, user: User) -> Filesystem {
        Filesystem::of(self.shared.clone(), user)
    }

    fn of(shared: Arc<OfProcess<Shared>>, user: User) -> Filesystem {
        let credentials = Arc::new(user.credentials());
        Filesystem { shared, user: Arc::new(user), credentials }
    }

    /// The user that calls act for.
    pub fn user(&self) -> &User {
        &self.user
    }

    /// Makes everything durable and closes the filesystem, for all clones and users; later calls fail, also on open
    /// files. Again it does nothing.
    ///
    /// # Errors
    /// Those of the filesystem or a device. Synced changes are safe all the same.
    pub fn close(&self) -> Result<(), OpenError> {
        let Ok(shared) = self.shared.get() else { return Ok(()) };
        let Some(opened) = shared.opened.write().take() else { return Ok(()) };
        shared.runtime.block_on(opened.close())
    }

    /// Whether changes are refused.
    ///
    /// # Errors
    /// [`FileError::Closed`]
    pub fn is_read_only(&self) -> Result<bool, FileError> {
        Ok(self.opened()?.files.is_read_only())
    }

    /// Whether this process has opened it, and not a parent of this one.
    ///
    /// # Errors
    /// [`Forked`], which says which one has.
    pub fn check_process(&self) -> Result<(), Forked> {
        self.shared.get().map(|_| ())
    }

    fn opened(&self) -> Result<Arc<Opened>, FileError> {
        self.shared.get()?.opened.read().clone().ok_or(FileError::Closed)
    }

    /// The owner of a new file's locks.
    fn lock_owner(&self) -> Result<LockOwner, FileError> {
        Ok(LockOwner::local(self.shared.get()?.owners.fetch_add(1, Ordering::Relaxed)))
    }

    /// Runs a call.
    fn run<T>(
        &self,
        work: impl AsyncFnOnce(UserView<'_>) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let shared = self.shared.get()?;
        let opened = self.opened()?;
        let own = match opened.files.checks_users() {
            true => opened.files.for_user(&self.credentials),
            false => None,
        };
        let files = own.as_deref().unwrap_or(&*opened.files);
        let acting = opened.files.acting(&self.credentials);
        let user = acting.as_ref().map_or_else(|| self.user.actor(), Actor::of);
        let rules = Rules { files, user, lists: &shared.lists };
        let view = UserView { rules, umask: self.user.umask };
        shared.runtime.block_on(work(view))
    }

    /// Runs a call on paths. It is tried again when an inode is removed between two of its steps.
    fn run_on_path<T>(
        &self,
        work: impl AsyncFn(UserView<'_>) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        self.run(async |view| {
            for _ in 0..STALE_TRIES {
                match work(view).await {
                    Err(FileError::Filesystem(FsError::Stale)) => {}
                    done => return done,
                }
            }
            Err(FsError::Stale.into())
        })
    }

    /// As [`Filesystem::run_on_path`], for a call that may remove an inode.
    fn run_removal<T>(
        &self,
        work: impl AsyncFn(UserView<'_>) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let removals = &self.shared.get()?.removals;
        self.run_on_path(async |view| {
            let _gate = removals.write().await;
            work(view).await
        })
    }

    /// Opens a file or a directory. A new file gets `mode`, without the bits of the user's umask.
    ///
    /// # Errors
    /// As open(2).
    pub fn open_file(&self, path: &[u8], how: How, mode: u16) -> Result<File, FileError> {
        let removals = &self.shared.get()?.removals;
        let inode = self.run_on_path(async |view| {
            let _gate = removals.read().await;
            view.open(path, how, mode).await
        })?;
        File::new(self.clone(), how, inode)
    }

    /// Opens a directory to list it; with `detailed`, entries have attributes.
    ///
    /// # Errors
    /// As opendir(3).
    pub fn open_directory(&self, path: &[u8], detailed: bool) -> Result<Directory, FileError> {
        let how = How { directory: true, ..How::READ };
        Ok(Directory::new(self.open_file(path, how, 0)?, detailed))
    }

    /// The attributes of what a path leads to; `follow` a symbolic link at its end.
    ///
    /// # Errors
    /// As stat(2).
    pub fn attributes(&self, path: &[u8], follow: bool) -> Result<Attributes, FileError> {
        self.run_on_path(async |view| view.resolve(path, follow).await)
    }

    /// Fails unless the user may do all of `wanted` with what a path leads to: bits 4 to read, 2 to write, 1 to execute or
    /// to search. With 0, it only has to be there.
    ///
    /// # Errors
    /// As faccessat(2), for the user that calls act for.
    pub fn access(&self, path: &[u8], follow: bool, wanted: u16) -> Result<(), FileError> {
        self.run_on_path(async |view| {
            let it = view.resolve(path, follow).await?;
            view.check_access(&it, wanted).await
        })
    }

    /// Makes an inode: a directory, a symbolic link, a pipe, the name of a socket, a device, or an empty file.
    ///
    /// # Errors
    /// As mkdir(2), symlink(2) and mknod(2).
    pub fn make(&self, path: &[u8], node: &Node, mode: u16) -> Result<(), FileError> {
        self.run_on_path(async |view| view.make(path, node.clone(), mode).await)
    }

    /// Gives an inode another name; `follow` a symbolic link at the end of `from`.
    ///
    /// # Errors
    /// As link(2).
    pub fn link(&self, from: &[u8], to: &[u8], follow: bool) -> Result<(), FileError> {
        self.run_on_path(async |view| view.link(from, to, follow).await)
    }

    /// Removes a name of an inode that is no directory.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn unlink(&self, path: &[u8]) -> Result<(), FileError> {
        self.run_removal(async |view| view.unlink(path).await)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As rmdir(2).
    pub fn remove_directory(&self, path: &[u8]) -> Result<(), FileError> {
        self.run_removal(async |view| view.remove_directory(path).await)
    }

    /// Renames atomically.
    ///
    /// # Errors
    /// As rename(2).
    pub fn rename(&self, from: &[u8], to: &[u8], how: Rename) -> Result<(), FileError> {
        self.run_removal(async |view| view.rename(from, to, how).await)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As readlink(2).
    pub fn read_link(&self, path: &[u8]) -> Result<Bytes, FileError> {
        self.run_on_path(async |view| view.read_link(path).await)
    }

    /// Sets the permission bits: the low 12 bits of the mode.
    ///
    /// # Errors
    /// As chmod(2).
    pub fn change_mode(&self, path: &[u8], follow: bool, mode: u16) -> Result<(), FileError> {
        self.run_on_path(async |view| {
            view.change_mode(&view.resolve(path, follow).await?, mode).await
        })
    }

    /// Sets owner and group; `None` keeps one.
    ///
    /// # Errors
    /// As chown(2).
    pub fn change_owner(
        &self,
        path: &[u8],
        follow: bool,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), FileError> {
        self.run_on_path(async |view| {
            view.change_owner(&view.resolve(path, follow).await?, uid, gid).await
        })
    }

    /// Sets times.
    ///
    /// # Errors
    /// As utimensat(2).
    pub fn change_times(&self, path: &[u8], follow: bool, times: Times) -> Result<(), FileError> {
        self.run_on_path(async |view| {
            view.change_times(&view.resolve(path, follow).await?, times).await
        })
    }

    /// Sets the size of a file: the rest is cut off, or zeros follow.
    ///
    /// # Errors
    /// As truncate(2).
    pub fn truncate(&self, path: &[u8], size: u64) -> Result<(), FileError> {
        self.run_on_path(async |view| view.truncate(path, size).await)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// As getxattr(2).
    pub fn xattr(&self, path: &[u8], follow: bool, name: &[u8]) -> Result<Bytes, FileError> {
        check_attribute(name, b"")?;
        self.run_on_path(async |view| view.xattr(&view.resolve(path, follow).await?, name).await)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As setxattr(2).
    pub fn set_xattr(
        &self,
        path: &[u8],
        follow: bool,
        (name, value): (&[u8], &[u8]),
        how: SetXattr,
    ) -> Result<(), FileError> {
        check_attribute(name, value)?;
        self.run_on_path(async |view| {
            view.set_xattr(&view.resolve(path, follow).await?, name, value, how).await
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As removexattr(2).
    pub fn remove_xattr(&self, path: &[u8], follow: bool, name: &[u8]) -> Result<(), FileError> {
        check_attribute(name, b"")?;
        self.run_on_path(async |view| {
            view.remove_xattr(&view.resolve(path, follow).await?, name).await
        })
    }

    /// The names of the extended attributes that the user may know.
    ///
    /// # Errors
    /// As listxattr(2).
    pub fn xattrs(&self, path: &[u8], follow: bool) -> Result<Vec<Bytes>, FileError> {
        self.run_on_path(async |view| view.xattrs(&view.resolve(path, follow).await?).await)
    }

    /// How full the filesystem is.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub fn statistics(&self) -> Result<Statistics, FileError> {
        self.run(async |view| Ok(view.files.statistics().await?))
    }

    /// Returns when everything survives a crash.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub fn sync(&self) -> Result<(), FileError> {
        self.run(async |view| Ok(view.files.sync_all().await?))
    }
}
