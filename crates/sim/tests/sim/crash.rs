//! Crash images expose a store that omits a flush, and show no fault in a correct one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::SeedableRng;
use thalweg_env::{Env, Rng};
use thalweg_sim::crash::{CrashImage, Points, Policy, Shape};
use thalweg_sim::recording::{Event, Recorder};
use thalweg_sim::run;
use thalweg_store::device::{DeviceRef, Geometry, Purpose};

const SECTOR: u64 = 512;
const SLOT: u64 = 4096;
const GEOMETRY: Geometry = Geometry { size: 1 << 20, sector: SECTOR as u32 };

/// A store of one value: versions in slots of a data device, and on another device a pointer to the
/// newest version. Correct if the data is flushed before the pointer is written.
struct Store {
    data: DeviceRef,
    pointer: DeviceRef,
    careful: bool,
}

impl Store {
    async fn put(&self, version: u64) {
        let slot = vec![Bytes::from(vec![version as u8; SLOT as usize])];
        self.data.write(version * SLOT, slot, Purpose::UserData).await.unwrap();
        if self.careful {
            self.data.flush(Purpose::UserData).await.unwrap();
        }
        let pointer = vec![Bytes::from(vec![version as u8; SECTOR as usize])];
        self.pointer.write(0, pointer, Purpose::Map).await.unwrap();
        self.pointer.flush(Purpose::Map).await.unwrap();
        self.data.flush(Purpose::UserData).await.unwrap();
    }

    /// The version recovered, if its value is whole.
    async fn recover(image: &CrashImage) -> Option<u64> {
        let pointer = image.devices[1].read(0, SECTOR as usize, Purpose::Map).await.unwrap();
        let version = u64::from(pointer[0]);
        let slot = image.devices[0].read(version * SLOT, SLOT as usize, Purpose::Map).await;
        slot.unwrap().iter().all(|byte| u64::from(*byte) == version).then_some(version)
    }
}

async fn load(env: &Env, latency: Duration, careful: bool) -> Recorder {
    let recorder = Recorder::with_latency(env, latency);
    let data = recorder.device("data", GEOMETRY);
    let pointer = recorder.device("pointer", GEOMETRY);
    let store = Store { data, pointer, careful };
    for version in 1..20 {
        store.put(version).await;
        recorder.mark(version);
    }
    recorder
}

/// The number of images, and of those that break the crash rule.
async fn count(recorder: &Recorder, policy: &Policy) -> (usize, usize) {
    let (mut images, mut broken) = (0, 0);
    for image in recorder.images(&mut Rng::seed_from_u64(1), policy) {
        let acknowledged = image.acknowledged().next().unwrap_or(0);
        images += 1;
        broken += usize::from(Store::recover(&image).await.is_none_or(|v| v < acknowledged));
    }
    (images, broken)
}

#[test]
fn a_forgotten_flush_is_found_and_a_careful_store_passes() {
    for latency in [Duration::ZERO, Duration::from_millis(1)] {
        for points in [Points::Every, Points::Flushes, Points::Sampled(40)] {
            let policy = Policy::thorough().at(points);
            run(1, |env| async move {
                let (images, broken) = count(&load(&env, latency, true).await, &policy).await;
                assert!(images > 200 && broken == 0, "{broken} of {images} images broken");
                let (images, broken) = count(&load(&env, latency, false).await, &policy).await;
                assert!(broken > 10, "{broken} of {images} images broken");
            });
        }
    }
}

#[test]
fn a_crash_during_recovery_starts_from_the_image_of_the_first() {
    run(2, |env| async move {
        let recorder = load(&env, Duration::ZERO, true).await;
        let image = recorder.image(recorder.position() / 2, Shape::Everything);
        let first = Store::recover(&image).await.unwrap();
        let (again, devices) = Recorder::from_image(&env, Duration::ZERO, &image);
        let (data, pointer) = (Arc::clone(&devices[0]), Arc::clone(&devices[1]));
        assert_eq!(data.name(), "data");
        Store { data, pointer, careful: true }.put(first + 1).await;
        let policy = Policy::thorough().at(Points::Every);
        let mut recovered = Vec::new();
        for image in again.images(&mut Rng::seed_from_u64(1), &policy) {
            recovered.push(Store::recover(&image).await.unwrap());
        }
        recovered.dedup();
        assert_eq!(recovered.first(), Some(&first));
        assert_eq!(recovered.last(), Some(&(first + 1)));
    });
}

#[test]
fn images_are_independent_of_each_other() {
    run(3, |env| async move {
        let recorder = load(&env, Duration::ZERO, true).await;
        let policy = Policy::thorough();
        let mut versions = Vec::new();
        for scribble in [false, true] {
            let mut found = Vec::new();
            for image in recorder.images(&mut Rng::seed_from_u64(1), &policy) {
                found.push(Store::recover(&image).await);
                if scribble {
                    let noise = vec![Bytes::from(vec![0xee; GEOMETRY.size as usize])];
                    image.devices[0].write(0, noise, Purpose::Map).await.unwrap();
                }
            }
            versions.push(found);
        }
        assert_eq!(versions[0], versions[1]);
    });
}

#[test]
fn a_write_that_nobody_waits_for_still_ends() {
    run(4, |env| async move {
        let recorder = Recorder::with_latency(&env, Duration::from_secs(1));
        let device = recorder.device("device", GEOMETRY);
        let data = vec![Bytes::from(vec![1; 512])];
        let write = device.write(0, data, Purpose::Map);
        assert!(env.timeout(Duration::from_nanos(1), write).await.is_none());
        assert_eq!(recorder.log().events, [Event::WriteBegan(0), Event::WriteEnded(0)]);
        assert_eq!(device.read(0, 512, Purpose::Map).await.unwrap(), vec![1; 512]);
    });
}

#[test]
fn a_discarded_range_may_read_as_anything() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..30 {
        run(seed, |env| {
            let seen = &mut seen;
            async move {
                let recorder = Recorder::new(&env);
                let device = recorder.device("device", GEOMETRY);
                let data = vec![Bytes::from(vec![1; 4096])];
                device.write(0, data, Purpose::Map).await.unwrap();
                device.flush(Purpose::Map).await.unwrap();
                device.discard(0, 4096).await.unwrap();
                let live = device.read(0, 4096, Purpose::Map).await.unwrap()[0];
                let lost = recorder.image(recorder.position(), Shape::Nothing);
                let lost = lost.devices[0].read(0, 512, Purpose::Map).await.unwrap()[0];
                seen.insert((live, lost));
            }
        });
    }
    assert_eq!(seen, [(0, 1), (1, 1), (0xdd, 1)].into());
}
