//! The same random calls on a filesystem here and on the system's own: each must answer alike, with the same errno, and
//! the trees must be alike in the end.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thalweg_client::{File, FileError, Filesystem, How, Times, User};
use thalweg_fs::{Attributes, Kind, Node, Rename, SetXattr, TimeChange, Timestamp};

use crate::files::{on_files, open};

const SEEDS: u64 = 6;
const STEPS: usize = 3000;
const SLOTS: usize = 3;
/// Where both worlds begin: a path with .. in it stays in directories that both have.
const BASE: &str = "1/2/3/4";
const NAMES: [&str; 26] = [
    "a", "b", "c", "d", "d/a", "d/b", "d/d", "d/d/a", "e", "e/a", "e/d", "e/d/b", "a/", "d/",
    "d/d/", "b/.", "d/.", "d/..", "d/../a", "e/./d", "e//a", "d/a/../b", ".", "..", "", "e/d/..",
];
const ACCESS_LIST: &str = "system.posix_acl_access";
const DEFAULT_LIST: &str = "system.posix_acl_default";

/// A sequence of numbers that looks random (SplitMix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % most
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

#[derive(Clone, Debug)]
enum Call {
    User(u32, u32),
    Mkdir(&'static str, u32),
    Rmdir(&'static str),
    Open(usize, &'static str, i32, u32),
    Write(usize, u64, Vec<u8>),
    Read(usize, u64, usize),
    SetLen(usize, u64),
    Truncate(&'static str, u64),
    Unlink(&'static str),
    Rename(&'static str, &'static str, u32),
    Link(&'static str, &'static str, bool),
    Symlink(&'static str, &'static str),
    Readlink(&'static str),
    Mkfifo(&'static str, u32),
    Chmod(&'static str, u32),
    Chown(&'static str, u32, u32, bool),
    Touch(&'static str, i64, bool),
    Stat(&'static str, bool),
    Access(&'static str, u16),
    List(&'static str),
    SetXattr(&'static str, &'static str, Vec<u8>, i32),
    GetXattr(&'static str, &'static str),
    RemoveXattr(&'static str, &'static str),
}

fn access_list(chance: &mut Chance) -> Vec<u8> {
    let none = u32::MAX;
    let all = [(1_u16, none), (2, 1000), (4, none), (8, 1001), (16, none), (32, none)];
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, id) in all {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&chance.of(&[0_u16, 4, 5, 7]).to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

impl Call {
    fn draw(chance: &mut Chance) -> Call {
        let (name, other) = (chance.of(&NAMES), chance.of(&NAMES));
        let slot = chance.below(SLOTS as u64) as usize;
        let mode =
            chance.of(&[0o777, 0o755, 0o700, 0o640, 0o2775, 0o6755, 0o1777, 0o4711, 0o066, 0o070]);
        let at = chance.of(&[0, 1, 4095, 5000, 20_000]);
        let len = chance.of(&[0, 1, 100, 5000]) as usize;
        let attribute = chance.of(&["user.a", "user.b", ACCESS_LIST, DEFAULT_LIST, ""]);
        match chance.below(36) {
            0 | 1 => {
                Call::User(chance.of(&[0, 0, 1000, 1000, 1001]), chance.of(&[0, 0o022, 0o077]))
            }
            2..=4 => Call::Mkdir(name, mode),
            5 => Call::Rmdir(name),
            6..=11 => {
                let access = chance.of(&[libc::O_RDONLY, libc::O_RDWR, libc::O_WRONLY]);
                let more =
                    chance.of(&[0, libc::O_CREAT, libc::O_CREAT, libc::O_CREAT | libc::O_EXCL]);
                let also =
                    [0, 0, libc::O_TRUNC, libc::O_APPEND, libc::O_NOFOLLOW, libc::O_DIRECTORY];
                Call::Open(slot, name, access | more | chance.of(&also), mode)
            }
            12 | 13 => Call::Write(slot, at, vec![chance.below(255) as u8; len]),
            14 => Call::Read(slot, at, len),
            15 => Call::SetLen(slot, at),
            16 => Call::Truncate(name, at),
            17 => Call::Unlink(name),
            18..=20 => {
                let how = [0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE];
                Call::Rename(name, other, chance.of(&how))
            }
            21 => Call::Link(name, other, chance.below(2) == 0),
            22 | 23 => {
                Call::Symlink(chance.of(&["a", "d", "./b", "nowhere", "d/d", "a/", "d/", ""]), name)
            }
            24 => Call::Readlink(name),
            25 => Call::Mkfifo(name, mode),
            26 | 27 => Call::Chmod(name, mode),
            28 => {
                let ids = [0, 1000, 1001, !0];
                Call::Chown(name, chance.of(&ids), chance.of(&ids), chance.below(2) == 0)
            }
            29 => Call::Touch(name, chance.of(&[0, 7, -5]), chance.below(2) == 0),
            30 => Call::Access(name, chance.of(&[0, 1, 2, 4, 5, 6, 7])),
            31 => Call::Stat(name, chance.below(2) == 0),
            32 => Call::List(name),
            33 => {
                let value = match attribute {
                    ACCESS_LIST | DEFAULT_LIST => access_list(chance),
                    _ => vec![7; len.min(50)],
                };
                let how = chance.of(&[0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE]);
                Call::SetXattr(name, attribute, value, how)
            }
            34 => Call::GetXattr(name, attribute),
            _ => Call::RemoveXattr(name, attribute),
        }
    }
}

type Outcome = Result<String, i32>;

fn shown(kind: u32, mode: u32, links: u64, (uid, gid): (u32, u32), size: u64) -> String {
    // A directory has a size of the filesystem's choice.
    let size = if kind == libc::S_IFDIR { 0 } else { size };
    // Set-group-id without the right to execute is meaningless; the system clears it in some cases.
    let mode = if kind != libc::S_IFDIR && mode & 0o010 == 0 { mode & !0o2000 } else { mode };
    format!("{kind:o} {mode:o} {links} links, {uid}:{gid}, {size} bytes")
}

/// The system's own filesystem.
struct Theirs {
    root: PathBuf,
    open: [Option<std::fs::File>; SLOTS],
}

fn checked(result: i64) -> Outcome {
    match result {
        -1 => Err(last_errno()),
        _ => Ok(String::new()),
    }
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn of_io<T>(result: std::io::Result<T>, shown: impl FnOnce(T) -> String) -> Outcome {
    result.map(shown).map_err(|error| error.raw_os_error().unwrap())
}

impl Theirs {
    fn path(&self, name: &str) -> PathBuf {
        // An empty path stays one.
        if name.is_empty() {
            PathBuf::new()
        } else {
            PathBuf::from(format!("{}/{name}", self.root.display()))
        }
    }

    fn c(&self, name: &str) -> CString {
        CString::new(self.path(name).as_os_str().as_bytes()).unwrap()
    }

    fn file(&self, slot: usize) -> Result<&std::fs::File, i32> {
        self.open[slot].as_ref().ok_or(libc::EBADF)
    }

    fn make(&mut self, call: &Call) -> Outcome {
        use std::os::fd::{AsRawFd, FromRawFd};
        use std::os::unix::fs::FileExt;
        match call {
            Call::User(user, umask) => {
                self.open = Default::default();
                // SAFETY: the calls concern this thread alone.
                unsafe {
                    libc::umask(*umask);
                    libc::setfsuid(0);
                    libc::setfsgid(*user);
                    libc::setfsuid(*user);
                }
                Ok(String::new())
            }
            Call::Open(slot, name, flags, mode) => {
                self.open[*slot] = None;
                // SAFETY: the path is a terminated string; a new descriptor has no other owner.
                unsafe {
                    let flags = flags | libc::O_NONBLOCK | libc::O_CLOEXEC;
                    match libc::open(self.c(name).as_ptr(), flags, *mode) {
                        -1 => Err(last_errno()),
                        file => {
                            let file = std::fs::File::from_raw_fd(file);
                            // No pipe is opened here.
                            if std::os::unix::fs::FileTypeExt::is_fifo(
                                &file.metadata().unwrap().file_type(),
                            ) {
                                return Err(libc::ENXIO);
                            }
                            self.open[*slot] = Some(file);
                            Ok(String::new())
                        }
                    }
                }
            }
            Call::Write(slot, at, data) => {
                of_io(self.file(*slot)?.write_at(data, *at), |len| len.to_string())
            }
            Call::Read(slot, at, len) => {
                let mut bytes = vec![0; *len];
                let read = self.file(*slot)?.read_at(&mut bytes, *at);
                of_io(read, |len| format!("{:?}", &bytes[..len]))
            }
            Call::SetLen(slot, len) => {
                // SAFETY: the descriptor is open.
                checked(
                    unsafe { libc::ftruncate(self.file(*slot)?.as_raw_fd(), *len as i64) }.into(),
                )
            }
            other => self.make_on_paths(other),
        }
    }

    fn make_on_paths(&self, call: &Call) -> Outcome {
        let (c, here) = (|name: &str| self.c(name), libc::AT_FDCWD);
        let nofollow = |follow: bool| if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        // SAFETY: all paths are terminated strings, alive for the call, and buffers as long as said.
        unsafe {
            match call {
                Call::Mkdir(name, mode) => checked(libc::mkdir(c(name).as_ptr(), *mode).into()),
                Call::Rmdir(name) => checked(libc::rmdir(c(name).as_ptr()).into()),
                Call::Truncate(name, len) => {
                    checked(libc::truncate(c(name).as_ptr(), *len as i64).into())
                }
                Call::Unlink(name) => checked(libc::unlink(c(name).as_ptr()).into()),
                Call::Rename(from, to, how) => checked(
                    libc::renameat2(here, c(from).as_ptr(), here, c(to).as_ptr(), *how).into(),
                ),
                Call::Link(from, to, follow) => {
                    let flags = if *follow { libc::AT_SYMLINK_FOLLOW } else { 0 };
                    let (from, to) = (c(from), c(to));
                    checked(libc::linkat(here, from.as_ptr(), here, to.as_ptr(), flags).into())
                }
                Call::Symlink(target, name) => {
                    let target = CString::new(*target).unwrap();
                    checked(libc::symlink(target.as_ptr(), c(name).as_ptr()).into())
                }
                Call::Readlink(name) => {
                    of_io(std::fs::read_link(self.path(name)), |to| to.to_str().unwrap().to_owned())
                }
                Call::Mkfifo(name, mode) => checked(libc::mkfifo(c(name).as_ptr(), *mode).into()),
                Call::Chmod(name, mode) => checked(libc::chmod(c(name).as_ptr(), *mode).into()),
                Call::Chown(name, uid, gid, follow) => checked(
                    libc::fchownat(here, c(name).as_ptr(), *uid, *gid, nofollow(*follow)).into(),
                ),
                Call::Touch(name, seconds, now) => {
                    let tv_nsec = if *now { libc::UTIME_NOW } else { 5 };
                    let times = [libc::timespec { tv_sec: *seconds, tv_nsec }; 2];
                    checked(libc::utimensat(here, c(name).as_ptr(), times.as_ptr(), 0).into())
                }
                // That of the thread's own user, as of a call on a path.
                Call::Access(name, wanted) => {
                    let flags = libc::AT_EACCESS;
                    checked(libc::faccessat(here, c(name).as_ptr(), (*wanted).into(), flags).into())
                }
                Call::SetXattr(name, attribute, value, how) => {
                    let attribute = CString::new(*attribute).unwrap();
                    let value = (value.as_ptr().cast(), value.len());
                    checked(
                        libc::lsetxattr(
                            c(name).as_ptr(),
                            attribute.as_ptr(),
                            value.0,
                            value.1,
                            *how,
                        )
                        .into(),
                    )
                }
                Call::GetXattr(name, attribute) => {
                    let attribute = CString::new(*attribute).unwrap();
                    let mut value = vec![0_u8; 1000];
                    let room = value.as_mut_ptr().cast();
                    match libc::lgetxattr(c(name).as_ptr(), attribute.as_ptr(), room, 1000) {
                        -1 => Err(last_errno()),
                        len => Ok(format!("{:?}", &value[..len as usize])),
                    }
                }
                Call::RemoveXattr(name, attribute) => {
                    let attribute = CString::new(*attribute).unwrap();
                    checked(libc::lremovexattr(c(name).as_ptr(), attribute.as_ptr()).into())
                }
                other => self.look(other),
            }
        }
    }

    fn look(&self, call: &Call) -> Outcome {
        use std::os::unix::fs::MetadataExt;
        match call {
            Call::Stat(name, follow) => {
                let found = match follow {
                    true => std::fs::metadata(self.path(name)),
                    false => std::fs::symlink_metadata(self.path(name)),
                };
                of_io(found, |it| {
                    let mode = it.mode();
                    let owner = (it.uid(), it.gid());
                    shown(mode & libc::S_IFMT, mode & 0o7777, it.nlink(), owner, it.len())
                })
            }
            Call::List(name) => of_io(std::fs::read_dir(self.path(name)), |entries| {
                let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
                let mut names: Vec<String> = names.collect();
                names.sort();
                names.join(" ")
            }),
            other => unreachable!("{other:?}"),
        }
    }
}

/// A filesystem here.
struct Ours {
    root: Filesystem,
    files: Filesystem,
    open: [Option<File>; SLOTS],
}

fn of<T>(result: Result<T, FileError>, shown: impl FnOnce(T) -> String) -> Outcome {
    result.map(shown).map_err(|error| error.errno())
}

fn described(it: &Attributes) -> String {
    let kind = match it.kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        _ => libc::S_IFIFO,
    };
    shown(kind, it.mode.into(), it.links.into(), (it.uid, it.gid), it.size)
}

impl Ours {
    fn file(&self, slot: usize) -> Result<&File, i32> {
        self.open[slot].as_ref().ok_or(libc::EBADF)
    }

    fn make(&mut self, call: &Call) -> Outcome {
        match call {
            Call::User(user, umask) => {
                // An open file acts for the user who has opened it.
                self.open = Default::default();
                let groups = std::fs::read_to_string("/proc/thread-self/status").unwrap();
                let groups = groups.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
                let groups = groups.split_whitespace().map(|it| it.parse().unwrap()).collect();
                let umask = *umask as u16;
                self.files = self.root.as_user(User { uid: *user, gid: *user, groups, umask });
                Ok(String::new())
            }
            Call::Open(slot, name, flags, mode) => {
                self.open[*slot] = None;
                let opened = How::of_flags(*flags)
                    .and_then(|how| self.files.open_file(&path(name), how, *mode as u16));
                of(opened, |file| {
                    self.open[*slot] = Some(file);
                    String::new()
                })
            }
            Call::Write(slot, at, data) => {
                of(self.file(*slot)?.write_at(data, *at), |len| len.to_string())
            }
            Call::Read(slot, at, len) => {
                of(self.file(*slot)?.read_at(*len, *at), |read| format!("{:?}", read.concat()))
            }
            Call::SetLen(slot, len) => of(self.file(*slot)?.truncate(*len), |()| String::new()),
            Call::Readlink(name) => of(self.files.read_link(&path(name)), |target| {
                String::from_utf8(target.to_vec()).unwrap()
            }),
            Call::Stat(name, follow) => {
                of(self.files.attributes(&path(name), *follow), |it| described(&it))
            }
            Call::List(name) => of(self.list(name), |names| names.join(" ")),
            Call::GetXattr(name, attribute) => {
                of(self.files.xattr(&path(name), false, attribute.as_bytes()), |value| {
                    format!("{:?}", value.to_vec())
                })
            }
            other => of(self.change(other), |()| String::new()),
        }
    }

    fn list(&self, name: &str) -> Result<Vec<String>, FileError> {
        let mut directory = self.files.open_directory(&path(name), false)?;
        let mut names = Vec::new();
        while let Some(entry) = directory.next_entry()? {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        }
        names.sort();
        Ok(names)
    }

    fn change(&self, call: &Call) -> Result<(), FileError> {
        let files = &self.files;
        let id = |id: u32| (id != !0).then_some(id);
        match call {
            Call::Mkdir(name, mode) => files.make(&path(name), &Node::Directory, *mode as u16),
            Call::Mkfifo(name, mode) => files.make(&path(name), &Node::Fifo, *mode as u16),
            Call::Symlink(target, name) => {
                files.make(&path(name), &Node::Symlink((*target).into()), 0o777)
            }
            Call::Rmdir(name) => files.remove_directory(&path(name)),
            Call::Truncate(name, len) => files.truncate(&path(name), *len),
            Call::Unlink(name) => files.unlink(&path(name)),
            Call::Rename(from, to, how) => {
                let how = match *how {
                    libc::RENAME_NOREPLACE => Rename::NoReplace,
                    libc::RENAME_EXCHANGE => Rename::Exchange,
                    _ => Rename::Replace,
                };
                files.rename(&path(from), &path(to), how)
            }
            Call::Link(from, to, follow) => files.link(&path(from), &path(to), *follow),
            Call::Chmod(name, mode) => files.change_mode(&path(name), true, *mode as u16),
            Call::Chown(name, uid, gid, follow) => {
                files.change_owner(&path(name), *follow, id(*uid), id(*gid))
            }
            Call::Touch(name, seconds, now) => {
                let time = match now {
                    true => TimeChange::Now,
                    false => TimeChange::At(Timestamp { seconds: *seconds, nanos: 5 }),
                };
                let times = Times { accessed: Some(time), modified: Some(time) };
                files.change_times(&path(name), true, times)
            }
            Call::Access(name, wanted) => files.access(&path(name), true, *wanted),
            Call::SetXattr(name, attribute, value, how) => {
                let how = match *how {
                    libc::XATTR_CREATE => SetXattr::Create,
                    libc::XATTR_REPLACE => SetXattr::Replace,
                    _ => SetXattr::Any,
                };
                files.set_xattr(&path(name), false, (attribute.as_bytes(), value), how)
            }
            Call::RemoveXattr(name, attribute) => {
                files.remove_xattr(&path(name), false, attribute.as_bytes())
            }
            other => unreachable!("{other:?}"),
        }
    }
}

fn path(name: &str) -> Vec<u8> {
    if name.is_empty() { Vec::new() } else { format!("/{BASE}/{name}").into_bytes() }
}

/// All inodes below the root, by path.
fn tree(
    list: &dyn Fn(&str) -> Vec<String>,
    show: &dyn Fn(&str) -> String,
) -> BTreeMap<String, String> {
    let (mut all, mut left) = (BTreeMap::new(), vec![".".to_owned()]);
    while let Some(name) = left.pop() {
        let it = show(&name);
        if it.starts_with(&format!("{:o} ", libc::S_IFDIR)) {
            left.extend(list(&name).into_iter().map(|entry| format!("{name}/{entry}")));
        }
        all.insert(name, it);
    }
    all
}

fn run(ours: &Filesystem, theirs: &Path, seed: u64) {
    for (at, _) in BASE.match_indices('/').chain([(BASE.len(), "")]) {
        let part = &BASE[..at];
        ours.make(part.as_bytes(), &Node::Directory, 0o755).unwrap();
        ours.change_mode(part.as_bytes(), true, 0o777).unwrap();
        std::fs::create_dir(theirs.join(part)).unwrap();
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(theirs.join(part), all).unwrap();
    }
    let mut chance = Chance(seed);
    let mut ours = Ours { root: ours.clone(), files: ours.clone(), open: Default::default() };
    let mut theirs = Theirs { root: theirs.join(BASE), open: Default::default() };
    let (mut calls, mut user) = (Vec::new(), 0);
    let protected = std::fs::read_to_string("/proc/sys/fs/protected_hardlinks").unwrap_or_default();
    let start = Call::User(0, 0);
    assert_eq!(ours.make(&start), theirs.make(&start));
    for step in 0..STEPS {
        let call = Call::draw(&mut chance);
        match call {
            Call::User(next, _) => user = next,
            // A rule of the system's administrator, not of filesystems.
            Call::Link(..) if user != 0 && protected.trim() != "0" => continue,
            _ => {}
        }
        calls.push(call.clone());
        let (got, expected) = (ours.make(&call), theirs.make(&call));
        // Of a symbolic link in a directory with the sticky bit, Linux refuses such an open in another way.
        let both = libc::O_CREAT | libc::O_NOFOLLOW;
        let is_alike = matches!(&call, Call::Open(_, _, flags, _) if flags & both == both)
            && (&got, &expected) == (&Err(libc::ELOOP), &Err(libc::EACCES));
        if is_alike {
            continue;
        }
        let before = &calls[calls.len().saturating_sub(20)..];
        assert_eq!(got, expected, "seed {seed}, step {step}: {call:?}; before: {before:#?}");
    }
    let start = Call::User(0, 0);
    assert_eq!(ours.make(&start), theirs.make(&start));
    let list = |name: &str| ours.list(name).unwrap();
    let show = |name: &str| described(&ours.files.attributes(&path(name), false).unwrap());
    let found = tree(&list, &show);
    let look = |call: Call| theirs.look(&call).unwrap();
    let list = |name: &str| {
        let names = look(Call::List(Box::leak(name.to_owned().into_boxed_str())));
        names.split_whitespace().map(str::to_owned).collect()
    };
    let show = |name: &str| look(Call::Stat(Box::leak(name.to_owned().into_boxed_str()), false));
    assert_eq!(found, tree(&list, &show), "seed {seed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_calls_answer_as_the_systems_own() {
    // SAFETY: the call only reads the process's identity.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: only root may act for other users");
        return;
    }
    for seed in 0..SEEDS {
        on_files(move |volume| {
            // In memory, where there is such a filesystem.
            let folder = [Path::new("/dev/shm")].into_iter().find(|it| it.is_dir());
            let folder = folder.map_or_else(std::env::temp_dir, Path::to_owned);
            let theirs = tempfile::tempdir_in(folder).unwrap();
            let files = open(volume);
            // A thread of its own: its user and its umask change.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // SAFETY: the call concerns this thread alone.
                    assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0);
                    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
                    std::fs::set_permissions(theirs.path(), all).unwrap();
                    run(&files, theirs.path(), seed);
                });
            });
            files.close().unwrap();
        })
        .await;
    }
}
