//! A filesystem becomes larger while it is in use.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_fs::check::{Damage, How, Outcome, Report, check};
use thalweg_fs::local::format::{BITS_PER_PAGE, Extent, Tag, extent_key, key};
use thalweg_fs::local::{self, Format, Growth, LocalFs, Options};
use thalweg_fs::{Allocation, Filesystem, FsError, Ino, Node, SetXattr};
use thalweg_sim::run;
use thalweg_store::block::Lba;
use thalweg_store::tree::{
    Kind, NewPartition, Partition, State, Store, TreeError, catalogue, catalogue::growth,
};
use thalweg_store::txn::{Begin, Durability, Transact, run as transaction};

use crate::support::*;

const BLOCK: u64 = 4096;

/// The blocks of a new filesystem, and those of its metadata.
fn sized(blocks: u64, metadata: u64) -> Format {
    Format { blocks: Some(blocks), metadata_blocks: Some(metadata), ..format() }
}

async fn partition(volume: &dyn Transact, name: &str) -> Partition {
    catalogue::open(volume, name).await.unwrap()
}

async fn make_partition(env: &Env, volume: &dyn Transact, name: &str, kind: Kind, blocks: u64) {
    let new = NewPartition { name: name.to_owned(), kind, first: None, blocks: Some(blocks) };
    catalogue::create(env, volume, &new).await.unwrap();
}

async fn checked(env: &Env, volume: &Arc<dyn Transact>, repair: bool) -> Report {
    let how = How { repair, salvage: repair, data: true };
    check(env, volume.clone(), "fs", how).await.unwrap()
}

async fn assert_clean(env: &Env, volume: &Arc<dyn Transact>) {
    let report = checked(env, volume, false).await;
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// Writes files until there is no room for another; their bytes.
async fn fill(fs: &LocalFs, tag: &str, blocks: usize) -> Vec<(Ino, Vec<u8>)> {
    let mut files = Vec::new();
    loop {
        let number = files.len();
        let (name, new) = (format!("{tag}{number}"), node(Node::File, 0o644));
        let Ok(made) = fs.create(ROOT, name.as_bytes(), &new).await else { return files };
        let ino = made.ino;
        let bytes = pattern(number as u64, blocks * BLOCK as usize);
        match try_write(fs, ino, 0, &bytes).await {
            Ok(_) => files.push((ino, bytes)),
            Err(FsError::NoSpace) => return files,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn assert_there(fs: &LocalFs, files: &[(Ino, Vec<u8>)]) {
    for (ino, bytes) in files {
        assert!(content(fs, *ino).await == *bytes, "{ino:?}");
    }
}

#[test]
fn a_full_filesystem_has_room_again() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, 3000);
        local::make(&env, &volume, &sized(500, 60)).await.unwrap();
        let fs = open(&env, &volume).await;
        let mut files = fill(&fs, "a", 7).await;
        let before = fs.statistics().await.unwrap();
        assert!(files.len() > 40 && before.free < 7, "{before:?}");
        let grown = fs.grow(Some(1200 * BLOCK)).await.unwrap();
        assert_eq!(grown, Growth { before: 500 * BLOCK, size: 1200 * BLOCK });
        assert_eq!(local::size(&*volume, "fs").await.unwrap(), 1200 * BLOCK);
        let now = fs.statistics().await.unwrap();
        // Of 700 blocks more the metadata got 15, and one is a page of bits.
        assert_eq!((now.blocks - before.blocks, now.free - before.free), (684, 684));
        assert!(now.inodes.1 > before.inodes.1);
        assert_there(&fs, &files).await;
        files.extend(fill(&fs, "b", 7).await);
        assert!(files.len() > 135, "{}", files.len());
        // The rest of the volume: open files go on.
        let grown = fs.grow(None).await.unwrap();
        assert_eq!(grown, Growth { before: 1200 * BLOCK, size: 2984 * BLOCK });
        files.extend(fill(&fs, "c", 7).await);
        assert!(files.len() > 380, "{}", files.len());
        assert_there(&fs, &files).await;
        assert_eq!(fs.grow(None).await.unwrap(), Growth { before: grown.size, size: grown.size });
        fs.close().await.unwrap();
        assert_clean(&env, &volume).await;
        let fs = open(&env, &volume).await;
        assert_there(&fs, &files).await;
        for name in names(&fs, ROOT).await {
            fs.unlink(ROOT, name.as_bytes()).await.unwrap();
        }
        fs.close().await.unwrap();
        assert_eq!(fs.statistics().await.unwrap().blocks, now.blocks + 1784 - 111 - 1);
        assert_clean(&env, &volume).await;
        local::remove(&env, &volume, "fs").await.unwrap();
        assert_eq!(catalogue::list(&*volume).await.unwrap(), []);
        let all = volume.begin(Begin::SNAPSHOT).await.unwrap();
        let all = all.read_run(Lba(16), 2984).await.unwrap();
        assert!(all.concat().iter().all(|byte| *byte == 0), "something was left");
    });
}

#[test]
fn metadata_that_is_full_has_room_again() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, 9000);
        let format = Format { hash_bits: Format::default().hash_bits, ..sized(400, 32) };
        local::make(&env, &volume, &format).await.unwrap();
        let fs = open(&env, &volume).await;
        let mut made = 0;
        let mut fill = async || {
            loop {
                let name = format!("a rather long name of an empty file, the {made:08}th of all");
                match fs.create(ROOT, name.as_bytes(), &node(Node::File, 0o644)).await {
                    Ok(_) => made += 1,
                    Err(FsError::NoSpace) => return made,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let first = fill().await;
        fs.grow(None).await.unwrap();
        let all = fill().await;
        // 32 blocks became 561.
        assert!(all > 12 * first, "{first} {all}");
        let meta = partition(&*volume, "fs.meta").await;
        assert_eq!((meta.size(), meta.further.len()), (561, 1));
        // Large values go there too.
        for number in 0..60 {
            let name = format!("a rather long name of an empty file, the {number:08}th of all");
            fs.unlink(ROOT, name.as_bytes()).await.unwrap();
        }
        let file = fs.find(ROOT, b"a rather long name of an empty file, the 00000100th of all");
        let file = file.await.unwrap().ino;
        let value = Bytes::from(pattern(3, 9000));
        fs.set_xattr(file, b"user.large", value.clone(), SetXattr::Any).await.unwrap();
        assert_eq!(fs.xattr(file, b"user.large").await.unwrap(), value);
        fs.close().await.unwrap();
        assert_clean(&env, &volume).await;
        let tree = Store::open_btree(&env, volume.clone(), "fs.meta").await.unwrap();
        tree.check().await.unwrap();
        let names = names(&open(&env, &volume).await, ROOT).await;
        assert_eq!(names.len(), all - 60);
    });
}

#[test]
fn room_between_partitions_counts() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, 2000);
        local::make(&env, &volume, &sized(300, 40)).await.unwrap();
        for name in ["a", "b", "c"] {
            make_partition(&env, &*volume, name, Kind::Raw, 200).await;
        }
        make_partition(&env, &*volume, "keys", Kind::Hash, 300).await;
        let keys = Store::open(&env, volume.clone(), "keys").await.unwrap();
        keys.put(b"key", b"value".to_vec()).await.unwrap();
        for name in ["a", "c"] {
            let at = partition(&*volume, name).await.first;
            let write = async |txn: Arc<dyn thalweg_store::txn::Transaction>| {
                let noise = Bytes::from(vec![7; BLOCK as usize]);
                for block in at..at + 200 {
                    txn.write(Lba(block), noise.clone())?;
                }
                Ok::<_, TreeError>(())
            };
            transaction(&*volume, Begin::SNAPSHOT, Durability::Synced, write).await.unwrap();
            catalogue::remove(&env, &*volume, name).await.unwrap();
        }
        let fs = open(&env, &volume).await;
        let files = fill(&fs, "a", 5).await;
        // 784 at the end, and twice 200.
        fs.grow(None).await.unwrap();
        assert_eq!(local::size(&*volume, "fs").await.unwrap(), (300 + 784 + 400) * BLOCK);
        let data = partition(&*volume, "fs.data").await;
        assert_eq!(data.further_runs().count(), 3);
        let more = fill(&fs, "b", 5).await;
        assert!(more.len() > 200, "{}", more.len());
        assert_there(&fs, &files).await;
        assert_there(&fs, &more).await;
        fs.close().await.unwrap();
        assert_clean(&env, &volume).await;
        assert_eq!(keys.get(b"key").await.unwrap().unwrap(), "value");
        // Nothing else has a place now.
        let new = NewPartition { name: "d".into(), kind: Kind::Raw, first: None, blocks: Some(8) };
        let made = catalogue::create(&env, &*volume, &new).await;
        assert!(matches!(made, Err(TreeError::NoGap(8, 0))), "{made:?}");
        let at = NewPartition { first: Some(data.further[2].first + 3), ..new };
        let made = catalogue::create(&env, &*volume, &at).await.unwrap_err().to_string();
        assert!(made.contains("partition fs.data"), "{made}");
    });
}

/// Free blocks of a volume may hold anything: an earlier use of the device, or writes through a block device
/// before there were partitions.
#[test]
fn free_blocks_are_discarded_before_they_are_used() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, 2000);
        local::make(&env, &volume, &sized(500, 60)).await.unwrap();
        for first in (516..2000).step_by(200) {
            let write = async |txn: Arc<dyn thalweg_store::txn::Transaction>| {
                let noise = Bytes::from(vec![7; BLOCK as usize]);
                for block in first..2000.min(first + 200) {
                    txn.write(Lba(block), noise.clone())?;
                }
                Ok::<_, TreeError>(())
            };
            transaction(&*volume, Begin::SNAPSHOT, Durability::Synced, write).await.unwrap();
        }
        let fs = open(&env, &volume).await;
        fs.grow(None).await.unwrap();
        assert_eq!(local::size(&*volume, "fs").await.unwrap(), 1984 * BLOCK);
        assert_clean(&env, &volume).await;
        for name in ["fs.meta", "fs.data"] {
            let runs = partition(&*volume, name).await.further;
            assert_eq!(runs.len(), 1, "{name}");
            let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
            let blocks = txn.read_run(Lba(runs[0].first), runs[0].blocks).await.unwrap();
            let is_empty = blocks.concat().iter().all(|byte| *byte == 0);
            assert!(is_empty, "{name} holds what was there before");
        }
        let files = fill(&fs, "a", 5).await;
        assert!(files.len() > 300, "{}", files.len());
        assert_there(&fs, &files).await;
        fs.close().await.unwrap();
        assert_clean(&env, &volume).await;
    });
}

#[test]
fn what_cannot_be_is_refused() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, 1000);
        local::make(&env, &volume, &sized(500, 60)).await.unwrap();
        let fs = open(&env, &volume).await;
        let smaller = fs.grow(Some(499 * BLOCK)).await;
        assert!(matches!(smaller, Err(FsError::Smaller { size }) if size == 500 * BLOCK));
        let larger = fs.grow(Some(984 * BLOCK + 1)).await;
        assert!(matches!(larger, Err(FsError::NoRoom { size }) if size == 984 * BLOCK));
        let within = fs.within(volume.begin(Begin::STRICT).await.unwrap());
        assert!(matches!(within.grow(None).await, Err(FsError::NotSupported)));
        within.abort().await;
        let options = Options { read_only: true, ..Options::default() };
        let read = LocalFs::open(&env, volume.clone(), "fs", options).await.unwrap();
        assert!(matches!(read.grow(None).await, Err(FsError::ReadOnly)));
        let same = Growth { before: 500 * BLOCK, size: 500 * BLOCK };
        assert_eq!(fs.grow(Some(500 * BLOCK)).await.unwrap(), same);
        // So little is not worth a run of blocks.
        assert_eq!(fs.grow(Some(520 * BLOCK)).await.unwrap(), same);
        assert!(partition(&*volume, "fs.data").await.further.is_empty());
        make_partition(&env, &*volume, "keys", Kind::Hash, 100).await;
        let addition = growth::Addition { name: "keys", blocks: 100 };
        let hash = growth::reserve(&*volume, &[addition]).await;
        assert!(matches!(hash, Err(TreeError::WrongKind { .. })), "{hash:?}");
    });
}

#[test]
fn a_growth_that_ended_half_way_is_begun_anew() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, 2000);
        local::make(&env, &volume, &sized(500, 60)).await.unwrap();
        let fs = open(&env, &volume).await;
        let files = fill(&fs, "a", 9).await;
        let additions = [("fs.meta", 100), ("fs.data", 700)];
        let additions = additions.map(|(name, blocks)| growth::Addition { name, blocks });
        let kept = growth::reserve(&*volume, &additions).await.unwrap();
        assert_eq!(kept.iter().flatten().map(|run| run.blocks).sum::<u64>(), 800);
        // The blocks are reserved: no other partition gets them, and the filesystem does not use them yet.
        assert_eq!(local::size(&*volume, "fs").await.unwrap(), 500 * BLOCK);
        let data = partition(&*volume, "fs.data").await;
        assert_eq!((data.size(), data.further[0].state), (439, State::Unfinished));
        let new = NewPartition { name: "d".into(), kind: Kind::Raw, first: None, blocks: None };
        let rest = catalogue::create(&env, &*volume, &new).await.unwrap();
        assert_eq!(rest.blocks, 1484 - 800);
        let again = open(&env, &volume).await;
        assert_there(&again, &files).await;
        drop(again);
        assert_clean(&env, &volume).await;
        fs.grow(None).await.unwrap();
        assert_eq!(local::size(&*volume, "fs").await.unwrap(), 1300 * BLOCK);
        assert!(fill(&fs, "b", 9).await.len() > 70);
        fs.close().await.unwrap();
        assert_clean(&env, &volume).await;
    });
}

#[test]
fn writers_go_on_while_it_grows() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, 20_000);
        local::make(&env, &volume, &sized(600, 60)).await.unwrap();
        let fs = open(&env, &volume).await;
        let mut writers = Vec::new();
        for number in 0..6u64 {
            let (fs, env2) = (fs.clone(), env.clone());
            writers.push(env.spawn(async move {
                let mut files = Vec::new();
                for nth in 0..60u64 {
                    let file = create(&fs, ROOT, &format!("{number}-{nth}")).await;
                    let bytes = pattern(number * 100 + nth, (nth as usize % 40) * 1000 + 1);
                    while let Err(error) = try_write(&fs, file, 0, &bytes).await {
                        assert!(matches!(error, FsError::NoSpace), "{error}");
                        env2.sleep(std::time::Duration::from_millis(1)).await;
                    }
                    files.push((file, bytes));
                }
                files
            }));
        }
        for step in 1..=12 {
            env.sleep(std::time::Duration::from_millis(2)).await;
            fs.grow(Some((600 + step * 300) * BLOCK)).await.unwrap();
        }
        // An older view sees growth from now on.
        for writer in writers {
            assert_there(&fs, &writer.await.unwrap()).await;
        }
        assert_eq!(partition(&*volume, "fs.data").await.further_runs().count(), 12);
        fs.close().await.unwrap();
        assert_clean(&env, &volume).await;
    });
}

#[test]
fn a_transaction_that_began_before_a_growth_uses_the_new_blocks() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, 4000);
        local::make(&env, &volume, &sized(500, 60)).await.unwrap();
        let fs = open(&env, &volume).await;
        let view = fs.within(volume.begin(Begin::STRICT).await.unwrap());
        let before = create(&view, ROOT, "before").await;
        write(&view, before, 0, &pattern(1, 100_000)).await;
        fs.grow(None).await.unwrap();
        let after = create(&view, ROOT, "after").await;
        let bytes = pattern(2, 900 * BLOCK as usize);
        write(&view, after, 0, &bytes).await;
        view.commit(Durability::Synced).await.unwrap();
        assert!(content(&fs, before).await == pattern(1, 100_000));
        assert!(content(&fs, after).await == bytes);
        fs.close().await.unwrap();
        assert_clean(&env, &volume).await;
    });
}

/// A filesystem of three runs with a file in the last.
async fn grown(env: &Env) -> (Arc<dyn Transact>, LocalFs, Ino, Vec<u8>) {
    let (volume, _) = trusting(env, 3000);
    local::make(env, &volume, &sized(300, 40)).await.unwrap();
    let fs = open(env, &volume).await;
    for size in [500, 2984] {
        fill(&fs, &size.to_string(), 8).await;
        fs.grow(Some(size * BLOCK)).await.unwrap();
    }
    let file = create(&fs, ROOT, "file").await;
    let bytes = pattern(9, 600 * BLOCK as usize);
    write(&fs, file, 0, &bytes).await;
    (volume, fs, file, bytes)
}

async fn extents(env: &Env, volume: &Arc<dyn Transact>, ino: Ino) -> Vec<Extent> {
    let tree = Store::open_btree(env, volume.clone(), "fs.meta").await.unwrap();
    let all = tree.iter().await.unwrap().collect().await.unwrap();
    let prefix = key(ino.0, Tag::Extent, &[]);
    let of = all.iter().filter(|(key, _)| key.starts_with(&prefix));
    of.map(|(key, value)| Extent::decode(&key[9..], value, u64::MAX).unwrap()).collect()
}

#[test]
fn damage_in_what_was_added_is_found_and_repaired() {
    run(1, |env| async move {
        let (volume, fs, file, bytes) = grown(&env).await;
        fs.close().await.unwrap();
        drop(fs);
        let data = partition(&*volume, "fs.data").await;
        let noise = Bytes::from(vec![0x5a; BLOCK as usize]);
        // The page of bits of the last run.
        let last = data.further_runs().last().unwrap().first;
        let write = async |txn: Arc<dyn thalweg_store::txn::Transaction>| {
            Ok::<_, TreeError>(txn.write(Lba(last), noise.clone())?)
        };
        transaction(&*volume, Begin::SNAPSHOT, Durability::Synced, write).await.unwrap();
        let report = checked(&env, &volume, true).await;
        let is_bitmap = |page| Damage::BadBitmap { page };
        assert_eq!(report.findings[0].damage, is_bitmap(2), "{:#?}", report.findings);
        assert_clean(&env, &volume).await;
        let fs = open(&env, &volume).await;
        assert!(content(&fs, file).await == bytes);
        fs.close().await.unwrap();
        drop(fs);
        // An extent that lies where there is no block: between two runs.
        let extent = extents(&env, &volume, file).await.pop().unwrap();
        assert_eq!(extent.start / BITS_PER_PAGE, 2, "{extent:?}");
        let tree = Store::open_btree(&env, volume.clone(), "fs.meta").await.unwrap();
        let nowhere = Extent { start: 2 * BITS_PER_PAGE - extent.blocks, ..extent };
        tree.put(&extent_key(file.0, extent.at), nowhere.encode()).await.unwrap();
        let fs = open(&env, &volume).await;
        let read = fs.read(file, extent.at * BLOCK, 10).await;
        assert!(matches!(read, Err(FsError::Damaged(_))), "{read:?}");
        drop(fs);
        let report = checked(&env, &volume, true).await;
        assert!(report.findings.iter().any(|it| matches!(it.outcome, Outcome::Lost(_))));
        let report = checked(&env, &volume, false).await;
        assert!(report.findings.is_empty() && !report.lost.is_empty(), "{report:#?}");
    });
}

#[test]
fn superblocks_that_are_lost_are_found_with_the_size_of_now() {
    run(1, |env| async move {
        let (volume, fs, file, bytes) = grown(&env).await;
        fs.close().await.unwrap();
        drop(fs);
        let tree = Store::open_btree(&env, volume.clone(), "fs.meta").await.unwrap();
        assert!(tree.delete(&key(0, Tag::Super, &[])).await.unwrap());
        checked(&env, &volume, true).await;
        assert_clean(&env, &volume).await;
        let fs = open(&env, &volume).await;
        assert!(content(&fs, file).await == bytes);
        fs.close().await.unwrap();
        drop(fs);
        // All copies are gone: it is rebuilt from the partitions.
        assert!(tree.delete(&key(0, Tag::Super, &[])).await.unwrap());
        let copy = partition(&*volume, "fs.super").await.first;
        let write = async |txn: Arc<dyn thalweg_store::txn::Transaction>| {
            tree.set_label_in(&*txn, &[0; 256]).await?;
            Ok::<_, TreeError>(txn.discard(Lba(copy))?)
        };
        transaction(&*volume, Begin::STRICT, Durability::Synced, write).await.unwrap();
        checked(&env, &volume, true).await;
        assert_clean(&env, &volume).await;
        let fs = open(&env, &volume).await;
        assert!(content(&fs, file).await == bytes);
    });
}

#[test]
fn files_are_reserved_and_cut_across_runs() {
    run(1, |env| async move {
        let (volume, fs, file, bytes) = grown(&env).await;
        let large = create(&fs, ROOT, "large").await;
        let how = Allocation::Reserve { keep_size: false };
        fs.allocate(large, 0, 1200 * BLOCK, how).await.unwrap();
        truncate(&fs, large, 700 * BLOCK).await;
        fs.allocate(large, 10 * BLOCK, 600 * BLOCK, Allocation::Punch).await.unwrap();
        for name in names(&fs, ROOT).await.iter().filter(|name| name.starts_with("300")) {
            fs.unlink(ROOT, name.as_bytes()).await.unwrap();
        }
        assert!(content(&fs, file).await == bytes);
        truncate(&fs, file, 5).await;
        fs.close().await.unwrap();
        assert_clean(&env, &volume).await;
    });
}

#[test]
fn older_programs_refuse_the_catalogue_of_a_grown_filesystem() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, 2000);
        local::make(&env, &volume, &sized(500, 60)).await.unwrap();
        let version = async || {
            let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
            txn.read(Lba(0)).await.unwrap()[8]
        };
        assert_eq!(version().await, 1);
        let fs = open(&env, &volume).await;
        fs.grow(None).await.unwrap();
        assert_eq!(version().await, 2);
        fs.close().await.unwrap();
        local::remove(&env, &volume, "fs").await.unwrap();
        assert_eq!(version().await, 1);
    });
}
