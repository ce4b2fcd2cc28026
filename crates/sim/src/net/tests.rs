use std::future::Future;

use thalweg_env::connection::Listener;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::runtime::run;

const MS: Duration = Duration::from_millis(1);

/// A link of 10 ms without jitter, and 1 MB/s.
fn slow() -> LinkSpec {
    LinkSpec { latency: 10 * MS, jitter: Duration::ZERO, bandwidth: 1_000_000, window: 64 << 10 }
}

/// Two hosts and a stream between them.
struct Pair {
    env: Env,
    network: Network,
    hosts: [Host; 2],
    near: SimStream,
    far: SimStream,
}

async fn pair(env: &Env, spec: LinkSpec) -> Pair {
    let network = Network::new(env, spec);
    let hosts = [network.host("client"), network.host("server")];
    let listener = hosts[1].listen(7).unwrap();
    let near = hosts[0].connector(&hosts[1], 7).open().await.unwrap();
    let far = listener.accept().await.unwrap();
    assert_eq!((near.peer(), far.peer()), ("server".to_owned(), "client".to_owned()));
    Pair { env: env.clone(), network, hosts, near, far }
}

fn on_pair<F: Future<Output = ()>>(body: impl FnOnce(Pair) -> F) {
    run(1, |env| async move { body(pair(&env, slow()).await).await });
}

#[test]
fn bytes_arrive_in_order_after_the_latency_and_the_time_of_their_bandwidth() {
    on_pair(|mut pair| async move {
        let begun = pair.env.now();
        // They take a round trip to connect.
        assert_eq!(begun.since(Time::ZERO), 20 * MS);
        pair.near.write_all(&[1; 1_000]).await.unwrap();
        pair.near.write_all(&[2; 4_000]).await.unwrap();
        let mut found = [0; 1_000];
        pair.far.read_exact(&mut found).await.unwrap();
        assert_eq!((found, pair.env.now().since(begun)), ([1; 1_000], 11 * MS));
        let mut found = [0; 4_000];
        pair.far.read_exact(&mut found).await.unwrap();
        assert_eq!((found, pair.env.now().since(begun)), ([2; 4_000], 15 * MS));
        let tally = pair.network.tally(&pair.hosts[0], &pair.hosts[1]);
        assert_eq!(tally, LinkTally { bytes: 5_000, writes: 2, connections: 1 });
        assert_eq!(pair.network.total(), tally);
    });
}

#[test]
fn streams_share_a_link() {
    run(1, |env| async move {
        let Pair { mut near, mut far, hosts, .. } = pair(&env, slow()).await;
        let listener = hosts[1].listen(8).unwrap();
        let mut other = hosts[0].connector(&hosts[1], 8).open().await.unwrap();
        let mut other_far = listener.accept().await.unwrap();
        let begun = env.now();
        near.write_all(&[1; 50_000]).await.unwrap();
        other.write_all(&[2; 1_000]).await.unwrap();
        assert_eq!(other_far.read_u8().await.unwrap(), 2);
        assert_eq!(env.now().since(begun), 61 * MS);
        assert_eq!(far.read_u8().await.unwrap(), 1);
    });
}

#[test]
fn a_writer_waits_for_room_in_the_window() {
    on_pair(|mut pair| async move {
        let sending = async {
            pair.near.write_all(&[1; 100 << 10]).await.unwrap();
            pair.env.now()
        };
        let reading = async {
            pair.env.sleep(Duration::from_secs(5)).await;
            let mut found = vec![0; 100 << 10];
            pair.far.read_exact(&mut found).await.unwrap();
            found
        };
        let (sent, found) = tokio::join!(sending, reading);
        assert!(sent.since(Time::ZERO) >= Duration::from_secs(5), "{sent:?}");
        assert_eq!(found, vec![1; 100 << 10]);
    });
}

#[test]
fn a_stream_ends_when_its_other_end_is_dropped_or_shut_down() {
    on_pair(|mut pair| async move {
        pair.near.write_all(b"last").await.unwrap();
        pair.near.shutdown().await.unwrap();
        assert!(pair.near.write_all(b"more").await.is_err());
        let mut found = Vec::new();
        pair.far.read_to_end(&mut found).await.unwrap();
        assert_eq!(found, b"last");
        // The other direction goes on, until its reader is gone and the writer knows.
        pair.far.write_all(b"answer").await.unwrap();
        let mut found = [0; 6];
        pair.near.read_exact(&mut found).await.unwrap();
        drop(pair.near);
        pair.far.write_all(b"into the void").await.unwrap();
        pair.env.sleep(11 * MS).await;
        let error = pair.far.write_all(b"and again").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn what_was_sent_before_a_drop_arrives() {
    on_pair(|mut pair| async move {
        // They arrive one after the other.
        pair.near.write_all(&[1; 20_000]).await.unwrap();
        pair.near.write_all(&[2; 20_000]).await.unwrap();
        drop(pair.near);
        let mut found = Vec::new();
        pair.far.read_to_end(&mut found).await.unwrap();
        assert_eq!(found, [[1; 20_000], [2; 20_000]].concat());
    });
}

#[test]
fn a_link_that_is_cut_holds_one_direction_back_until_it_is_healed() {
    on_pair(|mut pair| async move {
        let Pair { env, network, hosts, near, far } = &mut pair;
        near.write_all(b"before").await.unwrap();
        network.cut(&hosts[0], &hosts[1]);
        near.write_all(b"after").await.unwrap();
        far.write_all(b"back").await.unwrap();
        let mut found = [0; 4];
        near.read_exact(&mut found).await.unwrap();
        assert_eq!(&found, b"back");
        let mut found = [0; 11];
        let waited = env.timeout(Duration::from_secs(60), far.read_exact(&mut found)).await;
        assert!(waited.is_none(), "it arrived over a cut link");
        network.heal();
        let healed = env.now();
        far.read_exact(&mut found).await.unwrap();
        assert_eq!(&found, b"beforeafter");
        assert!(env.now().since(healed) <= RETRY + 10 * MS);
    });
}

#[test]
fn a_cut_return_stops_a_writer_when_its_window_is_full() {
    on_pair(|mut pair| async move {
        let Pair { env, network, hosts, near, far } = &mut pair;
        network.cut(&hosts[1], &hosts[0]);
        near.write_all(&[1; 64 << 10]).await.unwrap();
        let mut found = vec![0; 64 << 10];
        far.read_exact(&mut found).await.unwrap();
        let more = env.timeout(Duration::from_secs(9), near.write_all(&[2])).await;
        assert!(more.is_none(), "an acknowledgement passed a cut link");
        network.heal();
        near.write_all(&[2]).await.unwrap();
        assert_eq!(far.read_u8().await.unwrap(), 2);
    });
}

#[test]
fn a_reset_stream_delivers_a_prefix_and_an_error() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..20 {
        lengths.insert(run(seed, |env| async move {
            let Pair { mut near, mut far, network, hosts, .. } = pair(&env, slow()).await;
            let bytes: Vec<u8> = (0..=255).collect();
            near.write_all(&bytes).await.unwrap();
            network.reset(&hosts[1], &hosts[0]);
            let mut found = Vec::new();
            let error = far.read_to_end(&mut found).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            assert_eq!(found, bytes[..found.len()]);
            assert!(near.write_all(b"x").await.is_err() && far.write_all(b"x").await.is_err());
            assert!(near.read_u8().await.is_err());
            found.len()
        }));
    }
    assert!(lengths.len() > 10, "{lengths:?}");
}

#[test]
fn a_host_without_power_is_silent_and_knows_no_stream_when_it_is_back() {
    on_pair(|mut pair| async move {
        let Pair { env, hosts, near, far, .. } = &mut pair;
        let _listener = hosts[1].listen(9).unwrap();
        far.write_all(b"lost").await.unwrap();
        hosts[1].power_off();
        near.write_all(b"into the void").await.unwrap();
        assert!(env.timeout(Duration::from_secs(600), near.read_u8()).await.is_none());
        let refused = hosts[0].connector(&hosts[1], 7).open().await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        hosts[1].power_on();
        let error = near.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let refused = hosts[0].connector(&hosts[1], 9).open().await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn an_idle_stream_hears_of_a_lost_host_when_it_sends() {
    on_pair(|mut pair| async move {
        let Pair { env, hosts, near, .. } = &mut pair;
        hosts[1].power_off();
        hosts[1].power_on();
        assert!(env.timeout(Duration::from_secs(600), near.read_u8()).await.is_none());
        near.write_all(b"hello?").await.unwrap();
        assert_eq!(near.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_port_has_one_listener_at_a_time() {
    run(1, |env| async move {
        let network = Network::new(&env, LinkSpec::default());
        let host = network.host("alone");
        let listener = host.listen(7).unwrap();
        assert_eq!(host.listen(7).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // A host reaches itself, too.
        let near = host.connector(&host, 7).open().await.unwrap();
        assert_eq!(near.peer(), "alone");
        drop(listener);
        let refused = host.connector(&host, 7).open().await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        drop(host.listen(7).unwrap());
    });
}

/// Random traffic with faults is a function of the seed, and each stream delivers a prefix of what was written to it.
#[test]
fn random_traffic_is_a_function_of_the_seed() {
    let trace = |seed| {
        run(seed, |env| async move {
            let spec = LinkSpec { jitter: 30 * MS, ..slow() };
            let Pair { mut near, mut far, network, hosts, .. } = pair(&env, spec).await;
            let mut rng = env.rng();
            let faults = async {
                for _ in 0..20 {
                    env.sleep(Duration::from_micros(rng.random_range(0..100_000))).await;
                    match rng.random_range(0..20) {
                        0 => network.reset(&hosts[0], &hosts[1]),
                        1..8 => network.cut(&hosts[0], &hosts[1]),
                        _ => network.heal(),
                    }
                }
                network.heal();
            };
            let mut rng = env.rng();
            let writing = async {
                let mut next = 0_u32;
                for _ in 0..200 {
                    let count = rng.random_range(1..300);
                    let bytes: Vec<u8> = (next..next + count).flat_map(u32::to_le_bytes).collect();
                    next += count;
                    if near.write_all(&bytes).await.is_err() {
                        break;
                    }
                }
                let _ = near.shutdown().await;
            };
            let reading = async {
                let (mut trace, mut next) = (Vec::new(), 0);
                while let Ok(number) = far.read_u32_le().await {
                    assert_eq!(number, next);
                    next += 1;
                    trace.push(env.now().as_nanos());
                }
                trace
            };
            let (trace, (), ()) = tokio::join!(reading, writing, faults);
            trace
        })
    };
    let mut lengths = std::collections::BTreeSet::new();
    for seed in crate::campaign::seeds(12) {
        let first = trace(seed);
        assert_eq!(first, trace(seed), "{seed}");
        lengths.insert(first.len());
    }
    assert!(lengths.len() > 3, "{lengths:?}");
}
