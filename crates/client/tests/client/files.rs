//! Files for threads: what paths lead to, what users may do, and filesystems that are shared.

use std::path::Path;
use std::time::Duration;

use thalweg_client::{
    File, FileError, FilesOptions, Filesystem, How, OpenError, SeekTo, Times, User, Volume,
};
use thalweg_fs::{Kind, LockMode, LockRange, Node, Rename, SetXattr, TimeChange, Timestamp};
use thalweg_net::keys::Access;

use crate::sharing::{Sharing, sessions, volume_with_files};

const NEW: How = How { create: true, write: true, ..How::READ };

const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

pub(crate) fn user(uid: u32) -> User {
    User { uid, gid: uid, groups: Vec::new(), umask: 0o022 }
}

pub(crate) fn as_root() -> FilesOptions {
    FilesOptions { user: Some(user(0)), ..FilesOptions::default() }
}

pub(crate) fn open(place: &Path) -> Filesystem {
    Filesystem::open(place.to_str().unwrap(), &as_root()).unwrap()
}

fn errno<T: std::fmt::Debug>(result: Result<T, FileError>) -> i32 {
    result.unwrap_err().errno()
}

fn put(files: &Filesystem, path: &str, content: &[u8]) -> File {
    let file = files.open_file(path.as_bytes(), NEW, 0o644).unwrap();
    assert_eq!(file.write(content).unwrap(), content.len());
    file
}

fn get(files: &Filesystem, path: &str) -> Vec<u8> {
    let file = files.open_file(path.as_bytes(), How::READ, 0).unwrap();
    file.read(1 << 20).unwrap().concat()
}

fn names(files: &Filesystem, path: &str) -> Vec<String> {
    let mut directory = files.open_directory(path.as_bytes(), false).unwrap();
    let mut names = Vec::new();
    while let Some(entry) = directory.next_entry().unwrap() {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
    }
    names.sort();
    names
}

/// Runs a test on an empty filesystem, on a thread that may block.
pub(crate) async fn on_files(work: impl FnOnce(&Path) + Send + 'static) {
    let home = tempfile::tempdir().unwrap();
    let path = volume_with_files(home.path(), "vol").await;
    tokio::task::spawn_blocking(move || work(&path)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_is_there_after_a_close_and_after_a_drop() {
    on_files(|path| {
        let files = open(path);
        put(&files, "/one", b"1").close().unwrap();
        let kept = put(&files, "two", b"2");
        files.close().unwrap();
        files.close().unwrap();
        assert_eq!(errno(files.attributes(b"/one", true)), libc::ESHUTDOWN);
        assert_eq!(errno(kept.write(b"3")), libc::ESHUTDOWN);
        // An open file keeps nothing of the volume, so that it can be opened again.
        let files = open(path);
        drop(kept);
        assert_eq!(get(&files, "one"), b"1");
        let open_file = put(&files, "three", b"3");
        drop(files);
        assert_eq!(open_file.write(b"3").unwrap(), 1);
        drop(open_file);
        let files = open(path);
        assert_eq!(get(&files, "three"), b"33");
        assert_eq!(names(&files, "/"), ["one", "three", "two"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_without_names_lives_while_it_is_open() {
    on_files(|path| {
        let files = open(path);
        let file = put(&files, "f", b"abc");
        files.unlink(b"f").unwrap();
        put(&files, "g", b"x");
        files.rename(b"g", b"f", Rename::Replace).unwrap();
        let read = files.open_file(b"f", How::READ, 0).unwrap();
        files.unlink(b"f").unwrap();
        assert_eq!(file.read_at(9, 0).unwrap().concat(), b"abc");
        assert_eq!(read.read_at(9, 0).unwrap().concat(), b"x");
        assert_eq!(file.attributes().unwrap().links, 0);
        file.write_at(b"z", 1).unwrap();
        assert_eq!(file.read_at(9, 0).unwrap().concat(), b"azc");
        file.close().unwrap();
        assert_eq!(errno(file.read_at(9, 0)), libc::EBADF);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_leads_over_forty_links_and_no_more() {
    on_files(|path| {
        let files = open(path);
        let link = |target: &str, name: &str| {
            let target = Node::Symlink(target.to_owned().into());
            files.make(name.as_bytes(), &target, 0o777).unwrap();
        };
        put(&files, "0", b"end");
        for at in 1..=41 {
            link(&format!("/{}", at - 1), &at.to_string());
        }
        assert_eq!(get(&files, "40"), b"end");
        assert_eq!(errno(files.attributes(b"41", true)), libc::ELOOP);
        assert_eq!(files.attributes(b"41", false).unwrap().kind, Kind::Symlink);
        // In the middle of a path they count too.
        files.make(b"d", &Node::Directory, 0o755).unwrap();
        link(".", "d/l");
        let path = |count: usize| format!("d{}", "/l".repeat(count)).into_bytes();
        assert_eq!(files.attributes(&path(40), true).unwrap().kind, Kind::Directory);
        assert_eq!(errno(files.attributes(&path(41), true)), libc::ELOOP);
        // Nothing is above the root.
        link("../../../0", "d/up");
        assert_eq!(get(&files, "/../d/./../d//up"), b"end");
        let long = [&b"d/"[..], &[b'x'; 256]].concat();
        assert_eq!(errno(files.attributes(&long, true)), libc::ENAMETOOLONG);
        assert_eq!(errno(files.attributes(&b"d/".repeat(2048), true)), libc::ENAMETOOLONG);
        assert_eq!(errno(files.attributes(b"d\0", true)), libc::EINVAL);
        assert_eq!(errno(files.open_file(b"d/up/", NEW, 0o644)), libc::EISDIR);
    })
    .await;
}

/// What the random calls do not reach: lists, times, locks, positions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn positions_times_locks_and_attributes() {
    on_files(|path| {
        let files = open(path);
        let how = How { write: true, ..NEW };
        let file = files.open_file(b"f", how, 0o4755).unwrap();
        assert_eq!(file.seek(SeekTo::End(3)).unwrap(), 3);
        assert_eq!(file.write(b"abc").unwrap(), 3);
        assert_eq!(file.append(b"d").unwrap(), 6);
        assert_eq!(file.seek(SeekTo::Current(0)).unwrap(), 6);
        assert_eq!(file.seek(SeekTo::Hole(0)).unwrap(), 7);
        assert_eq!(errno(file.seek(SeekTo::Current(-8))), libc::EINVAL);
        assert_eq!(file.seek(SeekTo::Current(-1)).unwrap(), 6);
        assert_eq!(file.read(9).unwrap().concat(), b"d");

        let times = Times {
            accessed: None,
            modified: Some(TimeChange::At(Timestamp { seconds: -1, nanos: 5 })),
        };
        files.change_times(b"f", true, times).unwrap();
        let found = files.attributes(b"f", true).unwrap();
        assert_eq!((found.modified.seconds, found.modified.nanos, found.mode), (-1, 5, 0o4755));
        let guest = files.as_user(user(1000));
        assert_eq!(errno(guest.change_times(b"f", true, times)), libc::EPERM);
        assert_eq!(errno(guest.change_times(b"f", true, Times::NOW)), libc::EACCES);
        files.change_mode(b"f", true, 0o4757).unwrap();
        guest.change_times(b"f", true, Times::NOW).unwrap();
        // A write by another user than root takes set-user-id away, and capabilities.
        files.set_xattr(b"f", true, (b"security.capability", b"x"), SetXattr::Any).unwrap();
        let write = How { read: false, write: true, ..How::default() };
        guest.open_file(b"f", write, 0).unwrap().write(b"x").unwrap();
        assert_eq!(files.attributes(b"f", true).unwrap().mode, 0o757);
        assert_eq!(errno(files.xattr(b"f", true, b"security.capability")), libc::ENODATA);
        assert_eq!(
            errno(guest.set_xattr(b"f", true, (b"trusted.a", b"x"), SetXattr::Any)),
            libc::EPERM
        );

        let other = files.open_file(b"f", how, 0).unwrap();
        file.lock(Some(LockMode::Shared), NO_WAIT).unwrap();
        assert_eq!(errno(other.lock(Some(LockMode::Exclusive), NO_WAIT)), libc::EAGAIN);
        let range = LockRange { first: 5, last: 9 };
        file.lock_range(Some(LockMode::Exclusive), range, NO_WAIT).unwrap();
        let found = other.conflicting_lock(LockMode::Shared, LockRange::ALL).unwrap().unwrap();
        assert_eq!((found.range, found.pid), (range, std::process::id()));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| other.lock_range(Some(LockMode::Shared), range, None));
            file.close().unwrap();
            waiting.join().unwrap().unwrap();
        });
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_meet_removed_inodes() {
    on_files(|path| {
        let files = open(path);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..150 {
                        put(&files, "x", b"1");
                        let _ = files.unlink(b"x");
                        let _ = files.make(b"d", &Node::Directory, 0o755);
                        let _ = files.remove_directory(b"d");
                    }
                });
            }
            scope.spawn(|| {
                let may = [libc::ENOENT, libc::ENOTDIR];
                for _ in 0..300 {
                    for path in [&b"x"[..], b"d/../x", b"d"] {
                        if let Err(error) = files.attributes(path, true) {
                            assert!(may.contains(&error.errno()), "{error}");
                        }
                    }
                    if let Err(error) = files.open_file(b"x", How::READ, 0) {
                        assert!(may.contains(&error.errno()), "{error}");
                    }
                }
            });
        });
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_open_elsewhere_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = volume_with_files(home.path(), "vol").await;
    let at = path.clone();
    tokio::task::spawn_blocking(move || {
        let volume = Volume::open(&at).unwrap();
        let refused = Filesystem::open(at.to_str().unwrap(), &as_root()).unwrap_err();
        assert!(matches!(refused, OpenError::Served { .. } | OpenError::Volume(_)), "{refused:?}");
        drop(volume);
        let name = Some("other".to_owned());
        let refused = Filesystem::open(at.to_str().unwrap(), &FilesOptions { name, ..as_root() });
        assert!(matches!(refused, Err(OpenError::Filesystem(_))), "{refused:?}");
        let keys = Some(at.clone());
        let refused = Filesystem::open(at.to_str().unwrap(), &FilesOptions { keys, ..as_root() });
        assert!(matches!(refused, Err(OpenError::Invalid(_))), "{refused:?}");
        let read_only = FilesOptions { read_only: true, ..as_root() };
        let [one, two] =
            [(); 2].map(|()| Filesystem::open(at.to_str().unwrap(), &read_only).unwrap());
        assert_eq!(errno(one.open_file(b"f", NEW, 0o644)), libc::EROFS);
        assert_eq!(names(&two, "/"), [""; 0]);
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_of_a_server_see_each_others_changes() {
    let home = tempfile::tempdir().unwrap();
    let path = volume_with_files(home.path(), "vol").await;
    let sharing = Sharing::begin(&path, &home.path().join("server")).await;
    let tokens = ["one", "two", "reader"].map(|name| {
        let access = if name == "reader" { Access::Read } else { Access::Write };
        (name, sharing.token(name, access))
    });
    let (address, folder) = (sharing.address.clone(), home.path().to_owned());
    tokio::task::spawn_blocking(move || {
        let keys = |name: &str| Some(folder.join(name));
        let refused = FilesOptions { keys: keys("one"), ..as_root() };
        let refused = Filesystem::open(&address, &refused).unwrap_err();
        assert!(matches!(refused, OpenError::Remote(_)), "{refused:?}");
        let [one, two, reader] = tokens.map(|(name, token)| {
            let token = Some(token.parse().unwrap());
            let options = FilesOptions { keys: keys(name), token, ..as_root() };
            Filesystem::open(&address, &options).unwrap()
        });
        one.make(b"d", &Node::Directory, 0o755).unwrap();
        let file = put(&one, "d/f", b"hello");
        assert_eq!(get(&two, "d/f"), b"hello");
        assert_eq!(get(&reader, "d/f"), b"hello");
        two.rename(b"d/f", b"d/g", Rename::Replace).unwrap();
        assert_eq!(errno(one.attributes(b"d/f", true)), libc::ENOENT);
        assert_eq!(errno(reader.unlink(b"d/g")), libc::EROFS);
        file.append(b"!").unwrap();
        let other = two.open_file(b"d/g", How { write: true, ..How::READ }, 0).unwrap();
        assert_eq!(other.read(9).unwrap().concat(), b"hello!");
        // As on a mount of it, locks of whole files and those of ranges do not know each other.
        file.lock(Some(LockMode::Exclusive), NO_WAIT).unwrap();
        assert_eq!(errno(other.lock(Some(LockMode::Shared), NO_WAIT)), libc::EAGAIN);
        let range = LockRange { first: 5, last: 9 };
        other.lock_range(Some(LockMode::Shared), range, NO_WAIT).unwrap();
        file.lock(None, NO_WAIT).unwrap();
        other.lock(Some(LockMode::Exclusive), NO_WAIT).unwrap();
        // A file that another client removes lives while it is open here.
        one.unlink(b"d/g").unwrap();
        assert_eq!(other.read_at(9, 0).unwrap().concat(), b"hello!");
        let guest = two.as_user(user(1000));
        assert_eq!(errno(guest.make(b"d/e", &Node::Directory, 0o755)), libc::EACCES);
        one.change_mode(b"d", true, 0o777).unwrap();
        guest.make(b"d/e", &Node::Directory, 0o755).unwrap();
        assert_eq!(one.attributes(b"d/e", true).unwrap().uid, 1000);
        for files in [&one, &two, &reader] {
            files.close().unwrap();
        }
        // With the key that the token made known.
        let again = FilesOptions { keys: keys("one"), ..as_root() };
        let again = Filesystem::open(&address, &again).unwrap();
        assert_eq!(names(&again, "d"), ["e"]);
        let name = FilesOptions { name: Some("fs".to_owned()), keys: keys("one"), ..as_root() };
        assert!(matches!(Filesystem::open(&address, &name), Err(OpenError::Invalid(_))));
    })
    .await
    .unwrap();
    sharing.end().await;
}

/// Without the server, its clients would not hear of changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opening_of_the_volume_ends_the_sessions_of_its_server() {
    let home = tempfile::tempdir().unwrap();
    let path = volume_with_files(home.path(), "vol").await;
    let sharing = Sharing::begin(&path, &home.path().join("server")).await;
    let token = Some(sharing.token("one", Access::Write).parse().unwrap());
    let options = FilesOptions { keys: Some(home.path().join("one")), token, ..as_root() };
    let address = sharing.address.clone();
    let client = tokio::task::spawn_blocking(move || Filesystem::open(&address, &options).unwrap());
    let client = client.await.unwrap();
    sharing.end().await;
    assert_eq!(sessions(&path).await, 1);
    let at = path.clone();
    let opened = move || {
        // It cannot end its session any more.
        drop(client);
        open(&at).close().unwrap();
    };
    tokio::task::spawn_blocking(opened).await.unwrap();
    assert_eq!(sessions(&path).await, 0);
}
