//! Runs with the same seed give the same trace.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_sim::recording::Recorder;
use thalweg_sim::run;
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::device::{DeviceRef, Geometry, Purpose};

/// A digest of the end time and the result of every request of a random load, and of the log.
fn trace(seed: u64) -> u64 {
    run(seed, |env| async move {
        const SIZE: u64 = 256 << 20;
        let recorder = Recorder::with_latency(&env, Duration::from_millis(1));
        let devices: [DeviceRef; 4] = [
            Arc::new(HardDisk::new(&env, "sas", HardDiskSpec::sas_15k(SIZE))),
            Arc::new(HardDisk::new(&env, "sata", HardDiskSpec::sata_7200(SIZE))),
            Arc::new(SolidState::new(&env, "ssd", SolidStateSpec::sata(SIZE))),
            recorder.device("recorded", Geometry { size: SIZE, sector: 512 }),
        ];
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        for (task, device) in devices.iter().cycle().take(32).enumerate() {
            let (env, device, sender) = (env.clone(), Arc::clone(device), sender.clone());
            let mut rng = env.rng();
            let spawner = env.clone();
            let load = async move {
                for _ in 0..50 {
                    let offset = rng.random_range(0..64u64) * 4096;
                    let read = match rng.random_range(0..10) {
                        0 => device.flush(Purpose::Map).await.map(|()| Bytes::new()),
                        1..5 => {
                            let data = vec![Bytes::from(vec![rng.random(); 4096])];
                            device.write(offset, data, Purpose::Map).await.map(|()| Bytes::new())
                        }
                        _ => device.read(offset, 4096, Purpose::Map).await,
                    };
                    sender.send((task, env.now(), read.unwrap())).unwrap();
                    env.sleep(Duration::from_micros(rng.random_range(0..500))).await;
                }
            };
            spawner.spawn(load).detach();
        }
        drop(sender);
        let mut hasher = foldhash::fast::FixedState::default().build_hasher();
        let mut events = 0;
        while let Some((task, time, read)) = receiver.recv().await {
            hasher.write_usize(task);
            hasher.write_u64(time.as_nanos());
            hasher.write(&read);
            events += 1;
        }
        assert_eq!(events, 1600);
        hasher.write(format!("{:?}", recorder.log().events).as_bytes());
        hasher.finish()
    })
}

#[test]
fn equal_seeds_give_equal_traces_and_others_do_not() {
    let traces: Vec<u64> = (0..4).map(trace).collect();
    assert_eq!(traces, (0..4).map(trace).collect::<Vec<_>>());
    let distinct: std::collections::BTreeSet<_> = traces.iter().collect();
    assert_eq!(distinct.len(), 4);
}
