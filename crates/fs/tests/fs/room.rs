//! Room on a volume whose snapshots keep what files had.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_fs::local::{self, Format, LocalFs, Options};
use thalweg_fs::room::Refill;
use thalweg_fs::{Filesystem, FsError, Ino, Promises, Room};
use thalweg_sim::run;
use thalweg_store::block::{BLOCK_SIZE, BlockStore, Keep, Retained};
use thalweg_store::chain::{Chain, Cleaning};
use thalweg_store::txn::{self, Transact, TransactionManager};

use crate::support::{ROOT, create, format, try_write, write};
use crate::volumes::{Shape, options};

/// Blocks of the file that is overwritten.
const FILE: u64 = 300;
/// Blocks that a write may take beside those of its file: pages of the tree, which the snapshots keep as well.
const METADATA: u64 = 60;

/// A filesystem on a chain that may keep its latest versions.
async fn on_chain(env: &Env, keep: Option<Keep>) -> (Arc<Chain>, LocalFs) {
    let shape = Shape { blocks: 1100, ..Shape::small(Cleaning::MoveToTail) };
    let (devices, _) = shape.ram_disks();
    shape.format(env, &devices).await;
    let (chain, _) = Chain::open(env, shape.parts(&devices), options()).await.unwrap();
    let chain = Arc::new(chain);
    let store: Arc<dyn BlockStore> = match keep {
        Some(keep) => Arc::new(Retained::new(env, chain.clone(), keep)),
        None => chain.clone(),
    };
    let volume: Arc<dyn Transact> =
        Arc::new(TransactionManager::new(env, store, txn::Options::default()));
    let format = Format { metadata_blocks: Some(150), ..format() };
    local::make(env, &volume, &format).await.unwrap();
    let files = LocalFs::open(env, volume, "fs", Options::default()).await.unwrap();
    (chain, files)
}

async fn free(files: &LocalFs) -> u64 {
    files.statistics().await.unwrap().free
}

/// Writes blocks of a file one by one until none fits; how many did.
async fn fill(files: &LocalFs, ino: Ino) -> u64 {
    for block in 0.. {
        let content = [(block % 255) as u8 + 1; BLOCK_SIZE];
        match try_write(files, ino, block * BLOCK_SIZE as u64, &content).await {
            Ok(_) => {}
            Err(FsError::NoSpace) => return block,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

fn test(keep: Option<Keep>) {
    run(1, |env| async move {
        let (chain, files) = on_chain(&env, keep).await;
        let (kept, other) =
            (create(&files, ROOT, "kept").await, create(&files, ROOT, "other").await);
        let mut snapshots = Vec::new();
        write(&files, kept, 0, &vec![1; FILE as usize * BLOCK_SIZE]).await;
        files.sync_all().await.unwrap();
        let all = free(&files).await;
        while free(&files).await > all / 2 {
            let name = format!("snapshot{}", snapshots.len());
            chain.create_snapshot(&name).await.unwrap();
            snapshots.push(name);
            assert!(snapshots.len() < 20, "snapshots take no room");
            write(&files, kept, 0, &vec![snapshots.len() as u8; FILE as usize * BLOCK_SIZE]).await;
            files.sync_all().await.unwrap();
        }
        // A write can use what is said to be free, and no more, unless kept versions are given up for it.
        let promised = free(&files).await;
        let written = fill(&files, other).await;
        assert!(written <= promised || keep.is_some(), "{written} of {promised}");
        assert!(written + METADATA > promised, "{written} of {promised}");
        assert!(free(&files).await < METADATA, "{} are free", free(&files).await);
        // What only a snapshot has kept is free when that is deleted.
        chain.delete_snapshot(&snapshots.pop().unwrap()).await.unwrap();
        assert!(free(&files).await >= FILE - METADATA, "{} are free", free(&files).await);
        for name in snapshots {
            chain.delete_snapshot(&name).await.unwrap();
        }
        assert_eq!(free(&files).await, all - written);
        let rest = create(&files, ROOT, "rest").await;
        assert_eq!(fill(&files, rest).await, all - written);
        assert_eq!(free(&files).await, 0);
    });
}

#[test]
fn blocks_are_free_that_a_write_can_use_beside_snapshots() {
    test(None);
}

/// Kept versions give way to writers.
#[test]
fn kept_versions_leave_as_much_room_to_writers_as_there_is_beside_snapshots() {
    test(Some(Keep::latest(u64::MAX)));
}

/// An overwrite takes room beside snapshots, and no promise is charged for it.
#[test]
fn no_room_is_promised_beside_snapshots() {
    run(1, |env| async move {
        let (chain, files) = on_chain(&env, None).await;
        let promised = async |session: u64| -> Room {
            let shares = files.promise(session, 0, Refill::Half).await.unwrap();
            files.release_room(session);
            shares.into_iter().map(|share| share.room).fold(Room::NONE, Room::plus)
        };
        assert_ne!(promised(1).await, Room::NONE);
        chain.create_snapshot("s").await.unwrap();
        assert_eq!(promised(2).await, Room::NONE);
        chain.delete_snapshot("s").await.unwrap();
        assert_ne!(promised(3).await, Room::NONE);
    });
}
