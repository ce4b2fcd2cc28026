//! Rebuilds that are repeated, also after a crash in the middle of one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::seq::IteratorRandom;
use thalweg_env::{Env, Rng};
use thalweg_sim::campaign;
use thalweg_sim::crash::{CrashImage, Points, Policy, Shape as Survivors};
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::{Blocks, BlocksExt, Lba, Version, Write};
use thalweg_store::chain::{Chain, ChainError, Cleaning, Label, LostEntries, Rebuild};
use thalweg_store::device::{DeviceRef, Purpose};

use crate::rebuild::{patient, rebuild, tight};
use crate::support::{LABELS, Shape, content, lose_checkpoints, read_all};

/// Maximum time of a request on recorded devices.
const LATENCY: Duration = Duration::from_micros(200);

/// What a crash leaves of devices while the log of compaction is written.
async fn crashed_in_compaction(env: &Env, shape: &Shape) -> Vec<CrashImage> {
    let recorder = Recorder::with_latency(env, LATENCY);
    let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
    shape.format(env, &devices).await;
    let (chain, _) = shape.open(env, &devices).await.unwrap();
    let mut rng = env.rng();
    let mut points = Vec::new();
    for stamp in 0..12 {
        for _ in 0..12 {
            let lbas = (0..shape.blocks).sample(&mut rng, 10);
            let write = |lba| Write::block(Lba(lba), content(lba, stamp));
            chain.apply(lbas.into_iter().map(write).collect()).await.unwrap();
        }
        let begun = recorder.position();
        let written = async {
            for lba in 0..20 {
                chain.apply(vec![Write::block(Lba(lba), content(lba, stamp))]).await.unwrap();
                env.sleep(LATENCY).await;
            }
        };
        let (_, cleaned) = futures::future::join(written, chain.clean(4)).await;
        cleaned.unwrap();
        points.extend((begun..recorder.position()).sample(&mut rng, 6));
    }
    let policy =
        Policy { points: Points::Flushes, exhaustive: 1, prefixes: 1, ..Policy::sampled(0) };
    recorder.images(&mut rng, &policy.at(Points::At(points))).collect()
}

/// Whether a rebuild met a torn log of compaction: its label cuts nothing of that log off. The rebuild's requests were
/// recorded from `begun` on.
async fn met_torn_compaction(recorder: &Recorder, begun: usize, shape: &Shape) -> bool {
    for point in begun..recorder.position() {
        let image = recorder.image(point, Survivors::Everything);
        let label = Label::read(&*shape.parts(&image.devices).map).await.unwrap();
        if label.cuts.last().is_some_and(|cut| cut.ends[1] == cut.first) {
            return true;
        }
    }
    false
}

/// A repetition of a rebuild that met a torn log of compaction and was interrupted takes none of it for lost.
#[test]
fn an_interrupted_rebuild_of_torn_compaction_can_be_repeated() {
    let shape = tight(Cleaning::CompactInBody);
    let repeated = campaign::seeds(1).map(|seed| {
        run(seed, |env| async move {
            let (mut rng, mut repeated) = (env.rng(), 0);
            for image in crashed_in_compaction(&env, &shape).await {
                let (recorder, devices) = Recorder::from_image(&env, LATENCY, &image);
                lose_checkpoints(&shape.parts(&devices).map).await;
                let begun = recorder.position();
                rebuild(&env, &shape, &devices, Rebuild::default()).await.unwrap();
                if !met_torn_compaction(&recorder, begun, &shape).await {
                    continue;
                }
                let points = (begun..recorder.position()).sample(&mut rng, 20);
                let (chain, _) = shape.open(&env, &devices).await.unwrap();
                let now = chain.now();
                let blocks = read_all(&chain, now).await.unwrap();
                let policy = Policy::sampled(0).at(Points::At(points));
                for image in recorder.images(&mut rng, &policy) {
                    let devices = &image.devices;
                    if let Err(ChainError::Damaged(_)) = shape.open(&env, devices).await {
                        repeated += 1;
                        let again = rebuild(&env, &shape, devices, Rebuild::default()).await;
                        again.unwrap_or_else(|error| panic!("{}: {error}", image.describe()));
                    }
                    let (chain, _) = shape.open(&env, devices).await.unwrap();
                    let found = read_all(&chain, chain.now()).await.unwrap();
                    let differs = (0..blocks.len()).find(|lba| found[*lba] != blocks[*lba]);
                    let again = (chain.now(), differs);
                    assert_eq!(again, (now, None), "{seed}: {}", image.describe());
                }
            }
            repeated
        })
    });
    let repeated: u64 = repeated.sum();
    println!("{repeated} interrupted rebuilds had met torn compaction");
    assert!(repeated > 20, "{repeated}");
}

/// Damages a random sector of the map that is in use.
async fn damage(map: &DeviceRef, rng: &mut Rng) {
    let first = LABELS + 2 * Label::read(&**map).await.unwrap().checkpoint_half;
    let len = (map.geometry().size - first) as usize;
    let content = map.read(first, len, Purpose::Map).await.unwrap();
    let in_use = |at: &usize| content[*at..at + 512].iter().any(|byte| *byte != 0);
    let Some(at) = (0..len).step_by(512).filter(in_use).choose(rng) else { return };
    let mut sector = content[at..at + 512].to_vec();
    sector[40] ^= 4;
    map.write(first + at as u64, vec![Bytes::from(sector)], Purpose::Map).await.unwrap();
    map.flush(Purpose::Map).await.unwrap();
}

fn covers(one: &LostEntries, other: &LostEntries) -> bool {
    one.segment == other.segment
        && one.first <= other.first
        && one.first + one.blocks >= other.first + other.blocks
}

/// A repetition of a rebuild that accepted a loss, met torn compaction as well, and was interrupted, names the loss
/// again. It may name more: beside damage a part that was torn looks like it.
#[test]
fn an_interrupted_rebuild_that_accepts_a_loss_names_it_again() {
    let shape = tight(Cleaning::CompactInBody);
    let repeated = campaign::seeds(2).map(|seed| {
        run(seed, |env| async move {
            let (mut rng, mut repeated) = (env.rng(), 0);
            let dry = Rebuild { dry_run: true, ..Rebuild::default() };
            let accept = Rebuild { accept_loss: true, ..Rebuild::default() };
            for image in crashed_in_compaction(&env, &shape).await {
                let (recorder, devices) = Recorder::from_image(&env, LATENCY, &image);
                let map = shape.parts(&devices).map;
                damage(&map, &mut rng).await;
                lose_checkpoints(&map).await;
                let begun = recorder.position();
                let lost = rebuild(&env, &shape, &devices, dry).await.unwrap().lost;
                rebuild(&env, &shape, &devices, accept).await.unwrap();
                if lost.is_empty() || !met_torn_compaction(&recorder, begun, &shape).await {
                    continue;
                }
                let points = (begun..recorder.position()).sample(&mut rng, 20);
                let policy = Policy::sampled(0).at(Points::At(points));
                for image in recorder.images(&mut rng, &policy) {
                    let again = rebuild(&env, &shape, &image.devices, dry).await.unwrap().lost;
                    if let Err(ChainError::Damaged(_)) = shape.open(&env, &image.devices).await {
                        repeated += 1;
                        let names =
                            |lost: &LostEntries| again.iter().any(|again| covers(again, lost));
                        assert!(
                            lost.iter().all(names),
                            "{seed}: {again:?}, {lost:?}: {}",
                            image.describe()
                        );
                    }
                }
            }
            repeated
        })
    });
    let repeated: u64 = repeated.sum();
    println!("{repeated} interrupted rebuilds had accepted a loss");
    assert!(repeated > 20, "{repeated}");
}

/// Makes a volume with `blocks` blocks of one round, and leaves it as if a crash had torn the first write of the map that
/// made them durable.
async fn write_and_tear(env: &Env, shape: &Shape, devices: &[DeviceRef], blocks: u64) {
    shape.format(env, devices).await;
    let (chain, _) = Chain::open(env, shape.parts(devices), patient()).await.unwrap();
    for lba in 0..blocks {
        chain.apply(vec![Write::block(Lba(lba), content(lba, 1))]).await.unwrap();
    }
    chain.sync(chain.now()).await.unwrap();
    drop(chain);
    let map = &shape.parts(devices).map;
    let first = LABELS + 2 * Label::read(&**map).await.unwrap().checkpoint_half;
    map.write(first, vec![Bytes::from(vec![0; 1024])], Purpose::Map).await.unwrap();
}

/// Segments of a log whose beginning a crash tore stay void when the rebuild that begins the log anew, in a segment
/// that showed that beginning, is interrupted and repeated.
#[test]
fn an_interrupted_rebuild_of_a_log_that_begins_anew_can_be_repeated() {
    let shape =
        Shape { links: 1, segments_per_link: 9, blocks: 900, ..tight(Cleaning::MoveToTail) };
    run(1, |env| async move {
        let recorder = Recorder::new(&env);
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        write_and_tear(&env, &shape, &devices, 700).await;
        let map = &shape.parts(&devices).map;
        lose_checkpoints(map).await;
        map.flush(Purpose::Map).await.unwrap();
        let begun = recorder.position();
        let report = rebuild(&env, &shape, &devices, Rebuild::default()).await.unwrap();
        assert_eq!((report.version, report.entries), (0, 0));
        let points = (begun..recorder.position()).collect();
        let (mut rng, mut repeated) = (env.rng(), 0);
        for image in recorder.images(&mut rng, &Policy::thorough().at(Points::At(points))) {
            let devices = &image.devices;
            if let Err(ChainError::Damaged(_)) = shape.open(&env, devices).await {
                rebuild(&env, &shape, devices, Rebuild::default()).await.unwrap();
                repeated += 1;
            }
            let (chain, _) = shape.open(&env, devices).await.unwrap();
            assert_eq!(chain.now(), Version(0), "{}", image.describe());
        }
        assert!(repeated > 20, "{repeated}");
    });
}

/// The former content of the map of a segment in which a log begins anew counts for nothing, even without a
/// write to it before the next rebuild.
#[test]
fn what_was_rebuilt_can_be_rebuilt_at_once() {
    let shape = tight(Cleaning::CompactInBody);
    run(1, |env| async move {
        let devices =
            shape.devices(|name, geometry| Arc::new(RamDisk::new(name, geometry)) as DeviceRef);
        write_and_tear(&env, &shape, &devices, 100).await;
        let map = &shape.parts(&devices).map;
        for _ in 0..3 {
            lose_checkpoints(map).await;
            let report = rebuild(&env, &shape, &devices, Rebuild::default()).await.unwrap();
            assert_eq!((report.version, report.entries), (0, 0));
            drop(shape.open(&env, &devices).await.unwrap());
        }
    });
}
