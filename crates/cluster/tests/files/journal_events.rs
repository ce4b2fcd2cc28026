//! What becomes of a journal when its client is away for a while, comes back as another one or to another server, or is told to refuse conflicts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_cluster::client::{AttachError, ConflictScope, OnConflict, journal};
use thalweg_cluster::server;
use thalweg_fs::{Filesystem, FsError, Ino, Level, Node};
use thalweg_net::keys::Access;
use thalweg_sim::crash::Shape;
use thalweg_sim::run;
use tracing::field::{Field, Visit as VisitFields};
use tracing::span;

use crate::absence::{away, lists, text_at};
use crate::absence_uses::survives;
use crate::full::alone;
use crate::journal::{Journaled, begin, find};
use crate::scene::*;

/// How much longer than a lease the server waits.
const HOLD: Duration = Duration::from_secs(6);

const SCOPES: [ConflictScope; 2] = [ConflictScope::Prefix, ConflictScope::File];

fn holding(hold: Duration) -> server::Options {
    server::Options { hold, ..options() }
}

/// How many changes the journal has.
async fn changes_of(machine: &Journaled) -> usize {
    let device = machine.device();
    journal::inspect(machine.process.env(), &device).await.unwrap().changes
}

/// Why a mount fails that cannot write the journal back; the journal has as many changes as before.
async fn refused(scene: &Scene, machine: &Journaled) -> String {
    let before = changes_of(machine).await;
    let mounted = machine.mount(scene, true).await;
    let Err(AttachError::Pending { mutations, why }) = mounted else { panic!("{mounted:?}") };
    assert_eq!((mutations, changes_of(machine).await), (before, before), "{why}");
    assert!(before > 0);
    why
}

/// `cluster serve --hold`: another client waits so much longer, and no longer than that, also if it is longer than a client may be silent.
#[test]
fn others_wait_a_hold_longer_for_a_client_with_a_journal() {
    for hold in [Duration::ZERO, HOLD, 4 * EXPIRE] {
        run(1, move |env| async move {
            let scene = Scene::durable_with(&env, holding(hold)).await;
            let mut machine = Journaled::new(&scene, "a").await;
            away(&scene, &mut machine).await;
            let visitor = scene.client("other").await;
            let begun = env.now();
            assert_eq!(text_at(&visitor.client, "d/file").await.as_deref(), Some("old"));
            let took = env.now().since(begun);
            assert!((hold + LEASE..hold + 2 * LEASE).contains(&took), "{hold:?}: {took:?}");
        });
    }
}

/// A client without a journal has nothing after a reboot: no client waits longer for it.
#[test]
fn nobody_waits_a_hold_for_a_client_without_a_journal() {
    run(1, |env| async move {
        let scene = Scene::durable_with(&env, holding(HOLD)).await;
        let plain = scene.client("plain").await;
        let directory = alone(&plain.client, "d").await;
        let file = make(&plain.client, directory, "file", Node::File).await;
        plain.client.reference(file);
        put(&plain.client, file, "old").await.unwrap();
        plain.client.wait_for(file, Level::Server, LEASE).await.unwrap();
        plain.process.kill();
        plain.host.power_off();
        let visitor = scene.client("other").await;
        let begun = env.now();
        assert_eq!(text_at(&visitor.client, "d/file").await.as_deref(), Some("old"));
        let took = env.now().since(begun);
        assert!(took < 2 * LEASE, "{took:?}");
    });
}

/// A client that has rebooted within the hold has no conflict, though another one wants its file: that one gets what was synced.
#[test]
fn a_client_that_is_back_within_the_hold_has_no_conflict() {
    for (hold, is_back_in_time) in [(HOLD, true), (4 * EXPIRE, true), (Duration::ZERO, false)] {
        run(1, move |env| async move {
            let scene = Scene::durable_with(&env, holding(hold)).await;
            let mut machine = Journaled::new(&scene, "a").await;
            away(&scene, &mut machine).await;
            let visitor = scene.client("other").await;
            let other = visitor.client.clone();
            let reading = env.spawn(async move { text_at(&other, "d/file").await });
            env.sleep(hold.max(2 * LEASE)).await;
            assert_eq!(reading.is_finished(), !is_back_in_time);
            let again = machine.mount(&scene, true).await.unwrap();
            let seen = if is_back_in_time { "new" } else { "old" };
            assert_eq!(reading.await.unwrap().as_deref(), Some(seen), "{hold:?}");
            assert_eq!(lists(&again).await.len(), usize::from(!is_back_in_time), "{hold:?}");
            for (path, text) in [("d/file", "new"), ("d/second", "2")] {
                let now = text_at(&visitor.client, path).await;
                assert_eq!(now.as_deref() == Some(text), is_back_in_time, "{path}: {now:?}");
            }
        });
    }
}

/// `on_conflict=refuse`: nothing is decided without the user. The mount says why it fails, as often as it is tried.
#[test]
fn a_mount_that_refuses_conflicts_keeps_its_journal_for_one_that_copies() {
    for (conflict, restarts) in SCOPES.into_iter().zip([false, true]) {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            machine.conflict = conflict;
            machine.on_conflict = OnConflict::Refuse;
            away(&scene, &mut machine).await;
            let visitor = scene.client("other").await;
            let other = &visitor.client;
            assert_eq!(text_at(other, "d/file").await.as_deref(), Some("old"));
            for _ in 0..2 {
                let why = refused(&scene, &machine).await;
                assert!(why.contains("other clients have used"), "{why}");
                machine.crash(Shape::Nothing);
                if restarts {
                    scene.crash(Shape::Nothing).await;
                }
                assert_eq!(text_at(other, "d/file").await.as_deref(), Some("old"));
                assert_eq!(text_at(other, "d/second").await, None);
                assert_eq!(lists(other).await, []);
            }
            machine.on_conflict = OnConflict::Copy;
            let again = machine.mount(&scene, true).await.unwrap();
            let sets = lists(&again).await;
            let copy = sets[0].entries[0].copy.as_deref().unwrap();
            assert_eq!(text_at(other, &copy[1..]).await.as_deref(), Some("new"));
            let is_whole = conflict == ConflictScope::Prefix;
            assert_eq!((sets.len(), sets[0].entries.len()), (1, 1 + usize::from(is_whole)));
            let second = text_at(other, "d/second").await;
            assert_eq!(second.as_deref(), (!is_whole).then_some("2"));
        });
    }
}

/// No client has used anything: there is nothing to refuse.
#[test]
fn a_mount_that_refuses_conflicts_writes_back_what_nobody_has_used() {
    for conflict in SCOPES {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            (machine.conflict, machine.on_conflict) = (conflict, OnConflict::Refuse);
            away(&scene, &mut machine).await;
            env.sleep(3 * EXPIRE).await;
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(text_at(&again, "d/file").await.as_deref(), Some("new"));
            assert_eq!(text_at(&again, "d/second").await.as_deref(), Some("2"));
        });
    }
}

/// What the log says of changes that were discarded: how many, and of how many files.
#[derive(Clone, Default)]
struct Discarded(Arc<Mutex<Vec<(u64, u64)>>>);

#[derive(Default)]
struct Counts {
    changes: Option<u64>,
    files: Option<u64>,
}

impl VisitFields for Counts {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "changes" => self.changes = Some(value),
            "files" => self.files = Some(value),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

impl tracing::Subscriber for Discarded {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut counts = Counts::default();
        event.record(&mut counts);
        if let Counts { changes: Some(changes), files: Some(files) } = counts {
            self.0.lock().push((changes, files));
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// `on_conflict=discard`: the log has the number of changes and of files that they were about, once, and nothing of them is anywhere.
#[test]
fn what_is_discarded_is_counted_in_the_log_and_is_gone() {
    for conflict in SCOPES {
        let log = Discarded::default();
        tracing::subscriber::with_default(log.clone(), || {
            run(1, move |env| async move {
                let scene = Scene::durable(&env).await;
                let mut machine = Journaled::new(&scene, "a").await;
                (machine.conflict, machine.on_conflict) = (conflict, OnConflict::Discard);
                away(&scene, &mut machine).await;
                let visitor = scene.client("other").await;
                let other = &visitor.client;
                assert_eq!(text_at(other, "d/file").await.as_deref(), Some("old"));
                let again = machine.mount(&scene, true).await.unwrap();
                let second = (conflict == ConflictScope::File).then_some("2");
                for client in [other, &again] {
                    assert_eq!(text_at(client, "d/file").await.as_deref(), Some("old"));
                    assert_eq!(text_at(client, "d/second").await.as_deref(), second);
                    assert_eq!(lists(client).await, []);
                }
                again.close().await;
                assert_eq!(changes_of(&machine).await, 0);
            });
        });
        // A write of the file; with all behind it also a new file, and a write of that.
        let counted = if conflict == ConflictScope::File { (1, 1) } else { (3, 2) };
        assert_eq!(*log.0.lock(), [counted], "{conflict:?}");
    }
}

/// What the server lets a client do with its changes has become less. It may have all of it again later.
#[test]
fn a_client_whose_rights_are_others_keeps_its_journal() {
    for (path, access) in [("/", Access::Read), ("/d", Access::Write), ("/e", Access::Write)] {
        for sleeps in [Duration::ZERO, 3 * EXPIRE] {
            run(1, move |env| async move {
                let scene = Scene::durable(&env).await;
                let mut machine = Journaled::new(&scene, "a").await;
                let admin = scene.client("admin").await;
                make(&admin.client, Ino::ROOT, "e", Node::Directory).await;
                away(&scene, &mut machine).await;
                env.sleep(sleeps).await;
                scene.admit(Visit { path, access }.of("a"));
                for _ in 0..2 {
                    let why = refused(&scene, &machine).await;
                    assert!(why.contains("cluster journal export"), "{why}");
                }
                let found = scene.files.find(Ino::ROOT, b"d").await.unwrap().ino;
                let file = scene.files.find(found, b"file").await.unwrap().ino;
                assert_eq!(text(&*scene.files, file).await, "old");
                scene.admit(visitor("a"));
                let again = machine.mount(&scene, true).await.unwrap();
                assert_eq!(text_at(&again, "d/file").await.as_deref(), Some("new"));
                assert_eq!(text_at(&again, "d/second").await.as_deref(), Some("2"));
                assert_eq!(lists(&again).await, []);
            });
        }
    }
}

/// A mount that lives on when its right to write ends cannot send any more. Its journal has everything for a mount that may.
#[test]
fn a_right_that_ends_while_changes_wait_loses_nothing() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        put(&client, file, "old").await.unwrap();
        client.wait_for(file, Level::Server, LEASE).await.unwrap();
        put(&client, file, "new").await.unwrap();
        client.sync(file, false).await.unwrap();
        scene.admit(Visit { path: "/", access: Access::Read }.of("a"));
        // Its connection ends, as when its key is set to another right.
        scene.network.reset(&machine.host(), &scene.server);
        env.sleep(2 * EXPIRE).await;
        // It goes on without its journal, and the next sync of the file says so.
        assert!(client.sync(file, false).await.is_err());
        assert_eq!((client.status().evictions, client.pending().journal.is_none()), (1, true));
        assert!(put(&client, file, "later").await.is_err());
        assert_eq!(text(&*scene.files, file).await, "old");
        machine.crash(Shape::Nothing);
        drop(client);
        refused(&scene, &machine).await;
        scene.admit(visitor("a"));
        let again = machine.mount(&scene, true).await.unwrap();
        // Its own mount without the journal may have used the file.
        let (is_there, has_a_copy) = survives(&again, "d/file", "new").await;
        assert!(is_there || has_a_copy, "{:?}", lists(&again).await);
    });
}

/// The server's volume was made anew: inodes of the journal are other files there, or none.
#[test]
fn a_server_with_another_volume_gets_nothing_of_a_journal() {
    for has_changes in [true, false] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            away(&scene, &mut machine).await;
            if !has_changes {
                let again = machine.mount(&scene, true).await.unwrap();
                again.drain().await.unwrap();
                again.close().await;
                machine.crash(Shape::Nothing);
                drop(again);
            }
            scene.replace().await;
            // Another client has made something there since.
            let visitor = scene.client("other").await;
            let (other, mut made) = (&visitor.client, Vec::new());
            for number in 0..20 {
                let file = make(other, Ino::ROOT, &format!("f{number}"), Node::File).await;
                other.reference(file);
                put(other, file, "theirs").await.unwrap();
                made.push(file);
            }
            other.sync_all().await.unwrap();
            if has_changes {
                for _ in 0..2 {
                    let why = refused(&scene, &machine).await;
                    assert!(why.contains("cluster journal export"), "{why}");
                }
                let device = machine.device();
                let exported = journal::export(&env, &device).await.unwrap().inodes;
                for len in ["new".len(), "2".len()] {
                    let ranges = [(0, len as u64)];
                    assert!(exported.iter().any(|it| it.ranges == ranges), "{exported:?}");
                }
            } else {
                machine.mount(&scene, true).await.unwrap();
            }
            for file in made {
                assert_eq!(text(&*scene.files, file).await, "theirs");
            }
            assert!(matches!(other.find(Ino::ROOT, b"d").await, Err(FsError::NotFound)));
        });
    }
}

/// Another client's key does not write a journal back, though it may write everywhere.
#[test]
fn a_journal_of_another_client_is_refused() {
    for sleeps in [Duration::ZERO, 3 * EXPIRE] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            away(&scene, &mut machine).await;
            env.sleep(sleeps).await;
            let thief = Journaled::new(&scene, "b").await.with_device(machine.device());
            let why = refused(&scene, &thief).await;
            assert!(why.contains("cluster journal export"), "{why}");
            // It was not disturbed by that.
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(text(&again, find(&again).await).await, "new");
            assert_eq!(text_at(&again, "d/second").await.as_deref(), Some("2"));
            assert_eq!(lists(&again).await, []);
        });
    }
}
