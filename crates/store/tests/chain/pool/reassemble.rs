//! A lost manifest is made again from the labels.

use thalweg_store::pool::manifest::{FILE, Settings};
use thalweg_store::pool::{FileMedia, Reassembled, Reassembly, reassemble_on};

use super::*;

impl Place {
    async fn reassemble(
        &self,
        folder: &str,
        devices: &[&str],
        degraded: bool,
    ) -> Result<Reassembled, PoolError> {
        let devices = devices.iter().map(|name| self.path(name)).collect();
        let how = Reassembly { devices, degraded };
        reassemble_on(&self.env, &FileMedia, &self.path(folder), &how).await
    }

    fn lose_manifest(&self, folder: &str) {
        std::fs::remove_file(self.path(folder).join(FILE)).unwrap();
    }

    fn has_manifest(&self, folder: &str) -> bool {
        self.path(folder).join(FILE).exists()
    }
}

/// A volume with every kind of part: a stripe of mirrors, a plain link, a mirrored map, caches on one shared device.
async fn with_all_parts(place: &Place) {
    let mirror = |names: [&str; 2]| names.map(|name| place.device(name)).to_vec();
    let columns = vec![mirror(["a", "b"]), mirror(["c", "d"])];
    let links = [vec![LinkSpec::stripe_of_mirrors(columns)], place.plain(&["e"])].concat();
    let mut new = NewVolume::new("all", 24 * MIB, links);
    new.map = vec![place.device("map"), place.device("map2")];
    let cache = |bytes| {
        Some(CacheSpec { device: DeviceSpec::with_size(place.path("ssd"), 16 * MIB), bytes })
    };
    (new.cache, new.body_cache) = (cache(Some(8 * MIB)), cache(None));
    new.settings = Settings { ram_cache: Some(4 * MIB), ..Settings::default() };
    place.create("v", &new).await.unwrap();
    let pool = place.open("v").await.unwrap();
    fill(&pool, 5).await;
    pool.close().await.unwrap();
}

const ALL: [&str; 8] = ["e", "map2", "ssd", "d", "c", "map", "b", "a"];

#[tokio::test]
async fn a_volume_of_all_kinds_of_parts_is_whole_again() {
    let place = Place::new();
    with_all_parts(&place).await;
    let before = std::fs::read_to_string(place.path("v").join(FILE)).unwrap();
    place.lose_manifest("v");
    let made = place.reassemble("v", &ALL, false).await.unwrap();
    assert_eq!((&*made.name, made.devices), ("all", 9));
    assert!(made.missing.is_empty() && made.left_out.is_empty() && made.lacks_settings);
    let after = std::fs::read_to_string(place.path("v").join(FILE)).unwrap();
    // The same in another order, without the settings.
    for line in before.lines().filter(|line| line.contains("group") || line.contains("volume")) {
        assert!(after.contains(line), "{line} is not in {after}");
    }
    let pool = place.open("v").await.unwrap();
    verify(&pool, 5).await;
    let status = pool.status();
    assert_eq!(status.members.len(), 9);
    assert!(status.members.iter().all(|member| member.state == MemberState::Online), "{status:?}");
    assert!(status.warnings.is_empty(), "{:?}", status.warnings);
    pool.close().await.unwrap();
    drop(pool);
    // Paths that have changed are corrected, and what the labels do not have stays.
    let pool = place.open("v").await.unwrap();
    pool.set(Settings { ram_cache: Some(2 * MIB), ..Settings::default() }).await.unwrap();
    pool.close().await.unwrap();
    drop(pool);
    std::fs::rename(place.path("e"), place.path("moved")).unwrap();
    assert!(place.open("v").await.is_err());
    let devices = ALL.map(|name| if name == "e" { "moved" } else { name });
    let made = place.reassemble("v", &devices, false).await.unwrap();
    assert!(!made.lacks_settings);
    let pool = place.open("v").await.unwrap();
    verify(&pool, 5).await;
    assert_eq!(pool.status().settings.ram_cache, Some(2 * MIB));
}

#[tokio::test]
async fn what_is_missing_is_named_and_nothing_is_written() {
    let place = Place::new();
    with_all_parts(&place).await;
    place.lose_manifest("v");
    let without = |names: &[&str]| -> Vec<&str> {
        ALL.into_iter().filter(|name| !names.contains(name)).collect()
    };
    let cases: [(&[&str], Vec<String>); 5] = [
        (&["b"], vec!["side 2 of 2 of the link".to_owned(), "column 1 of 2".to_owned()]),
        (&["c", "d"], vec!["column 2 of 2".to_owned()]),
        (&["e"], vec!["link 1 (".to_owned()]),
        (&["map", "map2"], vec!["the map".to_owned()]),
        (&["map2"], vec!["side 2 of 2 of the map".to_owned()]),
    ];
    for (names, words) in cases {
        let error = place.reassemble("v", &without(names), false).await.unwrap_err();
        let PoolError::Incomplete { name, missing, .. } = &error else { panic!("{error}") };
        assert_eq!(name, "all");
        let said = missing.join("; ");
        assert!(words.iter().all(|word| said.contains(word)), "{names:?}: {said}");
        assert!(!place.has_manifest("v"));
    }
    // Whole columns, links and the map are never left out.
    for names in [&["c", "d"][..], &["e"], &["map", "map2"]] {
        let error = place.reassemble("v", &without(names), true).await.unwrap_err();
        let is_it = matches!(&error, PoolError::Incomplete { .. } | PoolError::Missing { .. });
        assert!(is_it, "{error}");
        assert!(!place.has_manifest("v"));
    }
    // Sides are, and are replaced afterwards.
    let made = place.reassemble("v", &without(&["b", "map2"]), true).await.unwrap();
    assert_eq!(made.missing.len(), 2);
    let pool = place.open("v").await.unwrap();
    verify(&pool, 5).await;
    let status = pool.status();
    let missing: Vec<_> =
        status.members.iter().filter(|it| it.state == MemberState::Missing).collect();
    assert_eq!(missing.len(), 2, "{status:?}");
    let lost = missing[0].path.clone();
    pool.replace(&lost, &place.device("new"), false, &quiet).await.unwrap();
    assert_eq!(state(&pool.status(), "new"), MemberState::Online);
}

#[tokio::test]
async fn devices_of_several_volumes_and_of_none_are_refused() {
    let place = Place::new();
    let shared = |name: &str, link: &str| {
        let mut new = NewVolume::new(name, 8 * MIB, place.plain(&[link]));
        new.map = vec![DeviceSpec::with_size(place.path("map"), 64 * MIB)];
        new
    };
    place.create("v", &shared("first", "a")).await.unwrap();
    place.create("w", &shared("second", "b")).await.unwrap();
    place.lose_manifest("v");
    for devices in [&["a", "b", "map"][..], &["a", "b"], &["map"]] {
        let error = place.reassemble("v", devices, false).await.unwrap_err();
        let PoolError::SeveralVolumes { devices } = &error else { panic!("{error}") };
        let said = devices.join("; ");
        assert!(said.contains("first (") && said.contains("second ("), "{said}");
    }
    std::fs::write(place.path("text"), vec![b'x'; 2 << 20]).unwrap();
    let error = place.reassemble("v", &["a", "map", "text"], false).await.unwrap_err();
    assert!(
        matches!(&error, PoolError::NoPart { device, .. } if device.ends_with("text")),
        "{error}"
    );
    std::fs::copy(place.path("a"), place.path("copy")).unwrap();
    let error = place.reassemble("v", &["a", "copy", "map"], false).await.unwrap_err();
    assert!(matches!(&error, PoolError::SamePart { .. }), "{error}");
    // The folder of another volume.
    let error = place.reassemble("w", &["a", "map"], false).await.unwrap_err();
    assert!(matches!(&error, PoolError::Exists { .. }), "{error}");
    assert!(!place.has_manifest("v"));
    // While the other volume that shares the map is open, and this one is not.
    let other = place.open("w").await.unwrap();
    place.reassemble("v", &["a", "map"], false).await.unwrap();
    let pool = place.open("v").await.unwrap();
    fill(&pool, 1).await;
    // And not while it is open itself.
    let error = place.reassemble("v", &["a", "map"], false).await.unwrap_err();
    assert!(matches!(&error, PoolError::Device(DeviceError::Locked { .. })), "{error}");
    drop((pool, other));
}

#[tokio::test]
async fn a_damaged_manifest_is_kept_beside_the_new_one() {
    let place = Place::new();
    place.create("v", &NewVolume::new("v", 8 * MIB, place.plain(&["a"]))).await.unwrap();
    let manifest = place.path("v").join(FILE);
    for damaged in [&b"format = 1\nvolume = \"a"[..], b"\xff\xfe"] {
        std::fs::write(&manifest, damaged).unwrap();
        assert!(place.open("v").await.is_err());
        place.reassemble("v", &["a"], false).await.unwrap();
        drop(place.open("v").await.unwrap());
    }
    assert!(place.path("v").join("volume.toml.old").exists());
    // A volume that was not made to the end has no label of the chain.
    std::fs::remove_file(&manifest).unwrap();
    wipe(&place.path("a"), MIB, 256 << 10);
    let error = place.reassemble("v", &["a"], false).await.unwrap_err();
    assert!(matches!(&error, PoolError::Chain(_)), "{error}");
    assert!(!place.has_manifest("v"));
}

/// A device that a change has labelled, and that the chain does not have, would be freed if the manifest listed it.
#[tokio::test]
async fn devices_that_are_no_part_of_the_chain_are_left_out() {
    let place = Place::new();
    place.create("v", &NewVolume::new("v", 8 * MIB, place.plain(&["a"]))).await.unwrap();
    std::fs::copy(place.path("a"), place.path("before")).unwrap();
    let pool = place.open("v").await.unwrap();
    let link = LinkSpec::plain(place.device("b"));
    let request = pool::ExtendRequest { link: Some(link), ..Default::default() };
    pool.extend(&request).await.unwrap();
    pool.close().await.unwrap();
    drop(pool);
    // The chain's label is from before the change, as after a crash in it.
    std::fs::copy(place.path("before"), place.path("a")).unwrap();
    place.lose_manifest("v");
    let made = place.reassemble("v", &["a", "b"], false).await.unwrap();
    assert_eq!(made.left_out, [place.path("b")]);
    assert_eq!(made.devices, 1);
    drop(place.open("v").await.unwrap());
}
