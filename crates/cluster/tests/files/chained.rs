//! The hash that chains a journal's mutations: a journal that was copied or put back, two mounts of one, and a server of an earlier time are
//! noticed, and nothing is written back.

use bytes::Bytes;
use thalweg_cluster::client::{AttachError, Client, journal};
use thalweg_cluster::protocol::{
    Answer, BATCH_SLOT, BatchPositions, Call, JournalMount, JournalState, Reply, Request,
};
use thalweg_fs::session_table::JournalPosition;
use thalweg_fs::{Filesystem, Ino, Level};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;
use thalweg_store::journal::log::{Log, LogRecord, LogRecovery};
use uuid::Uuid;

use crate::journal::{Journaled, begin, find};
use crate::peer::{Peer, call};
use crate::scene::*;

/// A mount that fails, with what the journal has as it was: why.
fn refused(mounted: Result<Client, AttachError>) -> String {
    let Err(AttachError::Pending { mutations, why }) = mounted else { panic!("{mounted:?}") };
    assert!(mutations > 0);
    assert!(why.contains("journal export") && why.contains("erase --force"), "{why}");
    why
}

async fn synced(client: &Client, file: Ino, what: &str) {
    put(client, file, what).await.unwrap();
    client.sync(file, false).await.unwrap();
}

/// What has a session of a client, and is not that client: it may have another copy of the journal, or of the machine.
struct Twin(Peer);

impl Twin {
    async fn attach(scene: &Scene, session: Uuid, mount: JournalMount) -> (Twin, JournalState) {
        let peer = Peer::new(scene, &scene.visit("a"), 0).await;
        let attach = Request::Attach { session, resumes: true, journal: Some(mount) };
        let answer = peer.ask(0, attach).await;
        let Answer::Attached { journal, .. } = answer else { panic!("{answer:?}") };
        if journal.expected {
            let done = peer.ask_for((0, None), Request::Reclaimed, vec![0]).await;
            assert_eq!(done, Answer::Done);
        }
        (Twin(peer), journal)
    }

    /// Sends a batch without mutations.
    async fn send(&self, number: u64, positions: (JournalPosition, JournalPosition)) -> Answer {
        let (after, end) = positions;
        let request = Request::Batch {
            sync: true,
            charged: Vec::new(),
            releases: Vec::new(),
            positions: Some(BatchPositions { after, end }),
            staged: 0,
            spent: Vec::new(),
        };
        let call = Call { slot: BATCH_SLOT, ..call(number, request) };
        self.0.channel.call::<_, Reply>(&call, &[Bytes::from_static(&[0])]).await.unwrap().0.answer
    }
}

fn behind(JournalPosition { position, .. }: JournalPosition, hash: u64) -> JournalPosition {
    JournalPosition { position: position + 1, hash }
}

/// Numbers of calls behind those of a client.
const LATER: u64 = 1 << 50;

#[test]
fn what_was_mounted_from_a_copy_is_not_written_back_from_the_original() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        synced(&client, file, "copied").await;
        let copy = machine.copy(None, Shape::Nothing);
        synced(&client, file, "never").await;
        let original = machine.copy(None, Shape::Nothing);
        machine.put_back(&copy);
        drop(client);
        let second = machine.mount(&scene, true).await.unwrap();
        assert_eq!(text(&second, find(&second).await).await, "copied");
        // While the other one is mounted, and afterwards.
        for is_mounted in [true, false] {
            if !is_mounted {
                second.close().await;
            }
            let other = machine.copy(None, Shape::Everything);
            machine.put_back(&original);
            let why = refused(machine.mount(&scene, true).await);
            assert!(why.contains("has ended the session"), "{why}");
            assert_eq!(text(&*scene.files, file).await, "copied");
            machine.put_back(&other);
        }
    });
}

/// The server has other changes at the positions of the journal's: another copy was mounted, and went on from there.
#[test]
fn a_journal_with_other_changes_than_the_server_is_refused() {
    for diverges in [false, true] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let (client, file) = begin(&scene, &machine, true).await;
            client.wait_for(file, Level::Server, LEASE).await.unwrap();
            for what in ["one", "two", "three"] {
                synced(&client, file, what).await;
            }
            let session = client.pending().journal.unwrap().session;
            machine.crash(Shape::Nothing);
            drop(client);
            if diverges {
                let (twin, state) = Twin::attach(&scene, session, JournalMount::Rebooted).await;
                assert_eq!(state.incarnation, 2);
                let other = behind(state.applied, 77);
                assert_eq!(twin.send(LATER, (state.applied, other)).await, Answer::Made);
            }
            for crashes in [false, true] {
                if crashes {
                    scene.crash(Shape::Nothing).await;
                }
                let mounted = machine.mount(&scene, true).await;
                if !diverges {
                    find(&mounted.unwrap()).await;
                    assert_eq!(text(&*scene.files, file).await, "three");
                    return;
                }
                let why = refused(mounted);
                assert!(why.contains("other ones of the same session"), "{why}");
                assert_eq!(text(&*scene.files, file).await, "");
            }
        });
    }
}

/// A machine that was copied with its memory: both have the session, and one of them has gone on with it.
#[test]
fn a_mount_whose_session_another_one_has_used_sends_nothing() {
    for sends in [false, true] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let (client, file) = begin(&scene, &machine, true).await;
            client.wait_for(file, Level::Server, LEASE).await.unwrap();
            let session = client.pending().journal.unwrap().session;
            synced(&client, file, "mine").await;
            let (twin, state) = Twin::attach(&scene, session, JournalMount::Incarnation(1)).await;
            if sends {
                let other = behind(state.applied, 77);
                assert_eq!(twin.send(LATER, (state.applied, other)).await, Answer::Made);
            }
            drop(twin);
            let sent = client.drain().await;
            if !sends {
                sent.unwrap();
                assert_eq!(text(&*scene.files, file).await, "mine");
                assert_eq!(client.status().evictions, 0);
                return;
            }
            env.sleep(2 * LEASE).await;
            assert_eq!(client.status().evictions, 1);
            assert_eq!(text(&*scene.files, file).await, "");
            assert!(client.sync(file, false).await.is_err(), "what was not synced is lost");
            machine.crash(Shape::Nothing);
            drop(client);
            let why = refused(machine.mount(&scene, true).await);
            assert!(why.contains("other ones of the same session"), "{why}");
            assert_eq!(text(&*scene.files, file).await, "");
        });
    }
}

/// The server compares as well: nothing is applied behind other mutations than it has.
#[test]
fn a_batch_behind_other_changes_is_refused() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let (session, start) = (env.uuid(), JournalPosition::default());
        let peer = Peer::new(&scene, &scene.visit("a"), 0).await;
        let journal = Some(JournalMount::Incarnation(1));
        peer.ask(0, Request::Attach { session, resumes: false, journal }).await;
        let twin = Twin(peer);
        let [first, other] = [71, 72].map(|hash| behind(start, hash));
        assert_eq!(twin.send(1, (start, first)).await, Answer::Made);
        // It is the same again, and not applied.
        assert_eq!(twin.send(2, (start, first)).await, Answer::Made);
        for crashes in [false, true] {
            if crashes {
                scene.crash(Shape::Nothing).await;
            }
            let (twin, state) = Twin::attach(&scene, session, JournalMount::Rebooted).await;
            assert_eq!(state.applied, first);
            let number = state.incarnation << 40;
            for (at, wrong) in [
                (start, other),
                (other, behind(other, 9)),
                (JournalPosition { hash: 5, ..start }, other),
            ]
            .into_iter()
            .zip(1..)
            .map(|(wrong, at)| (number + at, wrong))
            {
                let answer = twin.send(at, wrong).await;
                assert!(matches!(answer, Answer::Failed(_)), "{wrong:?}: {answer:?}");
            }
        }
        let (twin, state) = Twin::attach(&scene, session, JournalMount::Rebooted).await;
        let answer = twin.send(state.incarnation << 40, (first, behind(first, 73))).await;
        assert_eq!(answer, Answer::Made);
    });
}

/// The server's volume is of an earlier time. The journal still has everything that the server has lost; but inode numbers, and what other clients and
/// calls have changed, are lost, too.
#[test]
fn nothing_is_written_back_to_a_server_of_an_earlier_time() {
    for is_mounted in [false, true] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let (client, file) = begin(&scene, &machine, true).await;
            synced(&client, file, "first").await;
            client.wait_for(file, Level::Server, LEASE).await.unwrap();
            let backup = scene.position();
            put(&client, file, "second").await.unwrap();
            client.wait_for(file, Level::Server, LEASE).await.unwrap();
            env.sleep(LEASE).await;
            synced(&client, file, "third").await;
            let found = journal::inspect(&env, &machine.device()).await.unwrap();
            assert_eq!(found.first, 1, "the journal has all changes");
            if is_mounted {
                scene.restore(backup).await;
                assert!(client.drain().await.is_err());
                env.sleep(2 * LEASE).await;
                assert_eq!(client.status().evictions, 1);
                assert_eq!(text(&*scene.files, file).await, "first");
            }
            machine.crash(Shape::Nothing);
            drop(client);
            if !is_mounted {
                scene.restore(backup).await;
            }
            for _ in 0..2 {
                let why = refused(machine.mount(&scene, true).await);
                assert!(why.contains("of an earlier time"), "{why}");
                assert_eq!(text(&*scene.files, file).await, "first");
            }
        });
    }
}

/// The journal and the server's volume are of the same time, as from a backup of both.
#[test]
fn a_journal_and_a_server_of_the_same_earlier_time_go_on() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        synced(&client, file, "first").await;
        client.wait_for(file, Level::Server, LEASE).await.unwrap();
        synced(&client, file, "second").await;
        let (backup, copy) = (scene.position(), machine.copy(None, Shape::Nothing));
        put(&client, file, "third").await.unwrap();
        client.wait_for(file, Level::Server, LEASE).await.unwrap();
        machine.put_back(&copy);
        drop(client);
        scene.restore(backup).await;
        let again = machine.mount(&scene, true).await.unwrap();
        assert_eq!(text(&again, find(&again).await).await, "second");
    });
}

/// Not taken for an empty one.
#[test]
fn a_journal_of_another_release_is_refused() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let device = machine.device();
        Log::create(&device, env.uuid(), journal::OWNER).await.unwrap();
        let opened = LogRecovery::open(&env, device.clone(), journal::OWNER, true, Some).await;
        let log = opened.unwrap().0.begin(1).await.unwrap();
        let header = postcard::to_allocvec(&(1_u8, env.uuid(), 1_u64)).unwrap();
        let old = LogRecord { stamp: 3, header, body: vec![vec![0].into()], blocks: Vec::new() };
        log.append(&old).await.unwrap();
        drop(log);
        let found = journal::inspect(&env, &device).await.unwrap_err().to_string();
        assert!(found.contains("format 1"), "{found}");
        let mounted = machine.mount(&scene, true).await;
        assert!(matches!(mounted, Err(AttachError::Journal(_))), "{mounted:?}");
    });
}
