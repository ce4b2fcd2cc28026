//! Hard disks against their data sheets.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::Env;
use thalweg_sim::busy::Kind;
use thalweg_sim::hdd::{HardDisk, HardDiskSpec, Scheduling};
use thalweg_sim::run;
use thalweg_store::device::{Device, Power, Purpose};

const GIB: u64 = 1 << 30;
const SIZE: u64 = 64 * GIB;

fn pattern(byte: u8, len: usize) -> Vec<Bytes> {
    vec![Bytes::from(vec![byte; len])]
}

/// Bytes per second of `total` bytes moved in sequence, `depth` requests at a time.
async fn stream(env: &Env, disk: &Arc<HardDisk>, kind: Kind, depth: u64, request: u64) -> f64 {
    let total = 64u64 << 20;
    let start = env.now();
    let tasks: Vec<_> = (0..depth)
        .map(|task| {
            let disk = Arc::clone(disk);
            env.spawn(async move {
                for i in (task..total / request).step_by(depth as usize) {
                    let len = request as usize;
                    match kind {
                        Kind::Read => {
                            drop(disk.read(i * request, len, Purpose::Map).await.unwrap())
                        }
                        Kind::Write => {
                            let data = pattern(1, len);
                            disk.write(i * request, data, Purpose::Map).await.unwrap();
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    total as f64 / env.now().since(start).as_secs_f64()
}

#[test]
fn sequential_streams_run_at_the_sustained_rate() {
    for kind in [Kind::Read, Kind::Write] {
        for (depth, request) in [(1, 4096), (1, 1 << 20), (8, 65536)] {
            for spec in [HardDiskSpec::sas_10k(SIZE), HardDiskSpec::sas_15k(SIZE)] {
                let expected = spec.outer_rate as f64;
                let rate = run(1, |env| async move {
                    let disk = Arc::new(HardDisk::new(&env, "disk", spec));
                    stream(&env, &disk, kind, depth, request).await
                });
                let ratio = rate / expected;
                assert!((0.98..1.02).contains(&ratio), "{kind:?} {depth} {request}: {ratio}");
            }
        }
    }
}

/// The mean time of random requests of 4 KiB, `depth` at a time.
async fn random_load(env: &Env, disk: Arc<HardDisk>, kind: Kind, depth: u64, count: u64) -> f64 {
    let start = env.now();
    let tasks: Vec<_> = (0..depth)
        .map(|_| {
            let (disk, mut rng) = (Arc::clone(&disk), env.rng());
            env.spawn(async move {
                for _ in 0..count / depth {
                    let offset = rng.random_range(0..SIZE / 4096) * 4096;
                    match kind {
                        Kind::Read => drop(disk.read(offset, 4096, Purpose::Map).await.unwrap()),
                        Kind::Write => {
                            disk.write(offset, pattern(1, 4096), Purpose::Map).await.unwrap();
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    env.now().since(start).as_secs_f64() / count as f64
}

#[test]
fn random_requests_take_the_mean_seek_and_half_a_revolution() {
    for kind in [Kind::Read, Kind::Write] {
        for spec in [HardDiskSpec::sas_10k(SIZE), HardDiskSpec::sas_15k(SIZE)] {
            let seek = match kind {
                Kind::Read => spec.read_seek.average,
                Kind::Write => spec.write_seek.average,
            };
            let expected = seek.as_secs_f64() + 30.0 / f64::from(spec.rpm) + 4096.0 / 160e6;
            let mean = run(2, |env| async move {
                let disk = Arc::new(HardDisk::new(&env, "disk", spec));
                random_load(&env, disk, kind, 1, 4000).await
            });
            let ratio = mean / expected;
            assert!((0.97..1.03).contains(&ratio), "{kind:?}: {mean} s, {ratio}");
        }
    }
}

#[test]
fn a_queue_is_served_faster_out_of_order() {
    let mean = |scheduling| {
        let spec = HardDiskSpec { scheduling, ..HardDiskSpec::sas_15k(SIZE) };
        run(3, |env| async move {
            let disk = Arc::new(HardDisk::new(&env, "disk", spec));
            random_load(&env, disk, Kind::Read, 32, 6400).await
        })
    };
    let fifo = mean(Scheduling::Fifo);
    let elevator = mean(Scheduling::Elevator { depth: 32 });
    let shortest = mean(HardDiskSpec::sas_15k(SIZE).scheduling);
    assert!(fifo > 1.3 * elevator, "first in first out {fifo}, elevator {elevator}");
    assert!(fifo > 1.8 * shortest, "first in first out {fifo}, shortest access {shortest}");
}

#[test]
fn requests_beyond_the_queue_slow_nothing_down() {
    let mean = |depth| {
        run(3, |env| async move {
            let disk = Arc::new(HardDisk::new(&env, "disk", HardDiskSpec::sas_10k(SIZE)));
            random_load(&env, disk, Kind::Read, depth, 6400).await
        })
    };
    let (full, beyond) = (mean(32), mean(256));
    assert!(beyond < 1.05 * full, "{full} s with 32 requests, {beyond} s with 256");
}

/// Latency of a read at the inner edge while eight readers keep the arm at the outer one.
fn far_read(sequential: bool) -> Duration {
    run(4, |env| async move {
        let disk = Arc::new(HardDisk::new(&env, "disk", HardDiskSpec::sas_15k(SIZE)));
        let _readers: Vec<_> = (0..8u64)
            .map(|task| {
                let (disk, mut rng) = (Arc::clone(&disk), env.rng());
                env.spawn(async move {
                    for i in 0u64.. {
                        let at = if sequential { i * 8 + task } else { rng.random_range(0..1024) };
                        disk.read(at * 65536, 65536, Purpose::Map).await.unwrap();
                    }
                })
            })
            .collect();
        env.sleep(Duration::from_millis(50)).await;
        let start = env.now();
        disk.read(SIZE - 4096, 4096, Purpose::Map).await.unwrap();
        env.now().since(start)
    })
}

#[test]
fn a_stream_gives_way_to_others() {
    let took = far_read(true);
    assert!(took < Duration::from_millis(25), "{took:?}");
}

#[test]
fn no_request_is_passed_over_for_ever() {
    let took = far_read(false);
    assert!(took > Duration::from_millis(200) && took < Duration::from_millis(300), "{took:?}");
}

#[test]
fn random_reads_disturb_a_stream_of_writes() {
    let (alone, disturbed, reads) = run(5, |env| async move {
        let disk = Arc::new(HardDisk::new(&env, "disk", HardDiskSpec::sas_10k(SIZE)));
        let alone = stream(&env, &disk, Kind::Write, 4, 65536).await;
        let before = disk.busy();
        assert_eq!(before.sum(Kind::Read).total(), Duration::ZERO);
        let reader = {
            let (disk, env) = (Arc::clone(&disk), env.clone());
            env.clone().spawn(async move { random_load(&env, disk, Kind::Read, 1, 1 << 40).await })
        };
        let disturbed = stream(&env, &disk, Kind::Write, 4, 65536).await;
        drop(reader);
        (alone, disturbed, disk.busy().since(&before).of(Kind::Read, Purpose::Map))
    });
    assert!(disturbed < 0.5 * alone, "{disturbed} of {alone} bytes/s");
    assert!(reads.seek > Duration::from_millis(10) && reads.rotation > Duration::ZERO);
}

#[test]
fn busy_time_is_the_time_that_a_busy_disk_takes() {
    run(6, |env| async move {
        let disk = Arc::new(HardDisk::new(&env, "disk", HardDiskSpec::sas_15k(SIZE)));
        let start = env.now();
        random_load(&env, Arc::clone(&disk), Kind::Read, 4, 1000).await;
        let (busy, wall) = (disk.busy().total(), env.now().since(start));
        assert!((busy.as_secs_f64() / wall.as_secs_f64() - 1.0).abs() < 0.001, "{busy:?} {wall:?}");
    });
}

#[test]
fn a_slow_sequential_reader_is_read_ahead_for() {
    run(7, |env| async move {
        let disk = HardDisk::new(&env, "disk", HardDiskSpec::sas_15k(SIZE));
        disk.read(0, 65536, Purpose::Map).await.unwrap();
        env.sleep(Duration::from_millis(10)).await;
        let start = env.now();
        disk.read(65536, 65536, Purpose::Map).await.unwrap();
        let took = env.now().since(start);
        // From the buffer, over the bus.
        assert!(took < Duration::from_micros(120), "{took:?}");
        env.sleep(Duration::from_millis(10)).await;
        let start = env.now();
        disk.read(3 * 65536, 65536, Purpose::Map).await.unwrap();
        assert!(env.now().since(start) > Duration::from_micros(320));
    });
}

#[test]
fn a_late_write_waits_for_the_next_revolution() {
    run(8, |env| async move {
        let disk = HardDisk::new(&env, "disk", HardDiskSpec::sas_15k(SIZE));
        let mut times = Vec::new();
        for (i, pause) in [0, 0, 20, 500].into_iter().enumerate() {
            env.sleep(Duration::from_micros(pause)).await;
            let start = env.now();
            disk.write(i as u64 * 4096, pattern(1, 4096), Purpose::Map).await.unwrap();
            times.push(env.now().since(start).as_micros());
        }
        assert!(times[1] < 30 && times[2] < 30, "{times:?}");
        assert!((3400..3600).contains(&times[3]), "{times:?}");
    });
}

fn cached(bytes: u64) -> HardDiskSpec {
    HardDiskSpec { write_cache: bytes, ..HardDiskSpec::sata_7200(SIZE) }
}

#[test]
fn a_power_cut_loses_the_write_cache_but_not_what_was_flushed() {
    run(9, |env| async move {
        let disk = HardDisk::new(&env, "disk", cached(32 << 20));
        let start = env.now();
        for i in 0..100u64 {
            disk.write(i * (1 << 24), pattern(1, 4096), Purpose::Map).await.unwrap();
        }
        assert!(env.now().since(start) < Duration::from_millis(5), "acknowledged from the cache");
        disk.flush(Purpose::Map).await.unwrap();
        assert!(env.now().since(start) > Duration::from_millis(300), "the flush wrote it back");
        for i in 0..100u64 {
            disk.write(i * (1 << 24), pattern(2, 4096), Purpose::Map).await.unwrap();
        }
        assert_eq!(disk.read(99 << 24, 4096, Purpose::Map).await.unwrap(), vec![2; 4096]);
        disk.power_cut();
        assert!(disk.read(0, 4096, Purpose::Map).await.is_err());
        assert!(disk.write(0, pattern(3, 4096), Purpose::Map).await.is_err());
        assert!(disk.flush(Purpose::Map).await.is_err());
        disk.power_on();
        let mut lost = 0;
        for i in 0..100u64 {
            let read = disk.read(i * (1 << 24), 4096, Purpose::Map).await.unwrap();
            assert!(read[0] == 1 || read[0] == 2, "what was flushed is there");
            lost += usize::from(read[0] == 1);
        }
        assert!(lost > 90, "{lost} of 100 lost");
    });
}

#[test]
fn a_power_cut_tears_a_write_between_sectors_and_fails_waiting_requests() {
    run(10, |env| async move {
        let disk = Arc::new(HardDisk::new(&env, "disk", HardDiskSpec::sas_15k(SIZE)));
        let tasks: Vec<_> = (0..2u64)
            .map(|i| {
                let disk = Arc::clone(&disk);
                let data = pattern(7, 1 << 20);
                env.spawn(async move { disk.write(i << 20, data, Purpose::Map).await })
            })
            .collect();
        env.sleep(Duration::from_millis(3)).await;
        disk.power_cut();
        for task in tasks {
            assert!(task.await.unwrap().is_err());
        }
        let medium = disk.medium().read(0, 2 << 20);
        let written = medium.iter().take_while(|byte| **byte == 7).count();
        assert!(written % 512 == 0 && written > 1 << 19 && written < 1 << 20, "{written}");
        assert!(medium[written..].iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_full_write_cache_makes_writers_wait_for_the_arm() {
    run(11, |env| async move {
        let disk = HardDisk::new(&env, "disk", cached(1 << 20));
        let start = env.now();
        let mut rng = env.rng();
        for _ in 0..1000 {
            let offset = rng.random_range(0..SIZE / 4096) * 4096;
            disk.write(offset, pattern(1, 4096), Purpose::Map).await.unwrap();
        }
        let took = env.now().since(start);
        assert!(took > Duration::from_secs(3), "{took:?}");
    });
}

#[test]
fn random_overlapping_requests_read_back_as_from_a_plain_buffer() {
    const AREA: usize = 1 << 16;
    for cache in [0, 8 << 10, 1 << 20] {
        run(12, |env| async move {
            let disk = HardDisk::new(&env, "disk", cached(cache));
            let (mut plain, mut rng) = (vec![0u8; AREA], env.rng());
            for step in 0..2000u32 {
                let first = rng.random_range(0..AREA / 512);
                let last = rng.random_range(first..AREA / 512);
                let range = first * 512..(last + 1).min(first + 24) * 512;
                match rng.random_range(0..8) {
                    0 => disk.flush(Purpose::Map).await.unwrap(),
                    1..4 => {
                        plain[range.clone()].fill(step as u8);
                        let (head, tail) = plain[range.clone()].split_at(range.len() / 1024 * 512);
                        let data = vec![Bytes::copy_from_slice(head), Bytes::copy_from_slice(tail)];
                        disk.write(range.start as u64, data, Purpose::Map).await.unwrap();
                    }
                    4 => env.sleep(Duration::from_micros(rng.random_range(0..20_000))).await,
                    _ => {
                        let read = disk.read(range.start as u64, range.len(), Purpose::Map).await;
                        assert_eq!(read.unwrap(), plain[range]);
                    }
                }
            }
            disk.flush(Purpose::Map).await.unwrap();
            assert_eq!(disk.medium().read(0, AREA), plain);
        });
    }
}

#[test]
fn a_disk_in_standby_spins_up_for_the_next_request() {
    run(13, |env| async move {
        let spec = HardDiskSpec::sas_10k(SIZE);
        let spin_up = spec.spin_up;
        let disk = HardDisk::new(&env, "disk", spec);
        disk.read(0, 4096, Purpose::Map).await.unwrap();
        disk.set_power(Power::Standby).await;
        env.sleep(Duration::from_secs(60)).await;
        let start = env.now();
        disk.read(0, 4096, Purpose::Map).await.unwrap();
        assert!(env.now().since(start) >= spin_up);
        let (rested, spin_ups) = disk.standby();
        assert!(rested > Duration::from_secs(59) && rested <= Duration::from_secs(60));
        assert_eq!(spin_ups, 1);
        env.sleep(Duration::from_secs(60)).await;
        assert_eq!(disk.standby(), (rested, 1), "it stays awake");
    });
}
