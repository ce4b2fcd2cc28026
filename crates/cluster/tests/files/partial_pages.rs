//! Pages that a client has written in parts: it reads them again without the server, and never what another client has changed.

use bytes::Bytes;
use thalweg_cluster::client::{self, Client, journal};
use thalweg_fs::{Allocation, AttributeChange, Filesystem, FsError, Ino, WriteAt, WriteHow};
use thalweg_sim::run;
use thalweg_store::device::{DeviceRef, MemoryDevice};

use crate::own_files::{alone, open};
use crate::scene::*;

/// A file of many pages, the last of which it fills in part.
const LEN: usize = 100_000;
const PAGE: usize = 4096;

fn bytes() -> Vec<u8> {
    (0..LEN).map(|at| (at / 7) as u8).collect()
}

async fn write(client: &Client, ino: Ino, offset: usize, data: &[u8]) {
    let data = vec![Bytes::copy_from_slice(data)];
    let at = WriteAt::Offset(offset as u64);
    client.write(ino, at, data, WriteHow::default()).await.unwrap();
}

/// Writes a file in pieces, and has the server have it.
async fn write_pieces(client: &Client, ino: Ino, piece: usize) {
    for (at, part) in bytes().chunks(piece).enumerate() {
        write(client, ino, at * piece, part).await;
    }
    client.drain().await.unwrap();
    assert_eq!(client.status().unsent, 0);
}

/// Reads a file as a kernel does that has none of its pages.
async fn read_pages(client: &Client, ino: Ino) -> Result<Vec<u8>, FsError> {
    let mut read = Vec::new();
    loop {
        let page = client.read_cached(ino, read.len() as u64, PAGE).await?.concat();
        read.extend_from_slice(&page);
        if page.len() < PAGE {
            return Ok(read);
        }
    }
}

/// The bytes of a file, and the messages that reading them takes.
async fn count(client: &Client, ino: Ino) -> (Vec<u8>, u64) {
    let before = calls(client);
    let read = read_pages(client, ino).await.unwrap();
    (read, calls(client) - before)
}

/// A client, with a file of its own that it has open, in a directory of its own.
async fn machine(scene: &Scene, name: &str, journaled: bool) -> (Machine, Ino) {
    let mut options = patient();
    if journaled {
        let device: DeviceRef = std::sync::Arc::new(MemoryDevice::new(2 * journal::MIN_SIZE));
        journal::create(&scene.env, &device).await.unwrap();
        options.journal = Some(device);
    }
    let machine = scene.client_with(visitor(name), options).await.unwrap();
    let (_, file) = alone(&machine.client).await;
    open(&machine.client, file).await;
    (machine, file)
}

#[test]
fn what_was_written_in_parts_is_read_with_one_call() {
    run(1, |env| async move {
        for (is_direct, journaled) in [(false, false), (false, true), (true, false)] {
            let scene = Scene::either(&env, options(), is_direct).await;
            let (machine, file) = machine(&scene, "a", journaled).await;
            let a = &machine.client;
            for piece in [100, 1000, 4000] {
                write_pieces(a, file, piece).await;
                // The server notes the time of the first read.
                let (read, used) = count(a, file).await;
                assert!(read == bytes() && used <= 1, "{piece}: {used} messages");
                assert!(count(a, file).await == (bytes(), 0), "{piece}");
                let whole = a.read(file, 0, LEN + PAGE).await.unwrap().concat();
                assert!(whole == bytes(), "{piece}");
                a.set_attributes(file, &AttributeChange { size: Some(0), ..Default::default() })
                    .await
                    .unwrap();
            }
        }
    });
}

#[test]
fn the_time_of_a_read_is_noted_as_before() {
    run(2, |env| async move {
        let scene = Scene::durable(&env).await;
        let (machine, file) = machine(&scene, "a", false).await;
        let b = scene.client("b").await;
        let a = &machine.client;
        write_pieces(a, file, 1000).await;
        env.sleep(std::time::Duration::from_secs(3)).await;
        count(a, file).await;
        let directory = b.client.find(Ino::ROOT, b"d").await.unwrap().ino;
        let found = b.client.find(directory, b"f").await.unwrap().attributes;
        assert_eq!(found.ino, file);
        assert!(found.accessed > found.modified, "{found:?}");
    });
}

#[test]
fn what_another_client_has_written_is_read() {
    run(3, |env| async move {
        for journaled in [false, true] {
            let scene = Scene::durable(&env).await;
            let (machine, file) = machine(&scene, "a", journaled).await;
            let b = scene.client("b").await;
            let (a, b) = (&machine.client, &b.client);
            write_pieces(a, file, 1000).await;
            count(a, file).await;
            let directory = b.find(Ino::ROOT, b"d").await.unwrap().ino;
            assert_eq!(b.find(directory, b"f").await.unwrap().ino, file);
            b.reference(file);
            for turn in 0..3_u8 {
                let mut wanted = bytes();
                let at = 5000 + 100 * usize::from(turn);
                wanted[5000..at + 500].fill(200);
                write(b, file, at, &[200; 500]).await;
                // Without them no read uses what is kept.
                a.attributes(file).await.unwrap();
                let read = a.read(file, 4097, 2000).await.unwrap().concat();
                assert!(read == wanted[4097..6097], "turn {turn}, past the pages");
                assert!(count(a, file).await.0 == wanted, "turn {turn}");
                // It may have become this client's own again.
                open(a, file).await;
                write(a, file, 0, &wanted[..10]).await;
                assert!(count(a, file).await.0 == wanted, "turn {turn}");
            }
        }
    });
}

#[test]
fn a_file_that_was_cut_and_grows_again_has_zeros_in_between() {
    run(4, |env| async move {
        let scene = Scene::durable(&env).await;
        let (machine, file) = machine(&scene, "a", false).await;
        let a = &machine.client;
        for cut in [0, 10, PAGE, PAGE + 10, 10_000] {
            write_pieces(a, file, 1000).await;
            let size = Some(cut as u64);
            a.set_attributes(file, &AttributeChange { size, ..Default::default() }).await.unwrap();
            write(a, file, 30_001, b"behind").await;
            let mut wanted = bytes();
            wanted.truncate(cut);
            wanted.resize(30_001, 0);
            wanted.extend_from_slice(b"behind");
            assert!(count(a, file).await.0 == wanted, "cut at {cut}");
            a.drain().await.unwrap();
            assert!(count(a, file).await.0 == wanted, "cut at {cut}, at the server");
        }
    });
}

#[test]
fn what_is_changed_by_a_call_is_read() {
    run(5, |env| async move {
        let scene = Scene::durable(&env).await;
        let (machine, file) = machine(&scene, "a", false).await;
        let a = &machine.client;
        write_pieces(a, file, 1000).await;
        let mut wanted = bytes();
        // Not foreseen: the server is asked for it.
        wanted[5000..6000].fill(0);
        a.allocate(file, 5000, 1000, Allocation::Zero { keep_size: true }).await.unwrap();
        a.attributes(file).await.unwrap();
        assert!(count(a, file).await.0 == wanted);
        write_pieces(a, file, 1000).await;
        wanted = bytes();
        wanted[20_000..20_100].fill(9);
        let how = WriteHow { sync: true, ..WriteHow::default() };
        let data = vec![Bytes::from(vec![9; 100])];
        a.write(file, WriteAt::Offset(20_000), data, how).await.unwrap();
        a.attributes(file).await.unwrap();
        assert!(count(a, file).await.0 == wanted);
        a.copy((file, 0), (file, 50_000), 700).await.unwrap();
        wanted.copy_within(..700, 50_000);
        a.attributes(file).await.unwrap();
        assert!(count(a, file).await.0 == wanted);
    });
}

#[test]
fn nothing_is_read_after_the_lease() {
    run(6, |env| async move {
        let scene = Scene::durable(&env).await;
        let (machine, file) = machine(&scene, "a", false).await;
        let b = scene.client("b").await;
        let (a, b) = (&machine.client, &b.client);
        write_pieces(a, file, 1000).await;
        count(a, file).await;
        scene.network.cut(&machine.host, &scene.server);
        scene.network.cut(&scene.server, &machine.host);
        // Another client gets it without a recall that this one hears of.
        let directory = b.find(Ino::ROOT, b"d").await.unwrap().ino;
        b.find(directory, b"f").await.unwrap();
        b.reference(file);
        write(b, file, 5000, &[200; 500]).await;
        let reading = env.timeout(LEASE, a.read_cached(file, 4096, PAGE)).await;
        assert!(reading.is_none(), "a read is answered without a lease");
        scene.network.heal();
        let mut wanted = bytes();
        wanted[5000..5500].fill(200);
        a.reference(file);
        let read = read_pages(a, file).await;
        assert!(matches!(&read, Ok(read) if *read == wanted) || read.is_err(), "old bytes");
    });
}

#[test]
fn the_oldest_pages_go_first() {
    run(7, |env| async move {
        let scene = Scene::durable(&env).await;
        let options = client::Options { memory: 5 * PAGE, ..patient() };
        let machine = scene.client_with(visitor("a"), options).await.unwrap();
        let a = &machine.client;
        let (_, file) = alone(a).await;
        open(a, file).await;
        write_pieces(a, file, 1000).await;
        count(a, file).await;
        // Ten of 25 pages are here.
        let (read, used) = count(a, file).await;
        assert!(read == bytes() && used == 15, "{used} messages");
    });
}
