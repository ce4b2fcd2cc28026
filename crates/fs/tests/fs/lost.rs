//! A repair records lost bytes of files: the check lists them by path and range, reads of them fail, and a
//! write of the whole block, a truncation or a removal ends the loss.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_fs::check::{Damage, How, LostRange, Outcome, Report, check};
use thalweg_fs::local::format::{
    Extent, FIRST_VERSION, FORMAT_VERSION, InodeRecord, LOST_VERSION, SuperRecord, Tag, extent_key,
    key,
};
use thalweg_fs::local::{LocalFs, Options};
use thalweg_fs::{Allocation, Filesystem, FsError, Ino, Kind, Seek};
use thalweg_sim::run;
use thalweg_store::block::{BLOCK_SIZE, Lba};
use thalweg_store::tree::format::{PAGE_MAGIC, PageHeader, PageKind};
use thalweg_store::tree::{Store, catalogue};
use thalweg_store::txn::{Begin, Durability, Transact};
use zerocopy::{FromBytes, IntoBytes};

use crate::support::*;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks from the start of a file to its end.
const SPAN: usize = 120;

async fn repair(env: &Env, volume: &Arc<dyn Transact>, repair: bool) -> Report {
    check(env, volume.clone(), "fs", How { repair, salvage: repair, data: true }).await.unwrap()
}

async fn tree(env: &Env, volume: &Arc<dyn Transact>) -> Store {
    Store::open_btree(env, volume.clone(), "fs.meta").await.unwrap()
}

/// The version that the superblock says.
async fn version(env: &Env, volume: &Arc<dyn Transact>) -> u16 {
    let value = tree(env, volume).await.get(&key(0, Tag::Super, &[])).await.unwrap().unwrap();
    SuperRecord::read_from_bytes(&value).unwrap().version.get()
}

/// All files by their paths.
async fn files(fs: &LocalFs) -> BTreeMap<String, Ino> {
    let (mut found, mut open) = (BTreeMap::new(), vec![(String::new(), ROOT)]);
    while let Some((path, ino)) = open.pop() {
        for entry in entries(fs, ino).await {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            match attributes(fs, entry.ino).await.kind {
                Kind::Directory => open.push((path, entry.ino)),
                _ => drop(found.insert(path, entry.ino)),
            }
        }
    }
    found
}

/// Files of many extents each: dense ones, and ones with holes.
async fn fill(fs: &LocalFs) -> BTreeMap<String, Vec<u8>> {
    let dir = mkdir(fs, ROOT, "dir").await;
    let mut files = Vec::new();
    for nth in 0..8u64 {
        let (parent, path) = if nth % 2 == 0 { (ROOT, "") } else { (dir, "/dir") };
        let ino = create(fs, parent, &format!("{nth}")).await;
        files.push((format!("{path}/{nth}"), ino, vec![0; SPAN * BLOCK_SIZE - 1000]));
    }
    // In this order each block becomes an extent of its own.
    for at in (0..SPAN).step_by(2).chain((1..SPAN).step_by(2)) {
        for (nth, (_, ino, content)) in files.iter_mut().enumerate() {
            // Some have holes of one block or more.
            if nth >= 4 && (at % 2 == 1 || at % 9 == nth) {
                continue;
            }
            let range = at * BLOCK_SIZE..((at + 1) * BLOCK_SIZE).min(content.len());
            content[range.clone()].copy_from_slice(&pattern(nth as u64 + 1, range.len()));
            write(fs, *ino, range.start as u64, &content[range.clone()]).await;
        }
    }
    for (_, ino, content) in &files {
        truncate(fs, *ino, content.len() as u64).await;
    }
    files.into_iter().map(|(path, _, content)| (path, content)).collect()
}

/// Leaves of the tree of the metadata.
async fn leaves(volume: &Arc<dyn Transact>) -> Vec<u64> {
    let meta = catalogue::open(&**volume, "fs.meta").await.unwrap();
    let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
    let blocks = txn.read_run(Lba(meta.first), meta.blocks).await.unwrap();
    let is_leaf = |content: &Bytes| {
        let header = PageHeader::read_from_prefix(content).unwrap().0;
        let is_node = header.magic == PAGE_MAGIC && header.kind == PageKind::Node.encode();
        is_node && header.level == 0
    };
    (meta.first..).zip(blocks).filter(|(_, content)| is_leaf(content)).map(|(lba, _)| lba).collect()
}

async fn harm(volume: &Arc<dyn Transact>, lba: u64) {
    let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
    txn.write(Lba(lba), Bytes::from_static(&[0x6b; BLOCK_SIZE])).unwrap();
    txn.commit(Durability::Synced).await.unwrap();
}

/// Checks that all bytes of a file either read as before or are listed as lost; returns the number of lost
/// blocks.
async fn compare(fs: &LocalFs, path: &str, ino: Ino, content: &[u8], lost: &[LostRange]) -> usize {
    let size = attributes(fs, ino).await.size as usize;
    let mut blocks = 0;
    for at in (0..size.min(content.len())).step_by(BLOCK_SIZE) {
        let len = BLOCK_SIZE.min(content.len() - at);
        let is_told = lost.iter().any(|it| it.ino == ino.0 && it.bytes.contains(&(at as u64)));
        match fs.read(ino, at as u64, len).await {
            Ok(read) => {
                assert!(read.concat() == content[at..at + len], "{path} at {at} is wrong");
                assert!(!is_told, "{path} at {at}");
            }
            Err(FsError::Lost { .. }) => {
                assert!(is_told, "{path} at {at}: {lost:?}");
                blocks += 1;
            }
            Err(error) => panic!("{path} at {at}: {error}"),
        }
    }
    blocks
}

#[test]
fn what_a_leaf_had_of_files_is_told_and_is_not_zeros() {
    run(1, |env| async move {
        let leaves_of = async |env: &Env| {
            let (volume, _) = trusting(env, BLOCKS);
            let fs = make(env, &volume).await;
            let content = fill(&fs).await;
            fs.close().await.unwrap();
            (volume, content)
        };
        let count = leaves(&leaves_of(&env).await.0).await.len();
        assert!(count > 5, "{count}");
        let mut lost = 0;
        for nth in 0..count {
            let (volume, contents) = leaves_of(&env).await;
            assert_eq!(version(&env, &volume).await, FIRST_VERSION);
            harm(&volume, leaves(&volume).await[nth]).await;
            let report = repair(&env, &volume, true).await;
            assert!(!report.is_damaged(), "{:#?}", report.findings);
            let again = repair(&env, &volume, false).await;
            assert!(again.findings.is_empty(), "{:#?}", again.findings);
            assert_eq!(again.lost, report.lost, "what is lost stays told");
            let has_lost = !report.lost.is_empty();
            assert_eq!(version(&env, &volume).await == LOST_VERSION, has_lost);
            let fs = open(&env, &volume).await;
            let found = files(&fs).await;
            let mut some = 0;
            for (path, content) in &contents {
                if let Some(ino) = found.get(path) {
                    some += compare(&fs, path, *ino, content, &report.lost).await;
                    let is_path = |it: &LostRange| it.path.as_deref() == Some(path.as_bytes());
                    let of: Vec<_> = report.lost.iter().filter(|it| it.ino == ino.0).collect();
                    assert!(of.iter().all(|it| is_path(it)), "{of:?}");
                }
            }
            lost += some;
            // Rewritten or deleted files have lost nothing.
            for (nth, (path, ino)) in found.iter().enumerate() {
                let (directory, name) = path.rsplit_once('/').unwrap();
                match nth % 3 {
                    0 => write(&fs, *ino, 0, &pattern(3, SPAN * BLOCK_SIZE)).await,
                    1 => truncate(&fs, *ino, 0).await,
                    _ => {
                        let way = directory.split('/').filter(|part| !part.is_empty());
                        let mut parent = ROOT;
                        for part in way {
                            parent = fs.find(parent, part.as_bytes()).await.unwrap().ino;
                        }
                        fs.unlink(parent, name.as_bytes()).await.unwrap();
                    }
                }
            }
            fs.close().await.unwrap();
            drop(fs);
            let clean = repair(&env, &volume, false).await;
            assert!(clean.is_clean(), "{:#?} {:?}", clean.findings, clean.lost);
        }
        assert!(lost > 100, "{lost}");
    });
}

/// A volume with a file `file` of 10 blocks, of which block 4 is a hole and blocks 2, 3, 7 and 9 are
/// lost with their extents; a crash has come before that was recorded.
async fn lost_extents(env: &Env) -> (Arc<dyn Transact>, Ino, Vec<u8>) {
    let (volume, _) = volume(env, BLOCKS);
    let fs = make(env, &volume).await;
    let file = create(&fs, ROOT, "file").await;
    let mut content = pattern(5, 10 * BLOCK_SIZE - 96);
    for at in [0, 2, 5, 7, 9, 1, 6, 3, 8] {
        let range = at * BLOCK_SIZE..((at + 1) * BLOCK_SIZE).min(content.len());
        write(&fs, file, range.start as u64, &content[range]).await;
    }
    content[4 * BLOCK_SIZE..5 * BLOCK_SIZE].fill(0);
    fs.close().await.unwrap();
    drop(fs);
    let tree = tree(env, &volume).await;
    let records = tree.iter().await.unwrap().collect().await.unwrap();
    for (key, value) in records {
        if !key.starts_with(&thalweg_fs::local::format::key(file.0, Tag::Extent, &[])) {
            continue;
        }
        tree.delete(&key).await.unwrap();
        let extent = Extent::decode(&key[9..], &value, u64::MAX).unwrap();
        for block in (extent.at..extent.end()).filter(|block| ![2, 3, 7, 9].contains(block)) {
            let part = extent.part(block..block + 1);
            tree.put(&part.key(file.0), part.encode()).await.unwrap();
        }
    }
    (volume, file, content)
}

fn lost(path: &str, ino: Ino, blocks: Range<u64>) -> LostRange {
    let bytes = blocks.start * BLOCK..(blocks.end * BLOCK).min(10 * BLOCK - 96);
    LostRange { ino: ino.0, path: Some(Bytes::copy_from_slice(path.as_bytes())), bytes }
}

/// The same, repaired.
async fn repaired(env: &Env) -> (Arc<dyn Transact>, Ino, Vec<u8>) {
    let (volume, file, content) = lost_extents(env).await;
    let report = repair(env, &volume, true).await;
    // Nothing says that block 4 was a hole.
    let expected =
        [lost("/file", file, 2..5), lost("/file", file, 7..8), lost("/file", file, 9..10)];
    assert_eq!(report.lost, expected);
    let finding = report
        .findings
        .iter()
        .find(|it| it.damage == Damage::WrongBlocks { ino: file.0, stored: 9, found: 5 })
        .unwrap();
    let told = format!("bytes 8192 to 20480, 28672 to 32768, 36864 to 40864 of inode {}", file.0);
    assert_eq!(finding.outcome, Outcome::Lost(told));
    assert_eq!(finding.path.as_deref(), Some(&b"/file"[..]));
    (volume, file, content)
}

fn is_lost<T>(done: Result<T, FsError>, range: Range<u64>) -> bool {
    matches!(done, Err(FsError::Lost { from, to, .. }) if (from..to) == range)
}

#[test]
fn reads_of_what_is_lost_fail() {
    run(1, |env| async move {
        let (volume, file, content) = repaired(&env).await;
        let fs = open(&env, &volume).await;
        assert_eq!(attributes(&fs, file).await.stored, 5 * BLOCK);
        assert_eq!(read(&fs, file, 0, 2 * BLOCK_SIZE).await, content[..2 * BLOCK_SIZE]);
        assert_eq!(read(&fs, file, 5 * BLOCK, 8192).await, content[5 * BLOCK_SIZE..][..8192]);
        assert!(is_lost(fs.read(file, 100, 3 * BLOCK_SIZE).await, 8192..100 + 12288));
        assert!(is_lost(fs.read(file, 9 * BLOCK, BLOCK_SIZE).await, 9 * BLOCK..10 * BLOCK - 96));
        // It is data, which a copy must not skip.
        assert_eq!(fs.seek(file, 2 * BLOCK, Seek::Data).await.unwrap(), 2 * BLOCK);
        assert_eq!(fs.seek(file, 0, Seek::Hole).await.unwrap(), 10 * BLOCK - 96);
    });
}

#[test]
fn a_write_of_a_whole_block_ends_its_loss() {
    run(1, |env| async move {
        let (volume, file, mut content) = repaired(&env).await;
        let fs = open(&env, &volume).await;
        // A part of a block would leave the rest unknown.
        assert!(is_lost(try_write(&fs, file, 2 * BLOCK + 1, &[7; 10]).await, 8192..12288));
        assert!(is_lost(try_write(&fs, file, BLOCK, &[7; 5000]).await, 8192..12288));
        let new = pattern(8, 2 * BLOCK_SIZE);
        write(&fs, file, 2 * BLOCK - 100, &new[..BLOCK_SIZE + 100]).await;
        content[2 * BLOCK_SIZE - 100..3 * BLOCK_SIZE].copy_from_slice(&new[..BLOCK_SIZE + 100]);
        assert_eq!(read(&fs, file, 0, 3 * BLOCK_SIZE).await, content[..3 * BLOCK_SIZE]);
        assert!(is_lost(fs.read(file, 3 * BLOCK, 10).await, 12288..12298));
        // The last block, up to the end of the file.
        write(&fs, file, 9 * BLOCK, &new[..BLOCK_SIZE - 96]).await;
        content[9 * BLOCK_SIZE..].copy_from_slice(&new[..BLOCK_SIZE - 96]);
        assert_eq!(read(&fs, file, 8 * BLOCK, 8192).await, content[8 * BLOCK_SIZE..]);
        fs.close().await.unwrap();
        drop(fs);
        let report = repair(&env, &volume, false).await;
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!(report.lost, [lost("/file", file, 3..5), lost("/file", file, 7..8)]);
    });
}

#[test]
fn what_is_cut_off_or_zeroed_is_lost_no_more() {
    run(1, |env| async move {
        let (volume, file, mut content) = repaired(&env).await;
        let fs = open(&env, &volume).await;
        truncate(&fs, file, 9 * BLOCK + 50).await;
        truncate(&fs, file, 9 * BLOCK).await;
        truncate(&fs, file, 10 * BLOCK).await;
        assert_eq!(read(&fs, file, 9 * BLOCK, 4096).await, [0; 4096]);
        // To reserve blocks brings nothing back.
        fs.allocate(file, 7 * BLOCK, BLOCK, Allocation::Reserve { keep_size: false })
            .await
            .unwrap();
        assert!(is_lost(fs.read(file, 7 * BLOCK, 4096).await, 28672..32768));
        fs.allocate(file, 7 * BLOCK - 10, BLOCK + 20, Allocation::Zero { keep_size: false })
            .await
            .unwrap();
        content[7 * BLOCK_SIZE - 10..8 * BLOCK_SIZE + 10].fill(0);
        assert_eq!(read(&fs, file, 5 * BLOCK, 16384).await, content[5 * BLOCK_SIZE..][..16384]);
        // A part of a block leaves it lost; of these ranges no block is whole.
        for at in [2 * BLOCK + 10, 3 * BLOCK - 10, 3 * BLOCK] {
            for how in [Allocation::Zero { keep_size: true }, Allocation::Punch] {
                fs.allocate(file, at, 20, how).await.unwrap();
            }
        }
        assert!(is_lost(fs.read(file, 2 * BLOCK, 8192).await, 8192..16384));
        fs.allocate(file, 3 * BLOCK, 2 * BLOCK, Allocation::Punch).await.unwrap();
        assert_eq!(read(&fs, file, 3 * BLOCK, 8192).await, [0; 8192]);
        fs.close().await.unwrap();
        drop(fs);
        let report = repair(&env, &volume, false).await;
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!(report.lost, [lost("/file", file, 2..3)]);
        let fs = open(&env, &volume).await;
        fs.unlink(ROOT, b"file").await.unwrap();
        fs.close().await.unwrap();
        drop(fs);
        assert!(repair(&env, &volume, false).await.is_clean());
    });
}

#[test]
fn a_file_of_which_all_is_lost_can_be_removed_and_truncated() {
    run(1, |env| async move {
        for removes in [false, true] {
            let (volume, _) = volume(&env, BLOCKS);
            let fs = make(&env, &volume).await;
            let file = create(&fs, ROOT, "file").await;
            write(&fs, file, 0, &pattern(1, 3 * BLOCK_SIZE)).await;
            fs.close().await.unwrap();
            drop(fs);
            assert!(tree(&env, &volume).await.delete(&extent_key(file.0, 0)).await.unwrap());
            let report = repair(&env, &volume, true).await;
            assert_eq!(report.lost, [lost("/file", file, 0..3)]);
            let fs = open(&env, &volume).await;
            match removes {
                true => fs.unlink(ROOT, b"file").await.unwrap(),
                false => truncate(&fs, file, 0).await,
            }
            fs.close().await.unwrap();
            drop(fs);
            let left = tree(&env, &volume).await.get(&extent_key(file.0, 0)).await.unwrap();
            assert!(left.is_none(), "{left:?}");
            assert!(repair(&env, &volume, false).await.is_clean());
        }
    });
}

/// Without the file's inode, nothing says how many blocks it had.
#[test]
fn what_may_have_been_blocks_is_lost_with_an_inode() {
    run(1, |env| async move {
        let (volume, file, content) = lost_extents(&env).await;
        let tree = tree(&env, &volume).await;
        assert!(tree.delete(&key(file.0, Tag::Inode, &[])).await.unwrap());
        let report = repair(&env, &volume, true).await;
        assert!(!report.is_damaged(), "{:#?}", report.findings);
        let expected = [lost("/file", file, 2..5), lost("/file", file, 7..8)];
        assert_eq!(report.lost, expected);
        let fs = open(&env, &volume).await;
        assert_eq!(attributes(&fs, file).await.size, 9 * BLOCK);
        assert_eq!(compare(&fs, "/file", file, &content, &report.lost).await, 4);
    });
}

#[test]
fn an_older_program_refuses_what_it_cannot_read() {
    run(1, |env| async move {
        let (volume, file, _) = repaired(&env).await;
        assert_eq!(version(&env, &volume).await, LOST_VERSION);
        // The first byte of the key's rest, and the stored form.
        let tree = tree(&env, &volume).await;
        let stored = tree.get(&extent_key(file.0, 2)).await.unwrap().unwrap();
        assert_eq!(stored, [255, 255, 255, 255, 255, 3, 0, 0, 0][..]);
        // An unknown future version.
        let super_key = key(0, Tag::Super, &[]);
        let value = tree.get(&super_key).await.unwrap().unwrap();
        let mut record = SuperRecord::read_from_bytes(&value).unwrap();
        record.version = (FORMAT_VERSION + 1).into();
        record.checksum = record.sum().into();
        tree.put(&super_key, record.as_bytes().to_vec()).await.unwrap();
        let refused = LocalFs::open(&env, volume.clone(), "fs", Options::default()).await;
        assert!(matches!(refused, Err(FsError::Newer(_))), "{refused:?}");
    });
}

/// A sparse file that says the right count has lost nothing.
#[test]
fn holes_are_holes() {
    run(1, |env| async move {
        let (volume, _) = volume(&env, BLOCKS);
        let fs = make(&env, &volume).await;
        let file = create(&fs, ROOT, "file").await;
        write(&fs, file, 50 * BLOCK, b"behind a hole").await;
        fs.close().await.unwrap();
        drop(fs);
        let tree = tree(&env, &volume).await;
        let record = tree.get(&key(file.0, Tag::Inode, &[])).await.unwrap().unwrap();
        let mut record = InodeRecord::read_from_bytes(&record).unwrap();
        record.links = 7.into();
        tree.put(&key(file.0, Tag::Inode, &[]), record.as_bytes().to_vec()).await.unwrap();
        let report = repair(&env, &volume, true).await;
        assert!(report.lost.is_empty() && report.findings.len() == 1, "{report:?}");
    });
}
