//! The same random calls on a filesystem here and on the system's own: each must answer alike, with the same errno, and
//! the trees must be alike in the end.

mod ours;
mod theirs;

use std::collections::BTreeMap;
use std::path::Path;

use thalweg_client::{FilesOptions, Filesystem};
use thalweg_fs::Node;
use thalweg_net::keys::{Access, Client, Key};

use crate::files::{as_root, on_files, open};
use crate::sharing::{Sharing, volume_with_files};
use ours::{Ours, described};
use theirs::Theirs;

const SEEDS: u64 = 6;
/// Of calls through a server.
const SHARED_SEEDS: u64 = 2;
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

/// Makes calls of root through the first of ours, those of other users through the second.
fn run((ours, others): (&Filesystem, &Filesystem), theirs: &Path, seed: u64) {
    for (at, _) in BASE.match_indices('/').chain([(BASE.len(), "")]) {
        let part = &BASE[..at];
        ours.make(part.as_bytes(), &Node::Directory, 0o755).unwrap();
        ours.change_mode(part.as_bytes(), true, 0o777).unwrap();
        std::fs::create_dir(theirs.join(part)).unwrap();
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(theirs.join(part), all).unwrap();
    }
    let mut chance = Chance(seed);
    let (root, others, files) = (ours.clone(), others.clone(), ours.clone());
    let mut ours = Ours { root, others, files, open: Default::default() };
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

/// Makes calls here and on a filesystem of the system.
fn compare(ours: (&Filesystem, &Filesystem), seed: u64) {
    // In memory, where there is such a filesystem.
    let folder = [Path::new("/dev/shm")].into_iter().find(|it| it.is_dir());
    let folder = folder.map_or_else(std::env::temp_dir, Path::to_owned);
    let theirs = tempfile::tempdir_in(folder).unwrap();
    // A thread of its own: its user and its umask change.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the call concerns this thread alone.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0);
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(theirs.path(), all).unwrap();
            run(ours, theirs.path(), seed);
        });
    });
}

/// Whether this process may act for other users.
fn is_root() -> bool {
    // SAFETY: the call only reads the process's identity.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        eprintln!("SKIPPED: only root may act for other users");
    }
    is_root
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_calls_answer_as_the_systems_own() {
    for seed in (0..SEEDS).filter(|_| is_root()) {
        on_files(move |volume| {
            let files = open(volume);
            compare((&files, &files), seed);
            files.close().unwrap();
        })
        .await;
    }
}

/// What the system permits to a user, a server permits, too, that checks its users.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_checks_users_answers_as_the_systems_own() {
    for seed in (SEEDS..SEEDS + SHARED_SEEDS).filter(|_| is_root()) {
        let home = tempfile::tempdir().unwrap();
        let path = volume_with_files(home.path(), "vol").await;
        let sharing = Sharing::begin(&path, &home.path().join("server")).await;
        let root = sharing.token("root", Access::Write);
        let key = Key::generate(&thalweg_env::Env::real()).unwrap();
        let others = sharing.token_of(Client::new(key.public(), "others").unwrap());
        let (address, folder) = (sharing.address.clone(), home.path().to_owned());
        let compared = tokio::task::spawn_blocking(move || {
            let files = [("root", root), ("others", others)].map(|(name, token)| {
                let (keys, token) = (Some(folder.join(name)), Some(token.parse().unwrap()));
                let options = FilesOptions { keys, token, ..as_root() };
                Filesystem::open(&address, &options).unwrap()
            });
            compare((&files[0], &files[1]), seed);
            files.into_iter().for_each(|files| files.close().unwrap());
        });
        compared.await.unwrap();
        sharing.end().await;
    }
}
