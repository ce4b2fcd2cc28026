//! On a real cluster.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_rados::object::{Change, Comparison, Step};
use thalweg_rados::{
    Cluster, ClusterOptions, ObjectError, ObjectStore, ObjectStoreRef, Opening, RadosDevice,
    RadosOptions,
};
use thalweg_store::device::{Device, DeviceError, Purpose};

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
    let begun = rig.env.now();
    let second = RadosDevice::open(&rig.env, other, "d", Opening::TakeOver).await.unwrap();
    eprintln!("taking over took {:?}", rig.env.now().since(begun));
    let late = device.write(0, vec![data.slice(..4096)], Purpose::UserData).await;
    assert!(matches!(late, Err(DeviceError::Fenced { .. })), "{late:?}");
    second.write(0, vec![data.slice(..4096)], Purpose::UserData).await.unwrap();
    second.close().await.unwrap();
}
