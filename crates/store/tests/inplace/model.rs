//! Random histories of an in-place store against a naive model: every mode, held versions, changes of
//! mode, and reopening.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::seq::IndexedRandom;
use thalweg_env::Rng;
use thalweg_sim::model::BlockModel;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::{Blocks, BlocksExt, Hold, Lba, Version, Versions};
use thalweg_store::inplace::{InPlace, Mend, Mode, Options};

use crate::support::{Shape, transaction};

async fn compare(store: &InPlace, model: &BlockModel, at: Version) {
    let mut rest = 0;
    while rest < model.blocks() {
        let count = (model.blocks() - rest).min(7);
        let read = store.read(Lba(rest), count, at).await.unwrap();
        for (lba, found) in (rest..).zip(read) {
            let found = found.filter(|block| block.iter().any(|byte| *byte != 0));
            assert!(found == model.read(Lba(lba), at), "block {lba} at version {at}");
        }
        rest += count;
    }
}

struct History {
    shape: Shape,
    store: Arc<InPlace>,
    model: BlockModel,
    now: Vec<Option<bytes::Bytes>>,
    holds: Vec<Hold>,
}

impl History {
    async fn step(&mut self, rng: &mut Rng) {
        match rng.random_range(0..20) {
            0..12 => {
                let writes = transaction(rng, &self.shape, &mut self.now);
                let expected = self.model.apply(&writes);
                assert_eq!(self.store.apply(writes).await.unwrap(), expected);
            }
            12 => {
                let lba = rng.random_range(0..self.shape.blocks);
                let count = rng.random_range(1..=(self.shape.blocks - lba).min(40));
                let expected = self.model.discard(Lba(lba), count);
                assert_eq!(self.store.discard(Lba(lba), count).await.unwrap(), expected);
                self.now[lba as usize..(lba + count) as usize].fill(None);
            }
            13 => self.store.sync(self.store.now()).await.unwrap(),
            14 => {
                let hold = self.store.hold(self.store.now()).unwrap();
                assert_eq!(hold.version(), self.model.now());
                self.holds.push(hold);
            }
            15 if !self.holds.is_empty() => {
                self.holds.swap_remove(rng.random_range(0..self.holds.len()));
            }
            16 => {
                if let Some(hold) = self.holds.choose(rng) {
                    compare(&self.store, &self.model, hold.version()).await;
                }
            }
            17 => self.store.checkpoint().await.unwrap(),
            _ => {
                let lba = rng.random_range(0..self.shape.blocks);
                let found = self.store.read_newest(Lba(lba), 1).await.unwrap().1;
                let found = found[0].clone();
                let found = found.filter(|block| block.iter().any(|byte| *byte != 0));
                assert!(found == self.model.read(Lba(lba), self.model.now()));
            }
        }
    }
}

fn history(seed: u64, modes: &'static [Mode]) {
    run(seed, |env| async move {
        let shape = Shape::varied(modes[0], seed);
        let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.create(&env, &devices).await;
        let mut rng = env.rng();
        let (store, _) = shape.open(&env, &devices).await;
        let mut history = History {
            shape,
            store: Arc::new(store),
            model: BlockModel::new(shape.blocks),
            now: vec![None; shape.blocks as usize],
            holds: Vec::new(),
        };
        let mut checkpointed = 0;
        for step in 0..1200 {
            history.step(&mut rng).await;
            if rng.random_bool(0.3) {
                env.sleep(Duration::from_millis(rng.random_range(0..20))).await;
            }
            if step % 50 == 49 {
                let mode = *modes.choose(&mut rng).unwrap();
                let options = Options { mode, ..history.store.options() };
                history.store.set_options(options);
            }
            if step % 100 == 99 {
                compare(&history.store, &history.model, history.model.now()).await;
                for hold in &history.holds {
                    compare(&history.store, &history.model, hold.version()).await;
                }
                let status = history.store.status();
                assert!(status.dirty <= status.cached);
            }
            if step % 300 == 299 {
                checkpointed += history.store.status().counts.checkpointed;
                history.holds.clear();
                match step % 600 == 599 {
                    true => history.store.close().await.unwrap(),
                    false => {
                        history.store.sync(history.store.now()).await.unwrap();
                        // A block that is in place before its map entry does not match its
                        // checksum: no writeback may be under way when the store is dropped.
                        let options = history.store.options();
                        let never = Duration::from_secs(1000);
                        history.store.set_options(Options { expire: never, ..options });
                        env.sleep(Duration::from_millis(200)).await;
                    }
                }
                let History { shape, model, now, .. } = history;
                drop(history.store);
                let (store, found) = shape.open(&env, &devices).await;
                assert_eq!(found.version, model.now().0, "{found:?}");
                assert_eq!((found.unverified, found.torn, found.given_up), (0, false, 0));
                history = History { shape, store: Arc::new(store), model, now, holds: Vec::new() };
                compare(&history.store, &history.model, history.model.now()).await;
            }
        }
        assert!(checkpointed > 0);
        let report = history.store.scrub(Mend::Yes, &|_, _| {}).await.unwrap();
        assert!(report.lost.is_empty() && report.map_sectors == 0, "{report:?}");
    });
}

#[test]
fn writeback_follows_the_model() {
    (0..4).for_each(|seed| history(seed, &[Mode::Writeback]));
}

#[test]
fn ordered_follows_the_model() {
    (10..14).for_each(|seed| history(seed, &[Mode::Ordered]));
}

#[test]
fn data_follows_the_model() {
    (20..24).for_each(|seed| history(seed, &[Mode::Data]));
}

#[test]
fn wasteless_follows_the_model() {
    (30..34).for_each(|seed| history(seed, &[Mode::Wasteless]));
}

#[test]
fn selective_follows_the_model() {
    (40..44).for_each(|seed| history(seed, &[Mode::Selective]));
}

#[test]
fn modes_that_change_follow_the_model() {
    (50..58).for_each(|seed| history(seed, &Mode::ALL));
}
