//! Devices on a simulated cluster.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_rados::object::{Change, Step};
use thalweg_rados::{ObjectStoreRef, Opening, RadosDevice, RadosOptions};
use thalweg_sim::conformance::{Promises, check_all};
use thalweg_sim::rados::{RadosSpec, SimRados};
use thalweg_sim::run;
use thalweg_store::device::{Device, DeviceError, DeviceRef, Purpose};

pub(crate) const SIZE: u64 = 256 << 10;

/// Objects so small that requests touch several.
pub(crate) const OPTIONS: RadosOptions = RadosOptions { object_size: 16 << 10, sector: 512 };

pub(crate) const PROMISES: Promises =
    Promises { grows: true, discards_to_zeros: true, flush_waits_for_dropped: true };

/// A new device of its own image.
pub(crate) async fn fresh(env: &Env, store: &ObjectStoreRef) -> DeviceRef {
    let image = env.uuid().to_string();
    Arc::new(RadosDevice::create(env, store.clone(), &image, SIZE, &OPTIONS).await.unwrap())
}

async fn create(env: &Env, store: &ObjectStoreRef) -> RadosDevice {
    RadosDevice::create(env, store.clone(), "d", SIZE, &OPTIONS).await.unwrap()
}

async fn open(env: &Env, store: &ObjectStoreRef, opening: Opening) -> RadosDevice {
    RadosDevice::open(env, store.clone(), "d", opening).await.unwrap()
}

fn filled(fill: u8) -> Vec<Bytes> {
    vec![vec![fill; 512].into()]
}

#[test]
fn a_device_on_objects_conforms() {
    run(1, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let store = cluster.client().store();
        check_all(PROMISES, 12, async || fresh(&env, &store).await).await;
    });
}

#[test]
fn a_device_of_one_object_and_one_of_sector_sized_ones_conform() {
    for object_size in [512, SIZE] {
        run(2, |env| async move {
            let cluster = SimRados::new(&env, RadosSpec::default());
            let store = cluster.client().store();
            let options = RadosOptions { object_size, ..OPTIONS };
            let fresh = async || {
                let image = env.uuid().to_string();
                let store = store.clone();
                let device = RadosDevice::create(&env, store, &image, SIZE, &options).await;
                Arc::new(device.unwrap()) as DeviceRef
            };
            check_all(PROMISES, 3, fresh).await;
        });
    }
}

#[test]
fn a_device_keeps_bytes_size_and_identity_when_it_is_opened_again() {
    run(3, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let store = cluster.client().store();
        let device = create(&env, &store).await;
        let identity = device.identity();
        assert_eq!((device.epoch(), device.geometry().size), (1, SIZE));
        device.write_durably(SIZE - 512, filled(7), Purpose::Map).await.unwrap();
        device.grow_to(Some(3 * SIZE)).await.unwrap();
        device.close().await.unwrap();
        let closed = device.write(0, filled(8), Purpose::Map).await;
        assert!(matches!(closed, Err(DeviceError::Closed { .. })), "{closed:?}");
        let device = open(&env, &store, Opening::Exclusive).await;
        assert_eq!((device.epoch(), device.geometry().size), (2, 3 * SIZE));
        assert_eq!(device.identity(), identity);
        let read = device.read(SIZE - 512, 1024, Purpose::Map).await.unwrap();
        assert_eq!(read[..], [[7; 512], [0; 512]].concat());
        assert_eq!(device.name(), "rados:simulated/d");
    });
}

#[test]
fn a_whole_object_that_is_discarded_goes() {
    run(4, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let store = cluster.client().store();
        let device = create(&env, &store).await;
        let all = vec![Bytes::from(vec![1; 48 << 10])];
        device.write(0, all, Purpose::UserData).await.unwrap();
        assert_eq!(cluster.objects().len(), 4);
        device.discard(512, 32 << 10).await.unwrap();
        assert_eq!(cluster.objects(), ["d.0000000000000000", "d.0000000000000002", "d.header"]);
        device.close().await.unwrap();
        RadosDevice::remove(&env, store.clone(), "d").await.unwrap();
        assert_eq!(cluster.objects(), Vec::<String>::new());
        let gone = RadosDevice::open(&env, store, "d", Opening::Exclusive).await;
        assert!(matches!(gone, Err(DeviceError::Io { .. })), "{gone:?}");
        assert_eq!(cluster.objects(), Vec::<String>::new());
    });
}

#[test]
fn a_write_of_several_objects_takes_as_long_as_one() {
    run(5, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let device = create(&env, &cluster.client().store()).await;
        let whole = |len: usize| vec![Bytes::from(vec![1; len])];
        device.write(0, whole(SIZE as usize), Purpose::UserData).await.unwrap();
        let mut took = Vec::new();
        for len in [512, 16 << 10, 8 * 512 + (15 << 10)] {
            let begun = env.now();
            device.write((16 << 10) - 512, whole(len), Purpose::UserData).await.unwrap();
            took.push(env.now().since(begun));
        }
        assert!(took[2] < took[0] * 2, "{took:?}");
    });
}

#[test]
fn a_write_is_one_operation_on_each_object_but_the_first_write_is_two() {
    run(12, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let device = create(&env, &cluster.client().store()).await;
        let data = || vec![Bytes::from(vec![1; 32 << 10])];
        for expected in [4, 2, 2] {
            let before = cluster.tally();
            device.write_durably(0, data(), Purpose::UserData).await.unwrap();
            let after = cluster.tally();
            assert_eq!(after.changes - before.changes, expected);
        }
        let before = cluster.tally();
        assert_eq!(device.read(512, 31 << 10, Purpose::UserData).await.unwrap()[..], [1; 31 << 10]);
        device.flush(Purpose::UserData).await.unwrap();
        let after = cluster.tally();
        assert_eq!(after.reads - before.reads, 2);
        assert_eq!(after.read_bytes - before.read_bytes, 31 << 10);
        // A flush is no request.
        assert_eq!((after.changes, after.locks), (before.changes, before.locks));
    });
}

#[test]
fn a_flush_waits_for_a_write_whose_future_was_dropped() {
    run(11, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let client = cluster.client();
        let device = create(&env, &client.store()).await;
        device.write(0, filled(1), Purpose::UserData).await.unwrap();
        client.delay(Duration::from_secs(3));
        let mut dropped = device.write(0, filled(2), Purpose::UserData);
        assert!(futures::poll!(&mut dropped).is_pending());
        drop(dropped);
        let begun = env.now();
        device.flush(Purpose::UserData).await.unwrap();
        assert!(env.now().since(begun) >= Duration::from_secs(3));
        let read = cluster.client().store().read("d.0000000000000000", 0, 512).await.unwrap();
        assert_eq!(read[..], [2; 512]);
    });
}

#[test]
fn a_full_pool_takes_overwrites_and_discards_only() {
    run(6, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let device = create(&env, &cluster.client().store()).await;
        device.write(0, filled(1), Purpose::UserData).await.unwrap();
        cluster.fill(true);
        for at in [512, 16 << 10] {
            let full = device.write(at, filled(2), Purpose::UserData).await;
            assert!(matches!(full, Err(DeviceError::NoSpace { .. })), "{full:?}");
        }
        device.write(0, filled(2), Purpose::UserData).await.unwrap();
        assert_eq!(device.read(0, 512, Purpose::UserData).await.unwrap()[..], [2; 512]);
        device.discard(0, 16 << 10).await.unwrap();
        cluster.fill(false);
        device.write(16 << 10, filled(3), Purpose::UserData).await.unwrap();
    });
}

#[test]
fn a_server_that_dies_delays_requests_and_loses_nothing() {
    run(7, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let device = create(&env, &cluster.client().store()).await;
        let all = vec![Bytes::from(vec![1; SIZE as usize])];
        device.write(0, all, Purpose::UserData).await.unwrap();
        cluster.kill(1);
        let begun = env.now();
        let all = vec![Bytes::from(vec![2; SIZE as usize])];
        device.write(0, all, Purpose::UserData).await.unwrap();
        let took = env.now().since(begun);
        assert!((19..25).contains(&took.as_secs()), "{took:?}");
        // With one server of three, no group serves.
        cluster.kill(2);
        let unanswered = device.write(0, filled(3), Purpose::UserData).await;
        assert!(matches!(unanswered, Err(DeviceError::Io { .. })), "{unanswered:?}");
        cluster.revive(1);
        let read = device.read(512, SIZE as usize - 512, Purpose::UserData).await.unwrap();
        assert!(read.iter().all(|byte| *byte == 2));
    });
}

#[test]
fn a_change_without_an_answer_keeps_the_lock() {
    run(8, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let store = cluster.client().store();
        let device = create(&env, &store).await;
        device.write(0, filled(1), Purpose::UserData).await.unwrap();
        cluster.stall("d.0000000000000000", true);
        let late = device.write(0, filled(2), Purpose::UserData).await;
        assert!(matches!(late, Err(DeviceError::Io { .. })), "{late:?}");
        device.close().await.unwrap();
        let other = cluster.client().store();
        let locked = RadosDevice::open(&env, other.clone(), "d", Opening::Exclusive).await;
        assert!(matches!(locked, Err(DeviceError::Locked { .. })), "{locked:?}");
        cluster.stall("d.0000000000000000", false);
        let device = open(&env, &other, Opening::TakeOver).await;
        let read = device.read(0, 512, Purpose::UserData).await.unwrap();
        env.sleep(Duration::from_secs(60)).await;
        assert_eq!(device.read(0, 512, Purpose::UserData).await.unwrap(), read);
    });
}

#[test]
fn a_damaged_header_is_an_error() {
    run(9, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let store = cluster.client().store();
        create(&env, &store).await.close().await.unwrap();
        let scribble = Step::Write { offset: 20, data: vec![Bytes::from_static(b"x")] };
        store.apply("d.header", Change::new().then(scribble)).await.unwrap();
        let damaged = RadosDevice::open(&env, store, "d", Opening::Exclusive).await;
        assert!(damaged.unwrap_err().to_string().contains("checksum"));
    });
}

#[test]
fn layouts_that_no_device_has_are_refused() {
    run(10, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let store = cluster.client().store();
        for (size, object_size, sector) in
            [(1000, 4096, 512), (4096, 100, 512), (4096, 128 << 20, 512), (4096, 4096, 1024)]
        {
            let options = RadosOptions { object_size, sector };
            let made = RadosDevice::create(&env, store.clone(), "d", size, &options).await;
            assert!(matches!(made, Err(DeviceError::Io { .. })), "{made:?}");
        }
        assert_eq!(cluster.objects(), Vec::<String>::new());
    });
}
