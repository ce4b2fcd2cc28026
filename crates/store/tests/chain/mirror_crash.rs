//! Power cuts of a chain whose map is mirrored: the sides may differ in writes that no flush had covered, and
//! each side alone must later give the same result.

use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_sim::crash::Policy;
use thalweg_sim::model::BlockModel;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::{Blocks, Lba, Version};
use thalweg_store::chain::{Chain, Cleaning, Link, Parts};
use thalweg_store::device::{DeviceRef, Geometry, Mirror, Side};

use crate::support::{self, Pair, Shape, link_id, options, random_step_in_parts};

const LINKS: usize = 2;

fn shape() -> Shape {
    Shape { links: LINKS, segments_per_link: 6, blocks: 300, ..Shape::small(Cleaning::MoveToTail) }
}

/// The devices' parts, with the present sides of the map.
fn parts(env: &Env, devices: &[DeviceRef], sides: [bool; 2]) -> Parts {
    let side = |number: usize| match sides[number] {
        true => Side::InSync(devices[LINKS + number].clone()),
        false => Side::Missing,
    };
    let mirror = Mirror::new(env, vec![side(0), side(1)], Arc::new(()), false).unwrap();
    let link = |number: usize| Link { id: link_id(number), device: devices[number].clone() };
    Parts {
        links: (0..LINKS).map(link).collect(),
        map: Arc::new(mirror),
        map_link: None,
        tail_cache: None,
        body_cache: None,
    }
}

fn explore(seed: u64) -> usize {
    let shape = shape();
    let (recorder, model) = run(seed, |env| async move {
        let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
        let link = Geometry { size: shape.link_bytes(), sector: 512 };
        let map = Geometry { size: shape.map_bytes(), sector: 512 };
        let devices: Vec<DeviceRef> = [("a", link), ("b", link), ("map0", map), ("map1", map)]
            .map(|(name, geometry)| recorder.device(name, geometry))
            .into();
        let whole = || parts(&env, &devices, [true, true]);
        Chain::create(&env, whole(), &shape.create()).await.unwrap();
        let (chain, _) = Chain::open(&env, whole(), options()).await.unwrap();
        recorder.mark(0);
        let mut pair = Pair { chain, model: BlockModel::new(shape.blocks) };
        let mut rng = env.rng();
        for _ in 0..150 {
            let step = random_step_in_parts(&mut rng, shape.blocks);
            if let Some(version) = pair.step(&env, &step).await.unwrap() {
                recorder.mark(version.0);
            }
        }
        (recorder, pair.model)
    });
    run(seed, |env| async move {
        let mut rng = env.rng();
        let mut checked = 0;
        for image in recorder.images(&mut rng, &Policy::sampled(60)) {
            let Some(acknowledged) = image.acknowledged().next() else { continue };
            let mut later = model.clone();
            let devices = image.devices.clone();
            // Twice over both sides with writes between, then over each side alone.
            for (round, sides) in
                [[true, true], [true, true], [true, false], [false, true]].into_iter().enumerate()
            {
                let describe = || format!("round {round}, {}", image.describe());
                let opened = Chain::open(&env, parts(&env, &devices, sides), options()).await;
                let (chain, _) = opened.unwrap_or_else(|why| panic!("{}: {why}", describe()));
                let found = support::read_all(&chain, chain.now()).await.unwrap();
                let floor = if round == 0 { Version(acknowledged) } else { later.now() };
                let fits =
                    later.check(floor, later.now(), |lba: Lba| found[lba.0 as usize].clone());
                let fits = fits.unwrap_or_else(|why| panic!("{}: {why}", describe()));
                if round > 1 {
                    // The result of each side alone must not depend on the other.
                    break_off(chain);
                    continue;
                }
                assert!(fits.contains(chain.now()), "{}", describe());
                later.rewind(chain.now());
                let mut pair = Pair { chain, model: later };
                for _ in 0..6 {
                    let step = random_step_in_parts(&mut rng, shape.blocks);
                    pair.step(&env, &step).await.unwrap();
                }
                pair.chain.sync(pair.chain.now()).await.unwrap();
                later = pair.model;
                break_off(pair.chain);
            }
            checked += 1;
        }
        checked
    })
}

/// Ends a chain as a crash of its program does.
fn break_off(chain: Chain) {
    drop(chain);
}

#[test]
fn a_mirrored_map_tells_the_same_from_either_side() {
    let checked: usize = (0..4).map(explore).sum();
    assert!(checked > 1_500, "only {checked} images");
}
