//! Chains that run out of room because damage keeps segments from being emptied.

use std::time::Duration;

use thalweg_env::Env;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, StoreError};
use thalweg_store::chain::{Chain, Cleaning};

use crate::faults::{Rig, shape};
use crate::support::SEGMENT;

/// Far more than a device needs for any of this.
const LONG: Duration = Duration::from_secs(60);
const LINKS: usize = 3;

/// Damages a part of each segment.
fn damage_all(rig: &Rig) {
    for faults in &rig.faults[..LINKS] {
        for segment in 0..rig.shape.segments_per_link {
            let first = u64::from(segment * SEGMENT + SEGMENT / 2) * BLOCK_SIZE as u64;
            faults.break_sectors(first..first + 6 * BLOCK_SIZE as u64);
        }
    }
}

/// Writes until there is no room, if that comes to pass.
async fn fill(env: &Env, rig: &mut Rig, chain: &Chain) -> bool {
    for _ in 0..200 {
        damage_all(rig);
        let written = env.timeout(LONG, rig.write(chain, 10)).await;
        match written.expect("a writer waits for ever") {
            Ok(()) => {}
            Err(StoreError::NoSpace) => return true,
            Err(error) => panic!("{error}"),
        }
    }
    false
}

/// One life: damage in all segments; a writer is refused at some time, and goes on after a repair.
fn life(seed: u64, cleaning: Cleaning) -> bool {
    run(seed, |env| async move {
        let shape = shape(cleaning);
        let mut rig = Rig::new(&env, shape).await;
        rig.faults.iter().for_each(|faults| faults.slow(1.0, Duration::from_micros(100)));
        let chain = rig.open().await.unwrap();
        rig.write(&chain, 100).await.unwrap();
        chain.sync(chain.now()).await.unwrap();
        let refused = fill(&env, &mut rig, &chain).await;
        rig.faults.iter().for_each(|faults| faults.heal());
        chain.scrub(&|_, _| {}).await.unwrap();
        assert_eq!(rig.check_reads(&chain).await, 0);
        for _ in 0..20 {
            rig.write(&chain, 10).await.unwrap();
        }
        refused
    })
}

#[test]
fn damage_that_stops_cleaning_refuses_writers_until_it_is_repaired() {
    let cleanings = [Cleaning::MoveToTail, Cleaning::CompactInBody];
    let refused = (0..20).filter(|seed| life(*seed, cleanings[*seed as usize % 2])).count();
    assert!(refused > 0);
}

#[test]
fn damage_is_known_to_later_openings_until_a_scrub_finds_none() {
    run(1, |env| async move {
        let mut rig = Rig::new(&env, shape(Cleaning::MoveToTail)).await;
        let chain = rig.open().await.unwrap();
        rig.write(&chain, 100).await.unwrap();
        chain.close().await.unwrap();
        drop(chain);
        let chain = rig.open().await.unwrap();
        assert!(!chain.status().damaged && !chain.label().damaged);
        damage_all(&rig);
        assert!(rig.check_reads(&chain).await > 0);
        assert!(chain.status().damaged);
        env.sleep(Duration::from_secs(1)).await;
        // As after a crash. Whether the blocks can be read again is not known before a scrub.
        drop(chain);
        rig.faults.iter().for_each(|faults| faults.heal());
        let chain = rig.open().await.unwrap();
        assert!(chain.status().damaged && chain.label().damaged);
        damage_all(&rig);
        assert!(chain.scrub(&|_, _| {}).await.unwrap().damaged > 0);
        assert!(chain.status().damaged && chain.label().damaged);
        rig.faults.iter().for_each(|faults| faults.heal());
        chain.scrub(&|_, _| {}).await.unwrap();
        assert!(!chain.status().damaged && !chain.label().damaged);
        drop(chain);
        assert!(!rig.open().await.unwrap().status().damaged);
    });
}
