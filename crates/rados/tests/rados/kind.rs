//! Volumes on images, which are opened by their names.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;
use thalweg_env::Env;
use thalweg_rados::{ObjectError, ObjectStoreRef, Opener, Pools, RadosKind};
use thalweg_sim::rados::{RadosSpec, SimRados};
use thalweg_sim::run;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::device::{Access, DeviceError, DeviceKind, DeviceKinds, Purpose};
use thalweg_store::inplace::{InPlace, NewInPlace};
use thalweg_store::open::{AnyVolume, Options, VolumePath, in_place_parts};
use thalweg_store::pool::{
    DeviceSpec, LinkSpec, NamedMedia, NewVolume, PoolError, Preallocation, create_on, destroy_on,
};

const MIB: u64 = 1 << 20;

/// One client's view of a cluster with the pool `p`.
#[derive(Debug)]
pub(crate) struct OnePool(pub(crate) ObjectStoreRef);

#[async_trait]
impl Pools for OnePool {
    async fn pool(&self, name: &str, _namespace: &str) -> Result<ObjectStoreRef, ObjectError> {
        match name {
            "p" => Ok(self.0.clone()),
            "gone" => Err(ObjectError::NotConnected { reason: "no monitor".to_owned() }),
            _ => Err(ObjectError::NotFound { object: name.to_owned() }),
        }
    }
}

/// A process of the machine `m`, which has ended unless `runs`.
pub(crate) fn opener(runs: bool) -> Opener {
    let own = Opener::this_process();
    let pid = if runs { own.pid } else { u32::MAX };
    let text = |text: &str| text.to_owned();
    Opener {
        host: text("h"),
        machine: text("m"),
        boot: text("b"),
        namespace: text("n"),
        pid,
        ..own
    }
}

fn kinds(env: &Env, cluster: &SimRados, opener: Opener) -> DeviceKinds {
    let pools = Arc::new(OnePool(cluster.client().store()));
    DeviceKinds::new(vec![Arc::new(RadosKind::new(env, pools, opener))])
}

fn kind(env: &Env, cluster: &SimRados, opener: Opener) -> RadosKind {
    RadosKind::new(env, Arc::new(OnePool(cluster.client().store())), opener)
}

/// A chained volume of two links and a map on images.
async fn chained(env: &Env, kinds: &DeviceKinds, folder: &Path) -> Result<(), PoolError> {
    let image = |name: &str| DeviceSpec {
        preallocation: Preallocation::Full,
        ..DeviceSpec::new(format!("rados:p/{name}"))
    };
    let links = ["one", "two"].map(|name| LinkSpec::plain(image(name)));
    let mut new = NewVolume::new("v", 16 * MIB, links.to_vec());
    new.map = vec![image("map")];
    create_on(env, &NamedMedia(kinds.clone()), folder, &new, &|_, _| {}).await
}

async fn open(env: &Env, kinds: &DeviceKinds, place: &VolumePath) -> AnyVolume {
    let options = Options { kinds: kinds.clone(), ..Options::default() };
    AnyVolume::open(env, place, &options).await.unwrap()
}

async fn refusal(env: &Env, kinds: &DeviceKinds, place: &VolumePath, read_only: bool) -> String {
    let options = Options { kinds: kinds.clone(), read_only, ..Options::default() };
    let error = AnyVolume::open(env, place, &options).await.unwrap_err();
    format!("{error:?}")
}

async fn write(volume: &AnyVolume, fill: u8) {
    let volume = volume.volume();
    volume.write(0, vec![fill; BLOCK_SIZE].into(), true).await.unwrap();
}

async fn byte(volume: &AnyVolume) -> u8 {
    volume.volume().read(0, BLOCK_SIZE).await.unwrap()[0][0]
}

/// Checks a volume of either kind through its life: closed, open elsewhere, left by a process that has ended.
async fn lives(env: &Env, cluster: &SimRados, place: VolumePath) {
    let first = kinds(env, cluster, opener(true));
    let volume = open(env, &first, &place).await;
    write(&volume, 1).await;
    let other = kinds(env, cluster, Opener { namespace: "other".to_owned(), ..opener(false) });
    for read_only in [false, true] {
        let refused = refusal(env, &other, &place, read_only).await;
        let holder = format!("process {} on h", std::process::id());
        assert!(refused.contains("Locked") && refused.contains(&holder), "{refused}");
    }
    volume.close().await.unwrap();
    first.close().await.unwrap();
    drop(volume);

    // This process ends without closing anything, and its requests may still be in flight.
    let ended = kinds(env, cluster, opener(false));
    let volume = open(env, &ended, &place).await;
    assert_eq!(byte(&volume).await, 1);
    write(&volume, 2).await;
    let refused = refusal(env, &other, &place, false).await;
    assert!(refused.contains("Locked"), "another container cannot know: {refused}");
    let next = kinds(env, cluster, opener(true));
    let taken = open(env, &next, &place).await;
    assert_eq!(byte(&taken).await, 2);
    let late = volume.volume().write(0, vec![9; BLOCK_SIZE].into(), true).await;
    assert!(late.is_err(), "{late:?}");
    write(&taken, 3).await;
    taken.close().await.unwrap();
    next.close().await.unwrap();
    let reader = kinds(env, cluster, opener(true));
    let readers = [&reader, &other].map(|kinds| Options {
        kinds: kinds.clone(),
        read_only: true,
        ..Options::default()
    });
    let [one, two] = [
        AnyVolume::open(env, &place, &readers[0]).await.unwrap(),
        AnyVolume::open(env, &place, &readers[1]).await.unwrap(),
    ];
    assert_eq!((byte(&one).await, byte(&two).await), (3, 3));
    let refused = refusal(env, &next, &place, false).await;
    assert!(refused.contains("Locked"), "{refused}");
}

#[test]
fn a_chained_volume_on_images() {
    run(1, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let folder = TempDir::new().unwrap();
        let making = kinds(&env, &cluster, opener(true));
        chained(&env, &making, folder.path()).await.unwrap();
        making.close().await.unwrap();
        let text = std::fs::read_to_string(folder.path().join("volume.toml")).unwrap();
        assert!(text.contains("path = \"rados:p/one\""), "{text}");
        // New images are not filled.
        assert!(cluster.objects().len() < 20, "{:?}", cluster.objects());
        lives(&env, &cluster, VolumePath::find(folder.path()).unwrap()).await;
    });
}

#[test]
fn an_in_place_volume_on_an_image() {
    run(2, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let place = VolumePath::find(Path::new("rados:p/v")).unwrap();
        let making = kinds(&env, &cluster, opener(true));
        making.create(place.path(), 16 * MIB).await.unwrap();
        let parts = in_place_parts(&env, &making, place.path(), None, Access::Exclusive).await;
        let new = NewInPlace { name: "v".to_owned(), journal_size: None, size: None };
        InPlace::create(&env, &parts.unwrap(), &new).await.unwrap();
        making.close().await.unwrap();
        lives(&env, &cluster, place).await;
    });
}

#[test]
fn a_volume_that_cannot_be_made_leaves_no_image_and_a_destroyed_one_no_label() {
    run(3, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let folder = TempDir::new().unwrap();
        let making = kinds(&env, &cluster, opener(true));
        let media = NamedMedia(making.clone());
        for (second, says) in [
            ("rados:other/i", "no pool other"),
            ("rados:gone/i", "no monitor"),
            ("rados:p", "POOL/IMAGE"),
        ] {
            let links = ["rados:p/one", second].map(|name| LinkSpec::plain(DeviceSpec::new(name)));
            let new = NewVolume::new("v", 16 * MIB, links.to_vec());
            let error = create_on(&env, &media, folder.path(), &new, &|_, _| {}).await.unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(text.contains(says), "{text}");
            assert_eq!(cluster.objects(), [""; 0], "{second}");
        }
        chained(&env, &making, folder.path()).await.unwrap();
        destroy_on(&env, &media, folder.path()).await.unwrap();
        // Blank images are used again.
        chained(&env, &making, folder.path()).await.unwrap();
        making.close().await.unwrap();
    });
}

#[test]
fn an_image_is_made_found_stopped_and_removed() {
    run(4, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let kind = kind(&env, &cluster, opener(true));
        assert!(!kind.exists("p/i").await.unwrap());
        let absent = kind.open("p/i", Access::Exclusive, None).await.unwrap_err().to_string();
        assert!(absent.contains("no such image"), "{absent}");
        kind.create("p/i", MIB, Some(512)).await.unwrap();
        let again = kind.create("p/i", MIB, None).await.unwrap_err().to_string();
        assert!(again.contains("already"), "{again}");
        let sector = kind.open("p/i", Access::Exclusive, Some(4096)).await.unwrap_err().to_string();
        assert!(sector.contains("512 bytes, not 4096"), "{sector}");
        let device = kind.open("p/i", Access::Exclusive, Some(512)).await.unwrap();
        assert_eq!(device.name(), "rados:simulated/i");
        let twice = kind.open("p/i", Access::Exclusive, None).await;
        assert!(matches!(twice, Err(DeviceError::Locked { .. })), "{twice:?}");
        // Without a lock it is read by any program, and only read.
        let elsewhere = Opener { machine: "elsewhere".to_owned(), ..opener(true) };
        let other = self::kind(&env, &cluster, elsewhere);
        let reading = other.open("p/i", Access::Reading, None).await.unwrap();
        assert_eq!(reading.read(0, 512, Purpose::Label).await.unwrap()[..], [0; 512]);
        assert!(reading.write(0, vec![vec![1; 512].into()], Purpose::Label).await.is_err());
        let refused = other.remove("p/i").await;
        assert!(matches!(refused, Err(DeviceError::Locked { .. })), "{refused:?}");

        let stopped = other.break_lock("p/i").await.unwrap();
        assert!(stopped.len() == 1 && stopped[0].contains("process"), "{stopped:?}");
        let late = device.write(0, vec![vec![1; 512].into()], Purpose::Label).await;
        assert!(matches!(late, Err(DeviceError::Fenced { .. })), "{late:?}");
        assert_eq!(other.break_lock("p/i").await.unwrap(), [""; 0]);
        other.remove("p/i").await.unwrap();
        other.remove("p/i").await.unwrap();
        assert_eq!(cluster.objects(), [""; 0]);
    });
}

#[test]
fn a_device_that_was_dropped_is_opened_again_by_its_program() {
    run(5, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let kind = kind(&env, &cluster, opener(true));
        kind.create("p/i", MIB, None).await.unwrap();
        for access in [Access::Exclusive, Access::Shared, Access::ReadOnly, Access::Exclusive] {
            let device = kind.open("p/i", access, None).await.unwrap();
            // A write in flight delays the release.
            let mut write = device.write(0, vec![vec![1; MIB as usize].into()], Purpose::UserData);
            let _ = futures::poll!(&mut write);
            drop(write);
            drop(device);
        }
        let shared = kind.open("p/i", Access::Shared, None).await.unwrap();
        kind.open("p/i", Access::Shared, None).await.unwrap();
        drop(shared);
        kind.close().await.unwrap();
        // Released, although the first program did not end.
        env.sleep(Duration::ZERO).await;
        let elsewhere = Opener { machine: "elsewhere".to_owned(), ..opener(true) };
        self::kind(&env, &cluster, elsewhere).open("p/i", Access::Exclusive, None).await.unwrap();
    });
}
