//! Power cuts: after each the filesystem holds the state after some call, no older than what was
//! acknowledged as durable, and the check finds nothing wrong.

#![allow(clippy::unwrap_used)]

mod support;
#[path = "../../store/tests/support/mod.rs"]
mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use support::*;
use thalweg_fs::check::{How, check};
use thalweg_fs::local::{self, Atime, Local, Options};
use thalweg_fs::{
    Allocation, AttributeChange, Attributes, Filesystem, Ino, Kind, Node, Rename, SetXattr,
    WriteAt, WriteHow,
};
use thalweg_sim::crash::{CrashImage, Points, Policy};
use thalweg_sim::recording::Recorder;
use thalweg_sim::run;
use thalweg_store::chain::{Chain, Cleaning};
use thalweg_store::device::DeviceRef;
use thalweg_store::env::{Env, Rng};
use thalweg_store::txn::{self, Begin, Durability, Transact, TransactionManager};
use volumes::{Shape, options};

/// Everything that can be seen of a filesystem: by path, attributes, bytes, attributes of users.
type Seen = BTreeMap<String, (String, Vec<u8>, Vec<(Bytes, Bytes)>)>;

async fn see(fs: &Local) -> Seen {
    let mut seen = Seen::new();
    let mut ways = vec![(String::new(), Ino::ROOT)];
    while let Some((way, ino)) = ways.pop() {
        let attributes = attributes(fs, ino).await;
        let mut xattrs = Vec::new();
        for name in fs.xattrs(ino).await.unwrap() {
            let value = fs.xattr(ino, &name).await.unwrap();
            xattrs.push((name, value));
        }
        let bytes = match attributes.kind {
            Kind::File => content(fs, ino).await,
            Kind::Symlink => fs.read_link(ino).await.unwrap().to_vec(),
            _ => Vec::new(),
        };
        if attributes.kind == Kind::Directory {
            for entry in entries(fs, ino).await {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                ways.push((format!("{way}/{name}"), entry.ino));
            }
        }
        let shown = format!("{:?}", Attributes { ino: Ino(0), ..attributes });
        seen.insert(way, (shown, bytes, xattrs));
    }
    seen
}

/// A filesystem that is used, and who is in it.
struct User {
    env: Env,
    volume: Arc<dyn Transact>,
    fs: Local,
    directories: Vec<Ino>,
    files: Vec<Ino>,
    rng: Rng,
    made: u64,
}

impl User {
    fn pick(&mut self, among: &[Ino]) -> Ino {
        among[self.rng.random_range(0..among.len())]
    }

    fn name(&mut self) -> Vec<u8> {
        format!("{}", self.rng.random_range(0..12)).into_bytes()
    }

    /// One random call, which is one transaction; whether it is durable when it returns. Calls that
    /// make no sense change nothing.
    async fn step(&mut self) -> bool {
        let (directories, files) = (self.directories.clone(), self.files.clone());
        let (dir, other) = (self.pick(&directories), self.pick(&directories));
        let file = self.pick(&files);
        let (name, to) = (self.name(), self.name());
        let at = self.rng.random_range(0..60_000);
        let len = [10, 3000, 200_000][self.rng.random_range(0..3)];
        let how = WriteHow { sync: self.rng.random_bool(0.2), clear_suid: false };
        self.made += 1;
        let data = vec![Bytes::from(pattern(self.made, self.rng.random_range(1..=len)))];
        let fs = self.fs.clone();
        match self.rng.random_range(0..24) {
            0..4 => {
                if let Ok(made) = fs.create(dir, &name, &node(Node::File, 0o644)).await {
                    self.files.push(made.ino);
                }
            }
            4..6 => {
                if let Ok(made) = fs.create(dir, &name, &node(Node::Directory, 0o755)).await {
                    self.directories.push(made.ino);
                }
            }
            6 => {
                drop(fs.create(dir, &name, &node(Node::Symlink(name.clone().into()), 0o777)).await)
            }
            7 => drop(fs.link(file, dir, &name).await),
            8..10 => drop(fs.unlink(dir, &name).await),
            10 => drop(fs.remove_directory(dir, &name).await),
            11..13 => {
                let how = [Rename::Replace, Rename::Exchange][self.rng.random_range(0..2)];
                drop(fs.rename((dir, &name), (other, &to), how).await);
            }
            13..17 => {
                return fs.write(file, WriteAt::Offset(at), data, how).await.is_ok() && how.sync;
            }
            17..19 => return fs.write(file, WriteAt::End, data, how).await.is_ok() && how.sync,
            19 => {
                let change = AttributeChange { size: Some(at), ..AttributeChange::default() };
                drop(fs.set_attributes(file, &change).await);
            }
            20 => {
                let how = match self.rng.random_range(0..3) {
                    0 => Allocation::Punch,
                    1 => Allocation::Reserve { keep_size: false },
                    _ => Allocation::Zero { keep_size: false },
                };
                drop(fs.allocate(file, at, len as u64, how).await);
            }
            21 => drop(fs.set_xattr(file, b"user.a", data.concat().into(), SetXattr::Any).await),
            22 => {
                let view = fs.within(self.volume.begin(Begin::STRICT).await.unwrap());
                drop(view.rename((dir, &name), (other, &to), Rename::Replace).await);
                drop(view.write(file, WriteAt::Offset(at), data, how).await);
                drop(view.create(other, b"made within", &node(Node::File, 0o644)).await);
                return view.commit(Durability::Synced).await.is_ok();
            }
            _ => {
                fs.sync_all().await.unwrap();
                return true;
            }
        }
        false
    }
}

async fn open_volume(env: &Env, shape: Shape, devices: &[DeviceRef]) -> Arc<dyn Transact> {
    let chain = Chain::open(env, shape.parts(devices), options()).await.unwrap().0;
    Arc::new(TransactionManager::new(env, Arc::new(chain), txn::Options::default()))
}

async fn open_files(env: &Env, volume: &Arc<dyn Transact>) -> Local {
    let options = Options { atime: Atime::Never, read_only: false };
    Local::open(env, volume.clone(), "fs", options).await.unwrap()
}

fn crashes(seed: u64, shape: Shape, steps: usize, points: usize) -> (u64, u64, u64) {
    run(seed, |env| async move {
        let recorder = Recorder::with_latency(&env, Duration::from_micros(200));
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.format(&env, &devices).await;
        let volume = open_volume(&env, shape, &devices).await;
        let format = local::Format { metadata_blocks: Some(250), ..format() };
        local::make(&env, &volume, &format).await.unwrap();
        let fs = open_files(&env, &volume).await;
        let file = create(&fs, ROOT, "open").await;
        // Somebody has it open to the end.
        fs.remember(file);
        fs.sync_all().await.unwrap();
        let (rng, directories, files) = (env.rng(), vec![Ino::ROOT], vec![file]);
        let env2 = env.clone();
        let mut user = User { env: env2, volume, fs, directories, files, rng, made: 0 };
        let begun = recorder.position();
        let mut states = vec![see(&user.fs).await];
        recorder.mark(0);
        for number in 1..=steps {
            let durable = user.step().await;
            states.push(see(&user.fs).await);
            if durable {
                recorder.mark(states.len() as u64 - 1);
            }
            if number == steps / 3 {
                user.fs.unlink(ROOT, b"open").await.ok();
                states.push(see(&user.fs).await);
            }
            if number % 5 == 0 {
                user.env.sleep(Duration::from_millis(20)).await;
            }
        }
        let User { mut rng, fs, volume, .. } = user;
        drop((fs, volume));
        let points: Vec<usize> =
            (0..points).map(|_| rng.random_range(begun..=recorder.position())).collect();
        let policy = Policy { prefixes: 1, missing: 1, torn: 1, ..Policy::sampled(1) };
        let (mut checked, mut behind, mut unfinished) = (0, 0, 0);
        for image in recorder.images(&mut rng, &policy.at(Points::At(points))) {
            let (state, left) = check_image(&env, shape, &image, &states).await;
            checked += 1;
            behind += u64::from(state + 1 < states.len());
            unfinished += left;
        }
        (checked, behind, unfinished)
    })
}

/// Which state an image recovers to, and how much it has left to be done.
async fn check_image(env: &Env, shape: Shape, image: &CrashImage, states: &[Seen]) -> (usize, u64) {
    let volume = open_volume(env, shape, &image.devices).await;
    let how = How { repair: false, data: true };
    let report = check(env, volume.clone(), "fs", how).await.unwrap();
    assert!(report.is_clean(), "{}: {:?}", image.describe(), report.findings);
    let fs = open_files(env, &volume).await;
    let seen = see(&fs).await;
    let least = image.acknowledged().max().unwrap_or(0) as usize;
    let state = (least..states.len()).find(|state| states[*state] == seen);
    let state = state.unwrap_or_else(|| {
        let near: Vec<String> =
            (least..states.len()).map(|state| difference(&states[state], &seen)).collect();
        panic!("{}: no state from {least} on: {near:#?}", image.describe())
    });
    fs.close().await.unwrap();
    create(&fs, ROOT, "and goes on").await;
    fs.close().await.unwrap();
    let after = check(env, volume.clone(), "fs", how).await.unwrap();
    assert!(after.is_clean() && after.unfinished == 0, "{}: {after:?}", image.describe());
    (state, report.unfinished)
}

fn difference(a: &Seen, b: &Seen) -> String {
    let all: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let first = all.into_iter().find(|way| a.get(*way) != b.get(*way));
    first.map_or_else(String::new, |way| {
        let short = |seen: &Seen| seen.get(way).map(|it| (it.0.clone(), it.1.len()));
        format!("{way}: {:?} {:?}", short(a), short(b))
    })
}

#[test]
fn a_crash_leaves_a_prefix_of_what_was_done() {
    let shape = Shape { blocks: 1100, ..Shape::small(Cleaning::MoveToTail) };
    let shapes = [shape, Shape { map_on_link: true, cleaning: Cleaning::CompactInBody, ..shape }];
    let long: u64 = std::env::var("THALWEG_LONG").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let (mut checked, mut behind, mut unfinished) = (0, 0, 0);
    for seed in 0..4 * long {
        let some = crashes(seed, shapes[seed as usize % 2], 60, 10);
        (checked, behind, unfinished) = (checked + some.0, behind + some.1, unfinished + some.2);
    }
    println!(
        "{checked} images, {behind} of them not of the last state; {unfinished} left to be done"
    );
    assert!(checked > 150 && behind > 80 && unfinished > 20, "{checked} {behind} {unfinished}");
}
