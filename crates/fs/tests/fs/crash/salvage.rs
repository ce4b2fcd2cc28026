//! Pages of the tree of metadata that rot on their devices: a repair makes the filesystem whole
//! from the rest, and so does the next one after a power cut in its middle.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use rand::seq::IndexedRandom;
use thalweg_env::Env;
use thalweg_fs::check::{Damage, Outcome};
use thalweg_fs::{Filesystem, SetXattr};
use thalweg_sim::faults::{Faults, Faulty};
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::recording::Recorder;
use thalweg_sim::{campaign, run};
use thalweg_store::block::{BLOCK_SIZE, Lba};
use thalweg_store::device::{DeviceRef, Purpose};
use thalweg_store::tree::catalogue;
use thalweg_store::tree::format::{PAGE_MAGIC, PageKind};
use thalweg_store::txn::Begin;

use super::repair::{Whole, policy, repair, repair_again, see};
use super::rig::{Rig, Volume};
use super::{LATENCY, check_clean, check_sound};
use crate::support::*;

/// Where a page of the tree lies on the devices: which one, and the byte. A chain may have moved
/// it, and left it where it was too.
#[derive(Clone, Debug)]
struct Place {
    is_node: bool,
    level: u8,
    at: Vec<(usize, u64)>,
}

/// Makes a filesystem with a tree of three levels, and closes it; where the tree's pages lie.
async fn prepare(env: &Env, rig: Rig, devices: &[DeviceRef]) -> Vec<Place> {
    let volume = rig.make_large(env, devices).await;
    let fs = volume.files(env).await;
    let mut parent = ROOT;
    for number in 0..48 {
        let name = format!("{number:02}");
        if number % 8 == 7 {
            parent = mkdir(&fs, parent, &name).await;
            continue;
        }
        let file = create(&fs, parent, &name).await;
        write(&fs, file, 0, &pattern(number, 3000)).await;
        if number % 3 == 0 {
            for nth in 0..9 {
                let (name, value) = (format!("user.{nth:x>240}"), Bytes::from(pattern(nth, 800)));
                fs.set_xattr(file, name.as_bytes(), value, SetXattr::Any).await.unwrap();
            }
        }
    }
    fs.close().await.unwrap();
    drop(fs);
    check_clean(env, &volume, "before").await;
    let pages = pages(&volume).await;
    volume.close().await;
    let mut places = Vec::new();
    for (lba, content) in pages {
        let at = match volume.home(lba) {
            Some(offset) => vec![(0, offset)],
            None => find(devices, &content).await,
        };
        assert!(!at.is_empty(), "block {lba} is nowhere");
        let is_node = content[4] == PageKind::Node.encode();
        places.push(Place { is_node, level: content[5], at });
    }
    places
}

/// The pages of the tree.
async fn pages(volume: &Volume) -> Vec<(u64, Bytes)> {
    let meta = catalogue::open(&*volume.transact, "fs.meta").await.unwrap();
    let txn = volume.transact.begin(Begin::SNAPSHOT).await.unwrap();
    let blocks = txn.read_run(Lba(meta.first), meta.blocks).await.unwrap();
    (meta.first..).zip(blocks).filter(|(_, block)| block[..4] == PAGE_MAGIC).collect()
}

/// Where devices hold a block.
async fn find(devices: &[DeviceRef], content: &Bytes) -> Vec<(usize, u64)> {
    let mut found = Vec::new();
    for (nth, device) in devices.iter().enumerate() {
        let geometry = device.geometry();
        let all = device.read(0, geometry.size as usize, Purpose::Repair).await.unwrap();
        let offsets = (0..geometry.size - BLOCK_SIZE as u64).step_by(geometry.sector as usize);
        let is_here = |at: &u64| all[*at as usize..].starts_with(content);
        found.extend(offsets.filter(is_here).map(|at| (nth, at)));
    }
    found
}

/// Overwrites the sector in which a page begins.
async fn scribble(devices: &[DeviceRef], place: &Place) {
    for (device, offset) in &place.at {
        let device = &devices[*device];
        let noise = Bytes::from(vec![0x77; device.geometry().sector as usize]);
        device.write_durably(*offset, vec![noise], Purpose::Repair).await.unwrap();
    }
}

/// Repairs the damage, which must succeed; returns the state then.
async fn repaired(env: &Env, volume: &Volume, place: &Place) -> Whole {
    let report = repair(env, volume).await.unwrap();
    assert!(!report.is_damaged(), "{place:?}: {:#?}", report.findings);
    let is_tree = |damage: &Damage| matches!(damage, Damage::Tree(_));
    assert!(report.findings.iter().any(|it| is_tree(&it.damage)), "{place:?}: {report:#?}");
    if !place.is_node || place.level > 0 {
        let is_whole = report.findings.iter().all(|it| it.outcome == Outcome::Repaired);
        assert!(is_whole, "{place:?}: {:#?}", report.findings);
    }
    check_sound(env, volume, &format!("{place:?}")).await;
    see(env, volume).await
}

/// Images of crashes in the repair of a tree with a page that has rotted.
fn crash_salvage(seed: u64, rig: Rig) -> u64 {
    run(seed, |env| async move {
        let recorder = Recorder::with_latency(&env, LATENCY);
        let devices = rig.devices(|name, geometry| recorder.device(name, geometry));
        let places = prepare(&env, rig, &devices).await;
        let mut rng = env.rng();
        // FsState nodes, of which there are few, as often as leaves.
        let level = rng.random_range(0..3);
        let some: Vec<&Place> = places.iter().filter(|place| place.level == level).collect();
        let place = (*some.choose(&mut rng).unwrap()).clone();
        scribble(&devices, &place).await;
        let volume = rig.open(&env, &devices).await;
        let begun = recorder.position();
        let expected = repaired(&env, &volume, &place).await;
        volume.sync().await;
        let ended = recorder.position();
        drop(volume);
        let points = (0..16).map(|_| rng.random_range(begun..=ended)).collect();
        let images = recorder.images(&mut rng, &policy(points));
        repair_again(&env, &rig, images, &expected, &format!("{place:?}")).await.0
    })
}

#[test]
fn a_crash_in_a_salvage() {
    let images: u64 = campaign::seeds(12).map(|seed| crash_salvage(seed, Rig::varied(seed))).sum();
    println!("{images} images");
    assert!(images > 250, "{images}");
}

/// A sector that cannot be read is one that can be written.
#[test]
fn pages_that_cannot_be_read() {
    for seed in 0..12 {
        run(seed, |env| async move {
            let rig = Rig::varied(seed);
            let faults: Mutex<Vec<Faults>> = Mutex::default();
            let devices = rig.devices(|name, geometry| {
                let (device, faulty) = Faulty::wrap(&env, Arc::new(RamDisk::new(name, geometry)));
                faults.lock().push(faulty);
                device
            });
            let places = prepare(&env, rig, &devices).await;
            let level = if seed < 6 { 0 } else { 2 };
            let place = places.iter().find(|it| it.is_node && it.level == level).unwrap();
            for (device, offset) in &place.at {
                faults.lock()[*device].break_sectors(*offset..*offset + BLOCK_SIZE as u64);
            }
            let volume = rig.open(&env, &devices).await;
            repaired(&env, &volume, place).await;
        });
    }
}
