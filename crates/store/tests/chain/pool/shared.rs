//! Volumes that share a map SSD and a cache SSD.

use super::*;

async fn two(place: &Place) {
    for (folder, link) in [("one", "a"), ("two", "b")] {
        let mut new = NewVolume::new(folder, 8 * MIB, place.plain(&[link]));
        new.map = vec![DeviceSpec::with_size(place.path("map"), 16 * MIB)];
        let device = DeviceSpec::with_size(place.path("ssd"), 32 * MIB);
        new.cache = Some(CacheSpec { device, bytes: Some(6 * MIB) });
        place.create(folder, &new).await.unwrap();
    }
}

#[tokio::test]
async fn two_volumes_are_served_side_by_side() {
    let place = Place::new();
    two(&place).await;
    let (one, two) = (place.open("one").await.unwrap(), place.open("two").await.unwrap());
    assert_eq!((one.warnings(), two.warnings()), (vec![], vec![]));
    fill(&one, 1).await;
    fill(&two, 2).await;
    // Each has its own extents locked.
    let again = place.open("one").await;
    assert!(matches!(again, Err(PoolError::Device(DeviceError::Locked { .. }))), "{again:?}");
    one.close().await.unwrap();
    drop(one);
    pool::destroy(&place.env, &place.path("one")).await.unwrap();
    verify(&two, 2).await;
    drop(two);
    let two = place.open("two").await.unwrap();
    verify(&two, 2).await;
    // The other volume's space is free again.
    let mut new = NewVolume::new("three", 8 * MIB, place.plain(&["c"]));
    new.map = vec![place.device("map")];
    place.create("three", &new).await.unwrap();
    fill(&place.open("three").await.unwrap(), 3).await;
    verify(&two, 2).await;
}

#[tokio::test]
async fn a_full_shared_device_refuses_and_keeps_nothing_of_the_attempt() {
    let place = Place::new();
    two(&place).await;
    for _ in 0..2 {
        let mut new = NewVolume::new("three", 8 * MIB, place.plain(&["c"]));
        let device = place.device("ssd");
        new.cache = Some(CacheSpec { device, bytes: Some(25 * MIB) });
        let error = place.create("three", &new).await.unwrap_err();
        assert!(matches!(error, PoolError::NoRoom { .. }), "{error}");
        assert!(!place.path("c").exists());
        assert!(!place.path("three").join("volume.toml").exists());
    }
}

#[tokio::test]
async fn a_missing_cache_is_done_without_and_a_missing_map_is_named() {
    let place = Place::new();
    two(&place).await;
    fill(&place.open("one").await.unwrap(), 5).await;
    std::fs::remove_file(place.path("ssd")).unwrap();
    let one = place.open("one").await.unwrap();
    assert_eq!(one.warnings().len(), 1);
    verify(&one, 5).await;
    assert_eq!(state(&one.status(), "ssd"), MemberState::Missing);
    drop(one);
    std::fs::remove_file(place.path("map")).unwrap();
    let error = place.open("one").await.unwrap_err().to_string();
    assert!(error.contains("map") && error.contains("is missing"), "{error}");
}

#[tokio::test]
async fn a_link_shares_its_device_with_nobody() {
    let place = Place::new();
    two(&place).await;
    let mut new = NewVolume::new("three", 8 * MIB, place.plain(&["c"]));
    new.map = vec![place.device("a")];
    let error = place.create("three", &new).await.unwrap_err();
    assert!(matches!(error, PoolError::Sharing { .. }), "{error}");
    let new = NewVolume::new("three", 8 * MIB, place.plain(&["map"]));
    let error = place.create("three", &new).await.unwrap_err();
    assert!(matches!(error, PoolError::OtherVolume { .. }), "{error}");
    place.open("one").await.unwrap();
}
