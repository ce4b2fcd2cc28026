//! Filesystems with random damage, and all calls on them.

use std::sync::Arc;

use bytes::Bytes;
use rand::{RngExt, SeedableRng};
use thalweg_env::{Env, Rng};
use thalweg_fs::check::{Damage, How, Outcome, Report, check};
use thalweg_fs::local::{LocalFs, Options};
use thalweg_fs::{
    Allocation, AttributeChange, Cookie, Filesystem, FsError, Ino, Node, Rename, Seek, SetXattr,
    WriteAt, WriteHow,
};
use thalweg_sim::content::Content;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::run;
use thalweg_sim::scribble::Disks;
use thalweg_store::block::{BLOCK_SIZE, BlocksExt, Lba, Write};
use thalweg_store::device::Geometry;
use thalweg_store::tree::catalogue;
use thalweg_store::txn::{Begin, Transact};

use crate::support::*;

/// The blocks of a volume with a filesystem.
pub(crate) struct Image {
    /// The two partitions of the filesystem.
    disks: Disks,
    /// Blocks that locate the partitions.
    others: Vec<(Lba, Bytes)>,
}

impl Image {
    pub(crate) fn new(seed: u64) -> Image {
        run(seed, |env| async move {
            let volume = used(&env, &mut env.rng()).await;
            let mut of_filesystem = Vec::new();
            for part in ["fs.meta", "fs.data"] {
                let part = catalogue::open(&*volume, part).await.unwrap();
                of_filesystem.push(part.first..part.first + part.blocks);
            }
            let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
            let blocks = txn.read_run(Lba(0), BLOCKS).await.unwrap();
            let (mut content, mut others) = (Content::new(), Vec::new());
            let full = |block: &Bytes| block.iter().any(|byte| *byte != 0);
            for (lba, block) in (0..).zip(blocks).filter(|(_, block)| full(block)) {
                match of_filesystem.iter().any(|part| part.contains(&lba)) {
                    true => content.write(lba * BLOCK_SIZE as u64, &block),
                    false => others.push((Lba(lba), block)),
                }
            }
            let geometry = Geometry { size: BLOCKS * BLOCK_SIZE as u64, sector: 512 };
            let disk = Arc::new(RamDisk::with_content("volume", geometry, content));
            Image { disks: Disks::of([&disk]), others }
        })
    }

    /// Damages the image as `strokes` say, uses it, repairs it and uses it again; returns whether the check
    /// found damage.
    pub(crate) fn scribble(&self, strokes: &[u8]) -> bool {
        // Most of them meet the first pages, which are metadata.
        let pages = |kind: u8| if kind & 3 > 0 { 20 } else { usize::MAX };
        let content = self.disks.scribbled(strokes, |kind| (0, pages(kind))).remove(0);
        let others = self.others.clone();
        let seed = strokes.iter().fold(0u64, |sum, byte| sum.rotate_left(8) ^ u64::from(*byte));
        run(seed, |env| async move {
            let (volume, store) = trusting(&env, BLOCKS);
            let stored = (0..BLOCKS).filter(|lba| content.is_stored(*lba));
            let block = |lba| (Lba(lba), content.read(lba * BLOCK_SIZE as u64, BLOCK_SIZE));
            let blocks = others.into_iter().chain(stored.map(block));
            let writes = blocks.map(|(lba, block)| Write::block(lba, block)).collect();
            store.apply(writes).await.unwrap();
            use_and_repair(&env, &volume, &mut Rng::seed_from_u64(seed)).await
        })
    }
}

/// A filesystem with some of everything.
pub(crate) async fn used(env: &Env, rng: &mut Rng) -> Arc<dyn Transact> {
    let (volume, _) = trusting(env, BLOCKS);
    let fs = make(env, &volume).await;
    let mut directories = vec![ROOT];
    for number in 0..120u64 {
        let parent = directories[rng.random_range(0..directories.len())];
        let name = format!("{number}");
        match number % 8 {
            0 => directories.push(mkdir(&fs, parent, &name).await),
            1 => {
                let link = node(Node::Symlink(Bytes::from_static(b"somewhere")), 0o777);
                fs.create(parent, name.as_bytes(), &link).await.unwrap();
            }
            _ => {
                let file = create(&fs, parent, &name).await;
                for _ in 0..rng.random_range(0..5) {
                    let at = rng.random_range(0..100_000);
                    write(&fs, file, at, &pattern(number, rng.random_range(1..9000))).await;
                }
                if number % 8 == 2 {
                    let value = Bytes::from(pattern(number, 100));
                    fs.set_xattr(file, b"user.a", value, SetXattr::Any).await.unwrap();
                }
                if number % 8 == 3 {
                    fs.link(file, ROOT, format!("link {number}").as_bytes()).await.unwrap();
                }
            }
        }
    }
    fs.set_quota(directories[1], Some(1 << 30), Some(1000)).await.unwrap();
    // Some work is left to be done.
    let open = create(&fs, ROOT, "open").await;
    write(&fs, open, 0, &pattern(1, 400_000)).await;
    fs.reference(open);
    fs.unlink(ROOT, b"open").await.unwrap();
    fs.close().await.unwrap();
    volume
}

/// Does everything that there is to do with a filesystem.
async fn exercise(fs: &LocalFs, rng: &mut Rng) -> Result<(), FsError> {
    let mut inodes = vec![Ino::ROOT];
    let mut failed = Ok(());
    for number in 0..inodes.len() + 12 {
        let dir = inodes[number % inodes.len()];
        let mut from = Cookie::START;
        loop {
            match fs.read_directory(dir, from, 16, number % 2 == 0).await {
                Ok(some) => {
                    let Some(last) = some.last() else { break };
                    assert!(last.cookie > from, "no end of a directory");
                    from = last.cookie;
                    inodes.extend(some.iter().map(|entry| entry.ino));
                }
                Err(FsError::NotDirectory | FsError::Stale) => break,
                Err(error) => {
                    failed = Err(error);
                    break;
                }
            }
        }
        inodes.sort_unstable();
        inodes.dedup();
    }
    for _ in 0..60 {
        let (ino, other) =
            (inodes[rng.random_range(0..inodes.len())], inodes[rng.random_range(0..inodes.len())]);
        let (a, b) =
            (format!("{}", rng.random_range(0..130)), format!("{}", rng.random_range(0..130)));
        let (at, len) = (rng.random_range(0..200_000u64), rng.random_range(1..50_000u64));
        let data = vec![Bytes::from(vec![1; len as usize])];
        let size = AttributeChange { size: Some(at), mode: Some(0o640), ..Default::default() };
        let done = match rng.random_range(0..16) {
            0 => fs.find(ino, a.as_bytes()).await.map(drop),
            1 => fs.attributes(ino).await.map(drop),
            2 => fs.set_attributes(ino, &size).await.map(drop),
            3 => fs.create(ino, b"new", &node(Node::File, 0o600)).await.map(drop),
            4 => fs.create(ino, a.as_bytes(), &node(Node::Directory, 0o600)).await.map(drop),
            5 => fs.link(other, ino, b.as_bytes()).await.map(drop),
            6 => fs.unlink(ino, a.as_bytes()).await,
            7 => fs.remove_directory(ino, a.as_bytes()).await,
            8 => fs.rename((ino, a.as_bytes()), (other, b.as_bytes()), Rename::Replace).await,
            9 => fs.read(ino, at, len as usize).await.map(drop),
            10 => fs.write(ino, WriteAt::Offset(at), data, WriteHow::default()).await.map(drop),
            11 => fs.allocate(ino, at, len, Allocation::Punch).await,
            12 => fs.allocate(ino, at, len, Allocation::Zero { keep_size: false }).await,
            13 => fs.seek(ino, at, Seek::Data).await.map(drop),
            14 => fs.xattrs(ino).await.map(drop),
            _ => fs.quota(ino).await.map(drop),
        };
        if let Err(error @ (FsError::Damaged(_) | FsError::Store(_) | FsError::NoFilesystem(_))) =
            done
        {
            failed = Err(error);
        }
    }
    fs.close().await.and(failed)
}

async fn check_all(env: &Env, volume: &Arc<dyn Transact>, repair: bool) -> Result<Report, FsError> {
    check(env, volume.clone(), "fs", How { repair, salvage: repair, data: true }).await
}

/// Uses a filesystem as it is, and again after its repair; whether something was found.
pub(crate) async fn use_and_repair(env: &Env, volume: &Arc<dyn Transact>, rng: &mut Rng) -> bool {
    if let Ok(fs) = LocalFs::open(env, volume.clone(), "fs", Options::default()).await {
        exercise(&fs, rng).await.ok();
    }
    let repaired = match check_all(env, volume, true).await {
        Ok(repaired) => repaired,
        // Nothing says where it is.
        Err(
            FsError::Damaged(_) | FsError::Store(_) | FsError::NoFilesystem(_) | FsError::Newer(_),
        ) => return true,
        Err(error) => panic!("{error}"),
    };
    let unrepaired = repaired
        .findings
        .iter()
        .any(|it| matches!(it.damage, Damage::Tree(_)) && it.outcome == Outcome::Left);
    assert!(!repaired.is_damaged() || unrepaired, "{:#?}", repaired.findings);
    if unrepaired {
        return true;
    }
    let clean = check_all(env, volume, false).await.unwrap();
    assert!(clean.findings.is_empty(), "{:#?} after {:#?}", clean.findings, repaired.findings);
    let fs = open(env, volume).await;
    match exercise(&fs, rng).await {
        Err(FsError::Lost { .. }) if !clean.lost.is_empty() => {}
        done => done.unwrap(),
    }
    drop(fs);
    let clean = check_all(env, volume, false).await.unwrap();
    assert!(clean.findings.is_empty(), "{:#?} after use", clean.findings);
    !repaired.is_clean()
}
