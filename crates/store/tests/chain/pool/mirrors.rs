//! Mirrors: degraded, stale, rebuilt, diverged.

use thalweg_store::pool::format;

use super::*;

async fn mirror(place: &Place, map: bool) {
    let sides = vec![place.device("a"), place.device("b")];
    let mut new = NewVolume::new("m", 12 * MIB, vec![LinkSpec::mirror(sides)]);
    if map {
        new.map = vec![place.device("map0"), place.device("map1")];
    }
    place.create("v", &new).await.unwrap();
}

fn hide(place: &Place, name: &str) {
    std::fs::rename(place.path(name), place.path("hidden")).unwrap();
}

fn bring_back(place: &Place, name: &str) {
    std::fs::rename(place.path("hidden"), place.path(name)).unwrap();
}

#[tokio::test]
async fn a_side_that_missed_writes_is_stale_until_it_is_rebuilt() {
    let place = Place::new();
    mirror(&place, true).await;
    fill(&place.open("v").await.unwrap(), 1).await;
    hide(&place, "a");
    let pool = place.open("v").await.unwrap();
    assert_eq!(pool.warnings().len(), 1, "{:?}", pool.warnings());
    assert_eq!(state(&pool.status(), "a"), MemberState::Missing);
    verify(&pool, 1).await;
    fill(&pool, 2).await;
    pool.close().await.unwrap();
    drop(pool);

    bring_back(&place, "a");
    let pool = place.open("v").await.unwrap();
    assert_eq!(state(&pool.status(), "a"), MemberState::Stale);
    assert_eq!(state(&pool.status(), "b"), MemberState::Online);
    verify(&pool, 2).await;
    drop(pool);
    // Alone, it must not be read.
    hide(&place, "b");
    let error = place.open("v").await.unwrap_err().to_string();
    assert!(error.contains("in sync"), "{error}");
    bring_back(&place, "b");

    let pool = place.open("v").await.unwrap();
    let most = parking_lot::Mutex::new(0);
    pool.rebuild(None, &|done, total| {
        assert!(done <= total);
        *most.lock() = done;
    })
    .await
    .unwrap();
    assert!(*most.lock() > 0);
    assert_eq!(state(&pool.status(), "a"), MemberState::Online);
    drop(pool);
    hide(&place, "b");
    let pool = place.open("v").await.unwrap();
    verify(&pool, 2).await;
}

#[tokio::test]
async fn a_rebuild_that_was_cut_short_starts_over() {
    let place = Place::new();
    mirror(&place, false).await;
    fill(&place.open("v").await.unwrap(), 1).await;
    hide(&place, "b");
    fill(&place.open("v").await.unwrap(), 2).await;
    bring_back(&place, "b");
    let pool = place.open("v").await.unwrap();
    let work = pool.rebuild(None, &quiet);
    let cut = place.env.timeout(std::time::Duration::from_millis(1), work).await;
    drop(pool);
    if cut.is_none() {
        let pool = place.open("v").await.unwrap();
        assert_eq!(state(&pool.status(), "b"), MemberState::Stale);
        pool.rebuild(Some(&place.path("b")), &quiet).await.unwrap();
    }
    hide(&place, "a");
    verify(&place.open("v").await.unwrap(), 2).await;
}

#[tokio::test]
async fn sides_that_were_used_apart_are_not_mixed() {
    let place = Place::new();
    mirror(&place, false).await;
    hide(&place, "b");
    fill(&place.open("v").await.unwrap(), 1).await;
    std::fs::rename(place.path("a"), place.path("hidden-a")).unwrap();
    bring_back(&place, "b");
    fill(&place.open("v").await.unwrap(), 2).await;
    std::fs::rename(place.path("hidden-a"), place.path("a")).unwrap();
    let error = place.open("v").await.unwrap_err();
    assert!(matches!(error, PoolError::Diverged { .. }), "{error}");
    // As the message advises.
    hide(&place, "a");
    let pool = place.open("v").await.unwrap();
    bring_back(&place, "a");
    pool.replace(&place.path("a"), &place.device("a"), true, &quiet).await.unwrap();
    drop(pool);
    hide(&place, "b");
    verify(&place.open("v").await.unwrap(), 2).await;
}

#[tokio::test]
async fn a_side_is_replaced_while_the_volume_is_used() {
    for map in [false, true] {
        let place = Place::new();
        mirror(&place, map).await;
        let pool = place.open("v").await.unwrap();
        fill(&pool, 3).await;
        pool.replace(&place.path("a"), &place.device("c"), false, &quiet).await.unwrap();
        if map {
            let new = place.device("map2");
            pool.replace(&place.path("map1"), &new, false, &quiet).await.unwrap();
            assert_eq!(state(&pool.status(), "map2"), MemberState::Online);
        }
        assert_eq!(state(&pool.status(), "c"), MemberState::Online);
        fill(&pool, 4).await;
        drop(pool);
        std::fs::remove_file(place.path("b")).unwrap();
        if map {
            std::fs::remove_file(place.path("map0")).unwrap();
        }
        let pool = place.open("v").await.unwrap();
        verify(&pool, 4).await;
        // The last side is kept.
        let error = pool.replace(&place.path("c"), &place.device("d"), false, &quiet).await;
        assert!(matches!(error, Err(PoolError::Mirror(_))), "{error:?}");
        // The replaced device is free.
        let new = NewVolume::new("w", 8 * MIB, place.plain(&["a"]));
        place.create("w", &new).await.unwrap();
    }
}

#[tokio::test]
async fn stripes_of_mirrors_survive_one_side_of_each_column() {
    let place = Place::new();
    let column = |a, b| vec![place.device(a), place.device(b)];
    let link = LinkSpec::stripe_of_mirrors(vec![column("a", "b"), column("c", "d")]);
    let plain = LinkSpec::stripe(vec![place.device("e"), place.device("f")]);
    let mut new = NewVolume::new("s", 20 * MIB, vec![link, plain]);
    new.map = vec![place.device("map")];
    place.create("v", &new).await.unwrap();
    fill(&place.open("v").await.unwrap(), 6).await;
    for side in ["a", "d"] {
        std::fs::remove_file(place.path(side)).unwrap();
    }
    let pool = place.open("v").await.unwrap();
    verify(&pool, 6).await;
    assert_eq!(pool.warnings().len(), 2);
    assert_eq!(pool.mirrors().len(), 2);
    drop(pool);
    std::fs::remove_file(place.path("f")).unwrap();
    let error = place.open("v").await.unwrap_err().to_string();
    assert!(error.contains("column 1") && error.contains("/f"), "{error}");
}

/// The slots in use on a device.
fn slots(path: &Path) -> Vec<format::Member> {
    let bytes = std::fs::read(path).unwrap();
    let slot = |number| format::Member::decode(&bytes[format::slot_offset(number) as usize..]);
    (0..format::SLOTS).filter_map(|number| slot(number).ok()).collect()
}

/// On a device that volumes share, a side that returns and is put in its own place again takes over its
/// former slot.
#[tokio::test]
async fn a_shared_side_replaced_by_itself_leaves_no_slot_behind() {
    let place = Place::new();
    // Another volume was there first, so that a lower slot than the side's own is free.
    let mut first = NewVolume::new("first", 4 * MIB, place.plain(&["c"]));
    first.map = vec![DeviceSpec::with_size(place.path("map0"), 32 * MIB)];
    place.create("first", &first).await.unwrap();
    mirror(&place, true).await;
    pool::destroy(&place.env, &place.path("first")).await.unwrap();
    hide(&place, "map0");
    let pool = place.open("v").await.unwrap();
    fill(&pool, 1).await;
    bring_back(&place, "map0");
    let device = place.device("map0");
    pool.replace(&place.path("map0"), &device, false, &quiet).await.unwrap();
    assert_eq!(state(&pool.status(), "map0"), MemberState::Online);
    drop(pool);
    assert_eq!(slots(&place.path("map0")).len(), 1, "{:?}", slots(&place.path("map0")));
    hide(&place, "map1");
    verify(&place.open("v").await.unwrap(), 1).await;
}

#[tokio::test]
async fn a_side_that_does_not_fit_leaves_nothing() {
    let place = Place::new();
    mirror(&place, true).await;
    let pool = place.open("v").await.unwrap();
    let before = std::fs::read_to_string(place.path("v/volume.toml")).unwrap();
    let small = DeviceSpec::with_size(place.path("small"), 4 * MIB);
    let error = pool.replace(&place.path("a"), &small, false, &quiet).await;
    assert!(matches!(error, Err(PoolError::TooSmall { .. })), "{error:?}");
    assert!(!place.path("small").exists());
    let large = DeviceSpec::with_size(place.path("large"), 2 * MIB);
    let error = pool.replace(&place.path("map0"), &large, false, &quiet).await;
    assert!(error.is_err());
    assert!(!place.path("large").exists());
    assert_eq!(std::fs::read_to_string(place.path("v/volume.toml")).unwrap(), before);
    assert!(pool.status().members.iter().all(|member| member.state == MemberState::Online));
}
