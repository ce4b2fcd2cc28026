//! Rounds of group commit that overlap, and a power cut between their ends.

use std::sync::Arc;
use std::time::Duration;

use thalweg_sim::runtime::run;
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::block::{Blocks, BlocksExt, Lba, Version, Write};
use thalweg_store::chain::{Chain, Cleaning, Options};
use thalweg_store::device::DeviceRef;

use crate::support::{SEGMENT, Shape, content, options, read_all};

/// The map entries of a long round declare all data before them durable, including that of the round before,
/// whose flush of another link may still be under way when the log has moved on.
#[test]
fn a_long_round_writes_no_entries_before_the_round_before_is_durable() {
    run(1, |env| async move {
        let shape = Shape { links: 2, blocks: 400, ..Shape::small(Cleaning::MoveToTail) };
        let slow = SolidStateSpec {
            units: 1,
            program: Duration::from_millis(100),
            ..SolidStateSpec::sata(shape.link_bytes())
        };
        let fast = SolidStateSpec::sata(shape.link_bytes());
        let map = SolidStateSpec::sata(shape.map_bytes());
        let drives = [("slow", slow), ("fast", fast), ("map", map)]
            .map(|(name, spec)| Arc::new(SolidState::new(&env, name, spec)));
        let devices: Vec<DeviceRef> = drives.iter().map(|drive| drive.clone() as _).collect();
        shape.format(&env, &devices).await;
        // No round but those of the test.
        let options = Options {
            auto_clean: false,
            commit_interval: Duration::from_secs(100_000),
            checkpoint_sectors: 10_000,
            ..options()
        };
        let (chain, _) = Chain::open(&env, shape.parts(&devices), options).await.unwrap();
        let chain = Arc::new(chain);
        let mut written = Vec::new();
        let write = async |written: &mut Vec<Version>| {
            let number = written.len() as u64;
            let lba = number % shape.blocks;
            let block = Write::block(Lba(lba), content(lba, number));
            written.push(chain.apply(vec![block]).await.unwrap());
        };
        let sync = |version| {
            let chain = chain.clone();
            env.spawn(async move { chain.sync(version).await })
        };
        // Users leave the last segment of a link to cleaning: the log goes to the other link behind these.
        let on_first = (shape.segments_per_link - 1) * SEGMENT;
        for _ in 0..on_first - 100 {
            write(&mut written).await;
        }
        let durable = written[written.len() - 1];
        chain.sync(durable).await.unwrap();
        for _ in 0..100 {
            write(&mut written).await;
        }
        let rounds = chain.status().counts;
        let short = sync(written[written.len() - 1]);
        env.sleep(Duration::from_millis(500)).await;
        assert!(chain.status().links[0].tail, "the first round ends with the first link");
        write(&mut written).await;
        assert!(chain.status().links[1].tail, "the second round is on the other link alone");
        let long = sync(written[written.len() - 1]);
        env.sleep(Duration::from_millis(500)).await;
        let status = chain.status();
        assert_eq!(status.counts.rounds, rounds.rounds + 2);
        assert_eq!(status.counts.short_rounds, rounds.short_rounds + 1);
        assert_eq!(status.durable_version, durable.0, "the slow drive still flushes");
        drives.iter().for_each(|drive| drive.power_cut());
        drop((short, long, chain));
        drives.iter().for_each(|drive| drive.power_on());
        let (chain, _) = shape.open(&env, &devices).await.unwrap();
        let now = chain.now();
        assert!(now >= durable);
        let mut wanted = vec![None; shape.blocks as usize];
        for (number, _) in written.iter().enumerate().take_while(|(_, version)| **version <= now) {
            let lba = number as u64 % shape.blocks;
            wanted[lba as usize] = Some(content(lba, number as u64));
        }
        let found = read_all(&chain, now).await;
        assert!(
            found.as_ref().is_ok_and(|found| *found == wanted),
            "{durable} to {now}: {:?}",
            found.err()
        );
    });
}
