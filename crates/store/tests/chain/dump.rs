//! A dump shows the content of a map area, and its damage.

use std::io::Cursor;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, Write};
use thalweg_store::chain::dump::dump;
use thalweg_store::chain::{Chain, Cleaning, Create, Link, Options, Parts, format};
use thalweg_store::device::{DeviceRef, MemoryDevice, Purpose};

const SEGMENT_BLOCKS: u32 = format::ENTRIES_PER_PAGE;

/// The map area of a volume with three blocks written and one discarded, put at byte `start`.
async fn image(start: usize) -> Vec<u8> {
    let env = Env::real();
    let device = |size: u64| -> DeviceRef { Arc::new(MemoryDevice::new(size)) };
    let link = u64::from(SEGMENT_BLOCKS) * BLOCK_SIZE as u64 * 8;
    let map = device(Chain::map_bytes(SEGMENT_BLOCKS, 8));
    let parts = Parts {
        links: vec![Link { id: env.uuid(), device: device(link) }],
        map: map.clone(),
        map_link: None,
        tail_cache: None,
        body_cache: None,
    };
    let create = Create {
        volume: env.uuid(),
        blocks: 64,
        segment_blocks: SEGMENT_BLOCKS,
        max_segments: 8,
        cleaning: Cleaning::MoveToTail,
        placement: Default::default(),
        follows: false,
    };
    Chain::create(&env, parts.clone(), &create).await.unwrap();
    let (chain, _) = Chain::open(&env, parts, Options::default()).await.unwrap();
    let block = Bytes::from(vec![7; BLOCK_SIZE]);
    chain.apply((3..6).map(|lba| Write::block(Lba(lba), block.clone())).collect()).await.unwrap();
    let version = chain.discard(Lba(4), 1).await.unwrap();
    chain.sync(version).await.unwrap();
    chain.close().await.unwrap();
    let size = map.geometry().size as usize;
    let mut bytes = vec![0xee; start];
    bytes.extend_from_slice(&map.read(0, size, Purpose::Map).await.unwrap());
    bytes
}

#[tokio::test]
async fn a_dump_shows_labels_checkpoints_and_entries() {
    let found = dump(&mut Cursor::new(image(4096).await), 4096, true).unwrap();
    for copy in &found.labels {
        assert_eq!(copy.label.as_ref().unwrap().blocks, 64);
    }
    let newest = found.checkpoints.iter().max_by_key(|each| (each.generation, each.number));
    let newest = newest.unwrap();
    assert_eq!(newest.version, 2);
    assert!(found.witnesses.iter().flatten().all(|it| *it <= (newest.generation, newest.number)));
    assert!(found.witnesses.iter().any(Option::is_some));
    assert!(found.checkpoints.iter().all(|each| each.whole));
    let segment = found.segments.iter().find(|segment| segment.entries > 0).unwrap();
    assert_eq!((segment.log, segment.damaged), (0, 0));
    let entries = segment.content.as_ref().unwrap();
    let seen: Vec<_> = entries
        .iter()
        .map(|entry| (entry.slot, entry.kind, entry.lba, entry.version, entry.last))
        .collect();
    let wanted = [
        (0, "data", 3, 1, false),
        (1, "data", 4, 1, false),
        (2, "data", 5, 1, true),
        (3, "discard", 4, 2, true),
    ];
    assert_eq!(seen[..4], wanted);
    serde_json::to_string(&found).unwrap();
}

#[tokio::test]
async fn a_dump_names_what_is_damaged() {
    let whole = image(0).await;
    let before = dump(&mut Cursor::new(whole.clone()), 0, false).unwrap();
    let (checkpoint, segment) = (&before.checkpoints[0], &before.segments[0]);
    let mut bytes = whole;
    bytes[16] ^= 1;
    bytes[checkpoint.offset as usize + format::PAGE] ^= 1;
    bytes[segment.offset as usize + 100] ^= 1;
    let after = dump(&mut Cursor::new(bytes), 0, false).unwrap();
    assert!(after.labels[0].error.is_some() && after.labels[1].label.is_some());
    assert!(!after.checkpoints[0].whole);
    let now = after.segments.iter().find(|each| each.segment == segment.segment);
    assert_eq!(now.map_or(1, |now| now.damaged), segment.damaged + 1);
}

#[test]
fn a_dump_of_anything_else_is_no_volume() {
    for bytes in [vec![], vec![0; 1 << 20], vec![0xff; 300_000]] {
        let found = dump(&mut Cursor::new(bytes), 0, true).unwrap();
        assert!(found.labels.iter().all(|copy| copy.error.is_some()));
        assert!(found.checkpoints.is_empty() && found.segments.is_empty());
    }
}
