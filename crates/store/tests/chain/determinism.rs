//! One seed, one trace: every write and flush of a chain that cleans, in the same order.

use std::hash::{BuildHasher, Hash, Hasher};
use std::time::Duration;

use thalweg_sim::model::BlockModel;
use thalweg_sim::recording::{Payload, Recorder};
use thalweg_sim::runtime::run;
use thalweg_store::chain::Cleaning;

use crate::support::{Pair, Shape, random_step_in_parts};

/// A digest of every request to the devices, and the number of blocks that cleaning moved.
fn trace(seed: u64, cleaning: Cleaning) -> (u64, u64) {
    run(seed, |env| async move {
        let shape = Shape::small(cleaning);
        let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.format(&env, &devices).await;
        let (chain, _) = shape.open(&env, &devices).await.unwrap();
        let mut pair = Pair { chain, model: BlockModel::new(shape.blocks) };
        let mut rng = env.rng();
        for _ in 0..500 {
            pair.step(&env, &random_step_in_parts(&mut rng, shape.blocks)).await.unwrap();
        }
        let moved = pair.chain.status().counts.blocks_moved;
        let log = recorder.log();
        let mut digest = foldhash::fast::FixedState::default().build_hasher();
        format!("{:?}", log.events).hash(&mut digest);
        for change in &log.changes {
            (change.device, change.offset, change.len).hash(&mut digest);
            if let Payload::Data(data) = &change.payload {
                data.iter().for_each(|buffer| buffer.hash(&mut digest));
            }
        }
        env.now().as_nanos().hash(&mut digest);
        (digest.finish(), moved)
    })
}

#[test]
fn one_seed_gives_one_trace() {
    for cleaning in [Cleaning::MoveToTail, Cleaning::CompactInBody] {
        let (first, moved) = trace(5, cleaning);
        assert!(moved > 0, "the history never cleaned");
        assert_eq!(trace(5, cleaning).0, first);
        assert_ne!(trace(6, cleaning).0, first);
    }
}
