//! Filesystems: what `thalweg/files.py` is made of. Paths and names are bytes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg_client::{
    Directory, File, FileError, FilesOptions, Filesystem, How, OpenError, SeekTo, Times, User,
};
use thalweg_env::process::OfProcess;
use thalweg_fs::{
    Allocation, Attributes, FsError, Kind, LockMode, LockRange, Node, Rename, SetXattr, TimeChange,
    Timestamp,
};

use crate::failure::open_error;
use crate::joined;
use crate::levels::{self, LOOK};

/// Mode, inode, links, owner, group, size, device, units of 512 bytes, and the nanoseconds of the last read, of the last
/// change of the content and of all, and of the beginning.
type Stat = (u32, u64, u32, u32, u32, u64, u32, u64, i128, i128, i128, i128);

/// An `OSError`, which Python makes `FileNotFoundError` and the like by its errno.
fn os_error(error: &FileError, paths: &[&[u8]]) -> PyErr {
    let (errno, text) = (error.errno(), error.to_string());
    let name = |at: usize| paths.get(at).map(|path| OsStr::from_bytes(path).to_owned());
    match (name(0), name(1)) {
        (None, _) => PyOSError::new_err((errno, text)),
        (Some(path), None) => PyOSError::new_err((errno, text, path)),
        (Some(path), other) => PyOSError::new_err((errno, text, path, None::<i32>, other)),
    }
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos)
}

fn time(nanos: i128) -> PyResult<TimeChange> {
    let seconds = i64::try_from(nanos.div_euclid(1_000_000_000));
    let seconds = seconds.map_err(|_| PyValueError::new_err("the time is out of range"))?;
    let nanos = nanos.rem_euclid(1_000_000_000) as u32;
    Ok(TimeChange::At(Timestamp { seconds, nanos }))
}

fn type_of(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::BlockDevice => libc::S_IFBLK,
        Kind::CharDevice => libc::S_IFCHR,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
    }
}

fn stat(it: &Attributes) -> Stat {
    (
        type_of(it.kind) | u32::from(it.mode),
        it.ino.0,
        it.links,
        it.uid,
        it.gid,
        it.size,
        it.rdev,
        it.stored.div_ceil(512),
        nanos(it.accessed),
        nanos(it.modified),
        nanos(it.changed),
        nanos(it.created),
    )
}

fn bits(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

fn id(id: i64) -> PyResult<Option<u32>> {
    match id {
        -1 => Ok(None),
        id => u32::try_from(id).map(Some).map_err(|_| PyValueError::new_err("the id is no id")),
    }
}

/// An open filesystem, as one user sees it.
#[pyclass(frozen, module = "thalweg._thalweg")]
pub(crate) struct Files {
    files: Filesystem,
    /// It came from `open_files`.
    opened: bool,
}

/// Opens a filesystem: of a volume, or of a server at `SERVER:/PATH`.
#[pyfunction]
pub(crate) fn open_files(
    py: Python<'_>,
    place: &str,
    name: Option<String>,
    read_only: bool,
    token: Option<&str>,
    keys: Option<PathBuf>,
    journal: Option<PathBuf>,
) -> PyResult<Files> {
    let token = token.map(str::parse).transpose();
    let token = token.map_err(|error| PyValueError::new_err(format!("{error}")))?;
    let options = FilesOptions { name, read_only, token, keys, journal, user: None };
    match py.detach(|| Filesystem::open(place, &options)) {
        Ok(files) => Ok(Files { files, opened: true }),
        Err(OpenError::Filesystem(error)) => Err(os_error(&error.into(), &[place.as_bytes()])),
        Err(error) => Err(open_error(error)),
    }
}

impl Files {
    /// Runs a call without the interpreter's lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        paths: &[&[u8]],
        work: impl FnOnce(&Filesystem) -> Result<T, FileError> + Send,
    ) -> PyResult<T> {
        py.detach(|| work(&self.files)).map_err(|error| os_error(&error, paths))
    }

    fn make(&self, py: Python<'_>, path: &[u8], node: &Node, mode: u32) -> PyResult<()> {
        self.run(py, &[path], |files| files.make(path, node, bits(mode)))
    }
}

#[pymethods]
impl Files {
    fn as_user(&self, uid: u32, gid: u32, groups: Vec<u32>, umask: u32) -> Files {
        let user = User { uid, gid, groups, umask: bits(umask) & 0o777 };
        Files { files: self.files.as_user(user), opened: false }
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.opened {
            true => match py.detach(|| self.files.close()) {
                Err(OpenError::Filesystem(error)) => Err(os_error(&error.into(), &[])),
                closed => closed.map_err(open_error),
            },
            false => Ok(()),
        }
    }

    fn open(&self, py: Python<'_>, path: &[u8], flags: i32, mode: u32) -> PyResult<OpenFile> {
        let file =
            self.run(py, &[path], |files| files.open_file(path, How::of_flags(flags)?, bits(mode)));
        Ok(OpenFile { file: file? })
    }

    fn list(&self, py: Python<'_>, path: &[u8]) -> PyResult<Listing> {
        let directory = self.run(py, &[path], |files| files.open_directory(path, false))?;
        Ok(Listing { directory: OfProcess::new(Mutex::new(directory)) })
    }

    fn stat(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<Stat> {
        Ok(stat(&self.run(py, &[path], |files| files.attributes(path, follow))?))
    }

    fn access(&self, py: Python<'_>, path: &[u8], mode: u16) -> PyResult<bool> {
        self.run(py, &[path], |files| {
            files.check_process()?;
            Ok(files.access(path, true, mode).is_ok())
        })
    }

    fn mkdir(&self, py: Python<'_>, path: &[u8], mode: u32) -> PyResult<()> {
        self.make(py, path, &Node::Directory, mode)
    }

    fn mkfifo(&self, py: Python<'_>, path: &[u8], mode: u32) -> PyResult<()> {
        self.make(py, path, &Node::Fifo, mode)
    }

    fn symlink(&self, py: Python<'_>, target: &[u8], path: &[u8]) -> PyResult<()> {
        let node = Node::Symlink(Bytes::copy_from_slice(target));
        let made = py.detach(|| self.files.make(path, &node, 0o777));
        made.map_err(|error| os_error(&error, &[target, path]))
    }

    fn link(&self, py: Python<'_>, from: &[u8], to: &[u8], follow: bool) -> PyResult<()> {
        self.run(py, &[from, to], |files| files.link(from, to, follow))
    }

    fn unlink(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, &[path], |files| files.unlink(path))
    }

    fn rmdir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, &[path], |files| files.remove_directory(path))
    }

    fn rename(&self, py: Python<'_>, from: &[u8], to: &[u8]) -> PyResult<()> {
        self.run(py, &[from, to], |files| files.rename(from, to, Rename::Replace))
    }

    fn readlink<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let target = self.run(py, &[path], |files| files.read_link(path))?;
        Ok(PyBytes::new(py, &target))
    }

    fn chmod(&self, py: Python<'_>, path: &[u8], mode: u32, follow: bool) -> PyResult<()> {
        self.run(py, &[path], |files| files.change_mode(path, follow, bits(mode)))
    }

    fn chown(&self, py: Python<'_>, path: &[u8], uid: i64, gid: i64, follow: bool) -> PyResult<()> {
        let (uid, gid) = (id(uid)?, id(gid)?);
        self.run(py, &[path], |files| files.change_owner(path, follow, uid, gid))
    }

    /// Sets both times, in nanoseconds; `None` for now.
    fn utime(
        &self,
        py: Python<'_>,
        path: &[u8],
        times: Option<(i128, i128)>,
        follow: bool,
    ) -> PyResult<()> {
        let times = match times {
            None => Times::NOW,
            Some((accessed, modified)) => {
                Times { accessed: Some(time(accessed)?), modified: Some(time(modified)?) }
            }
        };
        self.run(py, &[path], |files| files.change_times(path, follow, times))
    }

    fn truncate(&self, py: Python<'_>, path: &[u8], size: u64) -> PyResult<()> {
        self.run(py, &[path], |files| files.truncate(path, size))
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        name: &[u8],
        follow: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.run(py, &[path], |files| files.xattr(path, follow, name))?;
        Ok(PyBytes::new(py, &value))
    }

    fn setxattr(
        &self,
        py: Python<'_>,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        flags: i32,
        follow: bool,
    ) -> PyResult<()> {
        let how = match flags {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(PyValueError::new_err("the flags do not go together")),
        };
        self.run(py, &[path], |files| files.set_xattr(path, follow, (name, value), how))
    }

    fn removexattr(&self, py: Python<'_>, path: &[u8], name: &[u8], follow: bool) -> PyResult<()> {
        self.run(py, &[path], |files| files.remove_xattr(path, follow, name))
    }

    fn listxattr<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        follow: bool,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let names = self.run(py, &[path], |files| files.xattrs(path, follow))?;
        Ok(names.iter().map(|name| PyBytes::new(py, name)).collect())
    }

    /// Bytes in a block, blocks, free ones, inodes, free ones, whether changes are refused, and the longest name.
    fn statvfs(&self, py: Python<'_>) -> PyResult<(u32, u64, u64, u64, u64, bool, usize)> {
        let (it, read_only) =
            self.run(py, &[], |files| Ok((files.statistics()?, files.is_read_only()?)))?;
        let (used, most) = it.inodes;
        let free = most.saturating_sub(used);
        let name = thalweg_fs::filesystem::MAX_NAME;
        Ok((it.block, it.blocks, it.free, most, free, read_only, name))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, &[], Filesystem::sync)
    }

    fn level(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<&'static str> {
        Ok(self.run(py, &[path], |files| files.level(path, follow))?.name())
    }

    fn wait_for(
        &self,
        py: Python<'_>,
        path: &[u8],
        level: &str,
        timeout: Option<f64>,
        follow: bool,
    ) -> PyResult<bool> {
        levels::wait(py, level, timeout, |level, within| {
            self.run(py, &[path], |files| files.wait_for(path, follow, level, Some(within)))
        })
    }
}

/// The entries of a directory: names, inodes and types.
#[pyclass(frozen, module = "thalweg._thalweg")]
pub(crate) struct Listing {
    /// Of this process: in a child, a thread that only the parent has may hold the lock.
    directory: OfProcess<Mutex<Directory>>,
}

#[pymethods]
impl Listing {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, u64, u32)>> {
        let next = py.detach(|| self.directory.get()?.lock().next_entry());
        let next = next.map_err(|error| os_error(&error, &[]))?;
        Ok(next.map(|it| (PyBytes::new(py, &it.name), it.ino.0, type_of(it.kind))))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(directory) = self.directory.get() else { return Ok(()) };
        let closed = py.detach(|| directory.lock().file().close());
        closed.map_err(|error| os_error(&error, &[]))
    }
}

/// An open file.
#[pyclass(frozen, module = "thalweg._thalweg")]
pub(crate) struct OpenFile {
    file: File,
}

impl OpenFile {
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&File) -> Result<T, FileError> + Send,
    ) -> PyResult<T> {
        py.detach(|| work(&self.file)).map_err(|error| os_error(&error, &[]))
    }
}

/// The range of a lock: a length of 0 goes up to the end.
fn range(start: u64, len: u64) -> PyResult<LockRange> {
    let last = match len {
        0 => Some(u64::MAX),
        len => start.checked_add(len - 1),
    };
    let last = last.ok_or_else(|| PyValueError::new_err("the range is too long"))?;
    Ok(LockRange { first: start, last })
}

#[pymethods]
impl OpenFile {
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, File::close)
    }

    fn read<'py>(&self, py: Python<'py>, len: usize) -> PyResult<Bound<'py, PyBytes>> {
        let read = self.run(py, |file| file.read(len))?;
        joined(py, &read)
    }

    fn pread<'py>(
        &self,
        py: Python<'py>,
        len: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let read = self.run(py, |file| file.read_at(len, offset))?;
        joined(py, &read)
    }

    fn write(&self, py: Python<'_>, data: &[u8]) -> PyResult<usize> {
        self.run(py, |file| file.write(data))
    }

    fn pwrite(&self, py: Python<'_>, data: &[u8], offset: u64) -> PyResult<usize> {
        self.run(py, |file| file.write_at(data, offset))
    }

    fn append(&self, py: Python<'_>, data: &[u8]) -> PyResult<u64> {
        self.run(py, |file| file.append(data))
    }

    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let invalid = || os_error(&FsError::Invalid("the offset is negative").into(), &[]);
        let start = || u64::try_from(offset).map_err(|_| invalid());
        let to = match whence {
            libc::SEEK_SET => SeekTo::Start(start()?),
            libc::SEEK_CUR => SeekTo::Current(offset),
            libc::SEEK_END => SeekTo::End(offset),
            libc::SEEK_DATA => SeekTo::Data(start()?),
            libc::SEEK_HOLE => SeekTo::Hole(start()?),
            _ => return Err(PyValueError::new_err("invalid whence")),
        };
        self.run(py, |file| file.seek(to))
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.run(py, |file| file.truncate(size))
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        Ok(stat(&self.run(py, File::attributes)?))
    }

    fn sync(&self, py: Python<'_>, content_only: bool) -> PyResult<()> {
        self.run(py, |file| file.sync(content_only))
    }

    fn level(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.run(py, File::level)?.name())
    }

    fn wait_for(&self, py: Python<'_>, level: &str, timeout: Option<f64>) -> PyResult<bool> {
        levels::wait(py, level, timeout, |level, within| {
            self.run(py, |file| file.wait_for(level, Some(within)))
        })
    }

    fn allocate(&self, py: Python<'_>, offset: u64, len: u64, keep_size: bool) -> PyResult<()> {
        self.run(py, |file| file.allocate(offset, len, Allocation::Reserve { keep_size }))
    }

    fn punch(&self, py: Python<'_>, offset: u64, len: u64) -> PyResult<()> {
        self.run(py, |file| file.allocate(offset, len, Allocation::Punch))
    }

    /// Takes a lock, "shared" or "exclusive", or with `None` releases it: of the whole file, or of a start and a length. A
    /// signal ends the wait for it.
    fn lock(
        &self,
        py: Python<'_>,
        mode: Option<&str>,
        part: Option<(u64, u64)>,
        wait: bool,
    ) -> PyResult<()> {
        let mode = match mode {
            None => None,
            Some("shared") => Some(LockMode::Shared),
            Some("exclusive") => Some(LockMode::Exclusive),
            Some(_) => return Err(PyValueError::new_err("a lock is shared or exclusive")),
        };
        let part = part.map(|(start, len)| range(start, len)).transpose()?;
        let time = Some(if wait { LOOK } else { Duration::ZERO });
        loop {
            let locked = py.detach(|| match part {
                None => self.file.lock(mode, time),
                Some(range) => self.file.lock_range(mode, range, time),
            });
            match locked {
                Err(FileError::Filesystem(FsError::Locked)) if wait => py.check_signals()?,
                locked => return locked.map_err(|error| os_error(&error, &[])),
            }
        }
    }
}
