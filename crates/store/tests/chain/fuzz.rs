//! Decoders and whole images on arbitrary bytes: for a few seconds, the same as the endless targets in
//! `fuzz/`.

use rand::{RngExt, SeedableRng};
use thalweg_env::Rng;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_store::chain::{Chain, Cleaning, Label, fuzz};
use thalweg_store::device::DeviceRef;
use uuid::Uuid;

use crate::support::Shape;
use crate::support::scribble::Image;

fn a_label() -> Label {
    run(1, |env| async move {
        let shape = Shape::small(Cleaning::CompactInBody);
        let devices = shape.devices(|name, geometry| {
            std::sync::Arc::new(RamDisk::new(name, geometry)) as DeviceRef
        });
        shape.format(&env, &devices).await;
        let (chain, _): (Chain, _) = shape.open(&env, &devices).await.unwrap();
        chain.label()
    })
}

/// Random changes of a valid seed, and of nothing.
fn mutants(rng: &mut Rng, seed: &[u8]) -> Vec<u8> {
    let mut bytes = match rng.random_bool(0.8) {
        true => seed.to_vec(),
        false => (0..rng.random_range(0..2_000)).map(|_| rng.random()).collect(),
    };
    for _ in 0..rng.random_range(0..6) {
        if !bytes.is_empty() {
            // Numbers are in the heads.
            let at = rng.random_range(0..bytes.len().min(400));
            bytes[at] = [0, 1, 0x7f, 0xff, rng.random()][rng.random_range(0..5)];
        }
    }
    if rng.random_bool(0.2) {
        bytes.truncate(rng.random_range(0..=bytes.len()));
    }
    bytes
}

#[test]
fn decoders_survive_anything() {
    let seeds = fuzz::seeds(&a_label());
    let mut rng = Rng::seed_from_u64(1);
    for round in 0..20_000 {
        let seed = &seeds[round % seeds.len()];
        let short = &seed[..seed.len().min(2_048)];
        let bytes = mutants(&mut rng, short);
        fuzz::label(&bytes);
        fuzz::sector(&bytes, 9, 1);
        fuzz::checkpoint(&bytes, Uuid::from_u128(7));
        fuzz::mini(&bytes);
    }
}

fn scribbles(first: u64, cleaning: Cleaning) {
    let (mut opened, mut refused) = (0, 0);
    for seed in first..first + 6 {
        let image = Image::new(seed, cleaning);
        let mut rng = Rng::seed_from_u64(seed);
        for _ in 0..150 {
            let data: Vec<u8> = (0..8 * rng.random_range(1..8)).map(|_| rng.random()).collect();
            match image.scribble(&data) {
                true => opened += 1,
                false => refused += 1,
            }
        }
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > 50 && refused > 50, "{opened} opened, {refused} refused");
}

#[test]
fn scribbled_images_give_an_error_or_a_consistent_volume() {
    scribbles(0, Cleaning::MoveToTail);
    scribbles(100, Cleaning::CompactInBody);
}
