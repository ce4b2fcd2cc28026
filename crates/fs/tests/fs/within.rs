//! Calls within a caller's transaction, and their durability.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_fs::check;
use thalweg_fs::{
    Action, Allocation, Change, Filesystem, FsError, Invalidation, Node, Rename, SetXattr, WriteAt,
    WriteHow,
};
use thalweg_sim::run;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::tree::{Kind, NewPartition, Store, catalogue};
use thalweg_store::txn::{self, Begin, Durability, Transact, TransactionManager, TxnError};

use crate::support::*;

#[test]
fn files_and_keys_change_together_or_not_at_all() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS + 300);
        let names =
            NewPartition { name: "names".into(), kind: Kind::Hash, first: None, blocks: Some(200) };
        catalogue::create(&env, &*volume, &names).await.unwrap();
        let keys = Store::open(&env, volume.clone(), "names").await.unwrap();
        let fs = make(&env, &volume).await;
        let file = create(&fs, ROOT, "file").await;
        write(&fs, file, 0, b"before").await;
        for commits in [false, true] {
            let txn = volume.begin(Begin::STRICT).await.unwrap();
            let view = fs.within(txn.clone());
            let dir = mkdir(&view, ROOT, "dir").await;
            view.rename((ROOT, b"file"), (dir, b"moved"), Rename::NoReplace).await.unwrap();
            write(&view, file, 3, b"after").await;
            view.set_xattr(file, b"user.a", Bytes::from_static(b"1"), SetXattr::Any).await.unwrap();
            view.rename((ROOT, b"dir"), (ROOT, b"renamed"), Rename::Replace).await.unwrap();
            keys.put_in(&*txn, b"file", b"moved".to_vec()).await.unwrap();
            // Visible inside, invisible outside.
            assert_eq!(view.find(dir, b"moved").await.unwrap().ino, file);
            assert_eq!(content(&view, file).await, b"befafter");
            assert_eq!(names_of(&view).await, ["renamed"]);
            assert_eq!(names_of(&fs).await, ["file"]);
            assert_eq!(content(&fs, file).await, b"before");
            assert!(matches!(fs.attributes(dir).await, Err(FsError::Stale)));
            match commits {
                true => view.commit(Durability::Synced).await.unwrap(),
                false => txn.abort().await,
            }
            assert_eq!(keys.get(b"file").await.unwrap().is_some(), commits);
        }
        assert_eq!(names_of(&fs).await, ["renamed"]);
        let dir = fs.find(ROOT, b"renamed").await.unwrap().ino;
        assert_eq!(fs.find(dir, b"moved").await.unwrap().ino, file);
        assert_eq!(content(&fs, file).await, b"befafter");
        assert_eq!(fs.parent(dir).await.unwrap(), ROOT);
    });
}

async fn names_of(fs: &dyn Filesystem) -> Vec<String> {
    names(fs, ROOT).await
}

#[test]
fn a_transaction_that_met_another_does_not_commit() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let (a, b) = (create(&fs, ROOT, "a").await, create(&fs, ROOT, "b").await);
        for (outside, meets) in [(a, true), (b, false)] {
            let view = fs.within(volume.begin(Begin::STRICT).await.unwrap());
            write(&view, a, 0, b"inside").await;
            write(&fs, outside, 0, b"outside").await;
            let committed = view.commit(Durability::Visible).await;
            assert_eq!(matches!(committed, Err(FsError::Conflict)), meets, "{committed:?}");
        }
        assert_eq!(content(&fs, a).await, b"insidee");
    });
}

#[test]
fn a_call_that_fails_leaves_the_transaction_as_it_was() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let free = fs.statistics().await.unwrap().free;
        let view = fs.within(volume.begin(Begin::STRICT).await.unwrap());
        let a = create(&view, ROOT, "a").await;
        let again = view.create(ROOT, b"a", &node(Node::File, 0o600)).await;
        assert!(matches!(again, Err(FsError::Exists)));
        let reserve = Allocation::Reserve { keep_size: false };
        let full = view.allocate(a, 0, (BLOCKS + 1) * 4096, reserve).await;
        assert!(matches!(full, Err(FsError::NoSpace)), "{full:?}");
        assert_eq!(attributes(&view, a).await.size, 0);
        write(&view, a, 0, b"in the end").await;
        view.commit(Durability::Visible).await.unwrap();
        assert_eq!(content(&fs, a).await, b"in the end");
        assert_eq!(fs.statistics().await.unwrap().free, free - 1);
    });
}

#[test]
fn what_is_too_large_for_a_transaction_ends_it() {
    run(1, |env| async move {
        let store = Arc::new(VersionedMemory::new(BLOCKS));
        let options = txn::Options { max_large: 12, ..txn::Options::default() };
        let volume: Arc<dyn Transact> = Arc::new(TransactionManager::new(&env, store, options));
        let fs = make(&env, &volume).await;
        let free = fs.statistics().await.unwrap().free;
        let view = fs.within(volume.begin(Begin::STRICT).await.unwrap());
        let mut number = 0;
        let error = loop {
            let name = format!("{number:0200}");
            let made = view.create(ROOT, name.as_bytes(), &node(Node::File, 0o600)).await;
            let written = match made {
                Ok(file) => try_write(&view, file.ino, 0, &pattern(number, 30_000)).await,
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                break error;
            }
            number += 1;
        };
        assert_eq!(too_large(&error), Some(12), "{error:?}");
        let failure = view.failure();
        assert_eq!(failure.as_ref().and_then(too_large), Some(12));
        assert!(view.commit(Durability::Visible).await.is_err());
        assert_eq!(names_of(&fs).await, Vec::<String>::new());
        assert_eq!(fs.statistics().await.unwrap().free, free);
        assert_clean(&env, &volume).await;
    });
}

/// Checks a filesystem that has nothing left to be done.
pub(crate) async fn assert_clean(env: &thalweg_env::Env, volume: &Arc<dyn Transact>) {
    let how = check::How { repair: false, salvage: false, data: true };
    let report = check::check(env, volume.clone(), "fs", how).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(report.unfinished, 0);
}

#[test]
fn contents_of_a_transaction_are_bounded_by_the_volume_alone() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let old = create(&fs, ROOT, "old").await;
        write(&fs, old, 0, &pattern(1, 3_000_000)).await;
        let free = fs.statistics().await.unwrap().free;
        for commits in [false, true] {
            let txn = volume.begin(Begin::STRICT).await.unwrap();
            let view = fs.within(txn.clone());
            let new = create(&view, ROOT, "new").await;
            let mut wanted = pattern(2, 4_000_000);
            for at in (0..wanted.len()).step_by(100_000) {
                write(&view, new, at as u64, &wanted[at..at + 100_000]).await;
            }
            // Its own, again and in part.
            write(&view, new, 5_000, b"over").await;
            wanted[5_000..5_004].copy_from_slice(b"over");
            truncate(&view, new, 3_500_001).await;
            truncate(&view, new, 3_900_000).await;
            wanted.truncate(3_500_001);
            wanted.resize(3_900_000, 0);
            assert!(content(&view, new).await == wanted);
            // Existing content, overwritten in part: some of it in place, and then elsewhere.
            let mut changed = pattern(1, 3_000_000);
            for (at, byte) in (1..2_900_000).step_by(130_001).zip(1..) {
                write(&view, old, at as u64, &vec![byte; 100_003]).await;
                changed[at..at + 100_003].fill(byte);
            }
            assert!(content(&view, old).await == changed);
            assert!(content(&fs, old).await == pattern(1, 3_000_000));
            // A file that comes and goes leaves its blocks to the next one.
            for number in 0..20 {
                let file = create(&view, ROOT, "passing").await;
                write(&view, file, 0, &pattern(number, 500_000)).await;
                let reserve = Allocation::Reserve { keep_size: false };
                view.allocate(file, 500_000, 100_000, reserve).await.unwrap();
                let all = content(&view, file).await;
                assert!(all[..500_000] == pattern(number, 500_000));
                assert!(all[500_000..].iter().all(|byte| *byte == 0));
                view.unlink(ROOT, b"passing").await.unwrap();
            }
            assert_eq!(names_of(&fs).await, ["old"]);
            match commits {
                true => view.commit(Durability::Synced).await.unwrap(),
                false => view.abort().await,
            }
            let now = fs.statistics().await.unwrap().free;
            match commits {
                true => {
                    assert!(content(&fs, new).await == wanted);
                    assert!(content(&fs, old).await == changed);
                    assert_eq!(now, free - 3_500_001_u64.div_ceil(4096));
                }
                false => {
                    assert!(content(&fs, old).await == pattern(1, 3_000_000));
                    assert_eq!(now, free);
                }
            }
            assert_clean(&env, &volume).await;
        }
    });
}

#[test]
fn transactions_at_once_do_not_meet_where_they_take_blocks() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let mut files = Vec::new();
        for name in ["a", "b", "c"] {
            files.push(create(&fs, ROOT, name).await);
            // Their extents are in different leaves of the tree, which have room: changes of one leaf, and
            // splits below one inner page, conflict.
            for number in 0..300 {
                let other = create(&fs, ROOT, &format!("{name}{number}")).await;
                write(&fs, other, 0, b"other").await;
            }
            for number in (0..300).step_by(2) {
                fs.unlink(ROOT, format!("{name}{number}").as_bytes()).await.unwrap();
            }
        }
        let free = fs.statistics().await.unwrap().free;
        let mut views = Vec::new();
        for _ in &files {
            views.push(fs.within(volume.begin(Begin::STRICT).await.unwrap()));
        }
        for round in 0..10 {
            for (view, file) in views.iter().zip(&files) {
                write(view, *file, round * 200_000, &pattern(round, 200_000)).await;
            }
        }
        truncate(&views[0], files[0], 100_000).await;
        for view in &views {
            view.commit(Durability::Visible).await.unwrap();
        }
        let blocks = 100_000_u64.div_ceil(4096) + 2 * 2_000_000_u64.div_ceil(4096);
        assert_eq!(fs.statistics().await.unwrap().free, free - blocks);
        assert_clean(&env, &volume).await;
    });
}

#[test]
fn what_a_transaction_leaves_behind_is_finished() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let free = fs.statistics().await.unwrap().free;
        for by_handle in [true, false] {
            let (a, b) = (create(&fs, ROOT, "a").await, create(&fs, ROOT, "b").await);
            write(&fs, a, 0, &pattern(1, 2_000_000)).await;
            write(&fs, b, 0, &pattern(1, 2_000_000)).await;
            fs.reference(a);
            let txn = volume.begin(Begin::STRICT).await.unwrap();
            let view = fs.within(txn.clone());
            view.unlink(ROOT, b"a").await.unwrap();
            truncate(&view, b, 1_000_000).await;
            truncate(&view, b, 2_000_000).await;
            view.unlink(ROOT, b"b").await.unwrap();
            match by_handle {
                true => view.commit(Durability::Visible).await.unwrap(),
                false => {
                    drop(view);
                    txn.commit(Durability::Visible).await.unwrap();
                }
            }
            drop(txn);
            env.sleep(std::time::Duration::from_secs(5)).await;
            assert_eq!(content(&fs, a).await.len(), 2_000_000, "somebody has it open");
            assert!(matches!(fs.attributes(b).await, Err(FsError::Stale)));
            fs.unreference(a, 1);
            env.sleep(std::time::Duration::from_secs(5)).await;
            assert!(matches!(fs.attributes(a).await, Err(FsError::Stale)));
            assert_eq!(fs.statistics().await.unwrap().free, free);
        }
    });
}

#[test]
fn watchers_are_told_of_transactions() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let a = create(&fs, ROOT, "a").await;
        let told = Arc::new(Mutex::new(Vec::new()));
        let notes = told.clone();
        fs.watch(Box::new(move |change| {
            notes.lock().push(change);
            Invalidation::complete()
        }));
        write(&fs, a, 0, b"its own are not told").await;
        let view = fs.within(volume.begin(Begin::STRICT).await.unwrap());
        write(&view, a, 0, b"content").await;
        let b = create(&view, ROOT, "b").await;
        assert!(told.lock().is_empty());
        view.commit(Durability::Visible).await.unwrap();
        let told = told.lock();
        let attributes = |ino| Change::Inode { ino, content: None };
        for change in [
            attributes(ROOT),
            Change::content(a),
            attributes(b),
            Change::Name { parent: ROOT, name: Bytes::from_static(b"b") },
        ] {
            assert!(told.contains(&change), "{change:?}");
        }
    });
}

#[test]
fn what_is_durable_already_is_not_flushed_again() {
    run(1, |env| async move {
        let (volume, store) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        fs.sync_all().await.unwrap();
        let (a, b) = (create(&fs, ROOT, "a").await, create(&fs, ROOT, "b").await);
        let before = store.syncs();
        fs.sync(a, false).await.unwrap();
        assert_eq!(store.syncs(), before + 1);
        for ino in [a, b, ROOT] {
            fs.sync(ino, false).await.unwrap();
        }
        fs.sync_all().await.unwrap();
        assert_eq!(store.syncs(), before + 1);
        write(&fs, a, 0, b"x").await;
        fs.sync(b, true).await.unwrap();
        assert_eq!(store.syncs(), before + 1);
        fs.sync(a, true).await.unwrap();
        assert_eq!(store.syncs(), before + 2);
        let how = WriteHow { sync: true, clear_suid: false };
        fs.write(a, WriteAt::End, vec![Bytes::from_static(b"y")], how).await.unwrap();
        assert_eq!(store.syncs(), before + 3);
        fs.sync(a, true).await.unwrap();
        assert_eq!(store.syncs(), before + 3);
        // The changes of a transaction that another handle committed are unknown.
        let txn = volume.begin(Begin::STRICT).await.unwrap();
        let view = fs.within(txn.clone());
        write(&view, b, 0, b"x").await;
        txn.commit(Durability::Visible).await.unwrap();
        drop(view);
        fs.sync(b, true).await.unwrap();
        assert_eq!(store.syncs(), before + 4);
    });
}

/// The limit of blocks that an error of a transaction names, if that is its cause.
fn too_large(error: &FsError) -> Option<usize> {
    let FsError::Aborted(failure) = error else { return None };
    match failure.cause() {
        Some(TxnError::TooLarge(most)) if failure.action() == Action::Divide => Some(*most),
        _ => None,
    }
}
