//! The kernel's caches, when files change through another handle.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_fs::{
    Change, Filesystem, Ino, Invalidation, NewNode, Node, Rename, Validity, WriteAt, WriteHow,
};
use thalweg_fuse::mounted::MountOptions;
use thalweg_sim::files::NaiveFiles;

use crate::names::errno;
use crate::rig::Rig;

/// A mount, and another handle to its files.
fn shared() -> Option<(Rig, Arc<NaiveFiles>)> {
    let files = Arc::new(NaiveFiles::new(&Env::real()));
    let other = Arc::new(files.share());
    let rig = Rig::with(move |_| files, &MountOptions::default())?;
    Some((rig, other))
}

async fn write(files: &NaiveFiles, ino: Ino, at: WriteAt, text: &'static str) {
    files.write(ino, at, vec![Bytes::from(text)], WriteHow::default()).await.unwrap();
}

#[test]
fn what_others_change_is_seen() {
    let Some((rig, other)) = shared() else { return };
    fs::write(rig.path("a"), "before").unwrap();
    assert_eq!(fs::read(rig.path("a")).unwrap(), b"before");
    assert_eq!(errno(fs::metadata(rig.path("b"))), libc::ENOENT);
    let ino = Ino(fs::metadata(rig.path("a")).unwrap().ino());
    rig.block_on(async {
        write(&other, ino, WriteAt::Offset(0), "after!").await;
        write(&other, ino, WriteAt::End, " more").await;
        let node = Node::Directory;
        let new = NewNode { node, mode: 0o700, umask: 0, uid: 5, gid: 6 };
        other.create(Ino::ROOT, b"b", &new).await.unwrap();
    });
    rig.settle();
    assert_eq!(fs::read(rig.path("a")).unwrap(), b"after! more");
    assert_eq!(fs::metadata(rig.path("b")).unwrap().uid(), 5);
    rig.block_on(async {
        let (a, c) = ((Ino::ROOT, &b"a"[..]), (Ino::ROOT, &b"c"[..]));
        other.rename(a, c, Rename::Replace).await.unwrap();
        other.remove_directory(Ino::ROOT, b"b").await.unwrap();
    });
    rig.settle();
    assert_eq!(errno(fs::metadata(rig.path("a"))), libc::ENOENT);
    assert_eq!(errno(fs::metadata(rig.path("b"))), libc::ENOENT);
    assert_eq!(fs::metadata(rig.path("c")).unwrap().ino(), ino.0);
}

#[test]
fn an_append_goes_behind_what_others_appended() {
    let Some((rig, other)) = shared() else { return };
    let mut options = OpenOptions::new();
    let mut file = options.read(true).append(true).create(true).open(rig.path("log")).unwrap();
    file.write_all(b"1").unwrap();
    let ino = Ino(fs::metadata(rig.path("log")).unwrap().ino());
    // The kernel is not told, and so has a place in mind that is wrong.
    rig.filesystem().watch(Box::new(|_| Invalidation::complete()));
    rig.block_on(write(&other, ino, WriteAt::End, "2"));
    file.write_all(b"3").unwrap();
    rig.settle();
    // So much as the kernel thinks that there is.
    let mut bytes = [0; 2];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"12");
    assert_eq!(fs::read(rig.path("log")).unwrap(), b"123");
}

#[test]
fn a_name_that_others_took_is_not_opened_unchecked() {
    let Some((rig, other)) = shared() else { return };
    // The kernel believes that there is no such name, and is not told.
    assert_eq!(errno(fs::metadata(rig.path("a"))), libc::ENOENT);
    rig.filesystem().watch(Box::new(|_| Invalidation::complete()));
    let new = NewNode { node: Node::File, mode: 0o600, umask: 0, uid: 0, gid: 0 };
    let made = rig.block_on(other.create(Ino::ROOT, b"a", &new)).unwrap();
    rig.block_on(write(&other, made.ino, WriteAt::End, "theirs"));
    let mut file = OpenOptions::new().append(true).create(true).open(rig.path("a")).unwrap();
    file.write_all(b", ours").unwrap();
    assert_eq!(fs::read(rig.path("a")).unwrap(), b"theirs, ours");
}

#[test]
fn an_unmount_forgets_every_inode() {
    let Some((mut rig, other)) = shared() else { return };
    for number in 0..50 {
        fs::write(rig.path(&format!("f{number}")), "x").unwrap();
    }
    assert_eq!(fs::read_dir(rig.root()).unwrap().count(), 50);
    rig.unmount();
    rig.block_on(async {
        for number in 0..50 {
            other.unlink(Ino::ROOT, format!("f{number}").as_bytes()).await.unwrap();
        }
    });
    assert_eq!(other.inodes(), 1, "an inode without names is still remembered");
}

#[test]
fn a_read_only_filesystem_refuses_changes() {
    let Some((rig, other)) = shared() else { return };
    fs::write(rig.path("a"), "x").unwrap();
    other.set_read_only(true);
    assert_eq!(errno(fs::write(rig.path("b"), "x")), libc::EROFS);
    assert_eq!(errno(OpenOptions::new().append(true).open(rig.path("a"))), libc::EROFS);
    assert_eq!(errno(fs::remove_file(rig.path("a"))), libc::EROFS);
    assert_eq!(fs::read(rig.path("a")).unwrap(), b"x");
}

/// Renames `a` to `b` behind the kernel's back, which believes in `a` and in the absence of `b`.
fn rename_unseen(rig: &Rig, other: &NaiveFiles) {
    fs::write(rig.path("a"), "before").unwrap();
    assert_eq!(fs::read(rig.path("a")).unwrap(), b"before");
    assert_eq!(errno(fs::metadata(rig.path("b"))), libc::ENOENT);
    rig.filesystem().watch(Box::new(|_| Invalidation::complete()));
    rig.block_on(async {
        let ino = other.find(Ino::ROOT, b"a").await.unwrap().ino;
        write(other, ino, WriteAt::Offset(0), "after!").await;
        other.rename((Ino::ROOT, b"a"), (Ino::ROOT, b"b"), Rename::Replace).await.unwrap();
    });
}

#[test]
fn answers_are_cached_as_long_as_they_say() {
    for valid in [Validity::UNTIL_CHANGED, Validity::NONE] {
        let Some((rig, other)) = shared() else { return };
        other.set_validity(valid);
        rename_unseen(&rig, &other);
        let is_stale = valid == Validity::UNTIL_CHANGED;
        assert_eq!(fs::metadata(rig.path("a")).is_ok(), is_stale, "{valid:?}");
        assert_eq!(fs::metadata(rig.path("b")).is_err(), is_stale, "{valid:?}");
    }
}

#[test]
fn everything_is_invalidated() {
    let Some((rig, other)) = shared() else { return };
    let mounted = rig.watcher();
    rename_unseen(&rig, &other);
    assert!(fs::metadata(rig.path("a")).is_ok() && fs::metadata(rig.path("b")).is_err());
    rig.filesystem().watch(mounted);
    rig.block_on(other.change_everything());
    assert_eq!(errno(fs::metadata(rig.path("a"))), libc::ENOENT);
    assert_eq!(fs::read(rig.path("b")).unwrap(), b"after!");
}

#[test]
fn an_invalidation_can_be_waited_for() {
    let Some((rig, other)) = shared() else { return };
    fs::write(rig.path("a"), "before").unwrap();
    assert_eq!(fs::read(rig.path("a")).unwrap(), b"before");
    let ino = Ino(fs::metadata(rig.path("a")).unwrap().ino());
    let mounted = rig.watcher();
    rig.filesystem().watch(Box::new(|_| Invalidation::complete()));
    rig.block_on(write(&other, ino, WriteAt::Offset(0), "after!"));
    assert_eq!(fs::read(rig.path("a")).unwrap(), b"before");
    rig.block_on(mounted(Change::Inode { ino, content: Some(0..6) }).wait());
    assert_eq!(fs::read(rig.path("a")).unwrap(), b"after!");
}
