//! On a real cluster.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_rados::object::{Change, Comparison, Step};
use thalweg_rados::{
    Cluster, ClusterOptions, ObjectError, ObjectStoreRef, Opening, RadosDevice, RadosOptions,
};
use thalweg_sim::conformance::check_all;
use thalweg_store::device::{Device, DeviceError, Purpose};

use crate::device::{OPTIONS, PROMISES, SIZE, fresh};
use crate::files::agree_with_the_model;
use crate::frozen;
use crate::mini_cluster::MiniCluster;

struct Rig {
    env: Env,
    mini: MiniCluster,
}

impl Rig {
    async fn connect(&self) -> Cluster {
        let options = ClusterOptions { conf: Some(self.mini.conf()), ..ClusterOptions::default() };
        Cluster::connect(&options).await.unwrap()
    }

    /// The test pool, through a connection of its own: a client that another one can fence.
    async fn client(&self) -> ObjectStoreRef {
        Arc::new(self.connect().await.pool("test", "").await.unwrap())
    }
}

/// All scenarios share one cluster, which takes seconds to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_real_cluster() {
    let Some(mini) = MiniCluster::start() else { return };
    let rig = Rig { env: Env::real(), mini };
    guards_are_those_of_the_interface(&rig).await;
    a_device_keeps_its_bytes(&rig).await;
    a_device_conforms(&rig).await;
    files_agree(&rig).await;
    buffers_live_until_the_request_ends_and_no_longer(&rig).await;
    connections_that_cannot_be_made_are_errors_in_seconds(&rig).await;
    a_take_over_needs_a_right_to_the_blocklist(&rig).await;
    frozen::wakes_up_and_changes_nothing(&rig.env, &rig.mini).await;
    a_server_that_dies_loses_nothing(&rig).await;
    a_full_pool_says_so(&rig).await;
}

fn compare(comparison: Comparison, value: &'static str) -> Step {
    Step::Compare { attribute: "a", comparison, value: Bytes::from_static(value.as_bytes()) }
}

fn set(value: &'static str) -> Step {
    Step::SetAttribute { attribute: "a", value: Bytes::from_static(value.as_bytes()) }
}

async fn guards_are_those_of_the_interface(rig: &Rig) {
    let pool = rig.client().await;
    let write = |offset, text: &'static str| Step::Write {
        offset,
        data: vec![Bytes::from_static(text.as_bytes())],
    };
    let at_least = |value| Change::new().then(compare(Comparison::AtLeast, value));
    let outcome = pool.apply("g", at_least("1").then(write(0, "x"))).await;
    assert!(matches!(outcome, Err(ObjectError::NotFound { .. })));
    pool.apply("g", Change::new().then(write(0, "abc"))).await.unwrap();
    pool.apply("g", at_least("5").then(set("5")).then(write(1, "X"))).await.unwrap();
    assert_eq!(pool.read("g", 0, 10).await.unwrap()[..], *b"aXc");
    let outcome = pool.apply("g", at_least("4").then(write(0, "Y"))).await;
    assert!(matches!(outcome, Err(ObjectError::Conflict { .. })), "{outcome:?}");
    pool.apply("g", at_least("6").then(write(0, "Z"))).await.unwrap();
    let equal = Change::new().then(compare(Comparison::Equal, "5")).then(write(2, "W"));
    pool.apply("g", equal).await.unwrap();
    let outcome = pool.apply("g", Change::new().then(Step::CreateNew)).await;
    assert!(matches!(outcome, Err(ObjectError::Exists { .. })), "{outcome:?}");
    assert_eq!(pool.read("g", 1, 1).await.unwrap()[..], *b"X");
    assert_eq!(pool.read("g", 3, 1).await.unwrap().len(), 0);
    pool.apply("g", Change::new().then(Step::Zero { offset: 0, len: 2 })).await.unwrap();
    assert_eq!(pool.read("g", 0, 10).await.unwrap()[..], *b"\0\0W");
    pool.apply("g", Change::new().then(Step::Truncate { size: 1 })).await.unwrap();
    assert_eq!(pool.read("g", 0, 10).await.unwrap()[..], *b"\0");
    pool.apply("g", Change::new().then(Step::Remove)).await.unwrap();
    let outcome = pool.read("g", 0, 10).await;
    assert!(matches!(outcome, Err(ObjectError::NotFound { .. })), "{outcome:?}");
    let outcome = pool.apply("g", Change::new().then(Step::Remove)).await;
    assert!(matches!(outcome, Err(ObjectError::NotFound { .. })), "{outcome:?}");
}

async fn a_device_conforms(rig: &Rig) {
    let store = rig.client().await;
    check_all(PROMISES, 4, async || fresh(&rig.env, &store).await).await;
}

async fn files_agree(rig: &Rig) {
    agree_with_the_model(rig.client().await, &mut rig.env.rng(), 60).await;
}

/// A buffer that counts how many of its kind there are.
struct Counted {
    bytes: Vec<u8>,
    _alive: Arc<()>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

async fn buffers_live_until_the_request_ends_and_no_longer(rig: &Rig) {
    let pool = rig.client().await;
    let size = 4 << 20;
    let options = RadosOptions { object_size: 1 << 20, sector: 4096 };
    let device = RadosDevice::create(&rig.env, pool, "b", size, &options).await.unwrap();
    device.write(0, vec![vec![1; size as usize].into()], Purpose::UserData).await.unwrap();
    let alive = Arc::new(());
    for at in 0..64 {
        let buffer = Bytes::from_owner(Counted { bytes: vec![2; 64 << 10], _alive: alive.clone() });
        let mut dropped = device.write(at * (64 << 10), vec![buffer], Purpose::UserData);
        assert!(futures::poll!(&mut dropped).is_pending());
        let mut dropped = device.read(at * (64 << 10), 64 << 10, Purpose::UserData);
        assert!(futures::poll!(&mut dropped).is_pending());
    }
    device.flush(Purpose::UserData).await.unwrap();
    let read = device.read(0, size as usize, Purpose::UserData).await.unwrap();
    assert!(read.iter().all(|byte| *byte == 2));
    // A completion runs on a thread of its own, soon after the flush's.
    for _ in 0..1000 {
        if Arc::strong_count(&alive) == 1 {
            break;
        }
        rig.env.sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(Arc::strong_count(&alive), 1);
    drop(device);
}

async fn connections_that_cannot_be_made_are_errors_in_seconds(rig: &Rig) {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(rig.mini.conf()).unwrap();
    let absent = folder.path().join("absent.conf");
    let other_host = |line: &str| match line.starts_with("mon_host") {
        true => "mon_host = [v2:127.0.0.1:1,v1:127.0.0.1:2]".to_owned(),
        false => line.to_owned(),
    };
    let lines: Vec<String> = text.lines().map(other_host).collect();
    std::fs::write(&absent, lines.join("\n") + "\n").unwrap();
    let usual = ClusterOptions {
        conf: Some(rig.mini.conf()),
        connect_timeout: Duration::from_secs(2),
        ..ClusterOptions::default()
    };
    let not_connected = |outcome: &Result<Cluster, ObjectError>| {
        matches!(outcome, Err(ObjectError::NotConnected { .. }))
    };
    let begun = rig.env.now();
    let outcome = Cluster::connect(&ClusterOptions { conf: Some(absent), ..usual.clone() }).await;
    assert!(not_connected(&outcome), "{outcome:?}");
    let took = rig.env.now().since(begun);
    assert!(took < Duration::from_secs(6), "{took:?}");
    let keyring = Some(folder.path().join("keyring"));
    let outcome = Cluster::connect(&ClusterOptions { keyring, ..usual.clone() }).await;
    assert!(not_connected(&outcome), "{outcome:?}");
    let unknown = ClusterOptions { id: "nobody".to_owned(), ..usual.clone() };
    let outcome = Cluster::connect(&unknown).await;
    assert!(outcome.is_err(), "{outcome:?}");
    let conf = Some(folder.path().join("none.conf"));
    let outcome = Cluster::connect(&ClusterOptions { conf, ..usual }).await;
    assert!(matches!(outcome, Err(ObjectError::Invalid { .. })), "{outcome:?}");
    let outcome = rig.connect().await.pool("no-such-pool", "").await;
    assert!(matches!(outcome, Err(ObjectError::NotFound { .. })), "{outcome:?}");
}

async fn a_server_that_dies_loses_nothing(rig: &Rig) {
    let device = fresh(&rig.env, &rig.client().await).await;
    let whole = |fill| vec![Bytes::from(vec![fill; SIZE as usize])];
    device.write(0, whole(1), Purpose::UserData).await.unwrap();
    rig.mini.run("kill-osd", &["2"]);
    device.write(0, whole(2), Purpose::UserData).await.unwrap();
    rig.mini.run("start-osd", &["2"]);
    let read = device.read(0, SIZE as usize, Purpose::UserData).await.unwrap();
    assert!(read.iter().all(|byte| *byte == 2));
}

async fn a_take_over_needs_a_right_to_the_blocklist(rig: &Rig) {
    let device =
        RadosDevice::create(&rig.env, rig.client().await, "r", SIZE, &OPTIONS).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let as_client = async |id: &str, mon: &str, osd: &str| {
        let keyring = folder.path().join(id);
        let (name, file) = (format!("client.{id}"), keyring.display().to_string());
        rig.mini.ceph(&["auth", "get-or-create", &name, "mon", mon, "osd", osd, "-o", &file]);
        let (id, keyring) = (id.to_owned(), Some(keyring));
        let conf = Some(rig.mini.conf());
        let options = ClusterOptions { conf, id, keyring, ..ClusterOptions::default() };
        let cluster = Cluster::connect(&options).await.unwrap();
        Arc::new(cluster.pool("test", "").await.unwrap()) as ObjectStoreRef
    };
    let store = as_client("weak", "allow r", "allow rwx pool=test").await;
    let refused = RadosDevice::open(&rig.env, store, "r", Opening::TakeOver).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("does not permit"), "{refused}");
    device.write(0, vec![vec![1; 512].into()], Purpose::UserData).await.unwrap();
    let store = as_client("strong", "profile rbd", "profile rbd pool=test").await;
    let taken = RadosDevice::open(&rig.env, store, "r", Opening::TakeOver).await.unwrap();
    taken.write(0, vec![vec![2; 512].into()], Purpose::UserData).await.unwrap();
    let late = device.write(0, vec![vec![3; 512].into()], Purpose::UserData).await;
    assert!(matches!(late, Err(DeviceError::Fenced { .. })), "{late:?}");
}

async fn a_full_pool_says_so(rig: &Rig) {
    let device = fresh(&rig.env, &rig.client().await).await;
    let write = async || {
        // Bytes that are overwritten need no space.
        device.discard(0, SIZE / 2).await.unwrap();
        device.write(0, vec![Bytes::from(vec![1; SIZE as usize])], Purpose::UserData).await
    };
    // The servers notice some seconds later.
    let wait_for = async |full: bool| {
        for _ in 0..300 {
            match write().await {
                Ok(()) if !full => return,
                Err(DeviceError::NoSpace { .. }) if full => return,
                Ok(()) | Err(DeviceError::NoSpace { .. }) => {
                    rig.env.sleep(Duration::from_millis(100)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the pool is not seen to change: full = {full}");
    };
    let kinds = ["full", "backfillfull", "nearfull"];
    let set = |kind, ratio| {
        rig.mini.ceph(&["osd", &format!("set-{kind}-ratio"), ratio]);
    };
    kinds.iter().for_each(|kind| set(kind, "0.00001"));
    wait_for(true).await;
    assert_eq!(device.read(SIZE - 512, 512, Purpose::UserData).await.unwrap()[..], [1; 512]);
    device.discard(0, SIZE).await.unwrap();
    kinds.iter().zip(["0.95", "0.90", "0.85"]).for_each(|(kind, ratio)| set(kind, ratio));
    wait_for(false).await;
}

async fn a_device_keeps_its_bytes(rig: &Rig) {
    let pool = rig.client().await;
    let options = RadosOptions { object_size: 64 << 10, sector: 4096 };
    let size = 1 << 20;
    let device = RadosDevice::create(&rig.env, pool.clone(), "d", size, &options).await.unwrap();
    let data = Bytes::from((0..200 << 10).map(|i| (i / 77) as u8).collect::<Vec<_>>());
    device.write(32 << 10, vec![data.clone()], Purpose::UserData).await.unwrap();
    device.flush(Purpose::UserData).await.unwrap();
    assert_eq!(device.read(32 << 10, data.len(), Purpose::UserData).await.unwrap(), data);
    device.discard(0, 128 << 10).await.unwrap();
    let read = device.read(0, 300 << 10, Purpose::UserData).await.unwrap();
    assert!(read[..128 << 10].iter().all(|byte| *byte == 0));
    assert_eq!(read[128 << 10..232 << 10], data[96 << 10..]);
    assert!(read[232 << 10..].iter().all(|byte| *byte == 0));
    device.close().await.unwrap();
    let device = RadosDevice::open(&rig.env, pool.clone(), "d", Opening::Exclusive).await.unwrap();
    assert_eq!(device.epoch(), 2);
    assert_eq!(device.read(0, 300 << 10, Purpose::UserData).await.unwrap(), read);
    let other = rig.client().await;
    let second = RadosDevice::open(&rig.env, other.clone(), "d", Opening::Exclusive).await;
    assert!(matches!(second, Err(DeviceError::Locked { .. })), "{second:?}");
    let second = RadosDevice::open(&rig.env, other, "d", Opening::TakeOver).await.unwrap();
    let late = device.write(0, vec![data.slice(..4096)], Purpose::UserData).await;
    assert!(matches!(late, Err(DeviceError::Fenced { .. })), "{late:?}");
    second.write(0, vec![data.slice(..4096)], Purpose::UserData).await.unwrap();
    second.close().await.unwrap();
}
