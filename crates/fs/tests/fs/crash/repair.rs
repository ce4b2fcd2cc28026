//! Power cuts in the middle of a repair: the next one makes the filesystem whole, and loses no more.

use std::collections::BTreeSet;

use rand::RngExt;
use thalweg_env::Env;
use thalweg_fs::check::{How, Report, check};
use thalweg_fs::{FsError, Ino};
use thalweg_sim::crash::{Images, Points, Policy};
use thalweg_sim::recording::Recorder;
use thalweg_sim::{campaign, run};

use super::rig::{Rig, Volume};
use super::state::State;
use super::user::User;
use super::{LATENCY, check_sound};
use crate::support::*;

const STEPS: usize = 40;

/// The state of a filesystem, without the times of repairs.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Whole {
    paths: BTreeSet<String>,
    files: Vec<(Ino, Vec<u8>)>,
}

pub(crate) async fn see(env: &Env, volume: &Volume) -> Whole {
    let state = State::see(&volume.files(env).await, &[]).await;
    Whole { paths: state.metadata.into_keys().collect(), files: state.files.into_iter().collect() }
}

pub(crate) async fn repair(env: &Env, volume: &Volume) -> Result<Report, FsError> {
    check(env, volume.transact.clone(), "fs", How { repair: true, salvage: true, data: true }).await
}

/// Which images are made of crashes at these points.
pub(crate) fn policy(points: Vec<usize>) -> Policy {
    Policy { prefixes: 1, missing: 1, torn: 1, ..Policy::sampled(1) }.at(Points::At(points))
}

/// Repairs crash images of a repair that had ended with `expected`; returns the number of images, and how
/// many of them still needed repair. `about` describes a failure.
pub(crate) async fn repair_again(
    env: &Env,
    rig: &Rig,
    crashes: Images,
    expected: &Whole,
    about: &str,
) -> (u64, u64) {
    let (mut images, mut left) = (0, 0);
    for image in crashes {
        let when = image.describe();
        let volume = rig.open(env, &image.devices).await;
        let again = repair(env, &volume).await.unwrap();
        assert!(!again.is_damaged(), "{when}: {:#?}", again.findings);
        check_sound(env, &volume, &when).await;
        let found = see(env, &volume).await;
        assert!(
            found == *expected,
            "{about}\n{when}\nthen {:#?}\nmade {:?} of {:?}",
            again.findings,
            found.paths,
            expected.paths
        );
        images += 1;
        left += u64::from(!again.is_clean());
    }
    (images, left)
}

/// Images of crashes in the repair of a filesystem that was scribbled on, and how many of them had
/// something left to be repaired; `None` when nothing can be repaired.
fn crash_repair(seed: u64, rig: Rig) -> Option<(u64, u64)> {
    run(seed, |env| async move {
        let recorder = Recorder::with_latency(&env, LATENCY);
        let devices = rig.devices(|name, geometry| recorder.device(name, geometry));
        let mut user = User::new(&env, rig.make(&env, &devices).await).await;
        for _ in 0..STEPS {
            user.step().await;
        }
        let mut rng = env.rng();
        let User { volume, fs, .. } = user;
        fs.close().await.unwrap();
        drop(fs);
        scribble_records(&env, &volume.transact, &mut rng).await;
        volume.sync().await;
        let begun = recorder.position();
        let report = match repair(&env, &volume).await {
            Ok(report) => report,
            // Nothing says where it is.
            Err(
                FsError::Damaged(_)
                | FsError::Store(_)
                | FsError::NoFilesystem(_)
                | FsError::Newer(_),
            ) => return None,
            Err(error) => panic!("{error}"),
        };
        assert!(!report.is_damaged(), "{:#?}", report.findings);
        let repaired = recorder.position();
        let expected = see(&env, &volume).await;
        drop(volume);
        let points = (0..12).map(|_| rng.random_range(begun..=repaired)).collect();
        let images = recorder.images(&mut rng, &policy(points));
        let about = format!("{:#?}", report.findings);
        Some(repair_again(&env, &rig, images, &expected, &about).await)
    })
}

#[test]
fn a_crash_in_a_repair() {
    let (mut images, mut left) = (0, 0);
    for seed in campaign::seeds(18) {
        let some = crash_repair(seed, Rig::varied(seed)).unwrap_or_default();
        (images, left) = (images + some.0, left + some.1);
    }
    println!("{images} images, {left} of them with something left to be repaired");
    assert!(images > 200 && left > 60, "{images} {left}");
}
