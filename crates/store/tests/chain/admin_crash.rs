//! Power cuts at any point of snapshots, roll-backs, growing, shrinking, and adding and removing links: the
//! state is that before or after, and nothing acknowledged is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::campaign;
use thalweg_sim::crash::{CrashImage, Points, Policy};
use thalweg_sim::model::BlockModel;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::{Blocks, Lba, Version};
use thalweg_store::chain::{Chain, Cleaning, Link, Parts};
use thalweg_store::device::{DeviceRef, Geometry};

use crate::support::{self, Pair, Shape, Step, link_id, options, random_step_in_parts};

/// Links that may be in the chain at some time.
const LINKS: usize = 4;

/// Requirements once the operations up to some number are acknowledged.
#[derive(Clone)]
struct Promise {
    /// Which model: each roll-back begins another one.
    epoch: usize,
    durable: Version,
    newest: Version,
    snapshots: BTreeMap<String, Version>,
    blocks: u64,
}

struct History {
    recorder: Recorder,
    pair: Pair,
    links: Vec<Link>,
    active: Vec<usize>,
    promises: Vec<Promise>,
    models: Vec<BlockModel>,
    serial: u32,
}

fn shape(cleaning: Cleaning) -> Shape {
    Shape { segments_per_link: 7, blocks: 300, ..Shape::small(cleaning) }
}

impl History {
    async fn new(env: &Env, shape: &Shape) -> History {
        let recorder = Recorder::with_latency(env, Duration::from_micros(300));
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        let mut links = shape.parts(&devices).links;
        let geometry = Geometry { size: shape.link_bytes(), sector: shape.sector };
        for number in shape.links..LINKS {
            links.push(Link { id: link_id(number), device: recorder.device("spare", geometry) });
        }
        shape.format(env, &devices).await;
        let (chain, _) = shape.open(env, &devices).await.unwrap();
        recorder.mark(0);
        let promise = Promise {
            epoch: 0,
            durable: Version(0),
            newest: Version(0),
            snapshots: BTreeMap::new(),
            blocks: shape.blocks,
        };
        History {
            recorder,
            pair: Pair { chain, model: BlockModel::new(600) },
            links,
            active: (0..shape.links).collect(),
            promises: vec![promise],
            models: Vec::new(),
            serial: 0,
        }
    }

    /// Runs one operation and records what it promises.
    async fn step(&mut self, env: &Env, rng: &mut Rng) {
        let mut promise = self.promises.last().unwrap().clone();
        match rng.random_range(0..24) {
            0..=1 if promise.snapshots.len() < 3 => self.create_snapshot(&mut promise).await,
            2 => self.delete_snapshot(&mut promise, rng).await,
            3 => self.rollback(&mut promise, rng).await,
            4 => self.change_links(rng).await,
            5 => {
                // Grows by blocks that are never written, or shrinks back.
                let blocks = if promise.blocks == 300 { 500 } else { 300 };
                self.pair.chain.resize(blocks).await.unwrap();
                promise.blocks = blocks;
            }
            _ => {
                let step = random_step_in_parts(rng, 300);
                self.write(env, &step, &mut promise).await;
            }
        }
        self.note(promise);
    }

    async fn write(&mut self, env: &Env, step: &Step, promise: &mut Promise) {
        if let Some(version) = self.pair.step(env, step).await.unwrap() {
            promise.durable = version;
        }
    }

    /// Records the requirements after an operation.
    fn note(&mut self, promise: Promise) {
        self.promises.push(Promise { newest: self.pair.model.now(), ..promise });
        self.recorder.mark(self.promises.len() as u64 - 1);
    }

    async fn create_snapshot(&mut self, promise: &mut Promise) {
        self.serial += 1;
        let name = format!("s{}", self.serial);
        let snapshot = self.pair.chain.create_snapshot(&name).await.unwrap();
        promise.durable = snapshot.version;
        promise.snapshots.insert(name, snapshot.version);
    }

    async fn delete_snapshot(&mut self, promise: &mut Promise, rng: &mut Rng) {
        let at = rng.random_range(0..promise.snapshots.len().max(1));
        if let Some(name) = promise.snapshots.keys().nth(at).cloned() {
            self.pair.chain.delete_snapshot(&name).await.unwrap();
            promise.snapshots.remove(&name);
        }
    }

    async fn rollback(&mut self, promise: &mut Promise, _rng: &mut Rng) {
        let newest = promise.snapshots.iter().max_by_key(|(_, version)| **version);
        let Some((name, version)) = newest.map(|(name, version)| (name.clone(), *version)) else {
            return;
        };
        self.pair.chain.rollback(&name).await.unwrap();
        self.models.push(self.pair.model.clone());
        let now = self.pair.model.now();
        self.pair.model.rewind(version);
        while self.pair.model.now() < now {
            self.pair.model.apply(&[]);
        }
        promise.epoch += 1;
        promise.durable = now;
    }

    async fn change_links(&mut self, rng: &mut Rng) {
        let spare = (0..LINKS).find(|link| !self.active.contains(link));
        match spare {
            Some(link) if rng.random_bool(0.5) => {
                let at = rng.random_range(0..self.active.len());
                let old = std::mem::replace(&mut self.active[at], link);
                let (old, new) = (self.links[old].id, self.links[link].clone());
                self.pair.chain.replace_link(old, new, &|_, _| {}).await.unwrap();
            }
            Some(link) => {
                self.pair.chain.add_link(self.links[link].clone()).await.unwrap();
                self.active.push(link);
            }
            None => {
                let gone = rng.random_range(0..self.active.len());
                self.remove_link(gone).await;
            }
        }
    }

    /// Takes out the link at this position among those in the chain.
    async fn remove_link(&mut self, at: usize) {
        let gone = self.active.remove(at);
        self.pair.chain.remove_link(self.links[gone].id, &|_, _| {}).await.unwrap();
    }
}

/// Opens an image and checks the requirements.
async fn check(env: &Env, history: &History, links: usize, image: &CrashImage) {
    let Some(acknowledged) = image.acknowledged().next() else { return };
    let before = &history.promises[acknowledged as usize];
    let after = history.promises.get(acknowledged as usize + 1).unwrap_or(before);
    let device = |number: usize| -> DeviceRef {
        // The recorder's order: the first links, the map, the spare ones.
        image.devices[if number < links { number } else { number + 1 }].clone()
    };
    let parts = Parts {
        links: (0..LINKS).map(|n| Link { id: link_id(n), device: device(n) }).collect(),
        map: image.devices[links].clone(),
        map_link: None,
        tail_cache: None,
        body_cache: None,
    };
    let describe = || format!("after operation {acknowledged}, {}", image.describe());
    let opened = Chain::open(env, parts, options()).await;
    let (chain, _) = opened.unwrap_or_else(|error| panic!("{}: {error}", describe()));
    assert!([before.blocks, after.blocks].contains(&chain.blocks()), "{}", describe());
    let found = support::read_all(&chain, chain.now()).await.unwrap();
    let fits = |promise: &Promise, floor: Version| {
        let model = history.models.get(promise.epoch).unwrap_or(&history.pair.model);
        model.check(floor, after.newest.max(before.newest), |lba| {
            found.get(lba.0 as usize).cloned().flatten()
        })
    };
    let as_before = fits(before, before.durable);
    if as_before.is_err() {
        let floor = if after.epoch == before.epoch { before.durable } else { after.durable };
        let as_after = fits(after, floor);
        assert!(as_after.is_ok(), "{}: {as_before:?}; {as_after:?}", describe());
    }
    check_snapshots(history, before, after, &chain).await.unwrap_or_else(|why| {
        panic!("{}: {why}", describe());
    });
}

async fn check_snapshots(
    history: &History,
    before: &Promise,
    after: &Promise,
    chain: &Chain,
) -> Result<(), String> {
    let found: BTreeMap<String, Version> =
        chain.label().snapshots.into_iter().map(|one| (one.name, one.version)).collect();
    for (name, version) in &found {
        let known = [before, after].iter().any(|one| one.snapshots.get(name) == Some(version));
        if !known {
            return Err(format!("snapshot {name} at {version} was never made"));
        }
        let model = history.models.get(before.epoch).unwrap_or(&history.pair.model);
        let blocks = support::read_all(chain, *version).await.map_err(|error| error.to_string())?;
        for (lba, content) in blocks.into_iter().enumerate() {
            if content != model.read(Lba(lba as u64), *version) {
                return Err(format!("block {lba} of snapshot {name} at {version} differs"));
            }
        }
    }
    let kept = before.snapshots.keys().filter(|name| after.snapshots.contains_key(*name));
    match kept.into_iter().find(|name| !found.contains_key(*name)) {
        Some(name) => Err(format!("snapshot {name} is lost")),
        None => Ok(()),
    }
}

fn crashes(seed: u64, cleaning: Cleaning, operations: usize, images: usize) -> usize {
    let shape = shape(cleaning);
    let history = std::sync::Arc::new(run(seed, |env| async move {
        let mut history = History::new(&env, &shape).await;
        let mut rng = env.rng();
        for _ in 0..operations {
            history.step(&env, &mut rng).await;
        }
        history
    }));
    run(seed, |env| async move {
        let mut rng = env.rng();
        let policy = Policy::sampled(0).at(Points::Sampled(images));
        let mut checked = 0;
        for image in history.recorder.images(&mut rng, &policy) {
            check(&env, &history, shape.links, &image).await;
            checked += 1;
        }
        checked
    })
}

fn survives_power_cuts(first: u64, cleaning: Cleaning) {
    let seeds = campaign::seeds(2).map(|seed| first + seed);
    let checked: usize = seeds.map(|seed| crashes(seed, cleaning, 300, 300)).sum();
    assert!(checked as u64 > 2_000 * campaign::length(), "only {checked} images");
}

#[test]
fn administration_survives_power_cuts_move_to_tail() {
    survives_power_cuts(0, Cleaning::MoveToTail);
}

#[test]
fn administration_survives_power_cuts_compact_in_body() {
    survives_power_cuts(50, Cleaning::CompactInBody);
}

/// A link leaves that shares its drive with the link of the tail, and nothing is written meanwhile.
#[test]
fn a_link_leaves_the_drive_of_the_tail() {
    let shape = shape(Cleaning::MoveToTail);
    run(13_728_762_298_387, |env| async move {
        let mut history = History::new(&env, &shape).await;
        let mut rng = env.rng();
        for _ in 0..150 {
            let step = history.step(&env, &mut rng);
            env.timeout(Duration::from_secs(60), step).await.expect("the step does not end");
        }
    });
}

/// The link of the tail leaves the chain just after a transaction of whole blocks and parts, while hundreds
/// of blocks wait in memory for places of their own.
fn leaves_with_slots(seed: u64, cleaning: Cleaning) -> usize {
    let shape = shape(cleaning);
    let (history, begun) = run(seed, |env| async move {
        let mut history = History::new(&env, &shape).await;
        let parts = |number: u64| Step::Parts((number * 20..number * 20 + 20).collect());
        let parts = (0..12).cycle().take(120).map(parts);
        for step in [Step::Apply((0..240).collect()), Step::Sync].into_iter().chain(parts) {
            // Discards, and transactions that write a block twice, release slots.
            if history.pair.chain.status().minis.slots > 150 {
                break;
            }
            let mut promise = history.promises.last().unwrap().clone();
            history.write(&env, &step, &mut promise).await;
            history.note(promise);
        }
        let slots = history.pair.chain.status().minis.slots;
        assert!(slots > 150, "{slots}");
        let begun = history.recorder.position();
        history.remove_link(0).await;
        history.note(history.promises.last().unwrap().clone());
        (std::sync::Arc::new(history), begun)
    });
    run(seed, |env| async move {
        let points = (begun..=history.recorder.position()).collect();
        let policy = Policy::sampled(0).at(Points::At(points));
        let mut checked = 0;
        for image in history.recorder.images(&mut env.rng(), &policy) {
            check(&env, &history, shape.links, &image).await;
            checked += 1;
        }
        checked
    })
}

#[test]
fn a_link_leaves_while_blocks_have_no_places_of_their_own() {
    for cleaning in [Cleaning::MoveToTail, Cleaning::CompactInBody] {
        let checked: usize = (0..2).map(|seed| leaves_with_slots(seed, cleaning)).sum();
        assert!(checked > 100, "only {checked} images");
    }
}
