//! Full devices, on either side.

use std::time::Duration;

use bytes::Bytes;
use thalweg_replica::Room;
use thalweg_sim::net::LinkSpec;
use thalweg_sim::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, Versions, Write};

use crate::cluster::{BLOCKS, Cluster, Role};

/// Segments of a drive, two of which have little more room than the volume takes.
const FEW: u32 = 6;
const SMALL: Room = Room { raw: 4 << 20, encoded: 16 << 10 };

#[test]
fn a_follower_without_room_says_so_and_goes_on_when_there_is_some() {
    run(1, |env| async move {
        let mut cluster = Cluster::sized(&env, SMALL, [12, FEW]).await;
        for _ in 0..300 {
            cluster.write().await;
        }
        cluster.catch_up().await;
        // Readers of old states take the room.
        let process = cluster.follower.process();
        let mut kept = Vec::new();
        let mut trouble = None;
        for _ in 0..400 {
            for _ in 0..20 {
                cluster.write().await;
            }
            env.sleep(Duration::from_millis(50)).await;
            kept.extend(process.chain.hold(process.chain.now()));
            cluster.check().await;
            trouble = process.trouble.lock().clone();
            if trouble.is_some() {
                break;
            }
        }
        assert!(trouble.is_some_and(|trouble| trouble.contains("no space left on the volume")));
        for _ in 0..100 {
            cluster.write().await;
        }
        env.sleep(Duration::from_millis(500)).await;
        cluster.check().await;
        cluster.check_bound();
        let status = process.follower.as_ref().unwrap().status();
        assert!(status.version < cluster.model.now().0, "{status:?}");
        kept.clear();
        cluster.catch_up().await;
    });
}

#[test]
fn a_copy_gives_way_to_writers_of_a_full_primary() {
    run(2, |env| async move {
        let mut cluster = Cluster::sized(&env, SMALL, [FEW, 12]).await;
        cluster.write().await;
        cluster.catch_up().await;
        cluster.follower.kill().await;
        for _ in 0..600 {
            cluster.write().await;
        }
        // A copy takes long, and holds what writers replace.
        let (one, two) = (cluster.primary.host.clone(), cluster.follower.host.clone());
        let slow = LinkSpec { bandwidth: 200_000, ..LinkSpec::of(Duration::from_millis(1)) };
        cluster.network.set_link(&one, &two, slow);
        cluster.start(Role::Follower).await;
        for _ in 0..40 {
            env.sleep(Duration::from_millis(50)).await;
            for _ in 0..5 {
                cluster.write().await;
            }
            cluster.check().await;
        }
        cluster.network.set_link(&one, &two, LinkSpec::of(Duration::from_millis(1)));
        cluster.catch_up().await;
    });
}

#[test]
fn a_discard_of_more_blocks_than_a_transaction_may_have_comes_in_a_copy() {
    run(3, |env| async move {
        let mut cluster = Cluster::new(&env, SMALL).await;
        for lba in (0..BLOCKS).step_by(100) {
            let writes: Vec<Write> = (lba..lba + 100)
                .map(|lba| Write::block(Lba(lba), Bytes::from(vec![1; BLOCK_SIZE])))
                .collect();
            let version = cluster.model.apply(&writes);
            let chain = cluster.primary.process().chain.clone();
            assert_eq!(chain.apply(writes).await.unwrap(), version);
        }
        cluster.catch_up().await;
        cluster.follower.kill().await;
        let chain = cluster.primary.process().chain.clone();
        assert!(chain.max_transaction() < BLOCKS as usize);
        let version = chain.discard(Lba(0), BLOCKS).await.unwrap();
        assert_eq!(cluster.model.discard(Lba(0), BLOCKS), version);
        for _ in 0..400 {
            cluster.write().await;
        }
        cluster.start(Role::Follower).await;
        cluster.catch_up().await;
    });
}
