//! The volume over a chain, compared with a naive volume.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use proptest::prelude::*;
use thalweg_env::Env;
use thalweg_sim::passing::{Around, Change, Passing};
use thalweg_sim::volume::MemoryVolume;
use thalweg_store::block::{Blocks, StoreError};
use thalweg_store::chain::{Chain, Cleaning, Create, Link, Options, Parts};
use thalweg_store::device::{FrameBuf, MemoryDevice};
use thalweg_store::volume::{Extent, StoreVolume, Volume};
use uuid::Uuid;

const BLOCKS: u64 = 600;
const SECTORS: u64 = BLOCKS * 8;

async fn chain(env: &Env) -> Arc<Chain> {
    let parts = Parts {
        links: vec![Link { id: Uuid::from_u128(1), device: Arc::new(MemoryDevice::new(16 << 20)) }],
        map: Arc::new(MemoryDevice::new(Chain::map_bytes(240, 40))),
        map_link: None,
        tail_cache: None,
        body_cache: None,
    };
    let create = Create {
        volume: Uuid::from_u128(2),
        blocks: BLOCKS,
        segment_blocks: 240,
        max_segments: 40,
        cleaning: Cleaning::MoveToTail,
        placement: Default::default(),
        follows: false,
    };
    Chain::create(env, parts.clone(), &create).await.unwrap();
    Arc::new(Chain::open(env, parts, Options::default()).await.unwrap().0)
}

/// Yields after each read and before each change.
#[derive(Debug)]
struct Slow;

async fn others_first() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

#[async_trait]
impl Around for Slow {
    async fn after_read(&self) {
        others_first().await;
    }

    async fn before_change(&self, _: Change<'_>) -> Result<(), StoreError> {
        others_first().await;
        Ok(())
    }
}

/// A request in sectors of 512 bytes.
#[derive(Clone, Debug)]
enum Request {
    Read(u64, u64),
    Write(u64, u64, u8, bool),
    Zero(u64, u64, bool),
    Trim(u64, u64),
    Flush,
}

fn request() -> impl Strategy<Value = Request> {
    // Small ones, whole blocks, and some of more than one transaction.
    let range = prop_oneof![
        4 => (0..SECTORS, 1..20_u64),
        3 => (0..BLOCKS, 1..4_u64).prop_map(|(at, len)| (at * 8, len * 8)),
        1 => (0..SECTORS, 1..SECTORS),
        1 => (1..20_u64).prop_map(|len| (SECTORS - len, len)),
    ];
    let range = range.prop_map(|(at, len)| (at, len));
    prop_oneof![
        3 => range.clone().prop_map(|(at, len)| Request::Read(at, len)),
        5 => (range.clone(), any::<u8>(), any::<bool>())
            .prop_map(|((at, len), fill, fua)| Request::Write(at, len, fill, fua)),
        2 => (range.clone(), any::<bool>()).prop_map(|((at, len), keep)| Request::Zero(at, len, keep)),
        2 => range.prop_map(|(at, len)| Request::Trim(at, len)),
        1 => Just(Request::Flush),
    ]
}

fn bytes(len: u64, fill: u8) -> Bytes {
    (0..len).map(|i| (i / 512) as u8 ^ fill).collect::<Vec<u8>>().into()
}

/// Every stretch that is not stored reads as zeros, and the lengths add up.
async fn check_extents(volume: &dyn Volume, offset: u64, len: u64) -> Vec<Extent> {
    let extents = volume.extents(offset, len).await.unwrap();
    assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), len);
    let mut at = offset;
    for extent in &extents {
        if !extent.stored {
            let read = volume.read(at, extent.len as usize).await.unwrap().concat();
            assert!(read.iter().all(|byte| *byte == 0));
        }
        at += extent.len;
    }
    extents
}

async fn compare(requests: Vec<Request>, unused: u64) {
    let env = Env::real();
    let chain = chain(&env).await;
    let volume = StoreVolume::live(chain.clone()).without_last(unused * 512).unwrap();
    let model = MemoryVolume::new(volume.size());
    assert_eq!(volume.size(), SECTORS * 512 - unused * 512);
    let sectors = SECTORS - unused;
    let fit = |at: u64, len: u64| {
        let at = at.min(sectors - 1);
        (at * 512, len.min(sectors - at) * 512)
    };
    for request in requests {
        match request {
            Request::Read(at, len) => {
                let (at, len) = fit(at, len);
                let found = volume.read(at, len as usize).await.unwrap().concat();
                assert_eq!(found.len() as u64, len);
                assert!(found == model.read(at, len as usize).await.unwrap().concat(), "at {at}");
                check_extents(&volume, at, len).await;
            }
            Request::Write(at, len, fill, fua) => {
                let (at, len) = fit(at, len);
                let data = bytes(len, fill);
                volume.write(at, data.clone(), fua).await.unwrap();
                model.write(at, data, fua).await.unwrap();
                if fua {
                    assert_eq!(chain.status().durable_version, chain.now().0);
                }
                let stored = check_extents(&volume, at, len).await;
                assert!(stored.iter().all(|extent| extent.stored));
            }
            Request::Zero(at, len, keep) => {
                let (at, len) = fit(at, len);
                volume.write_zeroes(at, len, keep, false).await.unwrap();
                model.write_zeroes(at, len, keep, false).await.unwrap();
            }
            Request::Trim(at, len) => {
                let (at, len) = fit(at, len);
                volume.trim(at, len, false).await.unwrap();
                model.trim(at, len, false).await.unwrap();
            }
            Request::Flush => {
                volume.flush().await.unwrap();
                assert_eq!(chain.status().durable_version, chain.now().0);
            }
        }
    }
    let size = volume.size() as usize;
    assert!(volume.read(0, size).await.unwrap().concat() == model.read(0, size).await.unwrap()[0]);
    check_extents(&volume, 0, size as u64).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_volume_is_what_a_naive_one_is(
        requests in prop::collection::vec(request(), 1..60),
        unused in 0..8_u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(compare(requests, unused));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_parts_of_one_block_lose_nothing() {
    let env = Env::real();
    let volume = Arc::new(StoreVolume::live(Arc::new(Passing::new(chain(&env).await, Slow))));
    for round in 1..40_u8 {
        // One task for each sector of block 1, and whole-block writes of its neighbours.
        let mut tasks = Vec::new();
        for sector in 0..8_u64 {
            let volume = volume.clone();
            tasks.push(env.spawn(async move {
                let data = Bytes::from(vec![round ^ sector as u8; 512]);
                volume.write(4096 + sector * 512, data, false).await.unwrap();
            }));
        }
        for block in [0, 2] {
            let volume = volume.clone();
            tasks.push(env.spawn(async move {
                let data = Bytes::from(vec![round; 4096]);
                volume.write(block * 4096, data, false).await.unwrap();
            }));
        }
        futures::future::join_all(tasks).await;
        let found = volume.read(4096, 4096).await.unwrap().concat();
        for (sector, bytes) in found.chunks(512).enumerate() {
            assert!(bytes.iter().all(|byte| *byte == round ^ sector as u8), "round {round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_block_beside_a_part_is_never_half_lost() {
    let env = Env::real();
    let volume = Arc::new(StoreVolume::live(Arc::new(Passing::new(chain(&env).await, Slow))));
    for round in 1..200_u8 {
        let (part, whole) = (volume.clone(), volume.clone());
        let part = env.spawn(async move {
            part.write(512, Bytes::from(vec![255; 512]), false).await.unwrap();
        });
        let whole = env.spawn(async move {
            whole.write(0, Bytes::from(vec![round; 4096]), false).await.unwrap();
        });
        assert!(part.await.is_some() && whole.await.is_some());
        // Whichever write came last, the bytes that the part does not cover are from this round.
        let found = volume.read(0, 4096).await.unwrap().concat();
        assert!(found[..512].iter().chain(&found[1024..]).all(|byte| *byte == round));
        assert!(found[512] == round || found[512] == 255);
    }
}

#[tokio::test]
async fn pieces_of_any_length_are_one_write_and_a_long_one_is_not_kept() {
    let env = Env::real();
    let volume = StoreVolume::live(chain(&env).await);
    let all: Vec<u8> = (0..64 * 4096_u32).map(|at| (at / 512 % 251) as u8).collect();
    let large = Bytes::from(all.clone());
    for (offset, cuts) in [(0, vec![]), (4096, vec![512, 4096, 9000]), (512, vec![4096, 8192])] {
        let mut pieces = Vec::new();
        let mut rest = large.clone();
        for cut in cuts {
            pieces.push(rest.split_to(cut));
        }
        pieces.push(rest);
        volume.write_vectored(offset, pieces, true).await.unwrap();
        assert!(volume.read(offset, all.len()).await.unwrap().concat() == all);
        assert!(large.is_unique(), "64 blocks are kept for one");
    }
    let mut frames = FrameBuf::new(10 * 4096);
    let mut at = 0;
    while at < frames.len() {
        let room = frames.from_mut(at);
        room.fill(7);
        at += room.len();
    }
    volume.write_vectored(8192, frames.into_blocks(), false).await.unwrap();
    assert!(volume.read(8192, 40960).await.unwrap().concat() == [7; 40960]);
}

#[tokio::test]
async fn what_does_not_fit_is_refused() {
    let env = Env::real();
    let volume = StoreVolume::live(chain(&env).await);
    let size = volume.size();
    let data = Bytes::from(vec![1; 512]);
    assert!(matches!(volume.read(size, 512).await, Err(StoreError::Invalid(_))));
    assert!(matches!(volume.read(100, 512).await, Err(StoreError::Invalid(_))));
    assert!(matches!(volume.write(size, data.clone(), false).await, Err(StoreError::Invalid(_))));
    assert!(matches!(volume.trim(u64::MAX - 511, 512, false).await, Err(StoreError::Invalid(_))));
    assert!(volume.read(size, 0).await.unwrap().is_empty());
    volume.write(size - 512, data, true).await.unwrap();
    assert!(volume.without_last(4096).is_err());
}
