//! Copies at a limited rate.

use std::num::NonZeroU64;
use std::time::Duration;

use thalweg_env::{Env, Time};
use thalweg_replica::Room;
use thalweg_sim::run;
use thalweg_store::block::{Blocks, Version};

use crate::nodes::Nodes;

const RATE: u64 = 200_000;
const SMALL: Room = Room { raw: 4 << 20, encoded: 16 << 10 };

fn now(nodes: &Nodes, number: usize) -> Version {
    nodes.machines[number].process().chain.now()
}

/// Waits until a follower has a version, and returns when it had.
async fn reached(env: &Env, nodes: &Nodes, number: usize, version: Version) -> Time {
    while now(nodes, number) < version {
        env.sleep(Duration::from_millis(1)).await;
    }
    env.now()
}

#[test]
fn copies_share_a_rate_and_followers_with_a_state_do_not_wait() {
    run(1, |env| async move {
        let mut nodes = Nodes::new(&env, 4, 0, SMALL).await;
        nodes.machines[0].kill().await;
        nodes.machines[0].options.copy_rate = NonZeroU64::new(RATE);
        nodes.start(0, 0).await;
        nodes.machines[2].kill().await;
        nodes.machines[3].kill().await;
        for _ in 0..600 {
            nodes.write(0).await;
        }
        reached(&env, &nodes, 1, now(&nodes, 0)).await;
        // They have nothing, and need a copy each.
        for number in [2, 3] {
            nodes.machines[number].start_over().await;
            nodes.start(number, 0).await;
        }
        let (since, newest) = (env.now(), now(&nodes, 0));
        let mut longest = Duration::ZERO;
        while [2, 3].iter().any(|number| now(&nodes, *number) < newest) {
            let written = env.now();
            nodes.write(0).await;
            let heard = reached(&env, &nodes, 1, now(&nodes, 0)).await;
            longest = longest.max(heard.since(written));
            env.sleep(Duration::from_millis(100)).await;
        }
        let primary = nodes.machines[0].process().primary.clone().unwrap();
        let followers = primary.followers();
        let copied = followers.iter().filter(|it| it.copy.is_some() || it.sent < newest.0);
        assert_eq!(copied.count(), 0, "{followers:?}");
        let took = env.now().since(since);
        // Some hundred blocks went to each of the two.
        assert!(took > Duration::from_secs(2 * 200 * 4096 / RATE), "{took:?}");
        assert!(took < Duration::from_secs(2 * 650 * 4096 / RATE), "{took:?}");
        assert!(longest < Duration::from_millis(100), "{longest:?}");
        for number in [2, 3] {
            reached(&env, &nodes, number, now(&nodes, 0)).await;
            assert_eq!(nodes.check(number).await, Some(now(&nodes, 0)));
        }
    });
}
