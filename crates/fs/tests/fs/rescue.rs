//! A repair gives every inode without a name one, whatever stands in the way of the usual one.

use thalweg_env::Env;
use thalweg_fs::check::Damage;
use thalweg_fs::local::LocalFs;
use thalweg_fs::local::format::{DirSlot, END_OF_NUMBERS, Tag, key};
use thalweg_fs::{Filesystem, Ino};
use thalweg_sim::run;

use crate::check::{Rig, damaged};
use crate::support::*;

/// Stores the next inode number.
async fn set_next(rig: &Rig, next: u64) {
    rig.put(key(0, Tag::Numbers, &[]), next.to_le_bytes().to_vec()).await;
}

/// Repairs a filesystem in which a file has lost its name, after `hinder`; returns the filesystem, and where the file
/// is to be found.
async fn rescued(env: &Env, hinder: impl AsyncFnOnce(&Rig)) -> (Rig, LocalFs) {
    let make = async |rig: &Rig| {
        hinder(rig).await;
        let (place, _) = rig.place(rig.dir, "other").await;
        rig.put(place, DirSlot::Vacant.encode()).await;
    };
    let is_nameless = |it: &Damage| matches!(it, Damage::Unreachable { .. });
    let (rig, _, fs) = damaged(env, make, is_nameless).await;
    assert_eq!(read(&fs, rig.other, 3 * 4096, 100).await, b"behind a hole");
    (rig, fs)
}

/// Where a path leads.
async fn at(fs: &LocalFs, path: &str) -> Ino {
    let mut ino = ROOT;
    for name in path.split('/') {
        ino = fs.find(ino, name.as_bytes()).await.unwrap().ino;
    }
    ino
}

#[test]
fn a_next_number_that_is_too_high_is_wrong() {
    for next in [END_OF_NUMBERS + 1, u64::MAX] {
        run(1, |env| async move {
            let make = async |rig: &Rig| set_next(rig, next).await;
            let is_wrong = |it: &Damage| matches!(it, Damage::WrongNumber { .. });
            let (rig, findings, fs) = damaged(&env, make, is_wrong).await;
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(create(&fs, ROOT, "new").await > rig.quota);
            let (rig, fs) = rescued(&env, async |rig| set_next(rig, next).await).await;
            assert_eq!(at(&fs, &format!("lost+found/#{}", rig.other)).await, rig.other);
        });
    }
}

#[test]
fn without_a_number_for_lost_and_found_the_name_is_in_the_root() {
    run(1, |env| async move {
        let (rig, fs) = rescued(&env, async |rig| set_next(rig, END_OF_NUMBERS).await).await;
        assert_eq!(at(&fs, &format!("#{}", rig.other)).await, rig.other);
        assert!(fs.find(ROOT, b"lost+found").await.is_err());
    });
}

#[test]
fn when_lost_and_found_is_a_file_the_name_is_in_the_root() {
    run(1, |env| async move {
        let hinder = async |rig: &Rig| {
            let fs = rig.open().await;
            create(&fs, ROOT, "lost+found").await;
            create(&fs, ROOT, &format!("#{}", rig.other)).await;
            fs.close().await.unwrap();
        };
        let (rig, fs) = rescued(&env, hinder).await;
        assert_eq!(at(&fs, &format!("#{}.1", rig.other)).await, rig.other);
    });
}

#[test]
fn a_name_that_exists_is_not_taken_again() {
    run(1, |env| async move {
        let hinder = async |rig: &Rig| {
            let fs = rig.open().await;
            let lost = mkdir(&fs, ROOT, "lost+found").await;
            create(&fs, lost, &format!("#{}", rig.other)).await;
            mkdir(&fs, lost, &format!("#{}.1", rig.other)).await;
            fs.close().await.unwrap();
        };
        let (rig, fs) = rescued(&env, hinder).await;
        assert_eq!(at(&fs, &format!("lost+found/#{}.2", rig.other)).await, rig.other);
        assert_ne!(at(&fs, &format!("lost+found/#{}", rig.other)).await, rig.other);
    });
}

#[test]
fn a_full_quota_refuses_no_repair() {
    run(1, |env| async move {
        let hinder = async |rig: &Rig| {
            let fs = rig.open().await;
            fs.set_quota(ROOT, None, Some(1)).await.unwrap();
            fs.close().await.unwrap();
        };
        let (rig, fs) = rescued(&env, hinder).await;
        assert_eq!(at(&fs, &format!("lost+found/#{}", rig.other)).await, rig.other);
    });
}
