//! Solid-state drives against their data sheets.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::Env;
use thalweg_sim::run;
use thalweg_sim::ssd::{SolidState, SolidStateSpec, WriteCache};
use thalweg_store::device::{Device, Purpose};

const SIZE: u64 = 1 << 30;

fn pattern(byte: u8, len: usize) -> Vec<Bytes> {
    vec![Bytes::from(vec![byte; len])]
}

async fn write(drive: &SolidState, offset: u64, byte: u8, len: usize) {
    drive.write(offset, pattern(byte, len), Purpose::Cache).await.unwrap();
}

/// Bytes per second of sequential requests of 128 KiB, eight at a time.
async fn stream(env: &Env, drive: &Arc<SolidState>, reading: bool) -> f64 {
    const REQUEST: u64 = 128 << 10;
    let total = 128u64 << 20;
    let start = env.now();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let drive = Arc::clone(drive);
            env.spawn(async move {
                for i in (task..total / REQUEST).step_by(8) {
                    match reading {
                        true => drop(drive.read(i * REQUEST, REQUEST as usize, Purpose::Map).await),
                        false => write(&drive, i * REQUEST, 1, REQUEST as usize).await,
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
fn streams_run_at_the_rate_of_the_bus_and_single_reads_take_a_tenth_of_a_millisecond() {
    run(1, |env| async move {
        let drive = Arc::new(SolidState::new(&env, "ssd", SolidStateSpec::sata(SIZE)));
        let written = stream(&env, &drive, false).await / 500e6;
        let read = stream(&env, &drive, true).await / 500e6;
        assert!((0.95..1.02).contains(&written), "{written}");
        assert!((0.95..1.02).contains(&read), "{read}");
        let start = env.now();
        drive.read(4096, 4096, Purpose::Map).await.unwrap();
        let took = env.now().since(start).as_micros();
        assert!((90..110).contains(&took), "{took} µs");
    });
}

#[test]
fn units_work_in_parallel() {
    let time = |depth: u64| {
        run(2, |env| async move {
            let drive = Arc::new(SolidState::new(&env, "ssd", SolidStateSpec::sata(SIZE)));
            stream(&env, &drive, false).await;
            let start = env.now();
            let tasks: Vec<_> = (0..depth)
                .map(|_| {
                    let (drive, mut rng) = (Arc::clone(&drive), env.rng());
                    env.spawn(async move {
                        for _ in 0..1600 / depth {
                            let offset = rng.random_range(0..1 << 15) * 4096;
                            drive.read(offset, 4096, Purpose::Map).await.unwrap();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            env.now().since(start)
        })
    };
    let (one, sixteen) = (time(1), time(16));
    assert!(one > 8 * sixteen && one < 17 * sixteen, "{one:?} {sixteen:?}");
}

/// Whether a flushed and an unflushed write survive a power cut, and the duration of the flush.
fn cut(write_cache: WriteCache) -> (bool, bool, Duration) {
    run(3, |env| async move {
        let spec = SolidStateSpec { write_cache, ..SolidStateSpec::sata(SIZE) };
        let drive = SolidState::new(&env, "ssd", spec);
        write(&drive, 0, 1, 4096).await;
        let start = env.now();
        drive.flush(Purpose::Map).await.unwrap();
        let flush = env.now().since(start);
        write(&drive, 8192, 2, 4096).await;
        write(&drive, 8192, 3, 4096).await;
        drive.power_cut();
        assert!(drive.read(0, 4096, Purpose::Map).await.is_err());
        drive.power_on();
        let flushed = drive.read(0, 4096, Purpose::Map).await.unwrap();
        let unflushed = drive.read(8192, 4096, Purpose::Map).await.unwrap();
        (flushed == vec![1; 4096], unflushed == vec![3; 4096], flush)
    })
}

#[test]
fn a_power_cut_loses_a_volatile_cache_and_no_other() {
    let (flushed, unflushed, flush) = cut(WriteCache::Volatile);
    assert!(flushed && !unflushed && flush > Duration::from_micros(100), "{flush:?}");
    let (flushed, unflushed, flush) = cut(WriteCache::Protected);
    assert!(flushed && unflushed && flush.is_zero());
    let (flushed, unflushed, flush) = cut(WriteCache::Off);
    assert!(flushed && unflushed && flush.is_zero());
}

#[test]
fn a_full_cache_makes_writers_wait_for_flash() {
    run(4, |env| async move {
        let spec = SolidStateSpec { units: 2, cache_bytes: 1 << 20, ..SolidStateSpec::sata(SIZE) };
        let expected = f64::from(2 * spec.page) / spec.program.as_secs_f64();
        let drive = Arc::new(SolidState::new(&env, "ssd", spec));
        let ratio = stream(&env, &drive, false).await / expected;
        assert!((0.95..1.05).contains(&ratio), "{ratio}");
    });
}

#[test]
fn small_writes_wear_as_much_as_pages() {
    run(5, |env| async move {
        let drive = SolidState::new(&env, "ssd", SolidStateSpec::sata(SIZE));
        for i in 0..8 {
            write(&drive, i * 512, i as u8, 512).await;
        }
        assert_eq!(drive.wear().programs, 8);
        write(&drive, 4096, 9, 8192).await;
        assert_eq!(drive.wear().programs, 10);
        assert_eq!(drive.read(0, 1024, Purpose::Map).await.unwrap()[512..], [1; 512]);
    });
}
