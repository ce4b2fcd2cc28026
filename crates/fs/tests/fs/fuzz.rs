//! Filesystems that were scribbled on: an error, never a panic, never a call without end; and the check
//! makes them whole again.

mod image;

use image::{Image, use_and_repair, used};
use rand::{RngExt, SeedableRng};
use thalweg_env::Rng;
use thalweg_sim::{campaign, run};

use crate::support::*;

#[test]
fn records_that_were_scribbled_on() {
    let mut found = 0;
    for seed in campaign::seeds(40) {
        found += u64::from(run(seed, |env| async move {
            let mut rng = env.rng();
            let volume = used(&env, &mut rng).await;
            scribble_records(&env, &volume, &mut rng).await;
            use_and_repair(&env, &volume, &mut rng).await
        }));
    }
    println!("{found} found");
    assert!(found > 25, "{found}");
}

#[test]
fn images_that_were_scribbled_on() {
    let mut found = 0;
    for seed in 0..4 {
        let image = Image::new(seed);
        assert!(!image.scribble(&[]), "nobody scribbled on it");
        let mut rng = Rng::seed_from_u64(seed);
        for _ in 0..30 * campaign::length() {
            let strokes: Vec<u8> = (0..8 * rng.random_range(1..4)).map(|_| rng.random()).collect();
            found += u64::from(image.scribble(&strokes));
        }
    }
    println!("{found} found");
    assert!(found > 40, "{found}");
}
