//! A long transaction while writers wait for the cleaner, which makes room without the transaction's end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::RngExt;
use thalweg_env::Env;
use thalweg_sim::runtime::run;
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::block::{BlocksExt, Lba, Write};
use thalweg_store::chain::{Chain, Cleaning, Options};
use thalweg_store::txn::{
    Begin, Durability, Options as TxnOptions, Transact, Transaction, TransactionManager,
};

use crate::support::{Shape, content, options};

/// Blocks with content from before the transaction; it writes as many of its own.
const OLD: u64 = 700;
/// Blocks of one write aside.
const ASIDE: u64 = 64;
/// Commits of short transactions meanwhile.
const COMMITS: u64 = 400;
const PATIENCE: Duration = Duration::from_micros(200);

/// Writes over the transaction's own blocks until `done`, so that the cleaner always has work.
async fn write_aside(env: Env, long: Arc<dyn Transaction>, done: Arc<AtomicBool>) {
    let mut rng = env.rng();
    let mut stamp = 0;
    while !done.load(Ordering::Relaxed) {
        stamp += 1;
        let first = OLD + rng.random_range(0..=OLD - ASIDE);
        let block = |lba: u64| Write::block(Lba(lba), content(lba, stamp));
        let writes = (first..first + ASIDE).map(block).collect();
        long.aside().unwrap().write(writes).await.unwrap();
    }
}

/// Commits short transactions, one after the other. Returns the time of the longest commit.
async fn commit(env: Env, manager: TransactionManager) -> Duration {
    let mut longest = Duration::ZERO;
    for stamp in 0..COMMITS {
        let lba = stamp % 8;
        let txn = manager.begin(Begin::SNAPSHOT).await.unwrap();
        txn.write(Lba(lba), content(lba, stamp)).unwrap();
        let since = env.now();
        txn.commit(Durability::Visible).await.unwrap();
        longest = longest.max(env.now().since(since));
    }
    longest
}

#[test]
fn a_transaction_outlasts_commits_that_wait_for_the_cleaner() {
    run(1, |env| async move {
        let small = Shape::small(Cleaning::MoveToTail);
        let shape = Shape { links: 1, segments_per_link: 12, blocks: 2 * OLD, ..small };
        let devices = shape.devices(|_, geometry| {
            Arc::new(SolidState::new(&env, "ssd", SolidStateSpec::sata(geometry.size)))
        });
        shape.format(&env, &devices).await;
        let options = Options { dirty_bytes: 2 << 20, ..options() };
        let opened = Chain::open(&env, shape.parts(&devices), options).await.unwrap();
        let chain = Arc::new(opened.0);
        for first in (0..OLD).step_by(100) {
            let block = |lba: u64| Write::block(Lba(lba), content(lba, 0));
            chain.apply((first..first + 100).map(block).collect()).await.unwrap();
        }
        let limits = TxnOptions { patience: PATIENCE, ..TxnOptions::default() };
        let manager = TransactionManager::new(&env, chain.clone(), limits);
        let long = manager.begin(Begin::STRICT).await.unwrap();
        let before = long.read(Lba(0)).await.unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let aside = env.spawn(write_aside(env.clone(), long.clone(), done.clone()));
        let longest = env.spawn(commit(env.clone(), manager.clone())).await.unwrap();
        // Otherwise the test shows nothing.
        assert!(longest > 2 * PATIENCE, "no commit waited for long, but {longest:?} at most");
        // Writes aside are no commits.
        assert!(manager.status().window <= COMMITS + 64, "{:?}", manager.status());
        done.store(true, Ordering::Relaxed);
        aside.await.unwrap();
        assert_eq!(long.read(Lba(0)).await.unwrap(), before);
        long.abort().await;
        assert_eq!(manager.status().preempted, 0);
    });
}
