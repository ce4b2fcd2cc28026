//! A client's journal: what a sync costs, and a journal that is full, fails, is copied, or cannot be written back.

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::{
    self, AttachError, Client, ConflictScope, JournaledData, OnConflict, journal,
};
use thalweg_cluster::protocol::{Answer, JournalMount, Request};
use thalweg_env::Env;
use thalweg_fs::{AttributeChange, Filesystem, Ino, Level, Node, SetXattr, WriteAt, WriteHow};
use thalweg_sim::crash::{CrashImage, Shape};
use thalweg_sim::net::Host;
use thalweg_sim::recording::Recorder;
use thalweg_sim::run;
use thalweg_store::device::{DeviceRef, Geometry};

use crate::full::alone;
use crate::peer::Peer;
use crate::scene::*;

/// Bytes of a journal.
pub(crate) const SIZE: u64 = 4 << 20;

/// A machine with a client that has a journal.
pub(crate) struct Journaled {
    env: Env,
    host: Host,
    pub(crate) process: thalweg_env::Node,
    recorder: Recorder,
    device: DeviceRef,
    /// Where copies of the journal are.
    pub(crate) keepers: Vec<client::KeeperTarget>,
    /// What becomes of changes that other clients have made impossible, and which those are.
    pub(crate) on_conflict: OnConflict,
    pub(crate) conflict: ConflictScope,
    /// Which bytes of files are in the journal.
    pub(crate) data: JournaledData,
    /// Bytes of changes in memory.
    pub(crate) memory: usize,
    /// Bytes of a batch.
    pub(crate) batch: usize,
}

impl Journaled {
    pub(crate) async fn new(scene: &Scene, name: &str) -> Journaled {
        Journaled::sized(scene, name, SIZE).await
    }

    /// With a journal of so many bytes.
    pub(crate) async fn sized(scene: &Scene, name: &str, size: u64) -> Journaled {
        let env = scene.env.clone();
        let recorder = Recorder::with_latency(&env, Duration::from_micros(100));
        let device = recorder.device("client-journal", Geometry { size, sector: 512 });
        journal::create(&env, &device).await.unwrap();
        let (host, process) = (scene.admit(visitor(name)), env.node());
        let (keepers, on_conflict, conflict, data) = Default::default();
        // So that most of what waits is in the journal alone.
        let (memory, batch) = (64 << 10, client::Options::default().batch);
        Journaled {
            env,
            host,
            process,
            recorder,
            device,
            keepers,
            on_conflict,
            conflict,
            data,
            memory,
            batch,
        }
    }

    /// The machine is lost with its journal; another one takes its place, which has an empty one.
    pub(crate) async fn lose(&mut self) {
        self.process.kill();
        self.host.power_off();
        self.recorder = Recorder::with_latency(&self.env, Duration::from_micros(100));
        self.device = self.recorder.device("client-journal", Geometry { size: SIZE, sector: 512 });
        journal::create(&self.env, &self.device).await.unwrap();
        self.process = self.env.node();
        self.host.power_on();
    }

    /// Bytes written to the journal's device so far.
    pub(crate) fn written(&self) -> u64 {
        self.device.tallies().total().write_bytes
    }

    pub(crate) fn position(&self) -> usize {
        self.recorder.position()
    }

    pub(crate) fn device(&self) -> DeviceRef {
        self.device.clone()
    }

    pub(crate) fn host(&self) -> Host {
        self.host.clone()
    }

    /// The same machine with its journal on another device.
    pub(crate) fn with_device(self, device: DeviceRef) -> Journaled {
        Journaled { device, ..self }
    }

    pub(crate) async fn mount(&self, scene: &Scene, lazy: bool) -> Result<Client, AttachError> {
        self.mounting(scene, lazy).await
    }

    pub(crate) fn mounting(
        &self,
        scene: &Scene,
        lazy: bool,
    ) -> impl Future<Output = Result<Client, AttachError>> + Send + 'static {
        let options = self.options(lazy);
        let connector = Box::new(self.host.connector(&scene.server, PORT));
        let env = self.process.env().clone();
        async move { Client::connect(&env, connector, options).await }
    }

    /// Those of its mounts.
    pub(crate) fn options(&self, lazy: bool) -> client::Options {
        let (writeback, expire) = match lazy {
            true => (Duration::from_secs(1), Duration::from_secs(60)),
            false => (Duration::from_millis(100), Duration::from_millis(300)),
        };
        let journal = Some(self.device.clone());
        let (memory, keepers) = (self.memory, self.keepers.clone());
        let (on_conflict, conflict) = (self.on_conflict, self.conflict);
        let options = client::Options { journal, writeback, expire, memory, keepers, ..patient() };
        let batch = self.batch;
        client::Options { on_conflict, conflict, data: self.data, batch, ..options }
    }

    /// The power fails: of what was not durable, `left` is in the journal.
    pub(crate) fn crash(&mut self, left: Shape) {
        self.crash_to(self.recorder.position(), left);
    }

    /// What the journal has now, or had after so many steps of its device.
    pub(crate) fn copy(&self, position: Option<usize>, left: Shape) -> CrashImage {
        self.recorder.image(position.unwrap_or_else(|| self.recorder.position()), left)
    }

    /// The same; the journal is that of an earlier time.
    fn crash_to(&mut self, position: usize, left: Shape) {
        let image = self.copy(Some(position), left);
        self.put_back(&image);
    }

    /// The power fails, and the journal is this copy then.
    pub(crate) fn put_back(&mut self, image: &CrashImage) {
        self.process.kill();
        self.host.power_off();
        let (recorder, devices) = Recorder::from_image(&self.env, Default::default(), image);
        (self.recorder, self.device) = (recorder, devices[0].clone());
        self.process = self.env.node();
        self.host.power_on();
    }
}

/// Mounts, and makes a file in a directory of the client alone.
pub(crate) async fn begin(scene: &Scene, machine: &Journaled, lazy: bool) -> (Client, Ino) {
    let client = machine.mount(scene, lazy).await.unwrap();
    let directory = alone(&client, "d").await;
    let file = make(&client, directory, "file", Node::File).await;
    client.reference(file);
    (client, file)
}

/// The file, as a client finds it.
pub(crate) async fn find(client: &Client) -> Ino {
    let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
    client.reference(directory);
    let file = client.find(directory, b"file").await.unwrap().ino;
    client.reference(file);
    file
}

/// A database's commit: one flush here, and no message.
#[test]
fn a_sync_costs_one_flush_and_no_message() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        for at in 0..3 {
            put(&client, file, "text").await.unwrap();
            client.sync(file, false).await.unwrap();
            let (messages, flushes) = (calls(&client), machine.recorder.position());
            for number in 0..20 {
                let data = vec![Bytes::from(vec![number; 128])];
                client
                    .write(file, WriteAt::Offset(at * 64), data, WriteHow::default())
                    .await
                    .unwrap();
                client.sync(file, number % 2 == 0).await.unwrap();
            }
            assert_eq!(calls(&client), messages);
            // Each write and each flush begins and ends.
            assert_eq!(machine.recorder.position() - flushes, 4 * 20);
        }
    });
}

#[test]
fn a_journal_is_mounted_once() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        put(&client, file, "first").await.unwrap();
        client.sync(file, false).await.unwrap();
        // A copy of it takes over, and the mount of the original has lost its session.
        let second = machine.mount(&scene, true).await.unwrap();
        let seen = find(&second).await;
        assert_eq!(text(&second, seen).await, "first");
        env.sleep(2 * LEASE).await;
        assert_eq!(client.status().evictions, 1);
    });
}

/// An earlier incarnation is refused, also by the next server.
#[test]
fn a_journal_that_was_rolled_back_is_refused() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let session = env.uuid();
        let of = |number| Some(JournalMount::Incarnation(number));
        for (journal, resumes, is_let_in) in [
            (of(1), false, true),
            (Some(JournalMount::Rebooted), true, true),
            (of(1), true, false),
            (None, true, false),
            (of(3), true, true),
        ] {
            for restarts in [false, true] {
                if restarts {
                    scene.crash(Shape::Nothing).await;
                }
                let peer = Peer::new(&scene, &scene.visit("a"), 0).await;
                let answer = peer.ask(0, Request::Attach { session, resumes, journal }).await;
                assert_eq!(matches!(answer, Answer::Attached { .. }), is_let_in, "{answer:?}");
            }
        }
    });
}

/// Nothing behind a change that is refused is written back, and the session goes on, so that a later mount does all of it.
#[test]
fn what_the_server_refuses_is_written_back_later() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        let client = machine.mount(&scene, true).await.unwrap();
        let directory = alone(&client, "d").await;
        let old = make(&client, directory, "old", Node::File).await;
        client.reference(old);
        client.wait_for(old, Level::Server, LEASE).await.unwrap();
        // The batch is divided, and the first part of it counts.
        put(&client, old, "early").await.unwrap();
        let file = make(&client, directory, "file", Node::File).await;
        client.reference(file);
        put(&client, old, "later").await.unwrap();
        client.sync(file, false).await.unwrap();
        machine.crash(Shape::Nothing);
        drop(client);
        // A quota is set behind the server's back.
        let limit = async |files: u64| {
            let files = Bytes::from(files.to_string());
            let name = b"thalweg.quota.max_files";
            scene.files.set_xattr(directory, name, files, SetXattr::Any).await.unwrap();
        };
        limit(4).await;
        for _ in 0..2 {
            let refused = machine.mount(&scene, true).await;
            assert!(matches!(refused, Err(AttachError::Pending { .. })), "{refused:?}");
            assert_eq!(text(&*scene.files, old).await, "early");
        }
        limit(0).await;
        let again = machine.mount(&scene, true).await.unwrap();
        assert_eq!(text(&*scene.files, old).await, "later");
        find(&again).await;
    });
}

#[test]
fn a_failed_journal_leaves_the_server() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (faulty, faults) = thalweg_sim::faults::Faulty::wrap(&env, machine.device());
        let machine = machine.with_device(faulty);
        let (client, file) = begin(&scene, &machine, true).await;
        put(&client, file, "text").await.unwrap();
        client.sync(file, false).await.unwrap();
        assert!(client.pending().journal.is_some() && !client.pending().journal_failed);
        faults.die_after(0);
        put(&client, file, "after").await.unwrap();
        client.sync(file, false).await.unwrap();
        assert_eq!(client.status().unsent, 0);
        assert!(client.pending().journal.is_none() && client.pending().journal_failed);
        let visitor = scene.client("other").await;
        let other = &visitor.client;
        let seen = find(other).await;
        assert_eq!(text(other, seen).await, "after");
    });
}

/// More is written than the journal takes, and the server makes it durable only when it is asked to.
#[test]
fn a_full_journal_waits_for_the_server() {
    for is_lazy in [false, true] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let (client, file) = begin(&scene, &machine, is_lazy).await;
            let mut bytes = vec![0; 200_000];
            for number in 1..100_u8 {
                bytes.fill(number);
                let data = vec![Bytes::copy_from_slice(&bytes)];
                client.write(file, WriteAt::Offset(0), data, WriteHow::default()).await.unwrap();
                if number % 3 == 0 {
                    client.sync(file, true).await.unwrap();
                    env.sleep(Duration::from_millis(150)).await;
                }
            }
            assert_eq!(client.status().lost, 0);
            machine.crash(Shape::Nothing);
            drop(client);
            scene.crash(Shape::Nothing).await;
            let again = machine.mount(&scene, true).await.unwrap();
            let seen = find(&again).await;
            assert_eq!(again.read(seen, 0, 1 << 20).await.unwrap().concat(), bytes);
        });
    }
}

#[test]
fn a_change_is_in_the_journal_soon_also_without_a_sync() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        put(&client, file, "soon").await.unwrap();
        let commit = client::Options::default().commit;
        env.sleep(commit + commit / 10).await;
        put(&client, file, "late").await.unwrap();
        assert!(client.status().unsent > 0);
        machine.crash(Shape::Nothing);
        drop(client);
        let again = machine.mount(&scene, true).await.unwrap();
        assert_eq!(text(&again, find(&again).await).await, "soon");
    });
}

/// What is synced under the lease needs no server. After the lease another client may have used the file, so a sync waits.
#[test]
fn a_sync_without_the_server_ends_under_the_lease() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        client.sync(file, false).await.unwrap();
        scene.network.cut(&machine.host, &scene.server);
        scene.network.cut(&scene.server, &machine.host);
        put(&client, file, "cut off").await.unwrap();
        let sync = client.sync(file, false);
        assert!(env.timeout(LEASE / 4, sync).await.is_some(), "it waits for the server");
        env.sleep(2 * LEASE).await;
        // What was committed under the lease stays so, and nothing else is made.
        for sync in [client.sync(file, false), client.sync_all()] {
            let synced = env.timeout(LEASE / 4, sync).await;
            assert!(matches!(synced, Some(Ok(()))), "it was committed: {synced:?}");
        }
        assert!(client.is_disconnected());
        let (waiting, own) = (client.clone(), machine.process.env());
        let syncing = own.spawn(async move {
            put(&waiting, file, "later").await.unwrap();
            waiting.sync(file, false).await
        });
        env.sleep(LEASE).await;
        assert!(!syncing.is_finished(), "a write ends after the lease");
        scene.network.heal();
        syncing.await.unwrap().unwrap();
    });
}

/// More waits than memory may take: the journal has it, and the server gets it from there.
#[test]
fn what_waits_takes_little_memory() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        put(&client, file, "text").await.unwrap();
        client.sync(file, false).await.unwrap();
        let messages = calls(&client);
        let mut expected = Vec::new();
        for number in 0..100_u8 {
            let bytes = vec![number + 1; 10_000];
            expected.extend_from_slice(&bytes);
            let at = WriteAt::Offset(u64::from(number) * 10_000);
            client.write(file, at, vec![bytes.into()], WriteHow::default()).await.unwrap();
        }
        let pending = client.pending();
        assert!(pending.unsent.bytes >= 1_000_000 && pending.memory < 100_000, "{pending:?}");
        // It asks for room now and then.
        assert!(calls(&client) - messages < 10, "it waits for no server");
        let visitor = scene.client("other").await;
        let seen = find(&visitor.client).await;
        let found = visitor.client.read(seen, 0, 1 << 20).await.unwrap().concat();
        assert!(found == expected, "other bytes are read back than were written");
        assert_eq!(client.pending().unsent.bytes, 0);
    });
}

/// The journal alone had these bytes: the next sync says that they are lost.
#[test]
fn what_a_failed_journal_alone_had_is_named() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (faulty, faults) = thalweg_sim::faults::Faulty::wrap(&env, machine.device.clone());
        let machine = Journaled { device: faulty, ..machine };
        let (client, file) = begin(&scene, &machine, true).await;
        client.wait_for(file, Level::Server, LEASE).await.unwrap();
        for number in 0..30_u64 {
            let at = WriteAt::Offset(number * 10_000);
            let data = vec![Bytes::from(vec![1; 10_000])];
            client.write(file, at, data, WriteHow::default()).await.unwrap();
        }
        assert!(client.pending().memory < 100_000);
        faults.die_after(0);
        put(&client, file, "after").await.unwrap();
        client.sync(file, false).await.unwrap_err();
        assert!(client.status().lost > 0);
    });
}

/// A read of a file of the client's own sends nothing of what it has made of that.
#[test]
fn a_read_lies_over_what_the_server_has() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        let write = async |at: u64, byte: u8, len: usize| {
            let data = vec![Bytes::from(vec![byte; len])];
            client.write(file, WriteAt::Offset(at), data, WriteHow::default()).await.unwrap();
        };
        write(0, 1, 300_000).await;
        client.wait_for(file, Level::Server, LEASE).await.unwrap();
        let mut expected = vec![1; 300_000];
        for number in 0..40_u64 {
            write(number * 5_000, 2, 3_000).await;
            let at = number as usize * 5_000;
            expected[at..at + 3_000].fill(2);
        }
        let change = AttributeChange { size: Some(290_000), ..Default::default() };
        client.set_attributes(file, &change).await.unwrap();
        write(295_000, 3, 10).await;
        expected.truncate(290_000);
        expected.resize(295_000, 0);
        expected.resize(295_010, 3);
        let (unsent, messages) = (client.pending().unsent, calls(&client));
        assert!(unsent.changes >= 40 && client.pending().memory < 100_000);
        assert!(client.read(file, 0, 1 << 20).await.unwrap().concat() == expected);
        let part = client.read(file, 4_000, 2_000).await.unwrap().concat();
        assert!(part == expected[4_000..6_000]);
        assert_eq!((client.pending().unsent, calls(&client) - messages), (unsent, 2));
        client.drain().await.unwrap();
        assert!(client.read(file, 0, 1 << 20).await.unwrap().concat() == expected);
    });
}

/// What was acknowledged after the copy was made is missing in it: that is said, and not taken for nothing.
#[test]
fn an_older_copy_of_a_journal_is_refused() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        put(&client, file, "one").await.unwrap();
        client.sync(file, false).await.unwrap();
        let copied = machine.recorder.position();
        put(&client, file, "two").await.unwrap();
        client.wait_for(file, Level::Server, LEASE).await.unwrap();
        put(&client, file, "three").await.unwrap();
        client.sync(file, false).await.unwrap();
        machine.crash_to(copied, Shape::Nothing);
        drop(client);
        let refused = machine.mount(&scene, true).await;
        let Err(AttachError::Pending { why, .. }) = refused else { panic!("{refused:?}") };
        assert!(why.contains("an older copy"), "{why}");
        assert_eq!(text(&*scene.files, file).await, "two");
    });
}
