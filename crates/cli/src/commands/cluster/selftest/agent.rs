//! The process that carries out the calls of a self-test on one mount.
//!
//! It reads one [`Op`] a line from standard input, as JSON, and writes one [`Reply`] a line to standard output. It ends with its
//! input.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use thalweg_env::HashMap;

use crate::failure::Outcome;

/// Carry out the calls of a self-test on one mount
#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// The mounted directory
    directory: PathBuf,
}

/// A call. Paths are relative to the agent's directory, and open files have numbers of the caller's choice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Op {
    /// The device of the directory: [`Reply::Stat`].
    Device,
    /// [`Reply::Stat`].
    Stat {
        path: String,
    },
    /// The sorted names in a directory: [`Reply::Names`].
    List {
        path: String,
    },
    MakeDirectory {
        path: String,
    },
    RemoveDirectory {
        path: String,
    },
    /// Makes a file with this content, or replaces the content.
    Put {
        path: String,
        text: String,
    },
    /// The content of a file: [`Reply::Text`].
    Get {
        path: String,
    },
    /// Overwrites a part of a file.
    WriteAt {
        path: String,
        offset: u64,
        text: String,
    },
    Truncate {
        path: String,
        len: u64,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Rename {
        from: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    /// Appends each line by a call of its own, over one open file.
    Append {
        path: String,
        lines: Vec<String>,
    },
    /// Stores bytes through a shared mapping, and syncs it.
    StoreMapped {
        path: String,
        text: String,
    },
    /// The bytes of a shared mapping: [`Reply::Text`].
    LoadMapped {
        path: String,
    },
    /// Maps so many bytes of an open file, which may be more than it has, and keeps the mapping.
    MapOpen {
        file: u32,
        len: u64,
    },
    /// The bytes of that mapping from this one on, as many as are there of `len`: [`Reply::Text`].
    LoadOpen {
        file: u32,
        from: u64,
        len: u64,
    },
    /// Opens a file for reading and writing.
    Open {
        file: u32,
        path: String,
    },
    /// The content behind an open file: [`Reply::Text`].
    GetOpen {
        file: u32,
    },
    /// Overwrites the beginning of an open file.
    PutOpen {
        file: u32,
        text: String,
    },
    Close {
        file: u32,
    },
    /// Takes a lock through an open file; [`Reply::Busy`] if it is excluded and the call does not wait.
    Lock {
        file: u32,
        lock: TestLock,
        wait: bool,
    },
    Unlock {
        file: u32,
        lock: TestLock,
    },
    /// Limits the bytes of a directory tree.
    Limit {
        path: String,
        bytes: u64,
    },
    /// Makes a file and writes to it until it has so many bytes, or there is no room: [`Reply::Filled`] with the bytes that
    /// were taken.
    Fill {
        path: String,
        most: u64,
    },
    /// How many bytes of such a file are right, from its start on: [`Reply::Filled`].
    Filled {
        path: String,
    },
    /// The process kills itself.
    Die,
}

impl Op {
    /// What the call does, in words.
    pub(super) fn words(&self) -> &'static str {
        match self {
            Op::Device | Op::Stat { .. } => "stat",
            Op::List { .. } => "reading a directory",
            Op::MakeDirectory { .. } => "mkdir",
            Op::RemoveDirectory { .. } => "rmdir",
            Op::Put { .. } | Op::WriteAt { .. } | Op::PutOpen { .. } => "a write",
            Op::Get { .. } | Op::GetOpen { .. } => "a read",
            Op::Truncate { .. } => "a truncation",
            Op::Chmod { .. } => "chmod",
            Op::Rename { .. } => "a rename",
            Op::Unlink { .. } => "an unlink",
            Op::Append { .. } => "an append",
            Op::StoreMapped { .. } => "a store to a mapped file",
            Op::LoadMapped { .. } | Op::LoadOpen { .. } => "a load from a mapped file",
            Op::MapOpen { .. } => "mmap",
            Op::Open { .. } => "an open",
            Op::Close { .. } => "a close",
            Op::Lock { .. } => "a lock",
            Op::Unlock { .. } => "an unlock",
            Op::Limit { .. } => "setting a quota",
            Op::Fill { .. } => "writing until there is no room",
            Op::Filled { .. } => "a read",
            Op::Die => "the end of a process",
        }
    }
}

/// A lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum TestLock {
    FlockShared,
    FlockExclusive,
    /// An exclusive lock of 10 bytes, from this one on, by `fcntl`.
    Posix {
        first: u8,
    },
}

/// The answer to a call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    Busy,
    Absent,
    Stat {
        size: u64,
        mode: u32,
        ino: u64,
        device: u64,
    },
    Names(Vec<String>),
    Text(String),
    /// Bytes of a file.
    Filled(u64),
    /// Another error.
    Failed(String),
}

pub(crate) fn serve(args: &Agent) -> Outcome<()> {
    let mut files = HashMap::default();
    for line in io::stdin().lock().lines() {
        let op: Op = serde_json::from_str(&line?)?;
        let reply = match carry_out(&args.directory, &mut files, op) {
            Ok(reply) => reply,
            Err(error) if error.kind() == ErrorKind::NotFound => Reply::Absent,
            Err(error) => Reply::Failed(error.to_string()),
        };
        println!("{}", serde_json::to_string(&reply)?);
        crate::output::flush();
    }
    Ok(())
}

type OpenFiles = HashMap<u32, OpenFile>;

/// An open file, and the mapping of it.
struct OpenFile {
    file: File,
    mapping: Option<Mapping>,
}

fn carry_out(root: &Path, files: &mut OpenFiles, op: Op) -> io::Result<Reply> {
    match op {
        Op::Device => return stat(root),
        Op::Stat { path } => return stat(&root.join(path)),
        Op::List { path } => {
            let entries = fs::read_dir(root.join(path))?;
            let name = |entry: io::Result<fs::DirEntry>| {
                Ok(entry?.file_name().to_string_lossy().into_owned())
            };
            let mut names: Vec<String> = entries.map(name).collect::<io::Result<_>>()?;
            names.sort();
            return Ok(Reply::Names(names));
        }
        Op::Get { path } => return fs::read_to_string(root.join(path)).map(Reply::Text),
        Op::LoadMapped { path } => {
            return load_mapped(&File::open(root.join(path))?).map(Reply::Text);
        }
        Op::MakeDirectory { path } => fs::create_dir(root.join(path))?,
        Op::RemoveDirectory { path } => fs::remove_dir(root.join(path))?,
        Op::Put { path, text } => fs::write(root.join(path), text)?,
        Op::WriteAt { path, offset, text } => {
            let file = OpenOptions::new().write(true).open(root.join(path))?;
            file.write_all_at(text.as_bytes(), offset)?;
        }
        Op::Truncate { path, len } => {
            OpenOptions::new().write(true).open(root.join(path))?.set_len(len)?;
        }
        Op::Chmod { path, mode } => {
            fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode))?;
        }
        Op::Rename { from, to } => fs::rename(root.join(from), root.join(to))?,
        Op::Unlink { path } => fs::remove_file(root.join(path))?,
        Op::Append { path, lines } => {
            let mut file = OpenOptions::new().append(true).open(root.join(path))?;
            lines.iter().try_for_each(|line| file.write_all(line.as_bytes()))?;
        }
        Op::StoreMapped { path, text } => {
            let file = OpenOptions::new().read(true).write(true).open(root.join(path))?;
            store_mapped(&file, text.as_bytes())?;
        }
        Op::Open { file, path } => {
            let opened = OpenOptions::new().read(true).write(true).open(root.join(path))?;
            files.insert(file, OpenFile { file: opened, mapping: None });
        }
        Op::MapOpen { file, len } => {
            let open = files.get_mut(&file).ok_or_else(no_such_file)?;
            let len = usize::try_from(len).map_err(io::Error::other)?;
            open.mapping = Some(Mapping::new(&open.file, len, libc::PROT_READ)?);
        }
        Op::LoadOpen { file, from, len } => {
            let mapping = files.get(&file).and_then(|it| it.mapping.as_ref());
            let mapping = mapping.ok_or_else(no_such_file)?;
            return load_from(mapping, from, len).map(Reply::Text);
        }
        Op::Close { file } => drop(files.remove(&file)),
        Op::GetOpen { file } => return get_open(opened(files, file)?).map(Reply::Text),
        Op::Limit { path, bytes } => limit(&root.join(path), bytes)?,
        Op::Fill { path, most } => return fill(&root.join(path), most).map(Reply::Filled),
        Op::Filled { path } => return filled(&root.join(path)).map(Reply::Filled),
        Op::PutOpen { file, text } => opened(files, file)?.write_all_at(text.as_bytes(), 0)?,
        Op::Lock { file, lock, wait } => return take(opened(files, file)?, lock, wait),
        Op::Unlock { file, lock } => release(opened(files, file)?, lock)?,
        // SAFETY: the call takes a number, and touches no memory.
        Op::Die => drop(unsafe { libc::raise(libc::SIGKILL) }),
    }
    Ok(Reply::Done)
}

fn opened(files: &OpenFiles, file: u32) -> io::Result<&File> {
    files.get(&file).map(|it| &it.file).ok_or_else(no_such_file)
}

fn no_such_file() -> io::Error {
    io::Error::other("no such open file")
}

fn stat(path: &Path) -> io::Result<Reply> {
    let found = fs::symlink_metadata(path)?;
    let (size, mode) = (found.len(), found.mode() & 0o7777);
    Ok(Reply::Stat { size, mode, ino: found.ino(), device: found.dev() })
}

/// Sets the quota of a directory tree.
fn limit(path: &Path, bytes: u64) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let value = bytes.to_string();
    // SAFETY: both strings end with a zero byte, and the value is as long as it says.
    let set = unsafe {
        let (name, value) =
            (c"thalweg.quota.max_bytes".as_ptr(), (value.as_ptr().cast(), value.len()));
        libc::setxattr(path.as_ptr(), name, value.0, value.1, 0)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The bytes of a file that [`fill`] writes, from a multiple of its length on.
fn pattern() -> Vec<u8> {
    (0..32_768_u32).flat_map(|number| (number as u16).to_le_bytes()).collect()
}

fn fill(path: &Path, most: u64) -> io::Result<u64> {
    let (mut file, pattern, mut bytes) = (File::create(path)?, pattern(), 0);
    while bytes < most {
        let some = &pattern[(bytes % pattern.len() as u64) as usize..];
        let some = &some[..some.len().min(usize::try_from(most - bytes).unwrap_or(usize::MAX))];
        match file.write(some) {
            Ok(0) => break,
            Ok(written) => bytes += written as u64,
            Err(error) if is_full(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

fn filled(path: &Path) -> io::Result<u64> {
    let (bytes, pattern) = (fs::read(path)?, pattern());
    let is_right = |(at, byte): &(usize, &u8)| **byte == pattern[at % pattern.len()];
    Ok(bytes.iter().enumerate().take_while(is_right).count() as u64)
}

fn get_open(mut file: &File) -> io::Result<String> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// A shared mapping of a file from its beginning.
struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes.
    fn new(file: &File, len: usize, protection: i32) -> io::Result<Mapping> {
        // SAFETY: the kernel chooses the address, and the descriptor is open.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        match at == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(Mapping { at, len }),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

fn store_mapped(file: &File, bytes: &[u8]) -> io::Result<()> {
    let mapping = Mapping::new(file, bytes.len(), libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: the mapping is that long and writable, and `bytes` lie elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), mapping.at.cast(), bytes.len()) };
    // SAFETY: the range is the mapping.
    match unsafe { libc::msync(mapping.at, mapping.len, libc::MS_SYNC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn load_mapped(file: &File) -> io::Result<String> {
    let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mapping = Mapping::new(file, len, libc::PROT_READ)?;
    let mut bytes = vec![0; len];
    // SAFETY: the mapping is that long and readable, and `bytes` lie elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(mapping.at.cast(), bytes.as_mut_ptr(), len) };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What can be loaded of these bytes. The kernel loads them: it stops where a program would be killed.
fn load_from(mapping: &Mapping, from: u64, len: u64) -> io::Result<String> {
    let end = from.saturating_add(len).min(mapping.len as u64);
    let from = from.min(end);
    let (mut pipe, into) = io::pipe()?;
    let mut text = Vec::new();
    // A pipe holds at least a page.
    for at in (from..end).step_by(4096) {
        let some = (end - at).min(4096) as usize;
        // SAFETY: the range is within the mapping, and the descriptor is open.
        let wrote = unsafe {
            libc::write(into.as_raw_fd(), mapping.at.cast::<u8>().add(at as usize).cast(), some)
        };
        let Ok(wrote @ 1..) = usize::try_from(wrote) else { break };
        let start = text.len();
        text.resize(start + wrote, 0);
        pipe.read_exact(&mut text[start..])?;
        if wrote < some {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Takes a lock.
fn take(file: &File, lock: TestLock, wait: bool) -> io::Result<Reply> {
    let taken = match (lock, wait) {
        (TestLock::FlockShared, true) => file.lock_shared(),
        (TestLock::FlockExclusive, true) => file.lock(),
        (TestLock::FlockShared, false) => file.try_lock_shared().map_err(io::Error::from),
        (TestLock::FlockExclusive, false) => file.try_lock().map_err(io::Error::from),
        (TestLock::Posix { first }, wait) => {
            let command = if wait { libc::F_SETLKW } else { libc::F_SETLK };
            set_posix(file, first, libc::F_WRLCK, command)
        }
    };
    match taken {
        Ok(()) => Ok(Reply::Done),
        // POSIX lets systems say either.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(Reply::Busy)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Reply::Busy),
        Err(error) => Err(error),
    }
}

fn release(file: &File, lock: TestLock) -> io::Result<()> {
    match lock {
        TestLock::FlockShared | TestLock::FlockExclusive => file.unlock(),
        TestLock::Posix { first } => set_posix(file, first, libc::F_UNLCK, libc::F_SETLK),
    }
}

fn set_posix(file: &File, first: u8, kind: i32, command: i32) -> io::Result<()> {
    // SAFETY: all zeros are a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (first.into(), 10);
    // SAFETY: the descriptor is open, and the structure is valid for the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
