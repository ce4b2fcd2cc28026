//! Opens files and directories.

use thalweg_fs::access::{READ, WRITE};
use thalweg_fs::{Attributes, Caller, FsError, Handle, Kind, Node, OpenFlags};

use super::access::UserView;
use super::error::{FileError, invalid};
use super::path::{Last, Walk};

/// How a file is opened, as open(2) says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// To be read.
    pub read: bool,
    /// To be written.
    pub write: bool,
    /// Writes go to the end.
    pub append: bool,
    /// The file is made if it is not there.
    pub create: bool,
    /// With `create`: it must not be there.
    pub exclusive: bool,
    /// Its content is removed.
    pub truncate: bool,
    /// It must be a directory.
    pub directory: bool,
    /// A symbolic link at the path's end is not followed.
    pub no_follow: bool,
    /// Each write is durable when it returns.
    pub sync: bool,
}

impl How {
    /// To be read.
    pub const READ: How = How {
        read: true,
        write: false,
        append: false,
        create: false,
        exclusive: false,
        truncate: false,
        directory: false,
        no_follow: false,
        sync: false,
    };

    /// The flags of open(2). Those that say nothing about the file are ignored, such as `O_CLOEXEC`, `O_NOATIME` and
    /// `O_DIRECT`.
    ///
    /// # Errors
    /// `EINVAL` for an invalid access mode, `O_PATH`, and `O_CREAT` with `O_DIRECTORY`; `EOPNOTSUPP` for
    /// `O_TMPFILE`.
    pub fn of_flags(flags: i32) -> Result<How, FileError> {
        let has = |bits: i32| flags & bits == bits;
        let (read, write) = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => (true, false),
            libc::O_WRONLY => (false, true),
            libc::O_RDWR => (true, true),
            _ => return Err(invalid("a file is opened to be read, to be written, or both")),
        };
        if has(libc::O_TMPFILE) {
            return Err(FsError::NotSupported.into());
        }
        if has(libc::O_PATH) || has(libc::O_CREAT | libc::O_DIRECTORY) {
            return Err(invalid("these flags of open do not go together"));
        }
        Ok(How {
            read,
            write,
            append: has(libc::O_APPEND),
            create: has(libc::O_CREAT),
            exclusive: has(libc::O_CREAT | libc::O_EXCL),
            truncate: has(libc::O_TRUNC),
            directory: has(libc::O_DIRECTORY),
            no_follow: has(libc::O_NOFOLLOW),
            // O_SYNC includes this bit.
            sync: has(libc::O_DSYNC),
        })
    }
}

/// An open inode. It has a reference.
pub(super) struct OpenInode {
    pub(super) it: Attributes,
    pub(super) handle: Handle,
    pub(super) flush: bool,
}

impl UserView<'_> {
    /// Opens what a path leads to, or makes it.
    pub(super) async fn open(
        &self,
        path: &[u8],
        how: How,
        mode: u16,
    ) -> Result<OpenInode, FileError> {
        let (mut walk, mut end) = Walk::along(*self, path).await?;
        loop {
            let Last::Name(name) = &end.last else {
                let it = walk.enter(&end.last);
                return match (how.create, how.exclusive) {
                    (true, true) => Err(FsError::Exists.into()),
                    (true, false) => Err(FsError::IsDirectory.into()),
                    (false, _) => self.open_found(it, how).await,
                };
            };
            if how.create && end.slash {
                return Err(FsError::IsDirectory.into());
            }
            let parent = walk.current();
            let Some(it) = self.look_up(&parent, name).await? else {
                if !how.create {
                    return Err(FsError::NotFound.into());
                }
                match self.make_in(&parent, name, Node::File, mode).await {
                    Ok(it) => return self.open_inode(it, how).await,
                    // Another user was first: that file is opened.
                    Err(FileError::Filesystem(FsError::Exists)) if !how.exclusive => continue,
                    Err(error) => return Err(error),
                }
            };
            if how.exclusive {
                return Err(FsError::Exists.into());
            }
            if it.kind == Kind::Symlink && (end.slash || !how.no_follow) {
                end = walk.follow(&it, end).await?;
                continue;
            }
            if end.slash && it.kind != Kind::Directory {
                return Err(FsError::NotDirectory.into());
            }
            return self.open_found(it, how).await;
        }
    }

    /// Opens an inode that is there already.
    async fn open_found(&self, it: Attributes, how: How) -> Result<OpenInode, FileError> {
        let changes = how.write || how.truncate;
        match it.kind {
            Kind::Directory if how.create || changes => return Err(FsError::IsDirectory.into()),
            Kind::Directory => {}
            _ if how.directory => return Err(FsError::NotDirectory.into()),
            Kind::Symlink => return Err(FileError::Links),
            _ => {}
        }
        if changes {
            self.check_writable()?;
        }
        let wanted = if how.read { READ } else { 0 } | if changes { WRITE } else { 0 };
        self.check(&it, wanted).await?;
        if !matches!(it.kind, Kind::File | Kind::Directory) {
            return Err(FileError::Special);
        }
        let opened = self.open_inode(it, how).await?;
        if how.truncate
            && let Err(error) = self.set_size(it.ino, 0).await
        {
            self.close(&opened).await;
            return Err(error);
        }
        Ok(opened)
    }

    async fn open_inode(&self, it: Attributes, how: How) -> Result<OpenInode, FileError> {
        let caller = Caller { uid: self.user.uid, gid: self.user.gid, pid: std::process::id() };
        let flags = OpenFlags {
            read: how.read,
            write: how.write,
            append: how.append,
            // Nothing is cached here.
            direct: true,
            sync: how.sync,
        };
        self.files.reference(it.ino);
        match self.files.open(&caller, it.ino, flags).await {
            Ok(opened) => Ok(OpenInode { it, handle: opened.handle, flush: opened.flush }),
            Err(error) => {
                self.files.unreference(it.ino, 1);
                Err(error.into())
            }
        }
    }

    /// Releases an open inode.
    pub(super) async fn close(&self, opened: &OpenInode) {
        self.files.release(opened.it.ino, opened.handle).await;
        self.files.unreference(opened.it.ino, 1);
    }
}
