//! Which bytes of files are in a journal: those that were written, whole pages, or those of small writes.

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::{Client, JournaledData};
use thalweg_fs::{Filesystem, Ino, Level, Node, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::full::alone;
use crate::journal::{Journaled, begin, find};
use crate::scene::*;

const SELECTIVE: JournaledData = JournaledData::Selective { threshold: 4096 };

async fn write(client: &Client, file: Ino, offset: u64, bytes: &[u8]) {
    let data = vec![Bytes::copy_from_slice(bytes)];
    client.write(file, WriteAt::Offset(offset), data, WriteHow::default()).await.unwrap();
}

async fn bytes_of(files: &dyn Filesystem, file: Ino) -> Vec<u8> {
    files.read(file, 0, 1 << 20).await.unwrap().concat()
}

/// A machine with a file of 20,000 bytes, which the server has, and what its journal has in this mode.
async fn with_file(scene: &Scene, data: JournaledData) -> (Journaled, Client, Ino) {
    let mut machine = Journaled::new(scene, "a").await;
    machine.data = data;
    let (client, file) = begin(scene, &machine, true).await;
    write(&client, file, 0, &[1; 20_000]).await;
    client.wait_for(file, Level::Server, LEASE).await.unwrap();
    (machine, client, file)
}

/// Nothing is read for the rest of a page, and nothing of that is written back.
#[test]
fn a_write_takes_its_bytes_in_the_journal_or_its_pages() {
    for (data, least, most) in
        [(JournaledData::Wasteless, 512, 512), (JournaledData::Pages, 4608, 4608)]
    {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let (mut machine, client, file) = with_file(&scene, data).await;
            let mut expected = vec![1; 20_000];
            let messages = calls(&client);
            for at in [100, 5000, 8190] {
                let before = machine.written();
                write(&client, file, at, &[7; 128]).await;
                expected[at as usize..][..128].fill(7);
                client.sync(file, true).await.unwrap();
                let taken = machine.written() - before;
                // One of them touches two pages.
                let most = if at == 8190 && most > 512 { most + 4096 } else { most };
                assert!((least..=most).contains(&taken), "{data:?} at {at}: {taken}");
            }
            assert_eq!(calls(&client), messages);
            machine.crash(Shape::Nothing);
            drop(client);
            let again = machine.mount(&scene, true).await.unwrap();
            assert!(bytes_of(&again, find(&again).await).await == expected, "{data:?}");
            assert!(bytes_of(&*scene.files, file).await == expected, "{data:?}");
        });
    }
}

/// Writes that wait for one commit have their pages there once.
#[test]
fn writes_of_a_commit_share_their_pages() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (mut machine, client, file) = with_file(&scene, JournaledData::Pages).await;
        let before = machine.written();
        let mut expected = vec![1; 20_000];
        for number in 0..32_u8 {
            write(&client, file, u64::from(number) * 128, &[number; 128]).await;
            expected[usize::from(number) * 128..][..128].fill(number);
        }
        client.sync(file, true).await.unwrap();
        let taken = machine.written() - before;
        assert!((4096..4096 + 2048).contains(&taken), "{taken}");
        // What is overwritten stays, for a batch that ends between.
        for byte in [2, 3, 4] {
            write(&client, file, 10_000, &[byte; 300]).await;
        }
        expected[10_000..10_300].fill(4);
        client.sync(file, true).await.unwrap();
        machine.crash(Shape::Nothing);
        drop(client);
        machine.mount(&scene, true).await.unwrap();
        assert!(bytes_of(&*scene.files, file).await == expected);
    });
}

/// A large write goes to the server, behind everything before it.
#[test]
fn a_large_write_goes_past_the_journal() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (machine, client, file) = with_file(&scene, SELECTIVE).await;
        client.drain().await.unwrap();
        let (before, messages) = (machine.written(), calls(&client));
        write(&client, file, 0, &[2; 4095]).await;
        client.sync(file, true).await.unwrap();
        assert_eq!(calls(&client), messages, "a small one stays here");
        assert!(machine.written() - before >= 4095);
        assert_eq!(client.level(file).await.unwrap(), Level::Journal);
        let before = machine.written();
        write(&client, file, 6000, &[3; 10_000]).await;
        let mut expected = vec![1; 20_000];
        expected[..4095].fill(2);
        expected[6000..16_000].fill(3);
        assert!(bytes_of(&*scene.files, file).await == expected, "the server has both");
        assert!(bytes_of(&client, file).await == expected);
        assert_eq!(client.pending().unsent.changes, 0);
        // It is in memory there, and the next sync asks for more than that.
        assert!(client.pending().undurable > 0);
        client.sync(file, true).await.unwrap();
        assert_eq!(client.level(file).await.unwrap(), Level::Server);
        assert!(machine.written() - before < 4096, "{}", machine.written() - before);
        // A new file, and a longer one.
        let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
        let new = make(&client, directory, "new", Node::File).await;
        client.reference(new);
        for at in [0, 5000, 500_000] {
            write(&client, new, at, &[5; 5000]).await;
        }
        let size = client.attributes(new).await.unwrap().size;
        assert_eq!((size, bytes_of(&*scene.files, new).await.len()), (505_000, 505_000));
    });
}

/// What selective promises less: a large write, and a sync behind it, need the server.
#[test]
fn a_large_write_waits_for_a_server_that_is_away() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (machine, client, file) = with_file(&scene, SELECTIVE).await;
        client.drain().await.unwrap();
        write(&client, file, 0, &[2; 5000]).await;
        scene.network.cut(&machine.host(), &scene.server);
        scene.network.cut(&scene.server, &machine.host());
        let sync = client.sync(file, false);
        assert!(env.timeout(LEASE / 8, sync).await.is_none(), "it was not durable there");
        scene.network.heal();
        client.sync(file, false).await.unwrap();
        scene.network.cut(&machine.host(), &scene.server);
        scene.network.cut(&scene.server, &machine.host());
        write(&client, file, 0, &[3; 500]).await;
        let sync = client.sync(file, false);
        assert!(env.timeout(LEASE / 8, sync).await.is_some(), "a small one needs no server");
        let (writing, own) = (client.clone(), machine.process.env());
        let writing = own.spawn(async move { write(&writing, file, 0, &[4; 5000]).await });
        env.sleep(LEASE / 8).await;
        assert!(!writing.is_finished());
        scene.network.heal();
        writing.await.unwrap();
        client.sync(file, false).await.unwrap();
        assert!(bytes_of(&*scene.files, file).await[..5000] == [4; 5000]);
    });
}

/// A small change that was synced never survives without a large one before it.
#[test]
fn what_was_synced_behind_a_large_write_has_that() {
    for left in [Shape::Nothing, Shape::Everything] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let (mut machine, client, file) = with_file(&scene, SELECTIVE).await;
            client.drain().await.unwrap();
            write(&client, file, 0, &[2; 10_000]).await;
            write(&client, file, 15_000, &[3; 100]).await;
            client.sync(file, false).await.unwrap();
            machine.crash(left);
            drop(client);
            scene.crash(left).await;
            let again = machine.mount(&scene, true).await.unwrap();
            let mut expected = vec![1; 20_000];
            expected[..10_000].fill(2);
            expected[15_000..15_100].fill(3);
            assert!(bytes_of(&again, find(&again).await).await == expected);
        });
    }
}

/// Its bytes are in no journal: what no sync has covered is lost with the server's machine, unless the client lives.
#[test]
fn a_large_write_that_was_not_synced_is_lost_with_both_machines() {
    for both in [false, true] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let (mut machine, client, file) = with_file(&scene, SELECTIVE).await;
            client.drain().await.unwrap();
            write(&client, file, 0, &[2; 10_000]).await;
            if both {
                machine.crash(Shape::Everything);
            }
            scene.crash(Shape::Nothing).await;
            let client = match both {
                true => machine.mount(&scene, true).await.unwrap(),
                false => client,
            };
            let seen = find(&client).await;
            env.sleep(Duration::from_millis(10)).await;
            let kept = bytes_of(&client, seen).await[0] == 2;
            assert_eq!(kept, !both);
        });
    }
}

/// The journal of one mode is written back by a mount with another one.
#[test]
fn a_mount_may_have_another_mode_than_the_last_one() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (mut machine, mut client, _) = with_file(&scene, JournaledData::Pages).await;
        for (data, byte) in
            [(JournaledData::Wasteless, 5), (SELECTIVE, 6), (JournaledData::Pages, 7)]
        {
            let directory = alone(&client, &format!("d{byte}")).await;
            let file = make(&client, directory, "file", Node::File).await;
            client.reference(file);
            write(&client, file, 100, &[byte; 50]).await;
            client.sync(file, false).await.unwrap();
            assert!(client.pending().in_journal.changes > 0, "before {data:?}");
            machine.crash(Shape::Nothing);
            drop(client);
            machine.data = data;
            client = machine.mount(&scene, true).await.unwrap();
            assert_eq!(bytes_of(&*scene.files, file).await[100..], [byte; 50]);
        }
    });
}

/// A record has no more than the journal takes.
#[test]
fn many_pages_do_not_end_the_journal() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        (machine.data, machine.memory) = (JournaledData::Pages, 64 << 20);
        let (client, file) = begin(&scene, &machine, true).await;
        write(&client, file, 0, &[1; 4096]).await;
        client.wait_for(file, Level::Server, LEASE).await.unwrap();
        // Each takes a page, and none takes time in which a part would be committed.
        for number in 0..2000_u32 {
            write(&client, file, 0, &number.to_le_bytes()).await;
        }
        client.sync(file, true).await.unwrap();
        assert!(client.pending().journal.is_some());
        assert_eq!(client.status().lost, 0);
        let before = machine.written();
        write(&client, file, 0, &[8]).await;
        client.sync(file, true).await.unwrap();
        assert!(machine.written() > before);
    });
}
