//! A store on a device on objects: another client takes over, and finds every acknowledged version.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, Time};
use thalweg_rados::{ObjectStoreRef, Opening, RadosDevice, RadosOptions};
use thalweg_sim::rados::{RadosSpec, SimRados};
use thalweg_sim::{campaign, run};
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, Write};
use thalweg_store::device::DeviceRef;
use thalweg_store::inplace::{InPlace, Mode, NewInPlace, Options, Parts};

const BLOCKS: u64 = 60;
const SIZE: u64 = 4 << 20;

/// When a version was acknowledged, and which.
type Acknowledged = Arc<Mutex<Vec<(Time, u64)>>>;

fn options() -> Options {
    let writeback = Duration::from_millis(200);
    let expire = Duration::from_millis(500);
    Options { mode: Mode::Wasteless, writeback, expire, cache: 256 << 10, ..Options::default() }
}

fn parts(device: RadosDevice) -> Parts {
    Parts { data: Arc::new(device) as DeviceRef, journal: None }
}

/// The block beside the first that transaction `number` writes.
fn other(number: u64) -> Lba {
    Lba(1 + number * 7 % (BLOCKS - 1))
}

fn block(number: u64) -> Bytes {
    let mut bytes = vec![number as u8; BLOCK_SIZE];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes.into()
}

fn number(block: Option<&Bytes>) -> u64 {
    block.map_or(0, |bytes| u64::from_le_bytes(*bytes.first_chunk().unwrap()))
}

/// Transactions from `first` on, one synchronous one after the other, until one fails.
async fn work(env: &Env, store: &InPlace, first: u64, acknowledged: &Acknowledged) {
    for number in first.. {
        let writes = [Lba(0), other(number)].map(|lba| Write::block(lba, block(number)));
        let Ok(version) = store.apply(writes.to_vec()).await else { return };
        if store.sync(version).await.is_err() {
            return;
        }
        acknowledged.lock().push((env.now(), number));
    }
}

/// Checks that the store has a prefix of the transactions; how many.
async fn check(store: &InPlace) -> u64 {
    let (_, blocks) = store.read_newest(Lba(0), BLOCKS).await.unwrap();
    let newest = number(blocks[0].as_ref());
    for (at, found) in blocks.iter().enumerate().skip(1) {
        let last = (1..=newest).rev().find(|number| other(*number) == Lba(at as u64));
        assert_eq!(number(found.as_ref()), last.unwrap_or(0), "block {at} of version {newest}");
    }
    newest
}

async fn take_over(env: &Env, store: ObjectStoreRef) -> InPlace {
    let device = RadosDevice::open(env, store, "v", Opening::TakeOver).await.unwrap();
    InPlace::open(env, parts(device), options()).await.unwrap().0
}

async fn history(env: Env) {
    let spec = RadosSpec { map_delay: Duration::from_millis(500), ..RadosSpec::default() };
    let cluster = SimRados::new(&env, spec);
    let layout = RadosOptions { object_size: 64 << 10, ..RadosOptions::default() };
    let first = cluster.client().store();
    let device = RadosDevice::create(&env, first, "v", SIZE, &layout).await.unwrap();
    let parts = parts(device);
    let new = NewInPlace {
        name: "v".to_owned(),
        journal_size: Some(512 << 10),
        size: Some(BLOCKS * BLOCK_SIZE as u64),
    };
    InPlace::create(&env, &parts, &new).await.unwrap();
    let mut store = InPlace::open(&env, parts, options()).await.unwrap().0;
    let acknowledged = Acknowledged::default();
    let mut rng = env.rng();
    let mut begin = 1;
    let mut olds = Vec::new();
    for _ in 0..3 {
        let old = env.spawn({
            let (env, acknowledged) = (env.clone(), acknowledged.clone());
            async move { work(&env, &store, begin, &acknowledged).await }
        });
        env.sleep(Duration::from_micros(rng.random_range(0..800_000))).await;
        // The old client works all the while.
        store = take_over(&env, cluster.client().store()).await;
        let taken = env.now();
        let newest = check(&store).await;
        let last = acknowledged.lock().last().copied();
        assert!(last.is_none_or(|(_, number)| number <= newest), "{last:?} of {newest}");
        env.sleep(Duration::from_secs(2)).await;
        let late = acknowledged.lock().last().copied();
        assert!(late.is_none_or(|(at, _)| at <= taken), "acknowledged at {late:?} after {taken:?}");
        assert_eq!(check(&store).await, newest);
        begin = newest + 1;
        olds.push(old);
    }
    assert!(begin > 20, "the history is too short: {begin}");
}

#[test]
fn a_volume_is_taken_over_with_every_acknowledged_version() {
    for seed in campaign::seeds(10) {
        run(seed, history);
    }
}
