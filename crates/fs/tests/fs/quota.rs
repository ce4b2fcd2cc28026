//! Limits of directory trees, and the end of all space.

use std::ops::Range;

use bytes::Bytes;
use rand::RngExt;
use thalweg_fs::check::{How, check};
use thalweg_fs::local::Quota;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::session_table::JournalPosition;
use thalweg_fs::{
    Allocation, Filesystem, FsError, Ino, Node, Rename, SessionTable, SetXattr, Timestamp,
};
use thalweg_sim::run;
use thalweg_store::txn::{Begin, Durability};

use crate::support::*;

const BLOCK: u64 = 4096;

#[test]
fn a_tree_has_a_limit_of_bytes_and_inodes() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let root = mkdir(&fs, ROOT, "quota").await;
        fs.set_quota(root, Some(100 * BLOCK), Some(5)).await.unwrap();
        let dir = mkdir(&fs, root, "dir").await;
        let a = create(&fs, dir, "a").await;
        write(&fs, a, 0, &vec![1; 60 * BLOCK as usize]).await;
        let b = create(&fs, root, "b").await;
        let full = try_write(&fs, b, 0, &vec![1; 41 * BLOCK as usize]).await;
        assert!(matches!(full, Err(FsError::QuotaExceeded)), "{full:?}");
        assert_eq!(attributes(&fs, b).await.size, 0);
        write(&fs, b, 0, &vec![1; 40 * BLOCK as usize]).await;
        write(&fs, b, 0, &vec![2; 40 * BLOCK as usize]).await;
        assert!(matches!(
            fs.allocate(b, 40 * BLOCK, 1, Allocation::Reserve { keep_size: true }).await,
            Err(FsError::QuotaExceeded)
        ));
        create(&fs, dir, "c").await;
        let one_more = fs.create(dir, b"d", &node(Node::File, 0o600)).await;
        assert!(matches!(one_more, Err(FsError::QuotaExceeded)));
        let used = Quota { max_bytes: 100 * BLOCK, max_inodes: 5, bytes: 100 * BLOCK, inodes: 5 };
        assert_eq!(fs.quota(root).await.unwrap(), Some(used));
        assert_eq!(fs.quotas().await.unwrap(), [root]);
        // Inodes elsewhere do not count, and cannot be moved in for free.
        let other = create(&fs, ROOT, "other").await;
        write(&fs, other, 0, &vec![1; 200 * BLOCK as usize]).await;
        for how in [Rename::Replace, Rename::Exchange] {
            let moved = fs.rename((ROOT, b"other"), (dir, b"c"), how).await;
            assert!(matches!(moved, Err(FsError::CrossQuota)), "{moved:?}");
        }
        assert!(matches!(fs.link(other, dir, b"e").await, Err(FsError::CrossQuota)));
        assert!(matches!(
            fs.rename((dir, b"a"), (ROOT, b"a"), Rename::Replace).await,
            Err(FsError::CrossQuota)
        ));
        // The tree as a whole goes where it wants.
        let away = mkdir(&fs, ROOT, "away").await;
        fs.rename((ROOT, b"quota"), (away, b"quota"), Rename::Replace).await.unwrap();
        fs.rename((dir, b"c"), (root, b"c"), Rename::Replace).await.unwrap();
        truncate(&fs, b, BLOCK).await;
        fs.unlink(dir, b"a").await.unwrap();
        fs.close().await.unwrap();
        let used = fs.quota(root).await.unwrap().unwrap();
        assert_eq!((used.bytes, used.inodes), (BLOCK, 4));
        fs.set_quota(root, None, Some(4)).await.unwrap();
        let one_more = fs.create(dir, b"d", &node(Node::File, 0o600)).await;
        assert!(matches!(one_more, Err(FsError::QuotaExceeded)));
        fs.set_quota(root, None, Some(0)).await.unwrap();
        create(&fs, dir, "d").await;
    });
}

/// A file that had a name outside before its directory became the root of a quota.
#[test]
fn a_file_that_lost_its_name_in_a_tree_is_counted_there_until_it_moves() {
    run(2, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let root = mkdir(&fs, ROOT, "quota").await;
        let away = mkdir(&fs, ROOT, "away").await;
        for name in ["a", "b"] {
            let file = create(&fs, root, name).await;
            write(&fs, file, 0, &vec![1; 3 * BLOCK as usize]).await;
            fs.link(file, ROOT, name.as_bytes()).await.unwrap();
        }
        fs.set_quota(root, Some(100 * BLOCK), Some(10)).await.unwrap();
        let used = async || fs.quota(root).await.map(|it| it.map(|it| (it.bytes, it.inodes)));
        let moved = fs.rename((ROOT, b"a"), (away, b"a"), Rename::Replace).await;
        assert!(matches!(moved, Err(FsError::CrossQuota)), "it has a name in the tree");
        for name in ["a", "b"] {
            fs.unlink(root, name.as_bytes()).await.unwrap();
        }
        assert_eq!(used().await.unwrap(), Some((6 * BLOCK, 3)));
        fs.rename((ROOT, b"a"), (away, b"a"), Rename::Replace).await.unwrap();
        assert_eq!(used().await.unwrap(), Some((3 * BLOCK, 2)));
        fs.close().await.unwrap();
        let report = check(&env, volume.clone(), "fs", How::default()).await.unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        fs.remove_directory(ROOT, b"quota").await.unwrap();
        fs.unlink(ROOT, b"b").await.unwrap();
        fs.close().await.unwrap();
        let report = check(&env, volume.clone(), "fs", How::default()).await.unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    });
}

#[test]
fn a_quota_counts_what_is_there() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let root = mkdir(&fs, ROOT, "quota").await;
        let mut dirs = vec![root];
        for number in 0..200u64 {
            let parent = dirs[number as usize % dirs.len()];
            match number % 5 {
                0 => dirs.push(mkdir(&fs, parent, &format!("{number}")).await),
                _ => {
                    let file = create(&fs, parent, &format!("{number}")).await;
                    write(&fs, file, 0, &pattern(number, 5000)).await;
                }
            }
        }
        let inner = mkdir(&fs, dirs[3], "inner").await;
        fs.set_quota(inner, Some(0), None).await.unwrap();
        create(&fs, inner, "not counted").await;
        let limit = Bytes::from_static(b"100000000");
        let name = b"thalweg.quota.max_bytes";
        fs.set_xattr(root, name, limit.clone(), SetXattr::Any).await.unwrap();
        assert_eq!(fs.xattr(root, name).await.unwrap(), limit);
        let used = fs.quota(root).await.unwrap().unwrap();
        assert_eq!((used.bytes, used.inodes), (160 * 2 * BLOCK, 201));
        assert_eq!(fs.quota(inner).await.unwrap().unwrap().inodes, 2);
        assert_eq!(fs.quota(dirs[2]).await.unwrap(), None);
        fs.remove_xattr(root, name).await.unwrap();
        assert!(matches!(fs.xattr(root, name).await, Err(FsError::NoAttribute)));
        let file = fs.set_xattr(Ino(3), name, limit, SetXattr::Any).await;
        assert!(file.is_ok() || matches!(file, Err(FsError::NotDirectory)));
        let words = fs.set_xattr(root, name, Bytes::from_static(b"much"), SetXattr::Any).await;
        assert!(matches!(words, Err(FsError::Invalid(_))));
    });
}

#[test]
fn a_full_filesystem_loses_nothing_and_goes_on() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, 1200);
        let fs = make(&env, &volume).await;
        let free = fs.statistics().await.unwrap().free;
        let mut rng = env.rng();
        let mut files: Vec<(Ino, Vec<u8>)> = Vec::new();
        let mut refused = 0;
        for round in 0..400u64 {
            if refused > 0 && rng.random_bool(0.4) && files.len() > 1 {
                let (ino, _) = files.swap_remove(rng.random_range(0..files.len()));
                let entry = entries(&fs, ROOT).await.into_iter().find(|entry| entry.ino == ino);
                fs.unlink(ROOT, &entry.unwrap().name).await.unwrap();
                continue;
            }
            let len = rng.random_range(1..300_000);
            let data = pattern(round, len);
            let ino = create(&fs, ROOT, &format!("{round}")).await;
            files.push((ino, Vec::new()));
            match try_write(&fs, ino, 0, &data).await {
                Ok(_) => files.last_mut().unwrap().1 = data,
                Err(error) => {
                    assert!(matches!(error, FsError::NoSpace), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 20, "{refused}");
        let mut used = 0;
        for (ino, data) in &files {
            assert_eq!(&content(&fs, *ino).await, data);
            used += (data.len() as u64).div_ceil(BLOCK);
        }
        fs.close().await.unwrap();
        assert_eq!(fs.statistics().await.unwrap().free, free - used);
        assert!(used > free / 2, "{used} of {free}");
    });
}

#[test]
fn names_need_room_too() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let small = thalweg_fs::local::Format { metadata_blocks: Some(40), ..format() };
        thalweg_fs::local::make(&env, &volume, &small).await.unwrap();
        let fs = open(&env, &volume).await;
        let mut made = 0;
        loop {
            let name = format!("a name that is long enough to fill a leaf soon {made}");
            match fs.create(ROOT, name.as_bytes(), &node(Node::File, 0o600)).await {
                Ok(_) => made += 1,
                Err(error) => {
                    assert!(matches!(error, FsError::NoSpace), "{error}");
                    break;
                }
            }
        }
        assert!(made > 200, "{made}");
        assert_eq!(entries(&fs, ROOT).await.len(), made);
        // Everything can be removed, also files in use.
        for (number, entry) in entries(&fs, ROOT).await.into_iter().enumerate() {
            if number % 2 == 0 {
                fs.reference(entry.ino);
            }
            fs.unlink(ROOT, &entry.name).await.unwrap();
            if number % 2 == 0 {
                fs.unreference(entry.ino, 1);
            }
        }
        fs.close().await.unwrap();
        create(&fs, ROOT, "a").await;
    });
}

/// While clients are promised room, calls under way count beside what is in use, but none of them counts twice.
#[test]
fn what_one_transaction_takes_counts_for_its_quota_once() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let root = mkdir(&fs, ROOT, "quota").await;
        fs.set_quota(root, Some(100 * BLOCK), None).await.unwrap();
        fs.begin_session(Bytes::from_static(b"a client")).await.unwrap();
        let forty = |byte: u8| Bytes::from(vec![byte; 40 * BLOCK as usize]);
        let Range { start, .. } = SessionTable::reserve_numbers(&fs, 1).await.unwrap();
        let (time, number) = (Timestamp::default(), Ino(start));
        let new = node(Node::File, 0o600);
        let create = MutationKind::Create { parent: root, name: "batch".into(), new, number };
        let write = |byte: u8, at: u64| MutationKind::Write {
            ino: number,
            offset: at * BLOCK,
            data: forty(byte),
            clear_suid: false,
        };
        let batch = [create, write(1, 0), write(2, 40)].map(|kind| Mutation { time, kind });
        fs.apply(&batch, &[], JournalPosition::default()).await.unwrap();
        assert_eq!(fs.quota(root).await.unwrap().unwrap().bytes, 80 * BLOCK);
        let more = [write(3, 80)].map(|kind| Mutation { time, kind });
        assert!(matches!(
            fs.apply(&more, &[], JournalPosition::default()).await,
            Err(FsError::QuotaExceeded)
        ));
        fs.unlink(root, b"batch").await.unwrap();
        fs.sync_all().await.unwrap();

        let view = fs.within(volume.begin(Begin::STRICT).await.unwrap());
        let file = self::create(&view, root, "within").await;
        for (at, byte) in [(0, 4), (40, 5)] {
            self::write(&view, file, at * BLOCK, &forty(byte)).await;
        }
        let full = try_write(&view, file, 80 * BLOCK, &forty(6)).await;
        assert!(matches!(full, Err(FsError::QuotaExceeded)), "{full:?}");
        view.commit(Durability::Visible).await.unwrap();
        assert_eq!(fs.quota(root).await.unwrap().unwrap().bytes, 80 * BLOCK);
    });
}
