//! Peers that violate the protocol: their connections end, and other clients go on.

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::failure::WireError;
use thalweg_cluster::protocol::{
    Answer, Call, CallEffect, Grants, Invalidated, MAX_FORGOTTEN, Reclaim, ReplayedCall, Reply,
    Request, SLOTS,
};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{
    Caller, Filesystem, Handle, Ino, Lock, LockKind, LockMode, LockOwner, LockRange, Node,
    OpenFlags, Rename, Timestamp,
};
use thalweg_net::keys::Access;
use thalweg_sim::crash::Shape;
use thalweg_sim::net::Host;
use thalweg_sim::run;
use uuid::Uuid;

use crate::peer::{Peer, call};
use crate::requests::batch_request;
use crate::scene::*;

/// A file of another client, which goes on after all.
struct Others {
    machine: Machine,
    file: Ino,
}

impl Others {
    async fn new(scene: &Scene) -> Others {
        let machine = scene.client("other").await;
        let file = make(&machine.client, Ino::ROOT, "f", Node::File).await;
        Others { machine, file }
    }

    async fn go_on(&self) {
        put(&self.machine.client, self.file, "goes on").await.unwrap();
        assert_eq!(text(&self.machine.client, self.file).await, "goes on");
        assert_eq!(self.machine.client.status().evictions, 0);
    }
}

/// A host of a hostile peer.
fn host(scene: &Scene) -> Host {
    scene.visit("peer")
}

const ROOT: Request = Request::Attributes { ino: Ino::ROOT, shown: false };

#[test]
fn a_peer_that_violates_the_protocol_loses_its_connection() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (others, host) = (Others::new(&scene).await, host(&scene));
        // Its first call attaches no session.
        let peer = Peer::new(&scene, &host, 1).await;
        assert!(peer.try_ask(&call(1, ROOT)).await.is_err());
        peer.ends(&env).await;
        let peer = Peer::new(&scene, &host, 1).await;
        peer.tell(Request::Forget, Vec::new());
        peer.ends(&env).await;
        // A message that does not decode.
        let peer = Peer::attached(&scene, &host, 1).await;
        assert!(peer.channel.call::<_, Reply>(&[255u8; 30], &[]).await.is_err());
        peer.ends(&env).await;
        // An answer without a request: its number is one of the server's calls.
        let peer = Peer::attached(&scene, &host, 1).await;
        peer.channel.answer(1 << 63 | 77, &Invalidated, &[]);
        peer.channel.flush();
        peer.ends(&env).await;
        // A call that wants an answer, and does not say which.
        let peer = Peer::attached(&scene, &host, 1).await;
        peer.tell(ROOT, Vec::new());
        peer.ends(&env).await;
        // Too many inodes are forgotten, or they do not decode.
        for payload in [
            postcard::to_allocvec(&vec![(Ino::ROOT, 1u64); MAX_FORGOTTEN + 1]).unwrap(),
            vec![255; 100],
        ] {
            let peer = Peer::attached(&scene, &host, 1).await;
            peer.tell(Request::Forget, payload);
            peer.ends(&env).await;
        }
        // Its session has ended.
        let peer = Peer::attached(&scene, &host, 1).await;
        assert_eq!(peer.ask(1, Request::Detach).await, Answer::Done);
        assert!(peer.try_ask(&call(2, ROOT)).await.is_err());
        peer.ends(&env).await;
        others.go_on().await;
    });
}

#[test]
fn numbers_of_calls_that_go_backwards_harm_nobody() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (others, host) = (Others::new(&scene).await, host(&scene));
        let peer = Peer::attached(&scene, &host, 1).await;
        let create = |name: &'static [u8]| Request::Create {
            parent: Ino::ROOT,
            name: Bytes::from_static(name),
            new: new(Node::File),
        };
        let first = Call { oldest: 90, ..call(100, create(b"a")) };
        let made = peer.try_ask(&first).await.unwrap();
        assert!(matches!(made, Answer::Inode(_)));
        // A repeated call is answered as before.
        assert_eq!(peer.try_ask(&first).await.unwrap(), made);
        // The peer has said that it needs no answer to this one.
        let old = call(50, create(b"b"));
        let answered = env.timeout(Duration::from_secs(1), peer.try_ask(&old)).await;
        assert!(answered.is_none(), "{answered:?}");
        assert!(scene.files.find(Ino::ROOT, b"b").await.is_err());
        let between = peer.ask(95, create(b"c")).await;
        assert!(matches!(between, Answer::Inode(_)));
        assert_eq!(peer.ask(u64::MAX, create(b"c")).await, Answer::Failed(WireError::Exists));
        others.go_on().await;
    });
}

#[test]
fn inodes_that_are_forgotten_twice_harm_nobody() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (others, host) = (Others::new(&scene).await, host(&scene));
        let peer = Peer::attached(&scene, &host, 1).await;
        // It lives by the reference of the other client alone.
        let file = others.file;
        others.machine.client.reference(file);
        let found = peer.ask(1, Request::Lookup { parent: Ino::ROOT, name: "f".into() }).await;
        assert!(matches!(found, Answer::Inode(_)));
        others.machine.client.unlink(Ino::ROOT, b"f").await.unwrap();
        let every = |ino| (0..20u64).map(move |stamp| (ino, stamp));
        let forgotten: Vec<(Ino, u64)> =
            every(file).chain(every(Ino(4711))).chain([(Ino::ROOT, u64::MAX)]).collect();
        for _ in 0..3 {
            peer.tell(Request::Forget, postcard::to_allocvec(&forgotten).unwrap());
        }
        let gone = peer.ask(2, Request::Attributes { ino: file, shown: false }).await;
        assert_eq!(gone, Answer::Failed(WireError::Stale));
        others.go_on().await;
        drop(peer);
        env.sleep(2 * EXPIRE).await;
        others.go_on().await;
    });
}

#[test]
fn handles_of_others_are_refused() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (others, host) = (Others::new(&scene).await, host(&scene));
        let (peer, ino) = (Peer::attached(&scene, &host, 1).await, others.file);
        let flags =
            OpenFlags { read: true, write: true, append: false, direct: false, sync: false };
        let client = &others.machine.client;
        client.open(&Caller::default(), ino, flags).await.unwrap();
        // Each session has its own.
        let theirs = client.open(&Caller::default(), ino, flags).await.unwrap().handle;
        peer.ask(1, Request::Lookup { parent: Ino::ROOT, name: "f".into() }).await;
        let (own, caller, late) = (Handle(7), Caller::default(), false);
        let open = Request::Open { handle: own, caller, ino, flags, late, delegation: true };
        let opened = peer.ask(2, open.clone()).await;
        assert!(matches!(opened, Answer::Opened { .. }), "{opened:?}");
        let again = peer.ask(3, open).await;
        assert!(matches!(again, Answer::Failed(WireError::Invalid(_))), "{again:?}");
        let owner = LockOwner::local(1);
        let (kind, mode, range) = (LockKind::Posix, LockMode::Exclusive, LockRange::ALL);
        let lock = |handle| Lock { kind, owner, handle, pid: 1, mode, range };
        client.lock(ino, &lock(theirs), false).await.unwrap();
        let stale = Answer::Failed(WireError::Stale);
        let mut number = 10;
        for handle in [theirs, Handle(u64::MAX)] {
            for request in [
                Request::Flush { ino, handle, owner },
                Request::Release { ino, handle },
                Request::Lock { ino, lock: lock(handle), wait: false },
            ] {
                number += 1;
                assert_eq!(peer.ask(number, request.clone()).await, stale, "{request:?}");
            }
        }
        // Neither its own handle nor the other owner's number reaches the other's lock.
        assert_eq!(peer.ask(30, Request::Unlock { ino, kind, owner, range }).await, Answer::Done);
        let locked = peer.ask(31, Request::Lock { ino, lock: lock(own), wait: false }).await;
        assert_eq!(locked, Answer::Failed(WireError::Locked));
        // A handle is released once.
        assert_eq!(peer.ask(32, Request::Release { ino, handle: own }).await, Answer::Done);
        assert_eq!(peer.ask(33, Request::Release { ino, handle: own }).await, stale);
        client.release(ino, theirs).await;
        others.go_on().await;
    });
}

#[test]
fn an_invalidation_is_answered_once() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (others, host) = (Others::new(&scene).await, host(&scene));
        let peer = Peer::attached(&scene, &host, 2).await;
        peer.ask(1, Request::Lookup { parent: Ino::ROOT, name: "f".into() }).await;
        others.go_on().await;
        peer.ends(&env).await;
        others.go_on().await;
    });
}

#[test]
fn a_peer_that_forgets_nothing_is_granted_nothing_more() {
    run(1, |env| async move {
        let scene = crate::pressure::scene_with_files(&env, 100, 320).await;
        let (others, host) = (Others::new(&scene).await, host(&scene));
        let peer = Peer::attached(&scene, &host, 1).await;
        let look_up = async |number: u64| {
            let name = Bytes::from((number % 320).to_string());
            let call = call(number, Request::Lookup { parent: Ino::ROOT, name });
            let (reply, _) = peer.channel.call::<_, Reply>(&call, &[]).await.unwrap();
            let Answer::Inode(found) = reply.answer else { panic!("{reply:?}") };
            (found.ino, reply.stamp, reply.grants.attributes)
        };
        let mut told = Vec::new();
        for number in 1..300 {
            let (ino, stamp, _) = look_up(number).await;
            told.push((ino, stamp));
        }
        env.sleep(LEASE).await;
        // It keeps what it has. Its calls are answered, and it may cache no more.
        let (ino, stamp, is_granted) = look_up(310).await;
        assert!(!is_granted);
        told.push((ino, stamp));
        let sessions = scene.service.sessions();
        let own = sessions.iter().find(|it| it.client == "peer").unwrap();
        assert!(own.inodes > 300 && own.cached < 301, "{own:?}");
        // Those that know little are not concerned.
        let found = others.machine.client.find(Ino::ROOT, b"5").await.unwrap();
        assert!(!found.valid.attributes.is_zero());
        others.go_on().await;
        peer.tell(Request::Forget, postcard::to_allocvec(&told).unwrap());
        assert!(look_up(641).await.2);
        others.go_on().await;
    });
}

#[test]
fn a_session_of_another_client_is_not_resumed() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (others, host) = (Others::new(&scene).await, host(&scene));
        let one = Peer::new(&scene, &host, 1).await;
        let session = env.uuid();
        one.attach(session, false).await;
        let thief = scene.visit("thief");
        for resumes in [false, true] {
            let two = Peer::new(&scene, &thief, 1).await;
            assert_eq!(
                two.ask(0, Request::Attach { session, resumes, journal: None }).await,
                Answer::Evicted
            );
            assert!(two.try_ask(&call(1, ROOT)).await.is_err());
        }
        let two = Peer::new(&scene, &thief, 1).await;
        let unknown = Request::Attach { session: Uuid::nil(), resumes: true, journal: None };
        assert_eq!(two.ask(0, unknown).await, Answer::Evicted);
        assert!(matches!(one.ask(1, ROOT).await, Answer::Inode(_)));
        others.go_on().await;
    });
}

#[test]
fn calls_without_an_answer_that_mean_nothing_are_refused() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let (others, host) = (Others::new(&scene).await, host(&scene));
        let session = env.uuid();
        let peer = Peer::new(&scene, &host, 1).await;
        peer.attach(session, false).await;
        others.machine.client.sync_all().await.unwrap();
        scene.crash(Shape::Nothing).await;
        let peer = Peer::new(&scene, &host, 1).await;
        peer.attach(session, true).await;
        let replaced = |number: u64, slot: u16| {
            let effect =
                CallEffect::Replaces { ino: others.file, offset: 9, len: u64::MAX, outcome: 0 };
            ReplayedCall { number, slot, server: 0, effect }
        };
        let made = ReplayedCall { effect: CallEffect::Makes, ..replaced(7, 0) };
        let reclaimed = async |calls: &[ReplayedCall]| {
            let payload = postcard::to_allocvec(calls).unwrap();
            peer.ask_for((0, None), Request::Reclaimed, payload).await
        };
        let too_many: Vec<_> = (0..=SLOTS).map(|it| replaced(it.into(), it)).collect();
        let refused = [
            peer.ask_for((0, None), Request::Reclaimed, vec![255; 100]).await,
            reclaimed(&too_many).await,
            reclaimed(&[replaced(7, 0), replaced(7, 1)]).await,
            reclaimed(&[made, replaced(7, 1)]).await,
            reclaimed(&[replaced(7, SLOTS)]).await,
        ];
        for answer in refused {
            assert!(matches!(answer, Answer::Failed(WireError::Invalid(_))), "{answer:?}");
        }
        assert_eq!(reclaimed(&[made, replaced(8, 1)]).await, Answer::Done);
        others.go_on().await;
    });
}

/// The stamps of its answers would soon be that of its root, which is never forgotten, or none at all.
#[test]
fn a_stamp_that_no_answer_had_is_not_reclaimed() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let (others, host) = (Others::new(&scene).await, host(&scene));
        let session = env.uuid();
        let peer = Peer::new(&scene, &host, 1).await;
        peer.attach(session, false).await;
        let look_up = || Request::Lookup { parent: Ino::ROOT, name: "f".into() };
        let told = peer.channel.call::<_, Reply>(&call(1, look_up()), &[]).await.unwrap().0;
        others.machine.client.sync_all().await.unwrap();
        scene.crash(Shape::Nothing).await;
        let peer = Peer::new(&scene, &host, 1).await;
        peer.attach(session, true).await;
        let reclaim = async |stamp| {
            let (ino, inode_token) = (others.file, told.inode_token);
            let reclaim = Reclaim { ino, stamp, inode_token, held: Grants::default() };
            let payload = postcard::to_allocvec(&vec![reclaim]).unwrap();
            peer.ask_for((0, None), Request::Reclaim, payload).await
        };
        for stamp in [u64::MAX, u64::MAX - 1, u64::MAX - 2, 1 << 63] {
            let refused = reclaim(stamp).await;
            assert_eq!(refused, Answer::Failed(WireError::Stale), "{stamp}");
        }
        assert_eq!(reclaim(told.stamp).await, Answer::Done);
        let payload = postcard::to_allocvec(&Vec::<ReplayedCall>::new()).unwrap();
        assert_eq!(peer.ask_for((0, None), Request::Reclaimed, payload).await, Answer::Done);
        for number in 2..9 {
            let found = peer.ask(number, look_up()).await;
            assert!(matches!(found, Answer::Inode(_)), "{found:?}");
        }
        others.go_on().await;
    });
}

#[test]
fn mutations_of_names_of_a_peer_are_checked() {
    run(32, |env| async move {
        let scene = Scene::durable(&env).await;
        let (honest, host) = (scene.client("a").await, scene.visit("peer"));
        let theirs = make(&honest.client, Ino::ROOT, "d", Node::Directory).await;
        make(&honest.client, theirs, "one", Node::File).await;
        let peer = Peer::attached(&scene, &host, 1).await;
        let batch = async |number, mutations: &[Mutation]| {
            let payload = postcard::to_allocvec(mutations).unwrap();
            peer.ask_for((number, None), batch_request(), payload).await
        };
        // Inodes and directories that it was not told of, behind names; and names that lead elsewhere.
        let of_name = |kind| Mutation { time: Timestamp::default(), kind };
        let unlink = |parent, name: &'static str, ino| {
            of_name(MutationKind::Unlink { parent, name: name.into(), ino })
        };
        let rename = |from, to, ino, there| {
            let [from, to] = [(from, "d".into()), (to, "e".into())];
            of_name(MutationKind::Rename { from, to, how: Rename::Replace, ino, there })
        };
        for (number, stranger) in [
            unlink(theirs, "one", Ino::ROOT),
            unlink(Ino::ROOT, "d", theirs),
            rename(theirs, Ino::ROOT, Ino::ROOT, None),
            rename(Ino::ROOT, theirs, Ino::ROOT, None),
            rename(Ino::ROOT, Ino::ROOT, theirs, None),
            rename(Ino::ROOT, Ino::ROOT, Ino::ROOT, Some(theirs)),
        ]
        .iter()
        .enumerate()
        {
            let refused = batch(20 + number as u64, std::slice::from_ref(stranger)).await;
            assert_eq!(refused, Answer::Failed(WireError::Stale), "{stranger:?}");
        }
        let is_invalid = |it| matches!(it, Answer::Failed(WireError::Invalid(_)));
        assert!(is_invalid(batch(30, &[unlink(Ino::ROOT, "d", Ino::ROOT)]).await));
        assert_eq!(honest.client.find(theirs, b"one").await.unwrap().links, 1);
        // What a client of the directory was told of does not leave it by a mutation.
        let visit = Visit { path: "/d", access: Access::Write }.of("bound");
        let bound = scene.client_as(visit).await.unwrap();
        let one = bound.client.find(Ino::ROOT, b"one").await.unwrap().ino;
        for (number, (parent, name)) in [(Ino::ROOT, "d"), (theirs, "one")].into_iter().enumerate()
        {
            let lookup = Request::Lookup { parent, name: name.into() };
            let found = peer.ask(40 + number as u64, lookup).await;
            assert!(matches!(found, Answer::Inode(_)), "{found:?}");
        }
        let (from, to) = ((theirs, "one".into()), (Ino::ROOT, "e".into()));
        let (how, ino, there) = (Rename::Replace, one, None);
        let moved = MutationKind::Rename { from, to, how, ino, there };
        assert!(is_invalid(batch(50, &[of_name(moved)]).await));
        assert_eq!(bound.client.find(Ino::ROOT, b"one").await.unwrap().ino, one);
    });
}

#[test]
fn events_of_a_peer_are_checked() {
    run(31, |env| async move {
        let scene = Scene::durable(&env).await;
        let (honest, host) = (scene.client("a").await, scene.visit("peer"));
        let theirs = make(&honest.client, Ino::ROOT, "d", Node::Directory).await;
        for name in ["one", "two"] {
            make(&honest.client, theirs, name, Node::File).await;
        }
        let peer = Peer::attached(&scene, &host, 1).await;
        let Answer::Numbers { first, count, .. } = peer.ask(1, Request::Reserve).await else {
            panic!("no numbers")
        };
        let mutation = |parent, name: &str, number| {
            let (name, number) = (name.to_owned().into(), Ino(number));
            let kind = MutationKind::Create { parent, name, new: new(Node::File), number };
            Mutation { time: Timestamp::default(), kind }
        };
        let batch = async |number, mutations: &[Mutation]| {
            let call = call(number, batch_request());
            let payload = postcard::to_allocvec(mutations).unwrap();
            peer.channel.call::<_, Reply>(&call, &[payload.into()]).await.unwrap().0.answer
        };
        let invalid = |answer: &Answer| matches!(answer, Answer::Failed(WireError::Invalid(_)));
        // Numbers of another session, and free ones; a directory that it was not told of; a number twice; nothing that decodes.
        for number in [first - 1, first + count, 1] {
            let refused = batch(2, &[mutation(Ino::ROOT, "x", number)]).await;
            assert!(invalid(&refused), "{number}: {refused:?}");
        }
        let refused = batch(3, &[mutation(theirs, "x", first)]).await;
        assert_eq!(refused, Answer::Failed(WireError::Stale));
        let twice = [mutation(Ino::ROOT, "x", first), mutation(Ino::ROOT, "y", first)];
        let refused = batch(4, &twice).await;
        assert!(invalid(&refused), "{refused:?}");
        let refused = peer.try_ask(&call(5, batch_request())).await.unwrap();
        assert!(invalid(&refused), "{refused:?}");
        // A name that is there already: nothing of the batch counts, and the numbers are still the peer's.
        let exists = [mutation(Ino::ROOT, "x", first), mutation(Ino::ROOT, "d", first + 1)];
        assert_eq!(batch(6, &exists).await, Answer::Failed(WireError::Exists));
        assert_eq!(batch(7, &[mutation(Ino::ROOT, "x", first)]).await, Answer::Made);
        assert_eq!(honest.client.find(Ino::ROOT, b"x").await.unwrap().ino, Ino(first));
        // Ranges without an end.
        for number in 8..11 {
            peer.ask(number, Request::Reserve).await;
        }
        let refused = peer.ask(11, Request::Reserve).await;
        assert!(invalid(&refused), "{refused:?}");
    });
}

/// A list of what another client is to give up is as long as the directory that a peer lists: it goes in messages that fit.
/// The changes that it had not sent are more than one transaction of this volume takes.
#[test]
fn a_listing_of_files_that_another_client_has_to_itself_ends_no_connection() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let directory = make(&office.client, Ino::ROOT, "d", Node::Directory).await;
        let (mut files, name) = (Vec::new(), |number| format!("a_file_with_some_name_{number}"));
        for number in 0..1200 {
            files.push(make(&office.client, directory, &name(number), Node::File).await);
        }
        office.client.sync_all().await.unwrap();
        office.client.close().await;
        env.sleep(2 * EXPIRE).await;
        let owner = scene.client("owner").await;
        let client = &owner.client;
        client.reference(client.find(Ino::ROOT, b"d").await.unwrap().ino);
        for (number, ino) in files.iter().enumerate() {
            assert_eq!(client.find(directory, name(number).as_bytes()).await.unwrap().ino, *ino);
            client.reference(*ino);
            client.open(&Caller::default(), *ino, WRITING).await.unwrap();
        }
        // All are its own: it changes them without a call.
        let before = calls(client);
        for ino in &files {
            put(client, *ino, "unsent").await.unwrap();
        }
        assert!(calls(client) < before + 10, "{}", calls(client) - before);
        for ino in [files[0], files[1199]] {
            put(client, ino, "not sent").await.unwrap();
        }
        let peer = Peer::attached(&scene, &host(&scene), 1).await;
        peer.ask(1, Request::Lookup { parent: Ino::ROOT, name: "d".into() }).await;
        let (ino, from) = (directory, thalweg_fs::Cookie::START);
        let list = call(2, Request::ReadDirectory { ino, from, most: 2048, attributes: true });
        let listing = peer.channel.call::<_, Reply>(&list, &[]);
        let (reply, payload) = env.timeout(LEASE, listing).await.unwrap().unwrap();
        assert_eq!(reply.answer, Answer::Entries);
        let entries = thalweg_cluster::protocol::decode_entries(&payload).unwrap();
        assert_eq!(entries.len(), 1200);
        let sizes = entries.iter().map(|(entry, _)| entry.attributes.unwrap().0.size);
        assert_eq!(sizes.filter(|size| *size == 8).count(), 2);
        env.sleep(2 * EXPIRE).await;
        let status = client.status();
        assert!(status.connected && (status.evictions, status.lost) == (0, 0), "{status:?}");
        assert_eq!(text(client, files[1199]).await, "not sent");
    });
}
