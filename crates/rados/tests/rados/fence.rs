//! Two clients of one image: the one that lost it changes nothing.

use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_rados::fence::BLOCKLISTED;
use thalweg_rados::{Opening, RadosDevice};
use thalweg_sim::campaign;
use thalweg_sim::rados::{RadosSpec, SimRados};
use thalweg_sim::run;
use thalweg_store::device::{Device, DeviceError, Purpose};

use crate::device::{OPTIONS, SIZE};

const OBJECT: u64 = OPTIONS.object_size;

fn filled(fill: u8) -> Vec<Bytes> {
    vec![vec![fill; 512].into()]
}

async fn write(device: &RadosDevice, at: u64, fill: u8) -> Result<(), DeviceError> {
    device.write(at, filled(fill), Purpose::UserData).await
}

async fn byte(device: &RadosDevice, at: u64) -> u8 {
    device.read(at, 512, Purpose::UserData).await.unwrap()[0]
}

fn is_fenced<T>(outcome: &Result<T, DeviceError>) -> bool {
    matches!(outcome, Err(DeviceError::Fenced { .. }))
}

#[test]
fn an_open_device_is_locked_and_a_closed_one_is_not() {
    run(1, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let (one, other) = (cluster.client().store(), cluster.client().store());
        let create = RadosDevice::create(&env, one.clone(), "d", SIZE, &OPTIONS).await.unwrap();
        for store in [&one, &other] {
            let opened = RadosDevice::open(&env, store.clone(), "d", Opening::Exclusive).await;
            assert!(matches!(opened, Err(DeviceError::Locked { .. })), "{opened:?}");
        }
        // A client does not put itself on the blocklist.
        let opened = RadosDevice::open(&env, one.clone(), "d", Opening::TakeOver).await;
        assert!(matches!(opened, Err(DeviceError::Locked { .. })), "{opened:?}");
        write(&create, 0, 1).await.unwrap();
        drop(create);
        env.sleep(Duration::from_secs(1)).await;
        RadosDevice::open(&env, other, "d", Opening::Exclusive).await.unwrap();
    });
}

#[test]
fn a_client_that_lost_the_lock_says_so_and_sends_nothing_more() {
    run(2, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let (one, other) = (cluster.client().store(), cluster.client().store());
        let old = RadosDevice::create(&env, one, "d", SIZE, &OPTIONS).await.unwrap();
        write(&old, 0, 1).await.unwrap();
        let new = RadosDevice::open(&env, other, "d", Opening::TakeOver).await.unwrap();
        assert_eq!(byte(&new, 0).await, 1);
        assert!(is_fenced(&write(&old, 0, 2).await));
        assert!(old.is_fenced());
        // Even if the cluster would accept it again.
        cluster.clear_blocklist();
        let data = filled(2);
        assert!(is_fenced(&old.write_durably(OBJECT, data, Purpose::UserData).await));
        assert!(is_fenced(&old.read(0, 512, Purpose::UserData).await));
        assert!(is_fenced(&old.flush(Purpose::UserData).await));
        assert!(is_fenced(&old.discard(0, OBJECT).await));
        assert!(is_fenced(&old.grow_to(Some(2 * SIZE)).await));
        old.close().await.unwrap();
        assert_eq!(byte(&new, 0).await, 1);
        write(&new, 0, 3).await.unwrap();
    });
}

#[test]
fn what_a_newer_client_wrote_is_guarded_without_the_blocklist() {
    run(3, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let (one, other) = (cluster.client().store(), cluster.client().store());
        let old = RadosDevice::create(&env, one, "d", SIZE, &OPTIONS).await.unwrap();
        for at in 0..3 {
            write(&old, at * OBJECT, 1).await.unwrap();
        }
        let new = RadosDevice::open(&env, other, "d", Opening::TakeOver).await.unwrap();
        for at in 0..3 {
            write(&new, at * OBJECT, 2).await.unwrap();
        }
        env.sleep(Duration::from_secs(3600)).await;
        cluster.clear_blocklist();
        // Each of these would be the old client's first request since.
        let (grown, discarded, written) = futures::join!(
            old.grow_to(Some(2 * SIZE)),
            old.discard(OBJECT, OBJECT),
            write(&old, 0, 3),
        );
        assert!(is_fenced(&grown) && is_fenced(&discarded) && is_fenced(&written));
        for at in 0..3 {
            assert_eq!(byte(&new, at * OBJECT).await, 2);
        }
        assert_eq!(new.grow_to(None).await.unwrap(), SIZE);
    });
}

#[test]
fn from_the_take_over_on_no_server_takes_a_write_of_the_old_client() {
    for object in 0..SIZE / OBJECT {
        let spec = RadosSpec { map_delay: Duration::from_secs(5), ..RadosSpec::default() };
        run(object, |env| async move {
            let cluster = SimRados::new(&env, spec);
            let (one, other) = (cluster.client().store(), cluster.client().store());
            let old = RadosDevice::create(&env, one, "d", SIZE, &OPTIONS).await.unwrap();
            write(&old, object * OBJECT, 1).await.unwrap();
            let new = RadosDevice::open(&env, other, "d", Opening::TakeOver).await.unwrap();
            // Its first request since, to a server that the new client has not asked for any object.
            assert!(is_fenced(&write(&old, object * OBJECT, 2).await), "object {object}");
            assert_eq!(byte(&new, object * OBJECT).await, 1);
        });
    }
}

/// The old client writes to all objects all the time, with slow messages; servers learn of the blocklist late. The
/// bytes that the new client has read do not change.
async fn take_over_under_load(env: Env, spec: RadosSpec) {
    let cluster = SimRados::new(&env, spec);
    let (one, other) = (cluster.client(), cluster.client());
    let old = RadosDevice::create(&env, one.store(), "d", SIZE, &OPTIONS).await.unwrap();
    let objects = SIZE / OBJECT;
    for at in 0..objects / 2 {
        write(&old, at * OBJECT, 1).await.unwrap();
    }
    let writer = env.spawn({
        let env = env.clone();
        async move {
            let mut rng = env.rng();
            for fill in 2..=250 {
                one.delay(Duration::from_micros(rand::RngExt::random_range(&mut rng, 0..3000)));
                let at = rand::RngExt::random_range(&mut rng, 0..objects) * OBJECT;
                // Not awaited for long: many are under way.
                let waiting = Duration::from_micros(100);
                let _ = env.timeout(waiting, write(&old, at, fill)).await;
            }
            old
        }
    });
    env.sleep(Duration::from_millis(10)).await;
    let new = RadosDevice::open(&env, other.store(), "d", Opening::TakeOver).await.unwrap();
    let whole = new.read(0, SIZE as usize, Purpose::UserData).await.unwrap();
    let old = writer.await.unwrap();
    env.sleep(Duration::from_secs(10)).await;
    assert_eq!(new.read(0, SIZE as usize, Purpose::UserData).await.unwrap(), whole);
    assert!(is_fenced(&write(&old, 0, 251).await));
}

#[test]
fn nothing_of_the_old_client_arrives_after_the_take_over() {
    for seed in campaign::seeds(30) {
        let spec = RadosSpec { map_delay: Duration::from_secs(5), ..RadosSpec::default() };
        run(seed, |env| take_over_under_load(env, spec));
    }
}

#[test]
fn an_opening_that_loses_a_race_leaves_the_winner_alone() {
    for seed in campaign::seeds(10) {
        run(seed, |env| async move {
            let cluster = SimRados::new(&env, RadosSpec::default());
            let dead = cluster.client().store();
            let device = RadosDevice::create(&env, dead, "d", SIZE, &OPTIONS).await.unwrap();
            write(&device, 0, 1).await.unwrap();
            let clients = [cluster.client(), cluster.client(), cluster.client()];
            let opened = futures::future::join_all(
                clients
                    .iter()
                    .map(|client| RadosDevice::open(&env, client.store(), "d", Opening::TakeOver)),
            )
            .await;
            let mut working = 0;
            for opened in opened.iter().flatten() {
                working += usize::from(write(opened, 0, 2).await.is_ok());
            }
            assert!(working <= 1, "{working} of them write");
        });
    }
}

#[test]
fn the_blocklist_outlasts_a_machine_that_was_frozen_for_a_day() {
    assert!(BLOCKLISTED > Duration::from_secs(24 * 3600));
}
