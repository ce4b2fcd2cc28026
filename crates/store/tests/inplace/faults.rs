//! In-place stores over devices that return wrong data: they read old sectors, lose writes,
//! misplace them, or flip bits.

use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::faults::{Faults, Faulty};
use thalweg_sim::model::BlockModel;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Class, Lba, StoreError};
use thalweg_store::device::DeviceRef;
use thalweg_store::inplace::{InPlace, InPlaceError, Mend, Mode};

use crate::support::{Shape, transaction};

/// A store over devices with injected faults, and its expected content.
struct Rig {
    env: Env,
    shape: Shape,
    devices: Vec<DeviceRef>,
    faults: Vec<Faults>,
    model: BlockModel,
    now: Vec<Option<Bytes>>,
    rng: Rng,
}

impl Rig {
    async fn new(env: &Env, shape: Shape) -> Rig {
        let wrapped = shape.memory().into_iter().map(|device| Faulty::wrap(env, device));
        let (devices, faults): (Vec<DeviceRef>, Vec<Faults>) =
            wrapped.map(|(device, faults)| (device as DeviceRef, faults)).unzip();
        shape.create(env, &devices).await;
        Rig {
            env: env.clone(),
            shape,
            devices,
            faults,
            model: BlockModel::new(shape.blocks),
            now: vec![None; shape.blocks as usize],
            rng: env.rng(),
        }
    }

    async fn write(&mut self, store: &InPlace, transactions: usize) {
        for _ in 0..transactions {
            let writes = transaction(&mut self.rng, &self.shape, &mut self.now);
            store.apply(writes.clone()).await.unwrap();
            self.model.apply(&writes);
            self.env.sleep(Duration::from_micros(self.rng.random_range(0..9000))).await;
        }
        store.sync(store.now()).await.unwrap();
    }

    /// Whether the block has a checksum.
    fn is_summed(&self, lba: u64) -> bool {
        self.shape.class(lba) == Class::Metadata || self.shape.options.mode.journals_all_data()
    }

    /// Blocks that read wrong content, and blocks that fail to read.
    async fn read(&self, store: &InPlace) -> (u64, u64) {
        let (mut wrong, mut refused) = (0, 0);
        for lba in (0..self.shape.blocks).filter(|lba| self.is_summed(*lba)) {
            match store.read_newest(Lba(lba), 1).await {
                Ok((_, found)) => {
                    let found = found[0].clone();
                    let found = found.filter(|block| block.iter().any(|byte| *byte != 0));
                    let expected = self.model.read(Lba(lba), self.model.now());
                    wrong += u64::from(found != expected);
                }
                Err(StoreError::Corrupt { .. } | StoreError::Device(_)) => refused += 1,
                Err(error) => panic!("block {lba}: {error}"),
            }
        }
        (wrong, refused)
    }

    /// Injects read faults into some blocks of the data device.
    async fn lie(&mut self, store: &InPlace) {
        const RUN: u64 = 30;
        let last = self.shape.blocks - RUN;
        let mut range = || {
            let first = store.superblock().place(self.rng.random_range(0..last));
            first..first + RUN * BLOCK_SIZE as u64
        };
        let (range, other) = (range(), range());
        let faults = &self.faults[0];
        match self.rng.random_range(0..5) {
            0 => faults.break_sectors(range),
            1 => faults.rot(range, 1),
            2 => faults.freeze(range).await.unwrap(),
            3 => faults.lose_writes(range, 3),
            _ => faults.misdirect(range, other.start),
        }
    }
}

/// Numbers of blocks that failed to read over some faults, and of those that recovery gave up.
fn lies(seed: u64, mode: Mode) -> (u64, u64) {
    run(seed, |env| async move {
        let shape = Shape::varied(mode, seed);
        let mut rig = Rig::new(&env, shape).await;
        let (store, _) = shape.open(&env, &rig.devices).await;
        let mut refused = 0;
        for _ in 0..12 {
            rig.write(&store, 25).await;
            rig.lie(&store).await;
            rig.write(&store, 25).await;
            let (wrong, some) = rig.read(&store).await;
            assert_eq!(wrong, 0, "seed {seed}");
            refused += some;
        }
        // Faults that were not repaired stay.
        drop(store);
        let parts = shape.parts(&rig.devices);
        let (store, recovered) = match InPlace::open(&env, parts.clone(), shape.options).await {
            Err(InPlaceError::Unreadable { .. }) => {
                InPlace::open_damaged(&env, parts, shape.options).await.unwrap()
            }
            opened => opened.unwrap(),
        };
        assert_eq!(recovered.version, rig.model.now().0);
        // Blocks that were given up stay lost when the device works again.
        rig.faults[0].heal();
        let (wrong, refused_later) = rig.read(&store).await;
        // The journal's bytes went over a base that did not match; recovery reports that.
        assert!(wrong <= recovered.unverified, "{wrong} blocks: {recovered:?}");
        if mode.journals_all_data() {
            assert!(refused_later >= recovered.unreadable, "{recovered:?}");
        }
        (refused, recovered.unreadable)
    })
}

#[test]
fn no_lie_of_the_data_device_reaches_a_reader() {
    let mut given_up = 0;
    for mode in [Mode::Ordered, Mode::Data, Mode::Wasteless, Mode::Selective] {
        let met: Vec<(u64, u64)> = (0..8).map(|seed| lies(seed, mode)).collect();
        assert!(met.iter().any(|(refused, _)| *refused > 0), "no lie was met in {mode}");
        given_up += met.iter().map(|(_, given_up)| given_up).sum::<u64>();
    }
    assert!(given_up > 0, "recovery has given nothing up");
}

/// A journal that loses one write and continues: opening reports that, or finds everything.
#[test]
fn a_write_that_the_journal_loses_is_told() {
    let mut told = 0;
    for seed in 0..24 {
        told += run(seed, |env| async move {
            let shape = Shape { external: true, ..Shape::varied(Mode::Wasteless, seed) };
            let mut rig = Rig::new(&env, shape).await;
            let (store, _) = shape.open(&env, &rig.devices).await;
            rig.write(&store, 20).await;
            rig.faults[1].lose_writes(0..shape.journal, 1);
            rig.write(&store, 3).await;
            rig.write(&store, 3).await;
            drop(store);
            match InPlace::open(&env, shape.parts(&rig.devices), shape.options).await {
                Err(_) => 1,
                Ok((store, recovered)) => {
                    assert_eq!(recovered.version, rig.model.now().0, "seed {seed}");
                    let (wrong, _) = rig.read(&store).await;
                    assert_eq!(wrong, 0, "seed {seed}");
                    0
                }
            }
        });
    }
    assert!(told > 0, "the journal needed none of what it lost");
}

/// Recovery gives blocks up, and is cut off after some requests: content made from a lost block
/// must never be read. Returns whether recovery finished, and how many blocks it gave up.
fn give_up(seed: u64, requests: usize) -> (bool, u64) {
    run(seed, |env| async move {
        let shape = Shape::varied(Mode::Wasteless, seed);
        let mut rig = Rig::new(&env, shape).await;
        let (store, _) = shape.open(&env, &rig.devices).await;
        // Blocks are in place, and the journal holds partial changes of them.
        rig.write(&store, 60).await;
        store.checkpoint().await.unwrap();
        rig.write(&store, 12).await;
        let home = store.superblock().place(0)..store.superblock().place(shape.blocks);
        drop(store);
        let parts = shape.parts(&rig.devices);
        rig.faults[0].break_sectors(home);
        rig.faults[0].die_after(requests);
        let opened = InPlace::open_damaged(&env, parts, shape.options).await;
        // The lost blocks can be read again, as they were or as recovery left them.
        rig.faults[0].heal();
        let (store, recovered, is_done) = match opened {
            Ok((store, recovered)) => (store, recovered, true),
            Err(_) => {
                let (store, recovered) = shape.open(&env, &rig.devices).await;
                (store, recovered, false)
            }
        };
        let (wrong, refused) = rig.read(&store).await;
        assert_eq!(wrong, 0, "seed {seed}, {requests} requests: {recovered:?}");
        assert!(refused >= recovered.unreadable, "{recovered:?}");
        (is_done, recovered.unreadable)
    })
}

#[test]
fn a_crash_while_blocks_are_given_up() {
    let mut given_up = 0;
    for seed in 0..20 {
        for requests in 0.. {
            let (is_done, some) = give_up(seed, requests);
            given_up += some;
            if is_done {
                break;
            }
        }
    }
    assert!(given_up > 0, "nothing was given up");
}

#[test]
fn damage_is_known_to_later_openings_until_a_scrub_finds_none() {
    run(1, |env| async move {
        let shape = Shape::varied(Mode::Data, 1);
        let mut rig = Rig::new(&env, shape).await;
        let (store, _) = shape.open(&env, &rig.devices).await;
        rig.write(&store, 50).await;
        store.close().await.unwrap();
        drop(store);
        let (store, _) = shape.open(&env, &rig.devices).await;
        assert!(!store.status().damaged);
        let blocks = store.superblock();
        let all = blocks.place(0)..blocks.place(shape.blocks);
        rig.faults[0].break_sectors(all.clone());
        let (_, refused) = rig.read(&store).await;
        assert!(refused > 0);
        let status = store.status();
        assert!(status.damaged && status.counts.damaged == refused, "{status:?}");
        // A pass of writeback records it; then as after a crash.
        env.sleep(Duration::from_secs(60)).await;
        drop(store);
        rig.faults[0].heal();
        let (store, _) = shape.open(&env, &rig.devices).await;
        assert!(store.status().damaged && store.superblock().damaged);
        rig.faults[0].break_sectors(all);
        assert!(!store.scrub(Mend::No, &|_, _| {}).await.unwrap().lost.is_empty());
        assert!(store.status().damaged);
        rig.faults[0].heal();
        store.scrub(Mend::No, &|_, _| {}).await.unwrap();
        assert!(!store.status().damaged);
        drop(store);
        let (store, _) = shape.open(&env, &rig.devices).await;
        assert!(!store.status().damaged && !store.superblock().damaged);
    });
}
