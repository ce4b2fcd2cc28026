//! Clients with journals beside clients that read and write contents of files past the server.

use thalweg_cluster::client::Client;
use thalweg_fs::{Filesystem, Ino, WriteAt, WriteHow};
use thalweg_sim::run;

use crate::direct::{reached, read};
use crate::journal::{Journaled, begin, find};
use crate::scene::*;

async fn write(client: &Client, file: Ino, offset: u64, data: Vec<u8>) {
    let at = WriteAt::Offset(offset);
    client.write(file, at, vec![data.into()], WriteHow::default()).await.unwrap();
}

/// What a client with a journal replaces is stored aside, of which clients that read objects themselves know nothing.
#[test]
fn what_a_journal_replaces_is_in_its_place_for_them() {
    run(1, |env| async move {
        let scene = Scene::direct(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (owner, file) = begin(&scene, &machine, true).await;
        let mut bytes = vec![1; 300_000];
        write(&owner, file, 0, bytes.clone()).await;
        owner.drain().await.unwrap();
        let location = scene.files.session_table().unwrap().direct().unwrap().location();
        let objects = scene.objects.as_ref().unwrap().finder("probe");
        let objects = objects.find(&location, true).await.unwrap();
        let mut replace = async |offset: usize, value: u8, owner: &Client| {
            bytes[offset..offset + 150_000].fill(value);
            write(owner, file, offset as u64, vec![value; 150_000]).await;
            owner.drain().await.unwrap();
            bytes.clone()
        };
        replace(50_000, 2, &owner).await;
        assert!(objects.read(file, 0, 300_000).await.unwrap().iter().all(|byte| *byte == 1));
        let b = scene.client("b").await;
        reached(&env, &b.client).await;
        let now = replace(100_000, 3, &owner).await;
        assert!(objects.read(file, 0, 300_000).await.unwrap() == now[..]);
        assert_eq!(find(&b.client).await, file);
        for value in 4..8 {
            let now = replace(usize::from(value) * 20_000, value, &owner).await;
            // The first read is noted by the server, and the client is to know the attributes.
            assert!(read(&b.client, file).await == now);
            b.client.attributes(file).await.unwrap();
            let before = calls(&b.client);
            assert!(read(&b.client, file).await == now);
            assert_eq!(calls(&b.client), before, "it reads objects itself");
        }
    });
}
