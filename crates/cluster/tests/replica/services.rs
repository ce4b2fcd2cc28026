//! Sessions on several machines get what they were promised, whatever happens to machines and network (5.4).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::RngExt;
use thalweg_cluster::replica::Room;
use thalweg_env::Env;
use thalweg_sim::net::{Host, LinkSpec};
use thalweg_sim::{campaign, run};
use thalweg_store::block::BlockStore;

use crate::clients::{Client, Desk, Mistake, connect};
use crate::nodes::Nodes;
use crate::truth::{SharedTruth, Truth};

const MACHINES: usize = 3;
const CLIENTS: u64 = 6;

/// Machines with clients. The history of the volume has begun.
async fn serving(env: &Env, truth: &SharedTruth, room: Room) -> Nodes {
    let desks = (0..MACHINES).map(|_| Desk { truth: truth.clone() }).collect();
    let nodes = Nodes::serving(env, desks, 0, room).await;
    let chain = nodes.machines[0].process().chain.clone();
    while chain.position().is_none() {
        env.sleep(Duration::from_millis(10)).await;
    }
    truth.lock().learn(&chain, env.now());
    nodes
}

/// Starts a client on a host of its own, which works until it is told to stop.
async fn client(
    env: &Env,
    nodes: &Nodes,
    truth: &SharedTruth,
    number: u64,
    stop: &Arc<AtomicBool>,
    mistake: Option<Mistake>,
) -> (Host, thalweg_env::Task<()>) {
    let host = nodes.network.host(&format!("client{number}"));
    // The first client is near the first replica, the second near the second one; the primary is far.
    let far = LinkSpec::of(Duration::from_millis(20));
    nodes.network.set_links(&host, &nodes.host(0), far);
    nodes.network.set_links(&host, &nodes.host(2 - number as usize % 2), far);
    let hosts: Vec<Host> = (0..MACHINES).map(|machine| nodes.host(machine)).collect();
    let (on, truth, stop, from) = (env.clone(), truth.clone(), stop.clone(), host.clone());
    let work = async move {
        let nodes = connect(&on, &from, &hosts).await;
        let mut client = Client::new(&on, nodes, truth, number, mistake);
        while !stop.load(Ordering::Relaxed) {
            client.turn().await;
        }
    };
    (host, env.spawn(work))
}

/// One life of a cluster with clients, which may make a mistake; returns everything that happened.
fn life(seed: u64, turns: u64, mistake: Option<Mistake>) -> Truth {
    run(seed, |env| async move {
        let mut rng = env.rng();
        let truth = SharedTruth::default();
        let room = Room { raw: 4 << 20, encoded: 16 << 10 };
        let room = if seed.is_multiple_of(3) { Room::default() } else { room };
        let mut nodes = serving(&env, &truth, room).await;
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            clients.push(client(&env, &nodes, &truth, number, &stop, mistake).await);
        }
        let (mut primary, mut paused, mut promoted) = (0, None, 0);
        for _ in 0..turns {
            env.sleep(Duration::from_millis(rng.random_range(0..800))).await;
            let number = rng.random_range(0..MACHINES);
            let other = (number + rng.random_range(1..MACHINES)) % MACHINES;
            let (one, two) = (nodes.host(number), nodes.host(other));
            let runs = paused != Some(number) && nodes.machines[number].runs();
            match rng.random_range(0..14) {
                0 => nodes.network.cut(&one, &two),
                1 => nodes.network.part(&[one], &[two]),
                2 => nodes.network.part(&[one], &[clients[0].0.clone()]),
                3 => nodes.network.reset(&one, &clients[1].0),
                4..7 => nodes.network.heal(),
                7 if runs && paused.is_none() => {
                    nodes.machines[number].node().pause();
                    paused = Some(number);
                }
                8 | 9 => {
                    if let Some(number) = paused.take() {
                        nodes.machines[number].node().resume();
                    }
                }
                10 | 11 if runs => {
                    nodes.machines[number].cut_power(rng.random()).await;
                    nodes.start(number, primary).await;
                }
                12 if runs && !nodes.machines[number].is_primary() && promoted < 2 => {
                    nodes.promote_served(number, primary).await;
                    if nodes.machines[number].is_primary() {
                        (primary, promoted) = (number, promoted + 1);
                        // The other replica follows the new primary.
                        let rest = (0..MACHINES).find(|it| !nodes.machines[*it].is_primary());
                        if let Some(rest) = rest.filter(|rest| paused != Some(*rest)) {
                            nodes.machines[rest].kill().await;
                            nodes.start(rest, primary).await;
                        }
                    }
                }
                _ => {}
            }
        }
        stop.store(true, Ordering::Relaxed);
        nodes.network.heal();
        if let Some(number) = paused {
            nodes.machines[number].node().resume();
        }
        for machine in nodes.machines.iter().filter(|machine| machine.runs()) {
            truth.lock().cleaned += machine.process().chain.status().counts.segments_cleaned;
        }
        for (_, client) in clients {
            assert_eq!(client.await, Some(()), "a client failed");
        }
        std::mem::take(&mut *truth.lock())
    })
}

/// Number of reads for each guarantee.
type Reads = BTreeMap<String, u64>;

/// Lives with these seeds, each checked, up to one after which every guarantee has `enough` reads.
fn lives(seeds: impl Iterator<Item = u64>, enough: u64) -> Reads {
    let (mut reads, mut cleaned) = (Reads::new(), 0);
    for seed in seeds {
        let truth = life(seed, 40, None);
        truth.check().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        cleaned += truth.cleaned;
        for (guarantee, count) in truth.reads() {
            *reads.entry(guarantee).or_default() += count;
        }
        if reads.values().all(|count| *count >= enough) {
            break;
        }
    }
    assert!(cleaned > 0, "no log was cleaned");
    println!("{cleaned} segments cleaned");
    reads
}

#[test]
fn sessions_on_several_machines_get_what_they_were_promised() {
    let reads = lives(campaign::seeds(6), u64::MAX);
    assert!(reads.values().all(|count| *count > 500), "{reads:?}");
}

#[test]
#[ignore = "a quarter of an hour"]
fn a_million_reads_for_each_guarantee_get_what_they_were_promised() {
    let reads = lives(campaign::seeds_from(0), 1_000_000);
    println!("{reads:#?}");
}

#[test]
fn mistakes_are_found() {
    for mistake in [
        Mistake::StaleLow,
        Mistake::NoNarrowing,
        Mistake::NoWay,
        Mistake::NoWayToWrite,
        Mistake::NoBound,
    ] {
        let found = (0..20).any(|seed| life(seed, 40, Some(mistake)).check().is_err());
        assert!(found, "{mistake:?} passes");
    }
}
