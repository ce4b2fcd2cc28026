//! Clients that read and write contents of files past the server.

use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_cluster::client::{self, Client};
use thalweg_env::Env;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::session_table::JournalPosition;
use thalweg_fs::{
    Allocation, AttributeChange, Filesystem, FsError, Ino, Node, Rename, Timestamp, WriteAt,
    WriteHow,
};
use thalweg_sim::crash::Shape;
use thalweg_sim::{campaign, run};

use crate::objects::TIMEOUT;
use crate::scene::*;

/// Bytes of the payloads that a client has sent to the server, about.
fn sent(client: &Client) -> u64 {
    client.traffic().sent().values().map(|sent| sent.bytes).sum()
}

async fn write(client: &Client, ino: Ino, offset: u64, data: Vec<u8>) -> Result<(), FsError> {
    let at = WriteAt::Offset(offset);
    client.write(ino, at, vec![data.into()], WriteHow::default()).await.map(|_| ())
}

pub(crate) async fn read(fs: &dyn Filesystem, ino: Ino) -> Vec<u8> {
    fs.read(ino, 0, 1 << 25).await.unwrap().concat()
}

/// Returns when the client reaches the contents.
pub(crate) async fn reached(env: &Env, client: &Client) {
    while !client.status().direct {
        env.sleep(Duration::from_millis(10)).await;
    }
}

/// A directory of this client alone.
async fn alone(env: &Env, client: &Client) -> Ino {
    reached(env, client).await;
    let directory = make(client, Ino::ROOT, "d", Node::Directory).await;
    client.reference(directory);
    for name in ["one", "two"] {
        make(client, directory, name, Node::File).await;
    }
    directory
}

#[test]
fn bytes_of_own_files_do_not_pass_the_server() {
    run(1, |env| async move {
        let scene = Scene::direct(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let directory = alone(&env, &a.client).await;
        let before = sent(&a.client);
        let mut files = Vec::new();
        for number in 0..100_u8 {
            let file = make(&a.client, directory, &format!("n{number}"), Node::File).await;
            write(&a.client, file, 0, vec![number; 10_000]).await.unwrap();
            files.push(file);
        }
        a.client.sync(files[0], false).await.unwrap();
        assert!(sent(&a.client) - before < 40_000, "names and sizes only");
        b.client.find(Ino::ROOT, b"d").await.unwrap();
        for (number, file) in (0..100_u8).zip(&files) {
            let found = b.client.find(directory, format!("n{number}").as_bytes()).await.unwrap();
            assert_eq!((found.ino, found.size), (*file, 10_000));
            assert_eq!(read(&b.client, *file).await, vec![number; 10_000]);
            assert_eq!(read(&*scene.files, *file).await, vec![number; 10_000]);
        }
        // The first reads were noted by the server. Later ones do without it.
        let before = calls(&b.client);
        for file in &files {
            b.client.read(*file, 5000, 100).await.unwrap();
        }
        assert_eq!(calls(&b.client), before);
        assert_eq!(a.client.status().lost, 0);
    });
}

#[test]
fn large_files_are_stored_past_the_server_too() {
    run(2, |env| async move {
        let scene = Scene::direct(&env).await;
        let a = scene.client("a").await;
        let directory = alone(&env, &a.client).await;
        let file = make(&a.client, directory, "large", Node::File).await;
        let block: Vec<u8> = (0..1 << 19).map(|at| (at % 251) as u8).collect();
        let before = sent(&a.client);
        for number in 0..40 {
            write(&a.client, file, number << 19, block.clone()).await.unwrap();
        }
        a.client.sync(file, false).await.unwrap();
        let through = sent(&a.client) - before;
        assert!(
            through < 2 << 20,
            "{through} bytes: one write, with which the file is made, passes"
        );
        assert!(read(&*scene.files, file).await == block.repeat(40));
    });
}

/// A client that is evicted while its writes are in flight changes nothing of what another one has then.
#[test]
fn writes_of_an_evicted_client_do_not_arrive() {
    for seed in 0..10 {
        run(seed, |env| async move {
            let scene = Scene::direct(&env).await;
            let (a, b) = (scene.client("a").await, scene.client("b").await);
            let directory = alone(&env, &a.client).await;
            let file = make(&a.client, directory, "f", Node::File).await;
            write(&a.client, file, 0, b"before".to_vec()).await.unwrap();
            a.client.sync(file, false).await.unwrap();
            let objects = scene.objects.clone().unwrap();
            objects.delay("a", (LEASE * 3).mul_f64(0.5 + 0.1 * seed as f64));
            write(&a.client, file, 0, b"LATE!!".to_vec()).await.unwrap();
            let own = a.client.clone();
            let syncing = env.spawn(async move { own.sync(file, false).await });
            env.sleep(Duration::from_millis(1)).await;
            scene.network.cut(&a.host, &scene.server);
            b.client.find(Ino::ROOT, b"d").await.unwrap();
            assert_eq!(b.client.find(directory, b"f").await.unwrap().ino, file);
            b.client.reference(file);
            assert_eq!(read(&b.client, file).await, b"before", "seed {seed}");
            put(&b.client, file, "theirs").await.unwrap();
            env.sleep(6 * LEASE).await;
            scene.network.heal();
            assert_eq!(read(&b.client, file).await, b"theirs", "seed {seed}");
            assert_eq!(read(&*scene.files, file).await, b"theirs");
            objects.delay("a", Duration::ZERO);
            assert!(syncing.await.unwrap().is_err(), "seed {seed}");
            // It begins anew, at another address.
            reached(&env, &a.client).await;
            assert_eq!(a.client.status().evictions, 1);
            a.client.find(Ino::ROOT, b"d").await.unwrap();
            a.client.find(directory, b"f").await.unwrap();
            assert_eq!(read(&a.client, file).await, b"theirs");
            for name in ["new", "newer", "newest"] {
                let file = make(&a.client, directory, name, Node::File).await;
                write(&a.client, file, 0, name.into()).await.unwrap();
                a.client.sync(file, false).await.unwrap();
                assert!(a.client.status().direct);
            }
        });
    }
}

#[test]
fn a_client_that_does_not_come_back_to_a_new_server_is_shut_out() {
    for writes in [false, true] {
        does_not_come_back(writes);
    }
}

/// With `writes`, the other client writes the file, else it reads it only.
fn does_not_come_back(writes: bool) {
    run(3, |env| async move {
        let mut scene = Scene::direct(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let directory = alone(&env, &a.client).await;
        let file = make(&a.client, directory, "f", Node::File).await;
        write(&a.client, file, 0, b"before".to_vec()).await.unwrap();
        a.client.sync(file, false).await.unwrap();
        scene.objects.as_ref().unwrap().delay("a", LEASE * 8);
        write(&a.client, file, 0, b"LATE!!".to_vec()).await.unwrap();
        let own = a.client.clone();
        let syncing = env.spawn(async move { own.sync(file, false).await });
        env.sleep(Duration::from_millis(1)).await;
        scene.network.cut(&a.host, &scene.server);
        scene.crash(Shape::Nothing).await;
        b.client.find(Ino::ROOT, b"d").await.unwrap();
        assert_eq!(b.client.find(directory, b"f").await.unwrap().ino, file);
        b.client.reference(file);
        assert_eq!(read(&b.client, file).await, b"before");
        if writes {
            put(&b.client, file, "theirs").await.unwrap();
        }
        env.sleep(9 * LEASE).await;
        let expected = if writes { b"theirs" } else { b"before" };
        assert_eq!(read(&b.client, file).await, expected);
        scene.network.heal();
        assert!(syncing.await.unwrap().is_err());
    });
}

#[test]
fn a_client_goes_on_with_a_new_server() {
    run(4, |env| async move {
        let mut scene = Scene::direct(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let directory = alone(&env, &a.client).await;
        let file = make(&a.client, directory, "f", Node::File).await;
        for round in 0..5_u8 {
            write(&a.client, file, 0, vec![round; 100]).await.unwrap();
            if round % 2 == 0 {
                a.client.sync(file, false).await.unwrap();
            }
            scene.crash(Shape::Nothing).await;
            write(&a.client, file, 50, vec![round + 100; 100]).await.unwrap();
            a.client.sync(file, false).await.unwrap();
            reached(&env, &a.client).await;
            let mut all = vec![round; 50];
            all.extend([round + 100; 100]);
            assert_eq!(read(&a.client, file).await, all, "round {round}");
            assert_eq!(read(&*scene.files, file).await, all, "round {round}");
        }
        assert_eq!((a.client.status().evictions, a.client.status().lost), (0, 0));
        b.client.find(Ino::ROOT, b"d").await.unwrap();
        assert_eq!(b.client.find(directory, b"f").await.unwrap().size, 150);
    });
}

#[test]
fn what_cannot_be_stored_goes_to_the_server() {
    run(5, |env| async move {
        let scene = Scene::direct(&env).await;
        let a = scene.client("a").await;
        let directory = alone(&env, &a.client).await;
        let file = make(&a.client, directory, "f", Node::File).await;
        a.client.sync(file, false).await.unwrap();
        let objects = scene.objects.clone().unwrap();
        objects.fill(true);
        write(&a.client, file, 0, vec![1; 100]).await.unwrap();
        let failed = a.client.sync(file, false).await;
        assert!(failed.is_err(), "{failed:?}");
        for number in 0..5 {
            let file = make(&a.client, directory, &format!("full{number}"), Node::File).await;
            write(&a.client, file, 0, vec![1; 100]).await.unwrap();
            assert!(a.client.sync(file, false).await.is_err());
            env.sleep(Duration::from_millis(50)).await;
        }
        let asked = a.client.traffic().sent_for("ReachContents").messages;
        assert_eq!(asked, 2, "at the beginning, and after the first failure");
        objects.fill(false);
        let file = make(&a.client, directory, "g", Node::File).await;
        write(&a.client, file, 0, vec![2; 100]).await.unwrap();
        a.client.sync(file, false).await.unwrap();
        assert_eq!(read(&*scene.files, file).await, vec![2; 100]);
        reached(&env, &a.client).await;
    });
}

/// A read that is in flight while the file changes does not return some of both.
#[test]
fn a_read_that_meets_a_change_is_made_again() {
    for seed in 0..20 {
        run(seed, |env| async move {
            let scene = Scene::direct(&env).await;
            let (a, b) = (scene.client("a").await, scene.client("b").await);
            reached(&env, &b.client).await;
            let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
            write(&a.client, file, 0, b"before".to_vec()).await.unwrap();
            a.client.reference(file);
            b.client.find(Ino::ROOT, b"f").await.unwrap();
            b.client.reference(file);
            for _ in 0..3 {
                assert_eq!(read(&b.client, file).await, b"before");
            }
            let before = calls(&b.client);
            assert_eq!(read(&b.client, file).await, b"before");
            assert_eq!(calls(&b.client), before, "past the server");
            scene.objects.as_ref().unwrap().delay("b", Duration::from_millis(5));
            let reader = b.client.clone();
            let reading = env.spawn(async move { read(&reader, file).await });
            env.sleep(Duration::from_micros(250 * seed)).await;
            let cut = AttributeChange { size: Some(0), ..AttributeChange::default() };
            a.client.set_attributes(file, &cut).await.unwrap();
            write(&a.client, file, 0, b"xy".to_vec()).await.unwrap();
            let found = reading.await.unwrap();
            let all: [&[u8]; 3] = [b"before", b"", b"xy"];
            assert!(all.contains(&&found[..]), "seed {seed}: {found:?}");
        });
    }
}

/// A write that fails may be made later. It does not arrive after newer bytes.
#[test]
fn a_write_without_an_answer_changes_nothing_later() {
    run(8, |env| async move {
        let scene = Scene::direct(&env).await;
        let a = scene.client("a").await;
        let directory = alone(&env, &a.client).await;
        let file = make(&a.client, directory, "f", Node::File).await;
        a.client.reference(file);
        for text in ["first", "again"] {
            write(&a.client, file, 0, text.into()).await.unwrap();
            a.client.sync(file, false).await.unwrap();
        }
        scene.objects.as_ref().unwrap().delay("a", 5 * TIMEOUT);
        write(&a.client, file, 0, b"LATE!".to_vec()).await.unwrap();
        a.client.sync(file, false).await.unwrap();
        assert_eq!(read(&*scene.files, file).await, b"LATE!");
        write(&a.client, file, 0, b"newer".to_vec()).await.unwrap();
        a.client.sync(file, false).await.unwrap();
        env.sleep(6 * TIMEOUT).await;
        assert_eq!(read(&*scene.files, file).await, b"newer");
        assert_eq!(read(&a.client, file).await, b"newer");
        reached(&env, &a.client).await;
        assert_eq!((a.client.status().evictions, a.client.status().lost), (0, 0));
    });
}

/// A file and what it should be.
struct Twin {
    name: String,
    ino: Ino,
    bytes: Vec<u8>,
}

/// One change of a file, and the same of its twin.
async fn change(client: &Client, rng: &mut thalweg_env::Rng, twin: &mut Twin) {
    let size = twin.bytes.len() as u64;
    let (offset, len) = (rng.random_range(0..300_000_u64), rng.random_range(1..100_000_usize));
    match rng.random_range(0..12) {
        0..6 => {
            // Most writes leave no hole.
            let offset = if rng.random_bool(0.9) { offset.min(size) } else { offset };
            let byte = rng.random_range(1..=255_u8);
            write(client, twin.ino, offset, vec![byte; len]).await.unwrap();
            let end = offset as usize + len;
            twin.bytes.resize(twin.bytes.len().max(end), 0);
            twin.bytes[offset as usize..end].fill(byte);
        }
        6..8 => {
            let change = AttributeChange { size: Some(offset), ..AttributeChange::default() };
            client.set_attributes(twin.ino, &change).await.unwrap();
            twin.bytes.resize(offset as usize, 0);
        }
        8 => {
            client.allocate(twin.ino, offset, len as u64, Allocation::Punch).await.unwrap();
            let end = (offset as usize + len).min(twin.bytes.len());
            twin.bytes[(offset as usize).min(end)..end].fill(0);
        }
        9 => client.sync(twin.ino, false).await.unwrap(),
        _ => assert!(read(client, twin.ino).await == twin.bytes),
    }
}

/// Random calls on files, by two clients in turns, while the server crashes: the files are what they should be.
#[test]
fn files_agree_with_their_twins() {
    for seed in campaign::seeds(40) {
        run(seed, |env| async move {
            let mut scene = Scene::direct(&env).await;
            let mut rng = env.rng();
            // Some changes wait for longer than the server takes to clear bytes.
            let expire = Duration::from_secs(if rng.random() { 1 } else { 5 });
            let options = client::Options { expire, ..patient() };
            let first = scene.client_with(visitor("a"), options).await.unwrap();
            let machines = [first, scene.client("b").await];
            let directory = alone(&env, &machines[0].client).await;
            let mut twins = Vec::new();
            for turn in 0..6 {
                let client = &machines[rng.random_range(0..2)].client;
                client.find(Ino::ROOT, b"d").await.unwrap();
                client.reference(directory);
                for Twin { name, ino, bytes } in &twins {
                    let found = client.find(directory, name.as_bytes()).await.unwrap();
                    client.reference(*ino);
                    assert_eq!((found.ino, found.size), (*ino, bytes.len() as u64), "seed {seed}");
                }
                if twins.len() < 3 {
                    let name = format!("f{turn}");
                    let ino = make(client, directory, &name, Node::File).await;
                    client.reference(ino);
                    twins.push(Twin { name, ino, bytes: Vec::new() });
                } else if rng.random_bool(0.3) {
                    let Twin { name, .. } = twins.pop().unwrap();
                    client.unlink(directory, name.as_bytes()).await.unwrap();
                }
                for _ in 0..rng.random_range(1..25) {
                    let which = rng.random_range(0..twins.len());
                    change(client, &mut rng, &mut twins[which]).await;
                    env.sleep(Duration::from_millis(rng.random_range(0..200))).await;
                }
                let twin = &mut twins[0];
                let name = format!("r{turn}");
                let (from, to) = ((directory, twin.name.as_bytes()), (directory, name.as_bytes()));
                client.rename(from, to, Rename::Replace).await.unwrap();
                twin.name = name;
                // Another client may become their owner.
                env.sleep(LEASE).await;
                if rng.random_bool(0.5) {
                    scene.crash(Shape::Nothing).await;
                }
            }
            for machine in &machines {
                machine.client.close().await;
            }
            for Twin { ino, bytes, .. } in &twins {
                assert!(read(&*scene.files, *ino).await == *bytes, "seed {seed}");
            }
            scene.files.sync_all().await.unwrap();
        });
    }
}

#[test]
fn events_about_bytes_that_cannot_have_been_stored_are_refused() {
    run(6, |env| async move {
        let scene = Scene::direct(&env).await;
        let fs = &scene.files;
        let session_table = fs.session_table().unwrap();
        let direct = session_table.direct().unwrap();
        let none = JournalPosition::default();
        let apply = async |all: &[Mutation]| session_table.apply(all, &[], none).await;
        let file = make(&**fs, Ino::ROOT, "f", Node::File).await;
        let write_bound = direct.write_bound(file).await.unwrap();
        assert_eq!(write_bound, 4 << 20);
        let stored = |offset, len| {
            let (clear_suid, by_size_record) = (false, false);
            MutationKind::Stored { ino: file, offset, len, clear_suid, by_size_record }
        };
        let written = |offset| {
            let data = Bytes::from_static(b"bytes");
            MutationKind::Write { ino: file, offset, data, clear_suid: false }
        };
        let size = async || fs.attributes(file).await.unwrap().size;
        for wrong in [
            vec![stored(0, write_bound + 1)],
            vec![stored(1, 10)],
            vec![stored(0, 10), stored(11, 10)],
            vec![stored(0, 10), written(10)],
            vec![written(0), stored(5, 5)],
            vec![stored(u64::MAX, 10)],
        ] {
            let mutations: Vec<Mutation> = wrong.iter().cloned().map(mutation).collect();
            let refused = apply(&mutations).await;
            assert!(matches!(refused, Err(FsError::Invalid(_))), "{wrong:?}: {refused:?}");
            assert_eq!(size().await, 0);
        }
        apply(&[mutation(stored(0, 10)), mutation(stored(5, 20))]).await.unwrap();
        assert_eq!(size().await, 25);
        let raised = direct.extend_write_bound(file, write_bound + 1).await.unwrap();
        apply(&[mutation(stored(25, write_bound - 24))]).await.unwrap();
        assert!(raised > write_bound && size().await == write_bound + 1);
        // Bytes behind the end are removed at some time, up to the reach.
        let cut = AttributeChange { size: Some(3), ..AttributeChange::default() };
        fs.set_attributes(file, &cut).await.unwrap();
        assert_eq!(direct.write_bound(file).await.unwrap(), 0);
        assert!(apply(&[mutation(stored(0, 5))]).await.is_err());
        fs.sync_all().await.unwrap();
        while direct.write_bound(file).await.unwrap() == 0 {
            env.sleep(Duration::from_millis(100)).await;
        }
        apply(&[mutation(stored(0, 5))]).await.unwrap();
        let directory = make(&**fs, Ino::ROOT, "d", Node::Directory).await;
        assert!(matches!(direct.write_bound(directory).await, Err(FsError::IsDirectory)));
        assert!(matches!(direct.write_bound(Ino(99_999)).await, Err(FsError::Stale)));
    });
}

fn mutation(kind: MutationKind) -> Mutation {
    Mutation { time: Timestamp::of_nanos(7), kind }
}

#[test]
fn addresses_of_clients_are_checked() {
    run(7, |env| async move {
        let scene = Scene::direct(&env).await;
        let session_table = scene.files.session_table().unwrap();
        let direct = session_table.direct().unwrap();
        let finder = scene.objects.as_ref().unwrap().finder("x");
        let find = async || finder.find(&direct.location(), true).await.unwrap();
        let (one, two) = (find().await, find().await);
        let (first, second) = (one.address().await.unwrap(), two.address().await.unwrap());
        let session = session_table.begin_session("one".into()).await.unwrap();
        let other = session_table.begin_session("two".into()).await.unwrap();
        let data = [Bytes::from_static(b"x")];
        direct.admit(session, &first).await.unwrap();
        direct.admit(session, &first).await.unwrap();
        one.write(Ino(77), 0, &data).await.unwrap();
        let taken = direct.admit(other, &first).await;
        assert!(matches!(taken, Err(FsError::Invalid(_))), "{taken:?}");
        let own = scene.objects.as_ref().unwrap().server().await;
        let taken = direct.admit(other, &own).await;
        assert!(matches!(taken, Err(FsError::Invalid(_))), "{taken:?}");
        let long = direct.admit(other, &"a".repeat(1000)).await;
        assert!(matches!(long, Err(FsError::Invalid(_))), "{long:?}");
        let unknown = direct.admit(session ^ other, &second).await;
        assert!(matches!(unknown, Err(FsError::Stale)), "{unknown:?}");
        // Another address takes the place of the first one.
        direct.admit(session, &second).await.unwrap();
        assert!(one.write(Ino(77), 0, &data).await.is_err());
        two.write(Ino(77), 0, &data).await.unwrap();
        direct.admit(session, "").await.unwrap();
        assert!(two.write(Ino(77), 0, &data).await.is_err());
        let three = find().await;
        direct.admit(session, &three.address().await.unwrap()).await.unwrap();
        assert_eq!(session_table.sessions().await.unwrap().len(), 2);
        let ended = thalweg_cluster::server::use_without_server(session_table).await.unwrap();
        assert_eq!(ended.ended, 2);
        assert!(three.write(Ino(77), 0, &data).await.is_err());
        assert!(finder.find(b"nowhere", false).await.is_err());
    });
}
