//! Peers that may not do everything, and lie about the users of their calls and about inodes.

use bytes::Bytes;
use thalweg_cluster::failure::WireError;
use thalweg_cluster::protocol::{Answer, Request};
use thalweg_cluster::server::Visitor;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{
    AttributeChange, Caller, Cookie, Credentials, Filesystem, Handle, Ino, Level, LockKind,
    LockOwner, LockRange, NewNode, Node, OpenFlags, Rename, Timestamp, WriteAt, WriteHow,
};
use thalweg_sim::run;

use crate::access::{NOBODY, place, squashed};
use crate::peer::Peer;
use crate::requests::batch_request;
use crate::scene::*;

const DENIED: Answer = Answer::Failed(WireError::Denied);
const NOT_PERMITTED: Answer = Answer::Failed(WireError::NotPermitted);
const STALE: Answer = Answer::Failed(WireError::Stale);

fn root() -> Option<Credentials> {
    Some(Credentials::new(0, 0, &[0]))
}

fn node(node: Node, mode: u16, uid: u32) -> NewNode {
    NewNode { node, mode, umask: 0, uid, gid: uid }
}

fn lookup(parent: Ino, name: &'static [u8]) -> Request {
    Request::Lookup { parent, name: Bytes::from_static(name) }
}

fn create(number: u64, parent: Ino, new: NewNode) -> Mutation {
    let name = Bytes::from(format!("made{number}"));
    let kind = MutationKind::Create { parent, name, new, number: Ino(number) };
    Mutation { time: Timestamp::of_nanos(1), kind }
}

fn set(ino: Ino, change: AttributeChange) -> Mutation {
    Mutation { time: Timestamp::of_nanos(1), kind: MutationKind::SetAttributes { ino, change } }
}

#[test]
fn a_peer_is_not_root_because_it_says_so() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let admin = office.client.clone();
        let open = place(&admin, Ino::ROOT, "open", node(Node::Directory, 0o777, 0)).await;
        let secret = place(&admin, Ino::ROOT, "secret", node(Node::File, 0o600, 0)).await;
        put(&admin, secret, "secret").await.unwrap();
        let peer = Peer::attached(&scene, &scene.admit(squashed("peer")), 1).await;
        for name in [&b"open"[..], b"secret"] {
            let name = Bytes::copy_from_slice(name);
            let found = peer.ask(1, Request::Lookup { parent: Ino::ROOT, name }).await;
            assert!(matches!(found, Answer::Inode(_)), "{found:?}");
        }
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let caller = Caller { uid: 0, gid: 0, pid: 1 };
        let how = WriteHow::default();
        let mode = AttributeChange { mode: Some(0o4777), ..AttributeChange::default() };
        let mut number = 10;
        // Without a user it is not root, either.
        for user in [None, root(), Some(Credentials::new(u32::MAX, 0, &[0]))] {
            for (request, refusal) in [
                (Request::Read { ino: secret, offset: 0, len: 9, pages: false }, DENIED),
                (Request::Write { ino: secret, at: WriteAt::End, how }, DENIED),
                (
                    Request::Open {
                        handle: Handle(1),
                        caller,
                        ino: secret,
                        flags,
                        late: false,
                        delegation: true,
                    },
                    DENIED,
                ),
                (Request::SetAttributes { ino: secret, change: mode }, NOT_PERMITTED),
            ] {
                number += 1;
                let answer = peer.ask_for((number, user.clone()), request.clone(), vec![1]).await;
                assert_eq!(answer, refusal, "{user:?} {request:?}");
            }
            number += 1;
            let (name, new) = (Bytes::from(format!("n{number}")), node(Node::File, 0o4755, 0));
            let request = Request::Create { parent: open, name, new };
            let made = peer.ask_for((number, user), request, vec![]).await;
            let Answer::Inode(made) = made else { panic!("{made:?}") };
            assert_eq!((made.uid, made.gid), (NOBODY, NOBODY));
        }
        assert_eq!(text(&admin, secret).await, "secret");
    });
}

/// Batches that the user 9 may not have made: `own` is a directory of that user, `other` and `file` are not.
fn refused_batches(first: u64, own: Ino, other: Ino, file: Ino) -> Vec<Vec<Mutation>> {
    let plain = node(Node::File, 0o644, 9);
    let any = AttributeChange::default();
    let at = |at: u64| first + at;
    let bytes = Bytes::from_static(b"x");
    let write = MutationKind::Write { ino: file, offset: 0, data: bytes, clear_suid: false };
    let changes = [
        AttributeChange { uid: Some(0), ..any },
        AttributeChange { gid: Some(0), ..any },
        AttributeChange { mode: Some(0o2755), ..any },
    ];
    let changed = changes.into_iter().zip(10..).map(|(change, number)| {
        vec![create(at(number), own, plain.clone()), set(Ino(at(number)), change)]
    });
    // Of a directory of the user, only the user's own inodes.
    let of_name = |kind| Mutation { time: Timestamp::of_nanos(1), kind };
    let (name, to) = (Bytes::from_static(b"there"), Bytes::from_static(b"gone"));
    let unlink = MutationKind::Unlink { parent: own, name: name.clone(), ino: file };
    let move_of = |(from, to): (Ino, Ino), ino, there| {
        let (from, to, how) = ((from, name.clone()), (to, to_name(there)), Rename::Replace);
        of_name(MutationKind::Rename { from, to, how, ino, there })
    };
    let names = [
        vec![of_name(unlink)],
        vec![of_name(MutationKind::RemoveDirectory { parent: own, name: to, ino: other })],
        vec![move_of((own, own), file, None)],
        vec![move_of((own, own), own, Some(file))],
        vec![move_of((own, other), own, None)],
        vec![move_of((other, own), own, None)],
    ];
    let others = [
        vec![create(at(0), own, node(Node::File, 0o644, 0))],
        vec![create(at(1), own, node(Node::File, 0o644, 8))],
        vec![create(at(2), own, NewNode { gid: 0, ..plain.clone() })],
        vec![create(at(3), own, node(Node::CharDevice(0x103), 0o666, 9))],
        vec![create(at(4), own, node(Node::File, 0o4755, 9))],
        vec![create(at(5), other, plain.clone())],
        vec![create(at(6), own, plain.clone()), create(at(7), other, plain.clone())],
        vec![set(other, AttributeChange { mode: Some(0o777), ..any })],
        vec![Mutation { time: Timestamp::of_nanos(1), kind: write }],
    ];
    // Attributes of users alone, and those of what is the user's own.
    let set_xattr =
        |ino, name: Bytes| of_name(MutationKind::SetXattr { ino, name, value: Bytes::new() });
    let xattrs = [
        vec![set_xattr(own, Bytes::from_static(b"trusted.a"))],
        vec![set_xattr(own, Bytes::from_static(b"security.capability"))],
        vec![set_xattr(own, Bytes::from_static(b"system.posix_acl_access"))],
        vec![set_xattr(own, Bytes::from_static(b"thalweg.quota.max_bytes"))],
        vec![set_xattr(file, Bytes::from_static(b"user.a"))],
        vec![of_name(MutationKind::RemoveXattr { ino: file, name: Bytes::from_static(b"user.a") })],
        vec![of_name(MutationKind::RemoveXattr {
            ino: own,
            name: Bytes::from_static(b"trusted.a"),
        })],
        vec![of_name(MutationKind::Reserve { ino: file, offset: 0, len: 1, keep_size: false })],
    ];
    others.into_iter().chain(names).chain(changed).chain(xattrs).collect()
}

fn to_name(there: Option<Ino>) -> Bytes {
    Bytes::from_static(if there.is_some() { b"there" } else { b"new" })
}

#[test]
fn a_batch_gives_its_maker_nothing() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let admin = office.client.clone();
        for (name, uid) in [("own", 9), ("other", 8)] {
            place(&admin, Ino::ROOT, name, node(Node::Directory, 0o777, uid)).await;
        }
        place(&admin, Ino::ROOT, "file", node(Node::File, 0o666, 8)).await;
        let peer = Peer::attached(&scene, &scene.admit(squashed("peer")), 1).await;
        let mut known = Vec::new();
        for name in [&b"own"[..], b"other", b"file"] {
            let Answer::Inode(found) = peer.ask(1, lookup(Ino::ROOT, name)).await else { panic!() };
            known.push(found.ino);
        }
        let (own, other, file) = (known[0], known[1], known[2]);
        let Answer::Numbers { first, .. } = peer.ask(2, Request::Reserve).await else { panic!() };
        let plain = node(Node::File, 0o644, 9);
        let any = AttributeChange::default();
        let at = |at: u64| first + at;
        let refused = refused_batches(first, own, other, file);
        let user = || Some(Credentials::new(9, 9, &[]));
        let mut number = 10;
        for mutations in refused {
            number += 1;
            let payload = postcard::to_allocvec(&mutations).unwrap();
            let answer = peer.ask_for((number, user()), batch_request(), payload).await;
            assert_eq!(answer, NOT_PERMITTED, "{mutations:?}");
        }
        // Of root, and of no user, the directory is not the own one.
        for user in [root(), None] {
            for uid in [0, NOBODY, 9] {
                number += 1;
                let mutations = vec![create(at(number), own, node(Node::File, 0o644, uid))];
                let payload = postcard::to_allocvec(&mutations).unwrap();
                let answer = peer.ask_for((number, user.clone()), batch_request(), payload).await;
                assert_eq!(answer, NOT_PERMITTED, "{user:?} {uid}");
            }
        }
        let mutations = vec![
            create(at(100), own, node(Node::Directory, 0o755, 9)),
            create(at(101), Ino(at(100)), plain),
            set(Ino(at(101)), AttributeChange { mode: Some(0o600), ..any }),
        ];
        let payload = postcard::to_allocvec(&mutations).unwrap();
        let answer = peer.ask_for((99, user()), batch_request(), payload).await;
        assert_eq!(answer, Answer::Made);
        let names = |it: Vec<thalweg_fs::Entry>| it.into_iter().map(|it| it.name).collect();
        let made: Vec<Bytes> =
            names(admin.read_directory(own, Cookie::START, 99, false).await.unwrap());
        assert_eq!(made, [format!("made{}", at(100))]);
        let there = admin.read_directory(other, Cookie::START, 99, false).await.unwrap();
        assert!(there.is_empty(), "{there:?}");
    });
}

#[test]
fn a_directory_of_another_user_is_not_granted() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let admin = office.client.clone();
        let open = place(&admin, Ino::ROOT, "open", node(Node::Directory, 0o777, 8)).await;
        admin.close().await;
        let machine = scene.client_as(squashed("guest")).await.unwrap();
        let own = Credentials::new(9, 9, &[]).into();
        let own = machine.client.for_user(&own).unwrap();
        machine.client.find(Ino::ROOT, b"open").await.unwrap();
        for number in 0..10 {
            place(&*own, open, &number.to_string(), node(Node::File, 0o644, 9)).await;
        }
        assert_eq!(machine.client.status().unsent, 0);
        let seen = scene.service.inode("/open").await.unwrap();
        assert!(!seen.holders.is_empty() && seen.holders.iter().all(|it| !it.exclusive));
    });
}

#[test]
fn what_lies_outside_of_a_path_is_neither_named_nor_opened_nor_locked() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let admin = office.client.clone();
        let own = place(&admin, Ino::ROOT, "own", node(Node::Directory, 0o777, 9)).await;
        let inside = place(&admin, own, "inside", node(Node::File, 0o666, 9)).await;
        let outside = place(&admin, Ino::ROOT, "outside", node(Node::File, 0o666, 9)).await;
        let beside = place(&admin, Ino::ROOT, "beside", node(Node::Directory, 0o777, 9)).await;
        let opened = admin.open(&Caller::default(), outside, WRITING).await.unwrap();
        admin.lock(outside, &whole(opened.handle, 1), false).await.unwrap();
        let visit = Visitor { path: "/own".to_owned(), ..squashed("peer") };
        let peer = Peer::attached(&scene, &scene.admit(visit), 1).await;
        assert!(matches!(peer.ask(1, lookup(own, b"inside")).await, Answer::Inode(_)));
        let user = Some(Credentials::new(9, 9, &[]));
        let (caller, handle) = (Caller::default(), Handle(1));
        let (kind, owner, range) = (LockKind::Posix, LockOwner::local(1), LockRange::ALL);
        let name = Bytes::from_static(b"n");
        let lock = whole(handle, 1);
        let mut number = 100;
        // Those that are there, and those that are not.
        for ino in [Ino::ROOT, outside, beside, Ino(0), Ino(4711), Ino(u64::MAX)] {
            let mode = AttributeChange { mode: Some(0o777), ..AttributeChange::default() };
            let new = node(Node::File, 0o666, 9);
            for request in [
                Request::Lookup { parent: ino, name: name.clone() },
                Request::Lookup { parent: ino, name: Bytes::from_static(b"..") },
                Request::Attributes { ino, shown: false },
                Request::SetAttributes { ino, change: mode },
                Request::Parent { directory: ino },
                Request::ReadDirectory { ino, from: Cookie::START, most: 9, attributes: true },
                Request::Create { parent: ino, name: name.clone(), new },
                Request::Link { ino, parent: own, name: name.clone() },
                Request::Link { ino: inside, parent: ino, name: name.clone() },
                Request::Unlink { parent: ino, name: name.clone(), target: None },
                Request::Open {
                    handle: Handle(1),
                    caller,
                    ino,
                    flags: WRITING,
                    late: true,
                    delegation: true,
                },
                Request::Read { ino, offset: 0, len: 9, pages: false },
                Request::Write { ino, at: WriteAt::End, how: WriteHow::default() },
                Request::Copy { from: (ino, 0), to: (inside, 0), len: 9 },
                Request::Copy { from: (inside, 0), to: (ino, 0), len: 9 },
                Request::Xattrs { ino },
                Request::RequestDelegation { ino },
                Request::Sync { ino, content_only: false },
                Request::Level { ino, wait: Some((Level::Server, u32::MAX)) },
                Request::Lock { ino, lock, wait: false },
                Request::Unlock { ino, kind, owner, range },
                Request::ConflictingLock { ino, lock },
                Request::Flush { ino, handle, owner },
                Request::Release { ino, handle },
            ] {
                number += 1;
                let answer = peer.ask_for((number, user.clone()), request.clone(), vec![]).await;
                assert_eq!(answer, STALE, "{request:?}");
            }
        }
        // Nothing is above its root.
        let Answer::Inode(above) = peer.ask(2, lookup(own, b"..")).await else { panic!() };
        assert_eq!(above.ino, own);
        assert_eq!(admin.locks(outside).len(), 1);
        assert_eq!(admin.attributes(outside).await.unwrap().links, 1);
    });
}
