"""Files and directories without a mount, with the names of ``os`` and ``io``."""

import io
import os
import stat as _stat

from . import _thalweg

__all__ = ["DirEntry", "Filesystem", "RawFile"]

# Bytes that an open file reads at a time, unless it is told otherwise.
_BUFFER = 128 * 1024


def _path(path):
    """A path as bytes."""
    path = os.fsencode(path)
    if b"\0" in path:
        raise ValueError("embedded null byte")
    return path


def _as(like, name):
    """A name as `like`: as bytes, or as text."""
    return name if isinstance(os.fspath(like), bytes) else os.fsdecode(name)


def _result(found):
    mode, ino, links, uid, gid, size, rdev, blocks, accessed, modified, changed, created = found
    seconds = [it // 10**9 for it in (accessed, modified, changed)]
    more = {
        "st_atime": accessed / 10**9,
        "st_mtime": modified / 10**9,
        "st_ctime": changed / 10**9,
        "st_atime_ns": accessed,
        "st_mtime_ns": modified,
        "st_ctime_ns": changed,
        "st_blksize": 4096,
        "st_blocks": blocks,
        "st_rdev": rdev,
    }
    return os.stat_result((mode, ino, 0, links, uid, gid, size, *seconds), more)


def _flags(mode):
    """The flags of open(2) for a mode of ``open``, and whether it is binary."""
    kinds = [it for it in mode if it in "rwxa"]
    if len(kinds) != 1 or len(set(mode)) != len(mode) or set(mode) - set("rwxabt+"):
        raise ValueError(f"invalid mode: {mode!r}")
    if "b" in mode and "t" in mode:
        raise ValueError("can't have text and binary mode at once")
    kind = kinds[0]
    access = os.O_RDWR if "+" in mode else os.O_RDONLY if kind == "r" else os.O_WRONLY
    more = {
        "r": 0,
        "w": os.O_CREAT | os.O_TRUNC,
        "x": os.O_CREAT | os.O_EXCL,
        "a": os.O_CREAT | os.O_APPEND,
    }
    return access | more[kind] | os.O_CLOEXEC, "b" in mode


class RawFile(io.RawIOBase):
    """An open file, without a buffer. It has no file descriptor."""

    def __init__(self, file, name, flags):
        self._file = file
        self.name = name
        access = flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
        self._readable = access != os.O_WRONLY
        self._writable = access != os.O_RDONLY
        self._appends = bool(flags & os.O_APPEND)

    def __repr__(self):
        return f"<thalweg.RawFile name={self.name!r} mode={self.mode!r}>"

    @property
    def mode(self):
        """The mode, as of ``io.FileIO``."""
        if self._appends:
            return "ab+" if self._readable else "ab"
        if self._readable:
            return "rb+" if self._writable else "rb"
        return "wb"

    def _open(self):
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._file

    def readable(self):
        self._open()
        return self._readable

    def writable(self):
        self._open()
        return self._writable

    def seekable(self):
        self._open()
        return True

    def _to_read(self):
        file = self._open()
        if not self._readable:
            raise io.UnsupportedOperation("File not open for reading")
        return file

    def _to_write(self):
        file = self._open()
        if not self._writable:
            raise io.UnsupportedOperation("File not open for writing")
        return file

    def readinto(self, buffer):
        view = memoryview(buffer).cast("B")
        data = self._to_read().read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size=-1):
        if size is None or size < 0:
            return self.readall()
        return self._to_read().read(size)

    def readall(self):
        file = self._to_read()
        parts = []
        while part := file.read(max(_BUFFER, file.stat()[5])):
            parts.append(part)
        return b"".join(parts)

    def write(self, data):
        return self._to_write().write(bytes(data))

    def seek(self, offset, whence=os.SEEK_SET):
        return self._open().seek(offset, whence)

    def tell(self):
        return self.seek(0, os.SEEK_CUR)

    def truncate(self, size=None):
        file = self._to_write()
        size = self.tell() if size is None else size
        if size < 0:
            raise OSError(22, "Invalid argument")
        file.truncate(size)
        return size

    def close(self):
        if not self.closed:
            try:
                super().close()
            finally:
                self._file.close()

    def pread(self, size, offset):
        """Reads at most `size` bytes from `offset` on; the position does not move."""
        return self._to_read().pread(size, offset)

    def pwrite(self, data, offset):
        """Writes bytes from `offset` on; the position does not move."""
        return self._to_write().pwrite(bytes(data), offset)

    def append(self, data):
        """Writes bytes to the end, wherever that is when the write takes effect, and returns where they went."""
        return self._to_write().append(bytes(data))

    def stat(self):
        """As ``os.fstat``."""
        return _result(self._open().stat())

    def sync(self, data_only=False):
        """Returns when all changes survive a crash, as ``os.fsync``; with `data_only`, as ``os.fdatasync``."""
        self._open().sync(data_only)

    def level(self):
        """How far all changes have come: ``"memory"``, ``"server"`` or ``"replicas"``; on a mount of a shared filesystem with a
        journal of its own also ``"journal"``, between the first two. Nothing is synced for it."""
        return self._open().level()

    def wait_for(self, level, timeout=None):
        """Brings all changes to a level, and returns whether they have come to it: the replicas' level within so many
        seconds; the levels before that take as long as `sync`. Where there is no journal, ``"journal"`` is ``"server"``."""
        return self._open().wait_for(level, timeout)

    def allocate(self, offset, size, *, keep_size=False):
        """Reserves storage, as ``os.posix_fallocate``; with `keep_size` the file does not grow."""
        self._to_write().allocate(offset, size, keep_size)

    def punch(self, offset, size):
        """Frees storage: the range reads as zeros."""
        self._to_write().punch(offset, size)

    def flock(self, *, shared=False, wait=True):
        """Locks the whole file, as ``fcntl.flock``. ``BlockingIOError`` when another has it, without `wait`."""
        self._open().lock("shared" if shared else "exclusive", None, wait)

    def unflock(self):
        """Releases the lock of ``flock``."""
        self._open().lock(None, None, False)

    def lock(self, start=0, size=0, *, shared=False, wait=True):
        """Locks a range of bytes, up to the end with a size of 0. The open file owns it, not the process."""
        self._open().lock("shared" if shared else "exclusive", (start, size), wait)

    def unlock(self, start=0, size=0):
        """Releases locks of a range of bytes."""
        self._open().lock(None, (start, size), False)


class DirEntry:
    """An entry of ``Filesystem.scandir``, as ``os.DirEntry``."""

    def __init__(self, filesystem, directory, name, ino, kind):
        self._filesystem = filesystem
        self.name = _as(directory, name)
        self.path = os.path.join(directory, self.name)
        self._ino = ino
        self._kind = kind

    def __repr__(self):
        return f"<DirEntry {self.name!r}>"

    def __fspath__(self):
        return self.path

    def inode(self):
        return self._ino

    def stat(self, *, follow_symlinks=True):
        return self._filesystem.stat(self.path, follow_symlinks=follow_symlinks)

    def is_symlink(self):
        return _stat.S_ISLNK(self._kind)

    def _is(self, test, follow_symlinks):
        if not (follow_symlinks and self.is_symlink()):
            return test(self._kind)
        try:
            return test(self.stat().st_mode)
        except FileNotFoundError:
            return False

    def is_dir(self, *, follow_symlinks=True):
        return self._is(_stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks=True):
        return self._is(_stat.S_ISREG, follow_symlinks)


class _Scan:
    """The iterator of ``Filesystem.scandir``."""

    def __init__(self, filesystem, directory, listing):
        self._filesystem = filesystem
        self._directory = directory
        self._listing = listing

    def __iter__(self):
        return self

    def __next__(self):
        if self._listing is None:
            raise StopIteration
        try:
            return DirEntry(self._filesystem, self._directory, *next(self._listing))
        except StopIteration:
            self.close()
            raise

    def close(self):
        listing, self._listing = self._listing, None
        if listing is not None:
            listing.close()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()


class Filesystem:
    """An open filesystem, as one user sees it. A context manager that closes it.

    `place` is a volume, by its folder, or by the device or file of one that is updated in place; no other process may have
    it open. Or it is ``SERVER:/PATH`` or ``SERVER:PORT:/PATH``, a directory of a filesystem that a server shares, as
    for ``thalweg mount``: with `token` the first time, and with this user's key, or the one in the folder `keys`, from then
    on. `name` is the filesystem's name on its volume, `journal_dev` the device of the volume's journal.

    The methods do what the functions of ``os`` with these names do, and raise the same ``OSError``. Paths begin at the
    filesystem's root, with or without a slash. Calls act for the user, the groups and the umask that the thread has when
    the filesystem is opened.
    """

    def __init__(
        self, place, *, name=None, read_only=False, token=None, keys=None, journal_dev=None
    ):
        place = os.fspath(place)
        self._files = _thalweg.open_files(place, name, read_only, token, keys, journal_dev)

    def as_user(self, uid, gid, groups=(), umask=0o022):
        """The same filesystem for another user. To close it closes nothing."""
        other = object.__new__(type(self))
        other._files = self._files.as_user(uid, gid, list(groups), umask)
        return other

    def close(self):
        """Makes everything durable, and closes the filesystem with its open files."""
        self._files.close()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()

    def sync(self):
        """Returns when everything survives a crash."""
        self._files.sync()

    def level(self, path, *, follow_symlinks=True):
        """How far all changes of a file have come: as `RawFile.level`."""
        return self._files.level(_path(path), follow_symlinks)

    def wait_for(self, path, level, timeout=None, *, follow_symlinks=True):
        """Brings all changes of a file to a level: as `RawFile.wait_for`."""
        return self._files.wait_for(_path(path), level, timeout, follow_symlinks)

    def open(
        self,
        path,
        mode="r",
        buffering=-1,
        encoding=None,
        errors=None,
        newline=None,
        *,
        permissions=0o666,
        sync=False,
    ):
        """Opens a file, as the function ``open``. A new file gets `permissions`, without the bits of the umask. With `sync`,
        each write of the unbuffered file is durable when it returns. The unbuffered file is a `RawFile`."""
        flags, is_binary = _flags(mode)
        if is_binary and (encoding, errors, newline) != (None, None, None):
            raise ValueError("binary mode doesn't take an encoding, errors or newline argument")
        if buffering == 0 and not is_binary:
            raise ValueError("can't have unbuffered text I/O")
        raw = self.open_raw(path, flags | (os.O_SYNC if sync else 0), permissions)
        if _stat.S_ISDIR(raw.stat().st_mode):
            raw.close()
            raise IsADirectoryError(21, "it is a directory", path)
        try:
            return self._wrapped(raw, mode, buffering, is_binary, (encoding, errors, newline))
        except BaseException:
            raw.close()
            raise

    def _wrapped(self, raw, mode, buffering, is_binary, text):
        if buffering == 0:
            return raw
        is_line_buffered = buffering == 1 and not is_binary
        size = _BUFFER if buffering in (-1, 1) else buffering
        if "+" in mode:
            buffered = io.BufferedRandom(raw, size)
        elif "r" in mode:
            buffered = io.BufferedReader(raw, size)
        else:
            buffered = io.BufferedWriter(raw, size)
        if "a" in mode:
            buffered.seek(0, os.SEEK_END)
        if is_binary:
            return buffered
        encoding, errors, newline = text
        wrapped = io.TextIOWrapper(buffered, encoding, errors, newline, is_line_buffered)
        wrapped.mode = mode
        return wrapped

    def open_raw(self, path, flags, mode=0o777):
        """Opens a file or a directory without a buffer, with the flags of ``os.open``."""
        return RawFile(self._files.open(_path(path), flags, mode), path, flags)

    def stat(self, path, *, follow_symlinks=True):
        return _result(self._files.stat(_path(path), follow_symlinks))

    def lstat(self, path):
        return self.stat(path, follow_symlinks=False)

    def statvfs(self, path="/"):
        self.stat(path)
        block, blocks, free, inodes, inodes_free, read_only, name = self._files.statvfs()
        flags = os.ST_RDONLY if read_only else 0
        counts = (blocks, free, free, inodes, inodes_free, inodes_free)
        return os.statvfs_result((block, block, *counts, flags, name))

    def access(self, path, mode):
        """Whether the user may do all of `mode`, of ``os.R_OK``, ``os.W_OK`` and ``os.X_OK``."""
        return self._files.access(_path(path), mode)

    def listdir(self, path="/"):
        with self.scandir(path) as entries:
            return [entry.name for entry in entries]

    def scandir(self, path="/"):
        return _Scan(self, path, self._files.list(_path(path)))

    def walk(self, top="/", topdown=True, onerror=None, followlinks=False):
        try:
            with self.scandir(top) as entries:
                found = [(entry.name, entry.is_dir(), entry.is_symlink()) for entry in entries]
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        directories = [name for name, is_directory, _ in found if is_directory]
        files = [name for name, is_directory, _ in found if not is_directory]
        links = {name for name, is_directory, is_link in found if is_directory and is_link}
        if topdown:
            yield top, directories, files
        for name in directories:
            if followlinks or name not in links:
                yield from self.walk(os.path.join(top, name), topdown, onerror, followlinks)
        if not topdown:
            yield top, directories, files

    def mkdir(self, path, mode=0o777):
        self._files.mkdir(_path(path), mode)

    def makedirs(self, path, mode=0o777, exist_ok=False):
        parent, name = os.path.split(os.fspath(path))
        if not name:
            parent, name = os.path.split(parent)
        if parent and name and not self.exists(parent):
            try:
                self.makedirs(parent, exist_ok=exist_ok)
            except FileExistsError:
                pass
            if name == _as(path, b"."):
                return
        try:
            self.mkdir(path, mode)
        except OSError:
            if not exist_ok or not self.isdir(path):
                raise

    def mkfifo(self, path, mode=0o666):
        """Makes the name of a pipe, which mounts of the filesystem can open."""
        self._files.mkfifo(_path(path), mode)

    def rmdir(self, path):
        self._files.rmdir(_path(path))

    def unlink(self, path):
        self._files.unlink(_path(path))

    def remove(self, path):
        self.unlink(path)

    def rename(self, src, dst):
        self._files.rename(_path(src), _path(dst))

    def replace(self, src, dst):
        self.rename(src, dst)

    def link(self, src, dst, *, follow_symlinks=False):
        self._files.link(_path(src), _path(dst), follow_symlinks)

    def symlink(self, src, dst):
        self._files.symlink(_path(src), _path(dst))

    def readlink(self, path):
        return _as(path, self._files.readlink(_path(path)))

    def chmod(self, path, mode, *, follow_symlinks=True):
        self._files.chmod(_path(path), mode, follow_symlinks)

    def chown(self, path, uid, gid, *, follow_symlinks=True):
        self._files.chown(_path(path), uid, gid, follow_symlinks)

    def lchown(self, path, uid, gid):
        self.chown(path, uid, gid, follow_symlinks=False)

    def utime(self, path, times=None, *, ns=None, follow_symlinks=True):
        if times is not None and ns is not None:
            raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
        if times is not None:
            ns = [it * 10**9 if isinstance(it, int) else round(it * 10**9) for it in times]
        self._files.utime(_path(path), None if ns is None else tuple(ns), follow_symlinks)

    def truncate(self, path, length):
        if length < 0:
            raise OSError(22, "Invalid argument", path)
        self._files.truncate(_path(path), length)

    def getxattr(self, path, attribute, *, follow_symlinks=True):
        return self._files.getxattr(_path(path), _path(attribute), follow_symlinks)

    def setxattr(self, path, attribute, value, flags=0, *, follow_symlinks=True):
        value = bytes(value)
        self._files.setxattr(_path(path), _path(attribute), value, flags, follow_symlinks)

    def removexattr(self, path, attribute, *, follow_symlinks=True):
        self._files.removexattr(_path(path), _path(attribute), follow_symlinks)

    def listxattr(self, path="/", *, follow_symlinks=True):
        names = self._files.listxattr(_path(path), follow_symlinks)
        return [os.fsdecode(name) for name in names]

    def _mode(self, path, follow_symlinks=True):
        """The mode, or 0 when the path leads nowhere."""
        try:
            return self.stat(path, follow_symlinks=follow_symlinks).st_mode
        except (OSError, ValueError):
            return 0

    def exists(self, path):
        return self._mode(path) != 0

    def lexists(self, path):
        return self._mode(path, False) != 0

    def isfile(self, path):
        return _stat.S_ISREG(self._mode(path))

    def isdir(self, path):
        return _stat.S_ISDIR(self._mode(path))

    def islink(self, path):
        return _stat.S_ISLNK(self._mode(path, False))
