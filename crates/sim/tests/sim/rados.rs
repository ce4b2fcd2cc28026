//! The simulated cluster of object servers.

use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use thalweg_env::Env;
use thalweg_rados::object::{Change, LockName, ObjectStore, Step};
use thalweg_rados::{ObjectError, ObjectStoreRef};
use thalweg_sim::hdd::HardDiskSpec;
use thalweg_sim::rados::{DiskSpec, RadosSpec, SimRados};
use thalweg_sim::run;
use thalweg_sim::ssd::SolidStateSpec;
use thalweg_store::device::Purpose;

fn write(offset: u64, len: usize, fill: u8) -> Change {
    Change::new().then(Step::Write { offset, data: vec![vec![fill; len].into()] })
}

/// How long a change of `object` took.
async fn took(env: &Env, store: &ObjectStoreRef, object: &str, change: Change) -> Duration {
    let begun = env.now();
    store.apply(object, change).await.unwrap();
    env.now().since(begun)
}

#[test]
fn a_write_is_in_three_journals_before_it_is_acknowledged_and_in_place_later() {
    run(1, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let store = cluster.client().store();
        let small = took(&env, &store, "a", write(0, 4096, 1)).await;
        // No seek of a rotational disk, but four hops of the network.
        assert!(
            small > Duration::from_micros(200) && small < Duration::from_millis(2),
            "{small:?}"
        );
        let journal = |server: usize| cluster.journal(server).tallies().of(Purpose::Journal);
        let filesystem = |server: usize| cluster.filesystem(server).tallies().total();
        for server in 0..3 {
            // The data, and the record's head.
            assert_eq!((journal(server).writes, journal(server).write_bytes), (1, 8192));
            assert_eq!(filesystem(server).writes, 0);
        }
        env.sleep(Duration::from_secs(6)).await;
        for server in 0..3 {
            assert_eq!((filesystem(server).writes, filesystem(server).write_bytes), (1, 4096));
        }
        let reads = || (0..3).map(|server| filesystem(server).reads).sum::<u64>();
        assert_eq!(store.read("a", 0, 4096).await.unwrap()[..], [1; 4096]);
        assert_eq!(reads(), 1);
        store.apply("a", write(0, 4096, 2)).await.unwrap();
        assert_eq!(store.read("a", 0, 8192).await.unwrap()[..], [2; 4096]);
        assert_eq!(reads(), 1, "the newest bytes are in memory");
    });
}

#[test]
fn a_full_journal_makes_writes_wait_for_the_filesystem() {
    run(2, |env| async move {
        let journal = DiskSpec::SolidState(SolidStateSpec::sata(8 << 20));
        let cluster = SimRados::new(&env, RadosSpec { journal, ..RadosSpec::default() });
        let store = cluster.client().store();
        let begun = env.now();
        join_all((0..64).map(|at| store.apply("a", write(at << 20, 1 << 20, 1)))).await;
        let took = env.now().since(begun);
        // 64 MiB on a rotational disk, which a journal of 8 MiB does not hide.
        assert!(took > Duration::from_millis(300), "{took:?}");
    });
}

#[test]
fn changes_of_one_client_take_effect_in_their_order_also_when_dropped() {
    run(3, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let client = cluster.client();
        for fill in 1..=100 {
            client.delay(Duration::from_micros(u64::from(fill % 7) * 100));
            let mut change = client.apply("a", write(0, 512, fill));
            assert!(futures::poll!(&mut change).is_pending());
        }
        client.settle().await.unwrap();
        assert_eq!(client.read("a", 0, 512).await.unwrap()[..], [100; 512]);
    });
}

#[test]
fn a_client_on_the_blocklist_is_refused_by_servers_that_have_the_map() {
    run(4, |env| async move {
        let spec = RadosSpec { map_delay: Duration::from_secs(3), ..RadosSpec::default() };
        let cluster = SimRados::new(&env, spec);
        let (old, new) = (cluster.client(), cluster.client());
        let lock = LockName { name: "l", cookie: "c" };
        old.lock("a", &lock, false).await.unwrap();
        let locked = new.lock("a", &lock, false).await;
        assert!(matches!(locked, Err(ObjectError::Locked { .. })), "{locked:?}");
        let holders = new.holders("a", "l").await.unwrap();
        assert_eq!(
            (&holders[0].client, &holders[0].address),
            (&old.client(), &old.address().await.unwrap())
        );
        new.blocklist(&holders[0], Duration::from_secs(60)).await.unwrap();
        // Objects on the three servers: at least one of them has not heard of it.
        let objects = ["a", "b", "c", "d", "e", "f"];
        let tries = objects.map(|object| old.apply(object, write(0, 1, 1)));
        assert!(join_all(tries).await.iter().any(Result::is_ok));
        env.sleep(Duration::from_secs(3)).await;
        let tries = objects.map(|object| old.apply(object, write(0, 1, 2)));
        let refused = |outcome: &Result<(), _>| matches!(outcome, Err(ObjectError::Fenced));
        assert!(join_all(tries).await.iter().all(refused));
        env.sleep(Duration::from_secs(60)).await;
        old.apply("a", write(0, 1, 3)).await.unwrap();
    });
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let history = |seed| {
        run(seed, |env| async move {
            let cluster = SimRados::new(&env, RadosSpec::default());
            let (one, other) = (cluster.client().store(), cluster.client().store());
            let mut times = Vec::new();
            let all = (0..40_u64).map(|at| {
                let store = if at % 3 == 0 { &one } else { &other };
                let name = format!("o{}", at % 5);
                let (env, store) = (&env, store.clone());
                async move { took(env, &store, &name, write(at * 512, 512, 1)).await }
            });
            cluster.kill(1);
            times.extend(join_all(all).await);
            times
        })
    };
    assert_eq!(history(5), history(5));
}

#[test]
fn a_cluster_that_has_ended_answers_nothing() {
    run(6, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let store = cluster.client().store();
        store.apply("a", write(0, 1, 1)).await.unwrap();
        drop(cluster);
        let outcome = store.apply("a", Change::new().then(Step::Replace { data: Bytes::new() }));
        let outcome = outcome.await;
        let gone = |error: &ObjectError| {
            matches!(error, ObjectError::NotConnected { .. } | ObjectError::NoAnswer { .. })
        };
        assert!(outcome.as_ref().is_err_and(gone), "{outcome:?}");
    });
}

#[test]
fn disks_and_ports_are_counted_for_each_server() {
    run(5, |env| async move {
        let rotational = || DiskSpec::Rotational(HardDiskSpec::sas_15k(1 << 30));
        let bandwidth = Some(125_000_000);
        let spec = RadosSpec {
            journal: rotational(),
            filesystem: rotational(),
            bandwidth,
            ..RadosSpec::default()
        };
        let cluster = SimRados::new(&env, spec);
        let store = cluster.client().store();
        let len = 4 << 20;
        let first = took(&env, &store, "a", write(0, len, 1)).await;
        // To the primary, and then to the two others from one port.
        let least = Duration::from_secs_f64(3.0 * len as f64 / 125e6);
        assert!(first > least && first < least * 2, "{first:?} for {least:?}");
        env.sleep(Duration::from_secs(6)).await;
        let servers: Vec<_> = (0..3).map(|server| cluster.server(server)).collect();
        let len = len as u64;
        for server in &servers {
            assert!((len..len + 2000).contains(&server.received), "{server:?}");
            assert_eq!((server.journal.write_bytes, server.journal.read_bytes), (len + 4096, 0));
            assert_eq!(server.filesystem.write_bytes, len);
            // A rotational disk writes some 200 MB/s.
            let takes = Duration::from_millis(20)..Duration::from_millis(80);
            assert!(takes.contains(&server.journal.busy), "{server:?}");
            assert!(takes.contains(&server.filesystem.busy), "{server:?}");
        }
        let sent: u64 = servers.iter().map(|server| server.sent).sum();
        assert!((2 * len..2 * len + 2000).contains(&sent), "{servers:?}");
        // The primary answers a read, which takes its port and the client's.
        let begun = env.now();
        assert_eq!(store.read("a", 0, len as usize).await.unwrap().len() as u64, len);
        assert!(env.now().since(begun) > Duration::from_secs_f64(len as f64 / 125e6));
        let read: u64 = (0..3).map(|server| cluster.server(server).filesystem.read_bytes).sum();
        assert_eq!(read, len);
    });
}
