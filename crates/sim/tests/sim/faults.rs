//! Each fault has its documented effect, and ends as documented.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_sim::faults::{Faults, Faulty};
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::run;
use thalweg_store::device::{Device, DeviceError, Geometry, Operation, Purpose};

/// A device of 16 sectors in which every byte of sector n is n + 1, and its faults.
fn with_faults<Fut: Future<Output = ()>>(body: impl FnOnce(Env, Arc<Faulty>, Faults) -> Fut) {
    run(1, |env| async move {
        let inner = RamDisk::new("ram", Geometry { size: 8192, sector: 512 });
        let (device, faults) = Faulty::wrap(&env, Arc::new(inner));
        for sector in 0..16 {
            write(&device, sector, sector as u8 + 1).await.unwrap();
        }
        body(env, device, faults).await;
    });
}

async fn write(device: &Faulty, sector: u64, byte: u8) -> Result<(), DeviceError> {
    device.write(sector * 512, vec![Bytes::from(vec![byte; 512])], Purpose::Map).await
}

async fn read(device: &Faulty, sector: u64) -> Result<Vec<u8>, DeviceError> {
    device.read(sector * 512, 512, Purpose::Map).await.map(|bytes| bytes.to_vec())
}

async fn byte(device: &Faulty, sector: u64) -> u8 {
    let bytes = read(device, sector).await.unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

#[test]
fn latent_errors_last_until_a_rewrite() {
    with_faults(|_, device, faults| async move {
        faults.break_sectors(600..1100);
        assert!(read(&device, 1).await.is_err() && read(&device, 2).await.is_err());
        assert!(device.read(0, 8192, Purpose::Map).await.is_err());
        assert_eq!((byte(&device, 0).await, byte(&device, 3).await), (1, 4));
        write(&device, 1, 9).await.unwrap();
        assert_eq!(byte(&device, 1).await, 9);
        assert!(read(&device, 2).await.is_err());
    });
}

#[test]
fn rot_lasts_until_a_rewrite() {
    with_faults(|_, device, faults| async move {
        faults.rot(512..1536, 0x81);
        for _ in 0..2 {
            assert_eq!(read(&device, 1).await.unwrap()[..2], [2 ^ 0x81, 2]);
        }
        write(&device, 1, 2).await.unwrap();
        assert_eq!(byte(&device, 1).await, 2);
        assert_eq!(read(&device, 2).await.unwrap()[0], 3 ^ 0x81);
        assert_eq!(faults.damaged_sectors(), 1);
    });
}

#[test]
fn writes_are_lost_and_misdirected() {
    with_faults(|_, device, faults| async move {
        faults.lose_writes(512..1024, 2);
        write(&device, 2, 50).await.unwrap();
        write(&device, 1, 51).await.unwrap();
        write(&device, 1, 52).await.unwrap();
        assert_eq!((byte(&device, 1).await, byte(&device, 2).await), (2, 50));
        write(&device, 1, 53).await.unwrap();
        assert_eq!(byte(&device, 1).await, 53);
        faults.misdirect(2048..2560, 5 * 512);
        write(&device, 4, 54).await.unwrap();
        assert_eq!((byte(&device, 4).await, byte(&device, 5).await), (5, 54));
        write(&device, 4, 55).await.unwrap();
        assert_eq!(byte(&device, 4).await, 55);
    });
}

#[test]
fn reads_are_stale_and_short() {
    with_faults(|_, device, faults| async move {
        faults.freeze(512..1024).await.unwrap();
        write(&device, 1, 60).await.unwrap();
        assert_eq!(byte(&device, 1).await, 2);
        faults.heal();
        assert_eq!(byte(&device, 1).await, 60);
        faults.shorten_reads(1);
        let short = device.read(512, 1024, Purpose::Map).await.unwrap();
        assert_eq!(short, [[60; 512], [0; 512]].concat());
        assert_eq!(byte(&device, 2).await, 3);
    });
}

#[test]
fn requests_of_a_kind_fail() {
    with_faults(|_, device, faults| async move {
        faults.fail(Operation::Flush, 1);
        faults.fail(Operation::Write, 2);
        faults.fail(Operation::Discard, 1);
        assert!(device.flush(Purpose::Map).await.is_err());
        assert!(device.flush(Purpose::Map).await.is_ok());
        assert!(write(&device, 0, 70).await.is_err() && write(&device, 0, 71).await.is_err());
        assert_eq!(byte(&device, 0).await, 1);
        assert!(write(&device, 0, 72).await.is_ok());
        assert!(device.discard(0, 512).await.is_err() && device.discard(0, 512).await.is_ok());
        faults.fail(Operation::Read, usize::MAX);
        for _ in 0..100 {
            assert!(read(&device, 0).await.is_err());
        }
    });
}

#[test]
fn a_drive_dies_and_a_medium_fills_up() {
    with_faults(|_, device, faults| async move {
        faults.fill(true);
        assert!(matches!(write(&device, 0, 80).await, Err(DeviceError::NoSpace { .. })));
        assert!(read(&device, 0).await.is_ok() && device.flush(Purpose::Map).await.is_ok());
        faults.fill(false);
        faults.die_after(2);
        assert!(write(&device, 0, 81).await.is_ok() && read(&device, 0).await.is_ok());
        assert!(write(&device, 0, 82).await.is_err() && read(&device, 0).await.is_err());
        assert!(device.flush(Purpose::Map).await.is_err());
        faults.heal();
        assert_eq!(byte(&device, 0).await, 81);
    });
}

#[test]
fn a_slow_drive_takes_longer() {
    run(1, |env| async move {
        let disk = HardDisk::new(&env, "disk", HardDiskSpec::sas_15k(1 << 30));
        let (device, faults) = Faulty::wrap(&env, Arc::new(disk));
        let mut times = Vec::new();
        for factor in [1.0, 10.0] {
            faults.slow(factor, Duration::ZERO);
            let start = env.now();
            device.read(1 << 29, 1 << 20, Purpose::Map).await.unwrap();
            device.read(0, 1 << 20, Purpose::Map).await.unwrap();
            times.push(env.now().since(start));
        }
        assert!(times[1] > 7 * times[0] && times[1] < 14 * times[0], "{times:?}");
        faults.slow(1.0, Duration::from_secs(1));
        let start = env.now();
        device.flush(Purpose::Map).await.unwrap();
        assert_eq!(env.now().since(start), Duration::from_secs(1));
    });
}
