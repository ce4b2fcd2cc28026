//! Volumes that grow, shrink and move.

use std::time::Duration;

use bytes::Bytes;
use thalweg_store::block::Lba;
use thalweg_store::pool::manifest::Settings;
use thalweg_store::pool::{ExtendRequest, ShrinkRequest};
use thalweg_store::tree::{Kind, NewPartition, catalogue};
use thalweg_store::txn::{Begin, Durability, Transact};

use super::*;

async fn open(place: &Place) -> Pool {
    let mut new = NewVolume::new("v", 16 * MIB, place.plain(&["a", "b"]));
    new.map = vec![place.device("map")];
    new.growth = 4.0;
    place.create("v", &new).await.unwrap();
    place.open("v").await.unwrap()
}

fn link(place: &Place, name: &str, size: u64) -> ExtendRequest {
    let device = DeviceSpec::with_size(place.path(name), size);
    ExtendRequest { link: Some(LinkSpec::plain(device)), ..ExtendRequest::default() }
}

#[tokio::test]
async fn a_volume_grows_by_a_link_and_shrinks_by_another() {
    let place = Place::new();
    let pool = open(&place).await;
    fill(&pool, 1).await;
    let request = ExtendRequest { size: Some(36 * MIB), ..link(&place, "c", 40 * MIB) };
    pool.extend(&request).await.unwrap();
    assert_eq!(pool.volume().size(), 36 * MIB);
    fill(&pool, 2).await;
    let error = pool.shrink(&ShrinkRequest::Size(16 * MIB), &quiet).await;
    assert!(error.is_err(), "something is stored there");
    pool.volume().trim(16 * MIB, 20 * MIB, false).await.unwrap();
    pool.shrink(&ShrinkRequest::Size(16 * MIB), &quiet).await.unwrap();
    let calls = std::sync::atomic::AtomicU64::new(0);
    let count = |_, _| {
        calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    pool.shrink(&ShrinkRequest::Link(place.path("a")), &count).await.unwrap();
    assert!(calls.into_inner() > 0);
    verify(&pool, 2).await;
    drop(pool);
    let pool = place.open("v").await.unwrap();
    verify(&pool, 2).await;
    assert_eq!(pool.status().members.len(), 3);
    assert_eq!(pool.chain().label().links.len(), 2);
    // Its device is free.
    place.create("w", &NewVolume::new("w", 4 * MIB, place.plain(&["a"]))).await.unwrap();
}

#[tokio::test]
async fn transactions_go_on_while_the_volume_grows() {
    let place = Place::new();
    let pool = open(&place).await;
    let txn = pool.transactions().begin(Begin::STRICT).await.unwrap();
    let bytes = Bytes::from(vec![7; 4096]);
    txn.write(Lba(3), bytes.clone()).unwrap();
    let size = pool.volume().size() + MIB;
    let request = ExtendRequest { size: Some(size), ..ExtendRequest::default() };
    pool.extend(&request).await.unwrap();
    assert_eq!(pool.volume().size(), size);
    let last = Lba(size / 4096 - 1);
    txn.write(last, bytes.clone()).unwrap();
    txn.commit(Durability::Synced).await.unwrap();
    let txn = pool.transactions().begin(Begin::SNAPSHOT).await.unwrap();
    assert_eq!(
        (txn.read(Lba(3)).await.unwrap(), txn.read(last).await.unwrap()),
        (bytes.clone(), bytes)
    );
    drop(txn);
    pool.close().await.unwrap();
}

/// A store or a filesystem has free blocks at its end, where nothing is stored.
#[tokio::test]
async fn a_volume_does_not_end_before_its_partitions() {
    let place = Place::new();
    let pool = open(&place).await;
    let env = Env::real();
    for (name, kind) in [("files.meta", Kind::Btree), ("files.data", Kind::Raw)] {
        let new = NewPartition { name: name.to_owned(), kind, first: None, blocks: Some(1024) };
        catalogue::create(&env, pool.transactions(), &new).await.unwrap();
    }
    let error = pool.shrink(&ShrinkRequest::Size(8 * MIB), &quiet).await.unwrap_err().to_string();
    assert!(error.contains("files.data") && error.contains("do not become smaller"), "{error}");
    assert_eq!(pool.volume().size(), 16 * MIB);
    // To the last block of the last one.
    let end = (16 + 2 * 1024) * 4096;
    assert!(pool.shrink(&ShrinkRequest::Size(end - 4096), &quiet).await.is_err());
    pool.shrink(&ShrinkRequest::Size(end), &quiet).await.unwrap();
    assert_eq!(catalogue::list(pool.transactions()).await.unwrap().len(), 2);
    pool.close().await.unwrap();
}

#[tokio::test]
async fn a_lone_link_is_replaced_by_moving_everything_off() {
    let place = Place::new();
    let pool = open(&place).await;
    fill(&pool, 4).await;
    pool.replace(&place.path("b"), &place.device("c"), false, &quiet).await.unwrap();
    std::fs::remove_file(place.path("b")).unwrap();
    verify(&pool, 4).await;
    drop(pool);
    verify(&place.open("v").await.unwrap(), 4).await;
}

#[tokio::test]
async fn a_link_is_replaced_though_the_map_has_room_for_no_other() {
    let place = Place::new();
    let mut new = NewVolume::new("v", 16 * MIB, place.plain(&["a", "b"]));
    (new.map, new.growth) = (vec![place.device("map")], 1.5);
    place.create("v", &new).await.unwrap();
    let pool = place.open("v").await.unwrap();
    let add = |name: &str| {
        let link = Some(LinkSpec::plain(place.device(name)));
        ExtendRequest { link, ..ExtendRequest::default() }
    };
    pool.extend(&add("c")).await.unwrap();
    let error = pool.extend(&add("d")).await.unwrap_err();
    assert!(error.to_string().contains("the map area has room for"), "{error}");
    fill(&pool, 3).await;
    pool.chain().create_snapshot("before").await.unwrap();
    pool.volume().write(0, pattern(MIB, 8), true).await.unwrap();
    let small = DeviceSpec::with_size(place.path("small"), 8 * MIB);
    let error = pool.replace(&place.path("b"), &small, false, &quiet).await.unwrap_err();
    assert!(error.to_string().contains("use a larger one"), "{error}");
    assert!(!place.path("small").exists());
    for (old, new) in [("b", "d"), ("c", "e"), ("a", "f")] {
        let calls = std::sync::atomic::AtomicU64::new(0);
        let count = |_, _| {
            calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        pool.replace(&place.path(old), &place.device(new), false, &count).await.unwrap();
        assert!(calls.into_inner() > 0);
        std::fs::remove_file(place.path(old)).unwrap();
    }
    pool.volume().write(0, pattern(MIB, 3), true).await.unwrap();
    verify(&pool, 3).await;
    drop(pool);
    let pool = place.open("v").await.unwrap();
    assert_eq!((pool.warnings(), pool.status().members.len()), (Vec::new(), 4));
    verify(&pool, 3).await;
    let before = pool.snapshot_volume("before").unwrap();
    assert_eq!(before.read(0, MIB as usize).await.unwrap().concat(), pattern(MIB, 3));
    assert_eq!(pool.chain().scrub(&quiet).await.unwrap().damaged, 0);
    fill(&pool, 5).await;
    verify(&pool, 5).await;
}

#[tokio::test]
async fn a_link_that_cannot_be_added_leaves_nothing() {
    let place = Place::new();
    let pool = open(&place).await;
    // The map area has no room for so many segments.
    let error = pool.extend(&link(&place, "c", 400 * MIB)).await.unwrap_err();
    assert!(matches!(error, PoolError::Chain(_)), "{error}");
    assert!(!place.path("c").exists());
    assert_eq!(pool.status().members.len(), 3);
    drop(pool);
    assert_eq!(place.open("v").await.unwrap().warnings(), [""; 0]);
    let text = std::fs::read_to_string(place.path("v/volume.toml")).unwrap();
    assert_eq!(text.matches("[[device]]").count(), 3);
}

#[tokio::test]
async fn what_cannot_be_changed_says_so() {
    let place = Place::new();
    place.create("v", &NewVolume::new("v", 8 * MIB, place.plain(&["a", "b"]))).await.unwrap();
    let pool = place.open("v").await.unwrap();
    let map = pool.shrink(&ShrinkRequest::Link(place.path("a")), &quiet).await;
    assert!(map.unwrap_err().to_string().contains("the map area lies on that link"));
    let map = pool.replace(&place.path("a"), &place.device("c"), false, &quiet).await;
    assert!(map.unwrap_err().to_string().contains("the map area lies on that link"));
    let nobody = pool.replace(&place.path("x"), &place.device("c"), false, &quiet).await;
    assert!(matches!(nobody, Err(PoolError::NoMember { .. })));
    let twice = pool.extend(&link(&place, "b", 16 * MIB)).await;
    assert!(matches!(twice, Err(PoolError::Twice { .. })), "{twice:?}");
    let smaller = ExtendRequest { size: Some(MIB), ..ExtendRequest::default() };
    assert!(matches!(pool.extend(&smaller).await, Err(PoolError::Invalid(_))));
    assert!(!place.path("c").exists());
}

#[tokio::test]
async fn snapshots_are_served_read_only() {
    let place = Place::new();
    let pool = open(&place).await;
    fill(&pool, 1).await;
    pool.chain().create_snapshot("before").await.unwrap();
    pool.volume().write(0, pattern(4 * MIB, 77), true).await.unwrap();
    let before = pool.snapshot_volume("before").unwrap();
    assert!(before.is_read_only());
    assert_eq!(before.read(0, MIB as usize).await.unwrap().concat(), pattern(MIB, 1));
    assert!(before.write(0, pattern(512, 0), false).await.is_err());
    before.flush().await.unwrap();
    assert!(matches!(pool.snapshot_volume("after"), Err(PoolError::NoSnapshot(_))));
}

#[tokio::test]
async fn a_replacement_that_was_cut_short_goes_on() {
    let place = Place::new();
    let pool = open(&place).await;
    fill(&pool, 4).await;
    let listed = || std::fs::read_to_string(place.path("v/volume.toml")).unwrap();
    {
        // Given up as soon as a block is moved.
        let moving = tokio::sync::Notify::new();
        let progress = |_, _| moving.notify_one();
        let (old, new) = (place.path("b"), place.device("c"));
        tokio::select! {
            biased;
            () = moving.notified() => {}
            done = pool.replace(&old, &new, false, &progress) => panic!("over already: {done:?}"),
        }
    }
    assert!(listed().contains("replaces"), "{}", listed());
    drop(pool);
    let pool = place.open("v").await.unwrap();
    pool.replace(&place.path("b"), &place.device("c"), false, &quiet).await.unwrap();
    assert!(!listed().contains("replaces") && !listed().contains("leftover"), "{}", listed());
    std::fs::remove_file(place.path("b")).unwrap();
    drop(pool);
    verify(&place.open("v").await.unwrap(), 4).await;
    // Another link of the volume is no new device.
    let pool = place.open("v").await.unwrap();
    let error = pool.replace(&place.path("a"), &place.device("c"), false, &quiet).await;
    assert!(matches!(error, Err(PoolError::Twice { .. })), "{error:?}");
}

#[tokio::test]
async fn settings_are_kept_and_used_from_the_next_opening_on() {
    let place = Place::new();
    let mut new = NewVolume::new("v", 8 * MIB, place.plain(&["a", "b"]));
    new.settings =
        Settings { ram_cache: Some(2 * MIB), ram_cache_max: Some(0), ..Settings::default() };
    place.create("v", &new).await.unwrap();
    let pool = place.open("v").await.unwrap();
    let ram = |pool: &Pool| pool.chain().status().tail_cache.ram_blocks;
    fill(&pool, 1).await;
    assert_eq!(ram(&pool), 2 * MIB / 4096);
    let body = Settings { body_ram_cache: Some(2 * MIB), ..Settings::default() };
    pool.set(body).await.unwrap();
    assert!(pool.chain().status().body_cache.is_none());
    drop(pool);
    let pool = place.open("v").await.unwrap();
    assert_eq!(pool.status().settings.ram_cache, Some(2 * MIB));
    assert!(pool.chain().status().body_cache.is_some());
    pool.set(Settings {
        ram_cache: Some(MIB),
        body_ram_cache: Some(0),
        tail_read_wait: Some(100),
        transaction_idle: Some(7),
        ..body
    })
    .await
    .unwrap();
    let never = Settings { transaction_idle: Some(0), ..Settings::default() };
    assert!(matches!(pool.set(never).await, Err(PoolError::Invalid(_))));
    assert_eq!(pool.transactions().options().idle, Duration::from_secs(60));
    drop(pool);
    let pool = place.open("v").await.unwrap();
    assert!(pool.chain().status().body_cache.is_none());
    assert_eq!(pool.status().settings.tail_read_wait, Some(100));
    assert_eq!(pool.transactions().options().idle, Duration::from_secs(7));
    fill(&pool, 2).await;
    assert_eq!(ram(&pool), MIB / 4096);
}
