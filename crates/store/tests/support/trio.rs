//! A chain with snapshots beside its model.

use std::collections::BTreeMap;

use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::model::BlockModel;
use thalweg_store::block::{Lba, Version};
use thalweg_store::chain::ChainError;
use thalweg_store::device::DeviceRef;

use super::{Pair, Shape, random_step_in_parts, read_all};

/// A chain, its model, and the versions that snapshots name.
pub struct Trio {
    pub pair: Pair,
    pub snapshots: BTreeMap<String, Version>,
    serial: u32,
}

impl Trio {
    pub async fn new(env: &Env, shape: &Shape, devices: &[DeviceRef]) -> Trio {
        shape.format(env, devices).await;
        let (chain, _) = shape.open(env, devices).await.unwrap();
        let pair = Pair { chain, model: BlockModel::new(shape.blocks) };
        Trio { pair, snapshots: BTreeMap::new(), serial: 0 }
    }

    fn pick(&self, rng: &mut Rng) -> Option<String> {
        let names: Vec<&String> = self.snapshots.keys().collect();
        (!names.is_empty()).then(|| names[rng.random_range(0..names.len())].clone())
    }

    pub async fn step(&mut self, env: &Env, rng: &mut Rng, blocks: u64) {
        match rng.random_range(0..60) {
            0 if self.snapshots.len() < 4 => {
                self.serial += 1;
                let name = format!("s{}", self.serial);
                let snapshot = self.pair.chain.create_snapshot(&name).await.unwrap();
                assert_eq!(snapshot.version, self.pair.model.now());
                self.snapshots.insert(name, snapshot.version);
            }
            1 => {
                if let Some(name) = self.pick(rng) {
                    self.pair.chain.delete_snapshot(&name).await.unwrap();
                    self.snapshots.remove(&name);
                }
            }
            2 => {
                if let Some(name) = self.pick(rng) {
                    self.rollback(&name).await;
                }
            }
            _ => {
                let step = random_step_in_parts(rng, blocks);
                self.pair.step(env, &step).await.unwrap();
            }
        }
    }

    async fn rollback(&mut self, name: &str) {
        let version = self.snapshots[name];
        let newer = self.snapshots.values().any(|other| *other > version);
        let result = self.pair.chain.rollback(name).await;
        if newer {
            assert!(matches!(result, Err(ChainError::Invalid(_))));
            return;
        }
        result.unwrap();
        let now = self.pair.model.now();
        self.pair.model.rewind(version);
        while self.pair.model.now() < now {
            self.pair.model.apply(&[]);
        }
    }

    pub async fn compare(&self) {
        self.pair.compare().await;
        for (name, version) in &self.snapshots {
            let found = read_all(&self.pair.chain, *version).await.unwrap();
            for (lba, content) in found.into_iter().enumerate() {
                let expected = self.pair.model.read(Lba(lba as u64), *version);
                assert!(content == expected, "block {lba} of snapshot {name} at {version}");
            }
        }
    }
}
