//! A delegation is released with the last batch of what its client has made.

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::protocol::{Answer, FromServer, Request};
use thalweg_env::Env;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{Filesystem, Ino, Node, Timestamp, WriteAt, WriteHow};
use thalweg_sim::net::LinkSpec;
use thalweg_sim::run;

use crate::full::alone;
use crate::peer::Peer;
use crate::scene::*;

/// How long a client takes to find a file of another one, which has sent it before or not.
async fn find(env: &Env, latency: Duration, is_sent: bool) -> Duration {
    let scene = Scene::durable(env).await;
    let (one, other) = (scene.client("one").await, scene.client("other").await);
    let dir = make(&one.client, Ino::ROOT, "d", Node::Directory).await;
    one.client.reference(dir);
    let seen = other.client.find(Ino::ROOT, b"d").await.unwrap().ino;
    other.client.reference(seen);
    // It is no client's alone right after another one has used it.
    env.sleep(LEASE).await;
    for name in ["a", "b", "c"] {
        make(&one.client, dir, name, Node::File).await;
    }
    one.client.sync_all().await.unwrap();
    make(&one.client, dir, "unsent", Node::File).await;
    assert_eq!(one.client.status().unsent, 1, "the directory is delegated");
    if is_sent {
        one.client.close().await;
    }
    for host in [&one.host, &other.host] {
        let link = LinkSpec { jitter: Duration::ZERO, ..LinkSpec::of(latency) };
        scene.network.set_links(host, &scene.server, link);
    }
    let begun = env.now();
    other.client.find(dir, b"unsent").await.unwrap();
    env.now().since(begun)
}

#[test]
fn the_release_goes_with_the_batch() {
    let latency = Duration::from_millis(20);
    let took = |is_sent| run(1, move |env| async move { find(&env, latency, is_sent).await });
    let (sent, unsent) = (took(true), took(false));
    // The recall goes to the owner, and the batch comes back; its answer is not waited for.
    let more = unsent - sent;
    assert!(more >= 2 * latency && more < 3 * latency, "{more:?}: {unsent:?} and {sent:?}");
}

/// A client that sends what it has made, however long that takes, is not one that does not answer.
#[test]
fn a_client_that_is_sending_is_not_evicted() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (one, other) = (scene.client("one").await, scene.client("other").await);
        let directory = alone(&one.client, "d").await;
        let file = make(&one.client, directory, "file", Node::File).await;
        one.client.reference(file);
        one.client.sync_all().await.unwrap();
        // What it makes takes longer than three leases to send.
        let bytes = 2 << 20;
        let bandwidth = bytes / (3 * LEASE.as_secs());
        let link = LinkSpec { bandwidth, ..LinkSpec::of(Duration::from_millis(1)) };
        scene.network.set_links(&one.host, &scene.server, link);
        for at in 0..bytes >> 20 {
            let data = vec![Bytes::from(vec![at as u8 + 1; 1 << 20])];
            let place = WriteAt::Offset(at << 20);
            one.client.write(file, place, data, WriteHow::default()).await.unwrap();
        }
        let begun = env.now();
        let seen = other.client.find(Ino::ROOT, b"d").await.unwrap().ino;
        other.client.reference(seen);
        let found = other.client.find(seen, b"file").await.unwrap();
        assert_eq!(found.size, bytes);
        assert!(env.now().since(begun) > LEASE, "it sends while others wait");
        assert_eq!(one.client.status().evictions, 0);
        one.client.sync(file, false).await.unwrap();
    });
}

#[test]
fn a_batch_that_fails_releases_nothing_and_only_its_own_recall_is_released() {
    run(2, |env| async move {
        let scene = Scene::durable(&env).await;
        let honest = scene.client("honest").await;
        let peer = Peer::attached(&scene, &scene.visit("peer"), 0).await;
        let stranger = Peer::attached(&scene, &scene.visit("stranger"), 0).await;
        let request =
            Request::Create { parent: Ino::ROOT, name: "d".into(), new: new(Node::Directory) };
        let Answer::Inode(dir) = peer.ask(1, request).await else { panic!("no directory") };
        assert_eq!(honest.client.find(Ino::ROOT, b"d").await.unwrap().ino, dir.ino);
        honest.client.reference(dir.ino);
        let Answer::Inode(_) = peer.ask(2, Request::RequestDelegation { ino: dir.ino }).await
        else {
            panic!("no delegation")
        };
        let Answer::Numbers { first, .. } = peer.ask(3, Request::Reserve).await else {
            panic!("no numbers")
        };
        let batch = async |from: &Peer, number, ino, releases: &[u64]| {
            let (name, number_of) = (format!("f{number}").into(), Ino(ino));
            let kind = MutationKind::Create {
                parent: dir.ino,
                name,
                new: new(Node::File),
                number: number_of,
            };
            let mutations = [Mutation { time: Timestamp::default(), kind }];
            let payload = postcard::to_allocvec(&mutations[..]).unwrap();
            let (charged, releases) = (Vec::new(), releases.to_vec());
            let request = Request::Batch {
                sync: false,
                charged,
                releases,
                positions: None,
                staged: 0,
                spent: Vec::new(),
            };
            from.ask_for((number, None), request, payload).await
        };
        let (client, ino) = (honest.client.clone(), dir.ino);
        let looking = env.spawn(async move { client.find(ino, b"f11").await.map(|it| it.ino) });
        env.sleep(Duration::from_millis(10)).await;
        let recalls: Vec<u64> = peer
            .heard()
            .iter()
            .filter_map(|it| match it {
                FromServer::Invalidate { recall, .. } => Some(*recall),
                _ => None,
            })
            .collect();
        let [recall] = recalls[..] else { panic!("{:?}", peer.heard()) };
        assert_ne!(recall, 0, "a delegation is recalled");
        // A number that the peer does not have; another recall; a session that is not asked.
        let refused = batch(&peer, 7, 1, &[recall]).await;
        assert!(matches!(refused, Answer::Failed(_)), "{refused:?}");
        assert_eq!(batch(&peer, 8, first, &[recall + 1, recall - 1, 0]).await, Answer::Made);
        let refused = batch(&stranger, 1, first, &[recall]).await;
        assert!(matches!(refused, Answer::Failed(_)), "{refused:?}");
        env.sleep(Duration::from_millis(10)).await;
        assert!(!looking.is_finished(), "the directory is still the peer's");
        let many = vec![recall; 65];
        assert_eq!(batch(&peer, 10, first + 1, &many).await, Answer::Made);
        env.sleep(Duration::from_millis(10)).await;
        assert!(!looking.is_finished(), "so many are none");
        assert_eq!(batch(&peer, 11, first + 2, &[recall]).await, Answer::Made);
        let found = env.timeout(Duration::from_millis(10), looking).await.expect("it was released");
        assert_eq!(found.unwrap().unwrap(), Ino(first + 2));
    });
}
