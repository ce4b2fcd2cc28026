//! Files whose last bytes a client stores together with how they end.

use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_cluster::client::Client;
use thalweg_env::{Env, Rng};
use thalweg_fs::{
    AttributeChange, Attributes, Caller, Filesystem, FsError, Handle, Ino, Level, Node, SetXattr,
    TimeChange, Timestamp, WriteAt, WriteHow,
};
use thalweg_sim::crash::Shape;
use thalweg_sim::{campaign, run};

use crate::scene::*;

async fn reached(env: &Env, client: &Client) {
    while !client.status().direct {
        env.sleep(Duration::from_millis(10)).await;
    }
}

async fn append(client: &Client, ino: Ino, data: Vec<u8>) -> Result<u64, FsError> {
    client.write(ino, WriteAt::End, vec![data.into()], WriteHow::default()).await
}

/// Opens a file to write; it is the client's own if no other client has it.
async fn open(client: &Client, ino: Ino) -> Handle {
    client.open(&Caller::default(), ino, WRITING).await.unwrap().handle
}

/// Syncs of a file that grows until a client stores its tail.
const SYNCS: usize = 5;

/// A file of 3000 bytes that a client has open. The client stores its tail.
async fn with_tail(env: &Env, client: &Client) -> (Ino, Handle) {
    reached(env, client).await;
    let file = make(client, Ino::ROOT, "f", Node::File).await;
    client.reference(file);
    let handle = open(client, file).await;
    for _ in 0..SYNCS {
        append(client, file, vec![1; 3000 / SYNCS]).await.unwrap();
        client.sync(file, false).await.unwrap();
    }
    (file, handle)
}

/// What another client sees.
async fn seen(client: &Client) -> (Attributes, Vec<u8>) {
    let found = client.find(Ino::ROOT, b"f").await.unwrap();
    client.reference(found.ino);
    (*found, client.read(found.ino, 0, 1 << 22).await.unwrap().concat())
}

#[test]
fn an_fsync_of_a_file_that_grows_needs_no_server() {
    run(1, |env| async move {
        let scene = Scene::direct(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (file, _) = with_tail(&env, &a.client).await;
        let before = calls(&a.client);
        for number in 0..100_u8 {
            append(&a.client, file, vec![number; 1000]).await.unwrap();
            assert_eq!(a.client.level(file).await.unwrap(), Level::Memory);
            a.client.sync(file, false).await.unwrap();
            a.client.sync(file, true).await.unwrap();
            assert_eq!(a.client.level(file).await.unwrap(), Level::Server);
            assert!(a.client.wait_for(file, Level::Server, Duration::ZERO).await.unwrap());
        }
        assert_eq!(calls(&a.client), before);
        // Far behind the first object, in one write that two objects share.
        append(&a.client, file, vec![101; 200_000]).await.unwrap();
        a.client.sync(file, false).await.unwrap();
        assert_eq!(calls(&a.client), before);
        let (found, bytes) = seen(&b.client).await;
        assert_eq!(found.size, 303_000);
        for (number, chunk) in (0..100_u8).zip(bytes[3000..].chunks(1000)) {
            assert_eq!(chunk, vec![number; 1000]);
        }
        assert!(bytes[103_000..] == vec![101; 200_000]);
        assert_eq!(a.client.status().lost, 0);
    });
}

#[test]
fn a_file_that_grows_a_few_times_costs_no_question() {
    run(1, |env| async move {
        let scene = Scene::direct(&env).await;
        let a = scene.client("a").await;
        reached(&env, &a.client).await;
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        a.client.reference(file);
        open(&a.client, file).await;
        let mut used = Vec::new();
        for _ in 0..SYNCS {
            let before = calls(&a.client);
            append(&a.client, file, vec![1; 100]).await.unwrap();
            a.client.sync(file, false).await.unwrap();
            used.push(calls(&a.client) - before);
        }
        assert_eq!(used[1..], [1, 1, 2, 0]);
    });
}

/// The client dies, and so does the server, or not.
#[test]
fn a_file_ends_where_its_dead_client_has_stored_it() {
    for (seed, crashes, rewrites) in
        [(1, false, false), (2, true, false), (3, false, true), (4, true, true)]
    {
        run(seed, |env| async move {
            let mut scene = Scene::direct(&env).await;
            let (a, b) = (scene.client("a").await, scene.client("b").await);
            let (file, _) = with_tail(&env, &a.client).await;
            append(&a.client, file, b"the end".to_vec()).await.unwrap();
            a.client.sync(file, false).await.unwrap();
            if rewrites {
                // With and without the server having the former end.
                for pause in [Duration::ZERO, 3 * LEASE] {
                    env.sleep(pause).await;
                    let data = vec![Bytes::from_static(b"THE END")];
                    let at = WriteAt::Offset(3000);
                    a.client.write(file, at, data, WriteHow::default()).await.unwrap();
                    a.client.sync(file, false).await.unwrap();
                }
            }
            let known = a.client.attributes(file).await.unwrap();
            append(&a.client, file, b", lost".to_vec()).await.unwrap();
            a.process.kill();
            if crashes {
                scene.crash(Shape::Nothing).await;
            }
            let (found, bytes) = seen(&b.client).await;
            assert_eq!((found.size, found.modified), (known.size, known.modified), "{crashes}");
            let end = if rewrites { b"THE END" } else { b"the end" };
            assert_eq!(&bytes[3000..], end);
            assert_eq!(found.stored, known.stored);
        });
    }
}

/// It writes on by itself; nothing is lost, and nothing is said to be.
#[test]
fn an_evicted_client_does_not_lose_what_it_has_synced() {
    run(3, |env| async move {
        let scene = Scene::direct(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (file, _) = with_tail(&env, &a.client).await;
        scene.network.cut(&a.host, &scene.server);
        append(&a.client, file, b"without a server".to_vec()).await.unwrap();
        a.client.sync(file, false).await.unwrap();
        let (found, bytes) = seen(&b.client).await;
        assert_eq!((found.size, &bytes[3000..]), (3016, &b"without a server"[..]));
        scene.network.heal();
        env.sleep(LEASE).await;
        assert_eq!((a.client.status().evictions, a.client.status().lost), (1, 0));
    });
}

/// A quota that comes between counts what was synced, and refuses only what comes later.
#[test]
fn a_quota_does_not_undo_an_fsync() {
    run(7, |env| async move {
        let scene = Scene::direct(&env).await;
        let a = scene.client("a").await;
        let (file, _) = with_tail(&env, &a.client).await;
        append(&a.client, file, vec![2; 8000]).await.unwrap();
        a.client.sync(file, false).await.unwrap();
        let (name, most) = (b"thalweg.quota.max_bytes", Bytes::from_static(b"4096"));
        scene.files.set_xattr(Ino::ROOT, name, most, SetXattr::Any).await.unwrap();
        env.sleep(2 * LEASE).await;
        assert_eq!(a.client.status().lost, 0);
        assert_eq!(scene.files.attributes(file).await.unwrap().size, 11_000);
        env.sleep(Duration::from_secs(10)).await;
        append(&a.client, file, vec![2; 8000]).await.unwrap();
        assert!(a.client.sync(file, false).await.is_err());
    });
}

/// What is cut off does not come back.
#[test]
fn a_tail_ends_with_the_bytes_that_it_is_of() {
    for crashes in [false, true] {
        run(4, |env| async move {
            let mut scene = Scene::direct(&env).await;
            let (a, b) = (scene.client("a").await, scene.client("b").await);
            let (file, _) = with_tail(&env, &a.client).await;
            append(&a.client, file, vec![2; 1000]).await.unwrap();
            a.client.sync(file, false).await.unwrap();
            let cut = AttributeChange { size: Some(100), ..AttributeChange::default() };
            a.client.set_attributes(file, &cut).await.unwrap();
            a.client.sync(file, false).await.unwrap();
            env.sleep(3 * LEASE).await;
            a.process.kill();
            if crashes {
                scene.crash(Shape::Nothing).await;
            }
            assert_eq!(seen(&b.client).await.0.size, 100);
        });
    }
}

/// What was set is durable with an fsync like bytes.
#[test]
fn other_changes_are_synced_by_the_server() {
    run(5, |env| async move {
        let mut scene = Scene::direct(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (file, _) = with_tail(&env, &a.client).await;
        let change = AttributeChange { mode: Some(0o640), ..AttributeChange::default() };
        a.client.set_attributes(file, &change).await.unwrap();
        append(&a.client, file, vec![2; 1000]).await.unwrap();
        a.client.sync(file, false).await.unwrap();
        a.process.kill();
        scene.crash(Shape::Nothing).await;
        let (found, _) = seen(&b.client).await;
        assert_eq!((found.size, found.mode), (4000, 0o640));
    });
    run(5, |env| async move {
        let mut scene = Scene::direct(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (file, _) = with_tail(&env, &a.client).await;
        let time = Timestamp { seconds: 1000, nanos: 5 };
        append(&a.client, file, vec![2; 1000]).await.unwrap();
        let change =
            AttributeChange { modified: Some(TimeChange::At(time)), ..AttributeChange::default() };
        a.client.set_attributes(file, &change).await.unwrap();
        a.client.sync(file, false).await.unwrap();
        a.process.kill();
        scene.crash(Shape::Nothing).await;
        let (found, _) = seen(&b.client).await;
        assert_eq!((found.size, found.modified), (4000, time));
    });
}

/// The client of a file that another one has had does not know what was not durable then.
#[test]
fn what_another_client_has_cut_off_is_durable_first() {
    run(6, |env| async move {
        let mut scene = Scene::direct(&env).await;
        let (a, b, c) = (scene.client("a").await, scene.client("b").await, scene.client("c").await);
        let (file, _) = with_tail(&env, &a.client).await;
        b.client.find(Ino::ROOT, b"f").await.unwrap();
        b.client.reference(file);
        let cut = AttributeChange { size: Some(10), ..AttributeChange::default() };
        b.client.set_attributes(file, &cut).await.unwrap();
        open(&a.client, file).await;
        append(&a.client, file, vec![7; 10]).await.unwrap();
        a.client.sync(file, false).await.unwrap();
        a.process.kill();
        b.process.kill();
        scene.crash(Shape::Nothing).await;
        assert_eq!(seen(&c.client).await.1, [vec![1; 10], vec![7; 10]].concat());
    });
}

/// The states of a file since it was synced last.
struct Model {
    states: Vec<Vec<u8>>,
    /// The last sync needed no server.
    by_size_record: bool,
    /// As its client has it open.
    handle: Handle,
}

impl Model {
    fn now(&self) -> &Vec<u8> {
        self.states.last().unwrap()
    }

    /// It may be the client's own again.
    async fn open_again(&mut self, client: &Client, file: Ino) {
        client.release(file, self.handle).await;
        self.handle = open(client, file).await;
    }

    async fn sync(&mut self, client: &Client, file: Ino) {
        let before = calls(client);
        client.sync(file, false).await.unwrap();
        self.by_size_record = calls(client) == before;
        self.states.drain(..self.states.len() - 1);
    }

    /// While the file is synced, it becomes longer, and everything is synced.
    async fn sync_at_once(&mut self, (env, rng): (&Env, &mut Rng), client: &Client, file: Ino) {
        let pause = Duration::from_micros(rng.random_range(0..2000));
        let (own, sleeper) = (client.clone(), env.clone());
        let more = async move {
            sleeper.sleep(pause).await;
            append(&own, file, vec![9; 100]).await.unwrap();
            own.sync_all().await.unwrap();
        };
        let more = env.spawn(more);
        client.sync(file, false).await.unwrap();
        more.await.unwrap();
        self.states = vec![[&self.now()[..], &[9; 100]].concat()];
    }

    /// Whether the file may be so after a crash.
    fn allows(&self, found: &[u8]) -> bool {
        let has_size = self.states.iter().any(|it| it.len() == found.len());
        has_size
            && found.iter().enumerate().all(|(at, byte)| {
                self.states.iter().any(|it| it.get(at).is_some_and(|it| it == byte))
            })
    }
}

/// One change of the file, or none.
async fn change(
    env: &Env,
    rng: &mut Rng,
    (client, other): (&Client, &Client),
    file: Ino,
    model: &mut Model,
) {
    let mut next = model.now().clone();
    let size = next.len();
    let byte = rng.random::<u8>();
    if rng.random_bool(0.3) {
        model.open_again(client, file).await;
    }
    match rng.random_range(0..24) {
        0..12 => {
            let len = [10, 1000, 70_000][rng.random_range(0..3)];
            // What is in flight counts, whether it is answered or not.
            next.extend(vec![byte; len]);
            model.states.push(next);
            append(client, file, vec![byte; len]).await.unwrap();
        }
        12..15 if size > 0 => {
            let at = rng.random_range(0..size);
            let len = rng.random_range(1..=(size - at).min(5000));
            next[at..at + len].fill(byte);
            model.states.push(next);
            let data = vec![Bytes::from(vec![byte; len])];
            let at = WriteAt::Offset(at as u64);
            client.write(file, at, data, WriteHow::default()).await.unwrap();
        }
        15..17 => {
            let cut = rng.random_range(0..=size);
            next.truncate(cut);
            model.states.push(next);
            let cut = AttributeChange { size: Some(cut as u64), ..AttributeChange::default() };
            let by = if rng.random_bool(0.7) { client } else { other };
            by.set_attributes(file, &cut).await.unwrap();
        }
        17 => {
            next.extend([byte; 100]);
            model.states.push(next);
            append(other, file, vec![byte; 100]).await.unwrap();
        }
        18 => {
            let read = other.read(file, 0, 1 << 22).await.unwrap().concat();
            assert!(read == *model.now());
        }
        _ => {
            let most = [1000, 100_000, 2_000_000][rng.random_range(0..3)];
            env.sleep(Duration::from_micros(rng.random_range(0..most))).await;
        }
    }
    match rng.random_range(0..10) {
        0..6 => model.sync(client, file).await,
        6 => model.sync_at_once((env, rng), client, file).await,
        _ => {}
    }
}

/// A life; whether its last `fsync` was one without the server.
fn life(seed: u64) -> bool {
    run(seed, |env| async move {
        let mut scene = Scene::direct(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let c = scene.client("c").await;
        let mut rng = env.rng();
        let (file, handle) = with_tail(&env, &a.client).await;
        b.client.find(Ino::ROOT, b"f").await.unwrap();
        b.client.reference(file);
        let mut model = Model { states: vec![vec![1; 3000]], by_size_record: true, handle };
        for _ in 0..rng.random_range(1..30) {
            change(&env, &mut rng, (&a.client, &b.client), file, &mut model).await;
        }
        if rng.random_bool(0.7) {
            // Until then the other client counts as one that uses it.
            env.sleep(LEASE).await;
            model.open_again(&a.client, file).await;
        }
        for number in 0..rng.random_range(0..5) {
            let len = rng.random_range(1..100_000);
            model.states.push([&model.now()[..], &vec![number; len]].concat());
            append(&a.client, file, vec![number; len]).await.unwrap();
            match rng.random_bool(0.8) {
                true => model.sync(&a.client, file).await,
                false => model.sync_at_once((&env, &mut rng), &a.client, file).await,
            }
        }
        if rng.random_bool(0.8) {
            a.process.kill();
            if rng.random_bool(0.5) {
                b.process.kill();
            }
        }
        if rng.random_bool(0.7) {
            let left = match rng.random_range(0..4) {
                0 => Shape::Nothing,
                1 => Shape::Everything,
                2 => Shape::Subset(rng.random()),
                _ => Shape::Torn(rng.random()),
            };
            scene.crash(left).await;
        }
        let (found, bytes) = seen(&c.client).await;
        assert_eq!(found.size, bytes.len() as u64);
        assert!(
            model.allows(&bytes),
            "seed {seed}: {} bytes; {:?}",
            bytes.len(),
            model.states.iter().map(Vec::len).collect::<Vec<_>>()
        );
        model.by_size_record
    })
}

#[test]
fn what_was_synced_survives() {
    let by_size_record = campaign::seeds(300).filter(|seed| life(*seed)).count();
    assert!(by_size_record >= 60, "{by_size_record}");
}
