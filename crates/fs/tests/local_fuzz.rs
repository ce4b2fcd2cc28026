//! Filesystems that were scribbled on: an error, never a panic, never a call without end; and the check
//! makes them whole again.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use rand::RngExt;
use rand::seq::IteratorRandom;
use support::*;
use thalweg_fs::check::{Damage, How, Report, check};
use thalweg_fs::local::{Local, Options};
use thalweg_fs::{
    Allocation, AttributeChange, Cookie, Filesystem, FsError, Ino, Node, Rename, Seek, SetXattr,
    WriteAt, WriteHow,
};
use thalweg_sim::run;
use thalweg_store::block::Lba;
use thalweg_store::env::{Env, Rng};
use thalweg_store::tree::catalogue;
use thalweg_store::txn::{Begin, Durability, Transact};

/// A filesystem with some of everything.
async fn used(env: &Env, rng: &mut Rng) -> Arc<dyn Transact> {
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
    fs.remember(open);
    fs.unlink(ROOT, b"open").await.unwrap();
    fs.close().await.unwrap();
    volume
}

/// Does everything that there is to do with a filesystem.
async fn exercise(fs: &Local, rng: &mut Rng) -> Result<(), FsError> {
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
            0 => fs.lookup(ino, a.as_bytes()).await.map(drop),
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
        if let Err(error @ (FsError::Damaged(_) | FsError::Tree(_))) = done {
            failed = Err(error);
        }
    }
    fs.close().await.and(failed)
}

async fn check_all(env: &Env, volume: &Arc<dyn Transact>, repair: bool) -> Result<Report, FsError> {
    check(env, volume.clone(), "fs", How { repair, data: true }).await
}

/// Uses a filesystem as it is, and again after its repair; whether something was found.
async fn use_and_repair(env: &Env, volume: &Arc<dyn Transact>, rng: &mut Rng) -> bool {
    if let Ok(fs) = Local::open(env, volume.clone(), "fs", Options::default()).await {
        exercise(&fs, rng).await.ok();
    }
    let repaired = match check_all(env, volume, true).await {
        Ok(repaired) => repaired,
        // Nothing says where it is.
        Err(FsError::Damaged(_) | FsError::Tree(_) | FsError::Newer(_)) => return true,
        Err(error) => panic!("{error}"),
    };
    let unrepaired = repaired.findings.iter().any(|it| {
        matches!(it.damage, Damage::Tree(_)) && it.outcome == thalweg_fs::check::Outcome::Left
    });
    assert!(!repaired.is_damaged() || unrepaired, "{:#?}", repaired.findings);
    if unrepaired {
        return true;
    }
    let clean = check_all(env, volume, false).await.unwrap();
    assert!(clean.is_clean(), "{:#?} after {:#?}", clean.findings, repaired.findings);
    let fs = open(env, volume).await;
    exercise(&fs, rng).await.unwrap();
    drop(fs);
    let clean = check_all(env, volume, false).await.unwrap();
    assert!(clean.is_clean(), "{:#?} after use", clean.findings);
    !repaired.is_clean()
}

fn long() -> u64 {
    std::env::var("THALWEG_LONG").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

#[test]
fn records_that_were_scribbled_on() {
    let mut found = 0;
    for seed in 0..40 * long() {
        found += u64::from(run(seed, |env| async move {
            let mut rng = env.rng();
            let volume = used(&env, &mut rng).await;
            scribble_records(&env, &volume, &mut rng).await;
            use_and_repair(&env, &volume, &mut rng).await
        }));
    }
    println!("{found} found");
    assert!(found > 25, "{found}");
}

#[test]
fn pages_that_were_scribbled_on() {
    let mut found = 0;
    for seed in 0..40 * long() {
        found += u64::from(run(seed, |env| async move {
            let mut rng = env.rng();
            let volume = used(&env, &mut rng).await;
            let part = if rng.random_bool(0.3) { "fs.data" } else { "fs.meta" };
            let partition = catalogue::open(&*volume, part).await.unwrap();
            let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
            let blocks =
                txn.read_run(Lba(partition.first), 100.min(partition.blocks)).await.unwrap();
            for _ in 0..rng.random_range(1..3) {
                let full = (0..blocks.len()).filter(|at| blocks[*at].iter().any(|byte| *byte != 0));
                let at = full.choose(&mut rng).unwrap();
                let mut page = blocks[at].to_vec();
                match rng.random_range(0..4) {
                    0 => page[rng.random_range(0..4096)] ^= 1 << rng.random_range(0..8),
                    1 => rng.fill(&mut page[..]),
                    2 => {
                        let unit = rng.random_range(0..256) * 16;
                        rng.fill(&mut page[unit..unit + 16]);
                    }
                    _ => page = blocks.iter().choose(&mut rng).unwrap().to_vec(),
                }
                txn.write(Lba(partition.first + at as u64), page.into()).unwrap();
            }
            txn.commit(Durability::Synced).await.unwrap();
            use_and_repair(&env, &volume, &mut rng).await
        }));
    }
    println!("{found} found");
    assert!(found > 20, "{found}");
}
