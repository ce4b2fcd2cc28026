//! Quotas of the shared namespace, while clients have room to themselves.

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::Client;
use thalweg_cluster::protocol::{Answer, Reply, Request};
use thalweg_fs::{Allocation, Filesystem, Ino, Node, SetXattr, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::full::{alone, is_refused};
use crate::peer::{Peer, call};
use crate::scene::*;

#[test]
fn a_quota_that_is_set_while_clients_work_counts_what_they_have_made() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let directory = alone(&a.client, "d").await;
        for number in 0..40 {
            make(&a.client, directory, &format!("f{number}"), Node::File).await;
        }
        assert!(a.client.status().unsent >= 40);
        let seen = b.client.find(Ino::ROOT, b"d").await.unwrap().ino;
        b.client.reference(seen);
        let most = Bytes::from_static(b"60");
        b.client.set_xattr(seen, b"thalweg.quota.max_files", most, SetXattr::Any).await.unwrap();
        let mut made = 43;
        for number in 40..200 {
            env.sleep(LEASE / 10).await;
            let name = format!("f{number}");
            let one = a.client.create(directory, name.as_bytes(), &new(Node::File)).await;
            if !is_refused(&one) {
                made += 1;
            }
        }
        assert_eq!(made, 60);
        a.client.sync_all().await.unwrap();
        assert_eq!(a.client.status().lost, 0);
    });
}

#[test]
fn nothing_is_delegated_while_a_quota_changes() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let attached =
            async |name, answers| Peer::attached(&scene, &scene.visit(name), answers).await;
        let (admin, other) = (attached("admin", 1).await, attached("other", 1).await);
        let silent = attached("silent", 0).await;
        let make = async |name: &'static str| {
            let new = new(Node::Directory);
            let create = Request::Create { parent: Ino::ROOT, name: name.into(), new };
            let Answer::Inode(made) = admin.ask(1 + name.len() as u64, create).await else {
                panic!("{name}")
            };
            made.ino
        };
        let (one, two, limited) = (make("d").await, make("d2").await, make("d33").await);
        env.sleep(2 * LEASE).await;
        for (peer, name) in [(&silent, "d"), (&other, "d2")] {
            let look_up = Request::Lookup { parent: Ino::ROOT, name: name.into() };
            assert!(matches!(peer.ask(1, look_up).await, Answer::Inode(_)));
        }
        let is_delegated = async |peer: &Peer, number, ino| {
            let call = call(number, Request::RequestDelegation { ino });
            let (reply, _) = peer.channel.call::<_, Reply>(&call, &[]).await.unwrap();
            reply.grants.delegation
        };
        // Its owner does not answer, so that the change takes a while.
        assert!(is_delegated(&silent, 2, one).await);
        let name = Bytes::from_static(b"thalweg.quota.max_files");
        let set = call(9, Request::SetXattr { ino: limited, name, how: SetXattr::Any });
        let channel = admin.channel.clone();
        let changing = env.spawn(async move {
            let value = Bytes::from_static(b"60");
            channel.call::<_, Reply>(&set, &[value]).await.unwrap().0.answer
        });
        env.sleep(Duration::from_millis(1)).await;
        assert!(!is_delegated(&other, 2, two).await);
        assert!(!changing.is_finished());
        assert_eq!(changing.await.unwrap(), Answer::Done);
    });
}

/// The server has carried out a batch, and its client does not know that: what the batch has taken is in use, and not promised.
#[test]
fn a_batch_that_has_survived_takes_its_room_once() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let top = make(&a.client, Ino::ROOT, "top", Node::Directory).await;
        a.client.reference(top);
        let limit = Bytes::from((100 * 4096).to_string());
        let name = b"thalweg.quota.max_bytes";
        a.client.set_xattr(top, name, limit, SetXattr::Any).await.unwrap();
        let mut directories = Vec::new();
        for (client, name) in [(&a.client, "a"), (&b.client, "b")] {
            let top = client.find(Ino::ROOT, b"top").await.unwrap().ino;
            client.reference(top);
            let directory = make(client, top, name, Node::Directory).await;
            client.reference(directory);
            directories.push(directory);
        }
        for name in ["one", "two"] {
            make(&a.client, directories[0], name, Node::File).await;
        }
        a.client.sync_all().await.unwrap();
        // One block after the other, so that each is within what is promised.
        let write = async |client: &Client, ino: Ino, blocks: u64| {
            for at in 0..blocks {
                let (at, data) = (WriteAt::Offset(at * 4096), vec![Bytes::from(vec![7; 4096])]);
                client.write(ino, at, data, WriteHow::default()).await.unwrap();
            }
        };
        let mine = make(&a.client, directories[0], "mine", Node::File).await;
        a.client.reference(mine);
        write(&a.client, mine, 56).await;
        assert!(a.client.status().unsent >= 56);
        // It is carried out, and the answer is lost.
        scene.network.cut(&scene.server, &a.host);
        let client = a.client.clone();
        let syncing = env.spawn(async move { client.sync(mine, false).await });
        env.sleep(Duration::from_millis(20)).await;
        let recalls = scene.service.status().room_recalls;
        let theirs = make(&b.client, directories[1], "theirs", Node::File).await;
        b.client.reference(theirs);
        write(&b.client, theirs, 20).await;
        // Has it sent, but not durable.
        b.client.allocate(theirs, 0, 1, Allocation::Punch).await.unwrap();
        assert_eq!(b.client.status().unsent, 0);
        assert!(!syncing.is_finished());
        assert_eq!(scene.service.status().room_recalls, recalls);
        scene.server.power_off();
        scene.stop().await;
        scene.network.heal();
        scene.server.power_on();
        scene.network.cut(&b.host, &scene.server);
        scene.start(Shape::Nothing).await;
        env.sleep(Duration::from_secs(1)).await;
        scene.network.heal();
        syncing.await.unwrap().unwrap();
        for client in [&a.client, &b.client] {
            client.sync_all().await.unwrap();
            assert_eq!(client.status().lost, 0);
        }
    });
}
