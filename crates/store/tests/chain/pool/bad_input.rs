//! Bad input: each with its own error, and nothing lost.

use std::os::unix::fs::FileExt;

use thalweg_store::pool::manifest::Settings;

use super::*;

async fn made(place: &Place) {
    let new = NewVolume::new("v", 8 * MIB, place.plain(&["a", "b"]));
    place.create("v", &new).await.unwrap();
}

fn scribble(path: &Path, at: u64, bytes: &[u8]) {
    std::fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

#[tokio::test]
async fn devices_that_hold_something_are_refused_without_force() {
    let place = Place::new();
    let signatures: [(u64, &[u8], &str); 8] = [
        (1080, &[0x53, 0xef], "ext"),
        (0, b"XFSB", "XFS"),
        (65600, b"_BHRfS_M", "Btrfs"),
        (512, b"LABELONE", "LVM"),
        (4086, b"SWAPSPACE2", "swap"),
        (512, b"EFI PART", "GPT"),
        (510, &[0x55, 0xaa], "partition"),
        (0, b"LUKS\xba\xbe", "LUKS"),
    ];
    for (at, magic, what) in signatures {
        let file = std::fs::File::create(place.path("disk")).unwrap();
        file.set_len(48 * MIB).unwrap();
        scribble(&place.path("disk"), at, magic);
        let mut new = NewVolume::new("v", 8 * MIB, place.plain(&["disk"]));
        let error = place.create("v", &new).await.unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("force"), "{error}");
        let mut bytes = vec![0; magic.len()];
        std::fs::File::open(place.path("disk")).unwrap().read_exact_at(&mut bytes, at).unwrap();
        assert_eq!(bytes, magic, "it was not touched");
        new.force = true;
        place.create("v", &new).await.unwrap();
        drop(place.open("v").await.unwrap());
        pool::destroy(&place.env, &place.path("v")).await.unwrap();
    }
}

#[tokio::test]
async fn another_volumes_device_is_refused_without_force() {
    let place = Place::new();
    made(&place).await;
    let error = place.create("w", &NewVolume::new("w", 4 * MIB, place.plain(&["a"]))).await;
    let Err(PoolError::OtherVolume { name, .. }) = &error else { panic!("{error:?}") };
    assert_eq!(name, "v");
    drop(place.open("v").await.unwrap());
    // An open volume is refused even with force.
    let pool = place.open("v").await.unwrap();
    let mut new = NewVolume::new("w", 4 * MIB, place.plain(&["a"]));
    new.force = true;
    let error = place.create("w", &new).await;
    assert!(matches!(error, Err(PoolError::Device(DeviceError::Locked { .. }))), "{error:?}");
    drop(pool);
}

#[tokio::test]
async fn a_device_of_another_volume_in_its_place_is_told() {
    let place = Place::new();
    made(&place).await;
    place.create("w", &NewVolume::new("other", 4 * MIB, place.plain(&["c"]))).await.unwrap();
    std::fs::rename(place.path("c"), place.path("b")).unwrap();
    let error = place.open("v").await.unwrap_err().to_string();
    assert!(error.contains("belongs to the volume other"), "{error}");
}

#[tokio::test]
async fn the_same_device_twice_is_told() {
    let place = Place::new();
    let new = NewVolume::new("v", 8 * MIB, place.plain(&["a", "a"]));
    let error = place.create("v", &new).await;
    assert!(matches!(error, Err(PoolError::Twice { .. })), "{error:?}");
    std::fs::File::create(place.path("a")).unwrap().set_len(48 * MIB).unwrap();
    std::os::unix::fs::symlink(place.path("a"), place.path("link")).unwrap();
    let new = NewVolume::new("v", 8 * MIB, place.plain(&["a", "link"]));
    let error = place.create("v", &new).await;
    assert!(matches!(error, Err(PoolError::Twice { .. })), "{error:?}");
    std::fs::remove_file(place.path("a")).unwrap();
    made(&place).await;
    // A copy of one in the place of the other.
    std::fs::copy(place.path("a"), place.path("b")).unwrap();
    let error = place.open("v").await;
    assert!(error.is_err());
    std::fs::remove_file(place.path("b")).unwrap();
    std::fs::hard_link(place.path("a"), place.path("b")).unwrap();
    let error = place.open("v").await;
    assert!(matches!(error, Err(PoolError::Twice { .. })), "{error:?}");
}

#[tokio::test]
async fn damaged_newer_and_wiped_labels_are_told_apart() {
    let place = Place::new();
    made(&place).await;
    let whole = std::fs::read(place.path("b")).unwrap();
    // One copy of each is enough.
    scribble(&place.path("b"), 100, &[1; 8]);
    scribble(&place.path("b"), 8192 + 4096, &[0; 4096]);
    drop(place.open("v").await.unwrap());
    scribble(&place.path("b"), 4096 + 100, &[1; 8]);
    let error = place.open("v").await.unwrap_err().to_string();
    assert!(error.contains("damaged in both copies"), "{error}");
    scribble(&place.path("b"), 0, &whole[..8192]);
    for copy in [0, 4096] {
        let mut header = whole[copy..copy + 512].to_vec();
        header[8] = 9;
        scribble(&place.path("b"), copy as u64, &header);
    }
    let error = place.open("v").await.unwrap_err();
    assert!(matches!(error, PoolError::NewerFormat { format: 9, .. }), "{error}");
    scribble(&place.path("b"), 0, &[0; 8192]);
    let error = place.open("v").await.unwrap_err().to_string();
    assert!(error.contains("carries no label"), "{error}");
    scribble(&place.path("b"), 0, &whole[..8192]);
    drop(place.open("v").await.unwrap());
}

#[tokio::test]
async fn a_device_that_has_shrunk_is_too_small() {
    let place = Place::new();
    made(&place).await;
    std::fs::File::options().write(true).open(place.path("b")).unwrap().set_len(2 * MIB).unwrap();
    let error = place.open("v").await;
    assert!(matches!(error, Err(PoolError::TooSmall { .. })), "{error:?}");
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_before_anything_is_made() {
    let place = Place::new();
    let good = NewVolume::new("v", 8 * MIB, place.plain(&["a"]));
    let bad: Vec<NewVolume> = vec![
        NewVolume { name: String::new(), ..good.clone() },
        NewVolume { name: "n".repeat(65), ..good.clone() },
        NewVolume { size: 0, ..good.clone() },
        NewVolume { links: vec![], ..good.clone() },
        NewVolume { links: vec![LinkSpec::mirror(vec![])], ..good.clone() },
        NewVolume { sector: Some(1000), ..good.clone() },
        NewVolume { segment_blocks: Some(100), ..good.clone() },
        NewVolume { growth: f64::NAN, ..good.clone() },
        NewVolume {
            size: 1 << 60,
            links: vec![LinkSpec::plain(DeviceSpec::with_size(place.path("a"), 48 * MIB))],
            ..good.clone()
        },
        NewVolume {
            links: vec![LinkSpec::plain(DeviceSpec::with_size(place.path("a"), 3 * MIB))],
            ..good.clone()
        },
        NewVolume {
            links: vec![LinkSpec::plain(DeviceSpec::with_size(place.path("a"), 0))],
            ..good.clone()
        },
    ];
    for (number, new) in bad.into_iter().enumerate() {
        let error = place.create("v", &new).await;
        assert!(error.is_err(), "{number}");
        assert!(!place.path("a").exists(), "{number}: {error:?}");
        let left = place.open("v").await;
        assert!(matches!(left, Err(PoolError::NoVolume { .. })), "{number}: {left:?}");
    }
    place.create("v", &good).await.unwrap();
    let again = place.create("v", &good).await;
    assert!(matches!(again, Err(PoolError::Exists { .. })), "{again:?}");
}

#[tokio::test]
async fn a_damaged_manifest_is_told() {
    let place = Place::new();
    made(&place).await;
    std::fs::write(place.path("v/volume.toml"), "format = 1\nname = 3").unwrap();
    let error = place.open("v").await;
    assert!(matches!(error, Err(PoolError::Manifest { .. })), "{error:?}");
    // Of a newer manifest, only its number is known.
    std::fs::write(place.path("v/volume.toml"), "format = 2\ndevices = 3").unwrap();
    let error = place.open("v").await;
    assert!(matches!(error, Err(PoolError::NewerFormat { format: 2, .. })), "{error:?}");
}

#[tokio::test]
async fn a_volume_is_destroyed_once_and_its_devices_are_free() {
    let place = Place::new();
    made(&place).await;
    pool::destroy(&place.env, &place.path("v")).await.unwrap();
    let gone = pool::destroy(&place.env, &place.path("v")).await;
    assert!(matches!(gone, Err(PoolError::NoVolume { .. })));
    made(&place).await;
}

/// A volume whose making or destruction was interrupted can be destroyed whatever its devices hold.
#[tokio::test]
async fn an_unfinished_volume_is_destroyed_whatever_its_devices_hold() {
    let place = Place::new();
    made(&place).await;
    let manifest = place.path("v/volume.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"ready\"", "\"unfinished\"")).unwrap();
    for copy in [0, 4096] {
        scribble(&place.path("b"), copy + 8, &[9]);
    }
    let error = place.open("v").await;
    assert!(matches!(error, Err(PoolError::Unfinished { .. })), "{error:?}");
    pool::destroy(&place.env, &place.path("v")).await.unwrap();
    place.create("w", &NewVolume::new("w", 4 * MIB, place.plain(&["a"]))).await.unwrap();
}

#[tokio::test]
async fn a_newer_side_of_a_mirror_is_not_gone_on_without() {
    let place = Place::new();
    let sides = vec![place.device("a"), place.device("b")];
    let new = NewVolume::new("m", 8 * MIB, vec![LinkSpec::mirror(sides)]);
    place.create("v", &new).await.unwrap();
    for copy in [0, 4096] {
        scribble(&place.path("b"), copy + 8, &[9]);
    }
    let before = std::fs::read(place.path("a")).unwrap();
    let error = place.open("v").await;
    assert!(matches!(error, Err(PoolError::NewerFormat { format: 9, .. })), "{error:?}");
    assert!(std::fs::read(place.path("a")).unwrap() == before, "a side was written to");
}

/// Links that an `extend` could not take, each for its own reason.
#[tokio::test]
async fn bad_new_links_are_refused_and_the_volume_goes_on() {
    let place = Place::new();
    made(&place).await;
    place.create("w", &NewVolume::new("other", 4 * MIB, place.plain(&["c"]))).await.unwrap();
    let pool = place.open("v").await.unwrap();
    let before = std::fs::read_to_string(place.path("v/volume.toml")).unwrap();
    let extend = |link| {
        let request = pool::ExtendRequest { link: Some(link), ..pool::ExtendRequest::default() };
        let pool = &pool;
        async move { pool.extend(&request).await.unwrap_err() }
    };
    let plain = |name| LinkSpec::plain(place.device(name));
    let other = extend(plain("c")).await;
    assert!(matches!(&other, PoolError::OtherVolume { name, .. } if name == "other"), "{other}");
    let twice = extend(plain("a")).await;
    assert!(matches!(twice, PoolError::Twice { .. }), "{twice}");
    let twice = LinkSpec::mirror(vec![place.device("d"), place.device("d")]);
    let twice = extend(twice).await;
    assert!(matches!(twice, PoolError::Twice { .. }), "{twice}");
    let small = DeviceSpec::with_size(place.path("d"), 1 << 12);
    let small = extend(LinkSpec::plain(small)).await;
    assert!(matches!(small, PoolError::TooSmall { have: 4096, .. }), "{small}");
    let small = DeviceSpec::with_size(place.path("d"), 2 * MIB);
    let small = extend(LinkSpec::plain(small)).await;
    assert!(matches!(small, PoolError::Chain(_)), "{small}");
    for name in ["d", "e"] {
        assert!(!place.path(name).exists(), "{name}");
    }
    assert_eq!(std::fs::read_to_string(place.path("v/volume.toml")).unwrap(), before);
    fill(&pool, 3).await;
    drop(pool);
    verify(&place.open("v").await.unwrap(), 3).await;
    drop(place.open("w").await.unwrap());
}

/// The process that had the volume open before may have changed its devices in the meantime.
#[tokio::test]
async fn a_manifest_that_changes_while_its_devices_are_in_use_is_read_again() {
    let place = Place::new();
    let mut new = NewVolume::new("v", 8 * MIB, place.plain(&["a", "b"]));
    new.map = vec![place.device("map")];
    place.create("v", &new).await.unwrap();
    let pool = place.open("v").await.unwrap();
    fill(&pool, 1).await;
    let waiting = place.open("v");
    let changing = async {
        let link = Some(LinkSpec::plain(place.device("c")));
        let request = pool::ExtendRequest { link, ..pool::ExtendRequest::default() };
        pool.extend(&request).await.unwrap();
        pool.close().await.unwrap();
        drop(pool);
    };
    let (opened, ()) = tokio::join!(biased; waiting, changing);
    let pool = opened.unwrap();
    assert_eq!(pool.status().members.len(), 4);
    verify(&pool, 1).await;
}

#[tokio::test]
async fn settings_that_cannot_be_are_refused() {
    let place = Place::new();
    made(&place).await;
    let pool = place.open("v").await.unwrap();
    for ram_cache in [0, 4096, u64::MAX] {
        let settings = Settings { ram_cache: Some(ram_cache), ..Settings::default() };
        let error = pool.set(settings).await;
        assert!(matches!(error, Err(PoolError::Invalid(_))), "{error:?}");
        let new = NewVolume::new("w", 4 * MIB, place.plain(&["c"]));
        let error = place.create("w", &NewVolume { settings, ..new }).await;
        assert!(matches!(error, Err(PoolError::Invalid(_))), "{error:?}");
    }
    assert_eq!(pool.status().settings, Settings::default());
}
