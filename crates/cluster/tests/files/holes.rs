//! What is stored of a client's own file, with and without holes.

use bytes::Bytes;
use thalweg_cluster::client::Client;
use thalweg_fs::{Allocation, Caller, Filesystem, Ino, Node, WriteAt, WriteHow};
use thalweg_sim::run;

use crate::full::alone;
use crate::scene::*;

/// How much is stored of a file is exact, also between a change and its batch. The server is asked once whether a file has holes.
#[test]
fn what_is_stored_of_an_own_file_is_known_without_calls() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Before {
        Empty,
        Dense,
        Hole,
        RoomBehind,
        HoleAndRoom,
    }
    for before in
        [Before::Empty, Before::Dense, Before::Hole, Before::RoomBehind, Before::HoleAndRoom]
    {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let machines = (scene.client("a").await, scene.client("b").await);
            let (a, b) = (&machines.0.client, &machines.1.client);
            let file = make(b, Ino::ROOT, "f", Node::File).await;
            let has_hole = matches!(before, Before::Hole | Before::HoleAndRoom);
            let block = |client: &Client, at: u64| {
                let data = vec![Bytes::from(vec![1; 4096])];
                let client = client.clone();
                async move {
                    let at = WriteAt::Offset(at * 4096);
                    client.write(file, at, data, WriteHow::default()).await.unwrap();
                }
            };
            if before != Before::Empty {
                block(b, 0).await;
                block(b, if has_hole { 2 } else { 1 }).await;
            }
            if matches!(before, Before::RoomBehind | Before::HoleAndRoom) {
                let how = Allocation::Reserve { keep_size: true };
                b.allocate(file, 16 * 4096, 4096, how).await.unwrap();
            }
            b.sync_all().await.unwrap();
            a.find(Ino::ROOT, b"f").await.unwrap();
            a.reference(file);
            a.open(&Caller::default(), file, WRITING).await.unwrap();
            block(a, 0).await;
            a.attributes(file).await.unwrap();
            let first = calls(a);
            // The last ones leave holes.
            for (number, at) in [0, 1, 0, 2, 3, 1, 9, 6, 0].into_iter().enumerate() {
                block(a, at).await;
                let shown = a.attributes(file).await.unwrap().attributes;
                if number == 5 {
                    let asked = calls(a) - first;
                    let is_known = matches!(before, Before::Empty | Before::Dense);
                    assert_eq!(asked == 0, is_known, "{before:?}: {asked} calls");
                }
                if number > 4 {
                    a.sync(file, false).await.unwrap();
                    let stored = scene.files.attributes(file).await.unwrap().attributes.stored;
                    assert_eq!(shown.stored, stored, "{before:?}, block {at}");
                }
            }
        });
    }
}

/// A hole that another client has made since is known when the file is the client's own again.
#[test]
fn a_file_that_was_anothers_meanwhile_may_have_holes() {
    run(2, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let directory = alone(a, "d").await;
        let file = make(a, directory, "f", Node::File).await;
        a.reference(file);
        let data = || vec![Bytes::from(vec![1; 3 * 4096])];
        a.write(file, WriteAt::Offset(0), data(), WriteHow::default()).await.unwrap();
        b.find(Ino::ROOT, b"d").await.unwrap();
        b.find(directory, b"f").await.unwrap();
        b.reference(file);
        b.allocate(file, 4096, 4096, Allocation::Punch).await.unwrap();
        // So long that the file may be a client's own again.
        env.sleep(EXPIRE).await;
        a.open(&Caller::default(), file, WRITING).await.unwrap();
        a.write(file, WriteAt::End, data(), WriteHow::default()).await.unwrap();
        let shown = a.attributes(file).await.unwrap().attributes.stored;
        a.sync(file, false).await.unwrap();
        let stored = scene.files.attributes(file).await.unwrap().attributes.stored;
        assert_eq!((shown, stored), (5 * 4096, 5 * 4096));
    });
}
