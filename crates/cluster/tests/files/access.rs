//! What users of a client may do: the server checks it, unless it trusts the client.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_cluster::client::{self, Client};
use thalweg_cluster::server::Visitor;
use thalweg_fs::{
    AttributeChange, Caller, Cookie, Credentials, Filesystem, FsError, Ino, NewNode, Node,
    OpenFlags, Rename, SetXattr, TimeChange, WriteAt, WriteHow,
};
use thalweg_net::keys::{Nobody, Squash};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::scene::*;

/// The user and group of squashed users.
pub(crate) const NOBODY: u32 = 65534;

pub(crate) fn squashed(name: &str) -> Visitor {
    Visitor { squash: Squash::Root(Nobody::default()), ..visitor(name) }
}

/// A client for one of its users.
fn user(client: &Client, uid: u32, gid: u32, groups: &[u32]) -> Arc<dyn Filesystem> {
    client.for_user(&Arc::new(Credentials::new(uid, gid, groups))).unwrap()
}

fn node(node: Node, mode: u16, uid: u32, gid: u32) -> NewNode {
    NewNode { node, mode, umask: 0, uid, gid }
}

/// Makes something that others own.
pub(crate) async fn place(fs: &dyn Filesystem, parent: Ino, name: &str, new: NewNode) -> Ino {
    let made = fs.create(parent, name.as_bytes(), &new).await.unwrap().ino;
    fs.reference(made);
    made
}

async fn seen(fs: &dyn Filesystem, parent: Ino, name: &str) -> Ino {
    let found = fs.find(parent, name.as_bytes()).await.unwrap().ino;
    fs.reference(found);
    found
}

const READING: OpenFlags =
    OpenFlags { read: true, write: false, append: false, direct: false, sync: false };
const ONLY_WRITING: OpenFlags = OpenFlags { read: false, write: true, ..READING };

fn mode(mode: u16) -> AttributeChange {
    AttributeChange { mode: Some(mode), ..AttributeChange::default() }
}

/// The errno of a refusal.
fn errno<T>(result: Result<T, FsError>) -> &'static str {
    match result {
        Ok(_) => "",
        Err(FsError::Denied) => "EACCES",
        Err(FsError::NotPermitted) => "EPERM",
        Err(error) => panic!("{error:?}"),
    }
}

/// A client that makes directories its own as soon as it can, or never.
fn eager(exclusive: bool) -> client::Options {
    client::Options { exclusive: exclusive.then_some(0), ..patient() }
}

#[test]
fn root_of_a_squashed_client_is_nobody() {
    for exclusive in [true, false] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let office = scene.client("admin").await;
            let admin = office.client.clone();
            let open = place(&admin, Ino::ROOT, "open", node(Node::Directory, 0o777, 0, 0)).await;
            let secret = place(&admin, open, "secret", node(Node::File, 0o600, 0, 0)).await;
            put(&admin, secret, "secret").await.unwrap();
            let shown = place(&admin, open, "shown", node(Node::File, 0o644, 0, 0)).await;
            put(&admin, shown, "shown").await.unwrap();
            let bobs = place(&admin, Ino::ROOT, "bob", node(Node::Directory, 0o700, 9, 9)).await;
            place(&admin, bobs, "own", node(Node::File, 0o644, 9, 9)).await;
            let guest = scene.client_with(squashed("guest"), eager(exclusive)).await.unwrap();
            let root = user(&guest.client, 0, 0, &[0, 9]);
            for name in ["open", "bob"] {
                seen(&*root, Ino::ROOT, name).await;
            }
            for name in ["secret", "shown"] {
                seen(&*root, open, name).await;
            }
            // Its files are those of the user nobody, which can go on with them.
            let made = root.create(open, b"made", &node(Node::File, 0o444, 0, 0)).await.unwrap();
            root.reference(made.ino);
            assert_eq!((made.uid, made.gid), (NOBODY, NOBODY));
            let opened = root.open(&Caller::default(), made.ino, WRITING).await.unwrap();
            put(&*root, made.ino, "by nobody").await.unwrap();
            root.release(made.ino, opened.handle).await;
            root.set_attributes(made.ino, &mode(0o640)).await.unwrap();
            root.sync_all().await.unwrap();
            let there = admin.find(open, b"made").await.unwrap();
            assert_eq!((there.uid, there.gid, there.mode), (NOBODY, NOBODY, 0o640));
            assert_eq!(text(&*root, shown).await, "shown");
            refused_to_nobody(&*root, open, secret, shown, bobs).await;
            assert_eq!(guest.client.status().lost, 0);
            assert_eq!(text(&admin, shown).await, "shown");
        });
    }
}

/// Calls that root may make, and the user nobody may not.
async fn refused_to_nobody(root: &dyn Filesystem, open: Ino, secret: Ino, shown: Ino, bobs: Ino) {
    let (caller, any) = (Caller::default(), SetXattr::Any);
    let owner = AttributeChange { uid: Some(NOBODY), ..AttributeChange::default() };
    let shorter = AttributeChange { size: Some(0), ..AttributeChange::default() };
    let times = AttributeChange { modified: Some(TimeChange::Now), ..AttributeChange::default() };
    let device = node(Node::BlockDevice(0x801), 0o666, 0, 0);
    let file = node(Node::File, 0o644, 0, 0);
    let (bytes, quota) = (Bytes::from_static(b"1"), b"thalweg.quota.max_bytes");
    let (from, to) = ((open, &b"shown"[..]), (bobs, &b"s"[..]));
    let reserve = thalweg_fs::Allocation::Punch;
    for (number, (expected, said)) in [
        ("EACCES", errno(root.create(Ino::ROOT, b"f", &file).await)),
        ("EACCES", errno(root.create(bobs, b"f", &file).await)),
        ("EPERM", errno(root.create(open, b"dev", &device).await)),
        ("EACCES", errno(root.lookup(bobs, b"own").await)),
        ("EACCES", errno(root.read_directory(bobs, Cookie::START, 9, true).await)),
        ("EACCES", errno(root.open(&caller, bobs, READING).await)),
        ("EACCES", errno(root.open(&caller, secret, READING).await)),
        ("EACCES", errno(root.open(&caller, shown, ONLY_WRITING).await)),
        ("EACCES", errno(root.read(secret, 0, 9).await)),
        ("EACCES", errno(root.seek(secret, 0, thalweg_fs::Seek::Data).await)),
        ("EACCES", errno(put(root, shown, "x").await)),
        ("EACCES", errno(root.write(shown, WriteAt::End, vec![], WriteHow::default()).await)),
        ("EACCES", errno(root.allocate(shown, 0, 1, reserve).await)),
        ("EACCES", errno(root.copy((secret, 0), (shown, 0), 5).await)),
        ("EPERM", errno(root.set_attributes(shown, &mode(0o4777)).await)),
        ("EPERM", errno(root.set_attributes(shown, &owner).await)),
        ("EACCES", errno(root.set_attributes(shown, &shorter).await)),
        ("EPERM", errno(root.set_attributes(shown, &times).await)),
        ("EACCES", errno(root.link(shown, Ino::ROOT, b"l").await)),
        ("EACCES", errno(root.unlink(Ino::ROOT, b"open").await)),
        ("EACCES", errno(root.remove_directory(Ino::ROOT, b"bob").await)),
        ("EACCES", errno(root.rename(from, to, Rename::Replace).await)),
        ("EPERM", errno(root.set_xattr(open, quota, bytes.clone(), any).await)),
        ("EPERM", errno(root.remove_xattr(open, quota).await)),
        ("EPERM", errno(root.set_xattr(shown, b"trusted.t", bytes.clone(), any).await)),
        ("EPERM", errno(root.set_xattr(shown, b"security.s", bytes.clone(), any).await)),
        ("EACCES", errno(root.set_xattr(shown, b"user.u", bytes.clone(), any).await)),
        ("EACCES", errno(root.xattr(secret, b"user.u").await)),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(said, expected, "refusal {number}");
    }
}

#[test]
fn a_trusted_client_checks_its_users_itself() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let admin = office.client.clone();
        assert!(!admin.checks_users());
        assert!(admin.for_user(&Arc::default()).is_none());
        let secret = place(&admin, Ino::ROOT, "secret", node(Node::File, 0, 7, 7)).await;
        put(&admin, secret, "x").await.unwrap();
        let device = node(Node::CharDevice(0x103), 0o4666, 0, 0);
        assert_eq!(admin.create(Ino::ROOT, b"null", &device).await.unwrap().uid, 0);
        let quota = b"thalweg.quota.max_bytes";
        let limit = Bytes::from_static(b"1000000");
        admin.set_xattr(Ino::ROOT, quota, limit, SetXattr::Any).await.unwrap();
    });
}

#[test]
fn with_all_squashed_every_user_is_the_one_that_is_chosen() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let admin = office.client.clone();
        let open = place(&admin, Ino::ROOT, "open", node(Node::Directory, 0o777, 0, 0)).await;
        let squash = Squash::All(Nobody { uid: 500, gid: 501 });
        let guest = scene.client_as(Visitor { squash, ..visitor("guest") }).await.unwrap();
        seen(&guest.client, Ino::ROOT, "open").await;
        for (number, uid) in [0, 7, 500, NOBODY].into_iter().enumerate() {
            let own = user(&guest.client, uid, uid, &[8]);
            let (name, new) = (format!("n{number}"), node(Node::File, 0o600, uid, uid));
            let made = place(&*own, open, &name, new).await;
            put(&*own, made, "x").await.unwrap();
            own.sync_all().await.unwrap();
            let there = admin.find(open, name.as_bytes()).await.unwrap();
            assert_eq!((there.uid, there.gid), (500, 501));
        }
    });
}

#[test]
fn groups_of_a_user_count() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let admin = office.client.clone();
        let team = place(&admin, Ino::ROOT, "team", node(Node::Directory, 0o2770, 1, 40)).await;
        let file = place(&admin, team, "file", node(Node::File, 0o660, 1, 40)).await;
        put(&admin, file, "x").await.unwrap();
        let machine = scene.client_as(squashed("guest")).await.unwrap();
        let guest = machine.client.clone();
        let many: Vec<u32> = (100..131).chain([40]).collect();
        let too_many: Vec<u32> = (100..132).chain([40]).collect();
        seen(&guest, Ino::ROOT, "team").await;
        for (gid, groups, expected) in [
            (9, &[][..], "EACCES"),
            (40, &[], ""),
            (9, &[3, 40], ""),
            (9, &many, ""),
            (9, &too_many, "EACCES"),
        ] {
            let member = user(&guest, 9, gid, groups);
            // The client does not know this name.
            let name = format!("{gid} {groups:?}");
            assert_eq!(errno(member.lookup(team, name.as_bytes()).await), expected, "{name}");
        }
        let member = user(&guest, 9, 9, &[40]);
        seen(&*member, team, "file").await;
        put(&*member, file, "y").await.unwrap();
        let made = member.create(team, b"m", &node(Node::File, 0o664, 9, 9)).await.unwrap();
        assert_eq!((made.uid, made.gid), (9, 40));
        // A program with the privileges of a group that its maker is not in.
        let stranger = user(&guest, 9, 9, &[]);
        let shared = place(&admin, Ino::ROOT, "s", node(Node::Directory, 0o2777, 1, 41)).await;
        seen(&*stranger, Ino::ROOT, "s").await;
        let program = node(Node::File, 0o2775, 9, 9);
        let made = stranger.create(shared, b"p", &program).await.unwrap();
        assert_eq!((made.gid, made.mode), (41, 0o775));
        let set = stranger.set_attributes(made.ino, &mode(0o2775)).await.unwrap();
        assert_eq!(set.mode, 0o775);
        // A list keeps what the mode says; the privileges of the group go.
        seen(&admin, shared, "p").await;
        admin.set_attributes(made.ino, &mode(0o2775)).await.unwrap();
        let list: Vec<u8> = [2u32.to_le_bytes().to_vec()]
            .into_iter()
            .chain([(1u16, 7u16), (4, 7), (0x20, 5)].map(|(tag, may)| {
                [&tag.to_le_bytes()[..], &may.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
            }))
            .flatten()
            .collect();
        let name = b"system.posix_acl_access";
        member.set_xattr(made.ino, name, list.into(), SetXattr::Any).await.unwrap();
        assert_eq!(admin.attributes(made.ino).await.unwrap().mode, 0o775);
    });
}

#[test]
fn users_make_files_alone_in_their_own_directories() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let admin = office.client.clone();
        for uid in [8, 9] {
            let home = node(Node::Directory, 0o755, uid, uid);
            place(&admin, Ino::ROOT, &uid.to_string(), home).await;
        }
        let machine = scene.client_as(squashed("guest")).await.unwrap();
        let guest = machine.client.clone();
        let users = [8, 9].map(|uid| user(&guest, uid, uid, &[]));
        let homes = [seen(&guest, Ino::ROOT, "8").await, seen(&guest, Ino::ROOT, "9").await];
        let calls = || guest.traffic().sent().values().map(|sent| sent.messages).sum::<u64>();
        for (own, home) in users.iter().zip(homes) {
            assert!(own.read_directory(home, Cookie::START, 9, false).await.unwrap().is_empty());
        }
        let before = calls();
        for number in 0..400 {
            // Of two users in turns, a hundred files each.
            let who = number / 100 % 2;
            let (own, uid) = (&users[who], 8 + who as u32);
            let new = node(Node::File, 0o600, uid, uid);
            let file = place(&**own, homes[who], &format!("n{number}"), new).await;
            put(&**own, file, "x").await.unwrap();
            own.set_attributes(file, &mode(0o640)).await.unwrap();
        }
        // Of others nothing is made there which the server would refuse later.
        let root = user(&guest, 0, 0, &[]);
        let refused = root.create(homes[0], b"root", &node(Node::File, 0o600, 0, 0)).await;
        assert_eq!(errno(refused), "EACCES");
        guest.sync_all().await.unwrap();
        assert!(calls() - before < 60, "{} calls", calls() - before);
        assert_eq!((guest.status().lost, guest.status().unsent), (0, 0));
        for (home, uid) in homes.into_iter().zip([8, 9]) {
            let all = admin.read_directory(home, Cookie::START, 1000, true).await.unwrap();
            assert_eq!(all.len(), 200);
            let has_delegation = |it: &thalweg_fs::Entry| {
                it.attributes.is_some_and(|it| (it.uid, it.mode, it.size) == (uid, 0o640, 1))
            };
            assert!(all.iter().all(has_delegation));
        }
    });
}

#[test]
fn the_next_server_checks_users_as_this_one() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let admin = office.client.clone();
        let open = place(&admin, Ino::ROOT, "open", node(Node::Directory, 0o777, 0, 0)).await;
        let secret = place(&admin, open, "secret", node(Node::File, 0o600, 0, 0)).await;
        admin.sync_all().await.unwrap();
        let machine = scene.client_as(squashed("guest")).await.unwrap();
        let guest = machine.client.clone();
        let (root, own) = (user(&guest, 0, 0, &[]), user(&guest, 9, 9, &[]));
        seen(&guest, Ino::ROOT, "open").await;
        seen(&*own, open, "secret").await;
        let mut files = Vec::new();
        for (name, fs, uid) in [("r", &root, 0), ("u", &own, 9)] {
            let file = place(&**fs, open, name, node(Node::File, 0o400, uid, uid)).await;
            let handle = fs.open(&Caller::default(), file, WRITING).await.unwrap().handle;
            put(&**fs, file, "kept").await.unwrap();
            files.push((fs, file, handle));
        }
        scene.crash(Shape::Nothing).await;
        for (fs, file, handle) in files {
            assert_eq!(text(&**fs, file).await, "kept");
            put(&**fs, file, "goes on").await.unwrap();
            fs.lock(file, &whole(handle, 1), false).await.unwrap();
            fs.release(file, handle).await;
        }
        assert_eq!((guest.status().lost, guest.status().evictions), (0, 0));
        for (name, uid) in [(&b"r"[..], NOBODY), (b"u", 9)] {
            assert_eq!(admin.find(open, name).await.unwrap().uid, uid);
        }
        for fs in [&root, &own] {
            assert_eq!(errno(fs.read(secret, 0, 9).await), "EACCES");
        }
    });
}

/// Whether the mode alone permits it to a user in these groups.
fn permits(mode: u16, (uid, gid): (u32, u32), who: &Credentials, wanted: u16) -> bool {
    let is_in = who.gid == gid || who.groups.contains(&gid);
    let bits = match (who.uid == uid, is_in) {
        (true, _) => mode >> 6,
        (false, true) => mode >> 3,
        (false, false) => mode,
    };
    bits & wanted == wanted
}

#[test]
fn modes_permit_what_they_say() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let admin = office.client.clone();
        let machine = scene.client_as(squashed("guest")).await.unwrap();
        let guest = machine.client.clone();
        let users = [(0, 0, &[][..]), (7, 1, &[]), (8, 40, &[]), (9, 1, &[40]), (9, 1, &[2])]
            .map(|(uid, gid, groups)| Credentials::new(uid, gid, groups));
        let owner = (7, 40);
        for bits in [0o000, 0o400, 0o200, 0o100, 0o070, 0o040, 0o020, 0o010, 0o007, 0o752, 0o317] {
            let (name, file) = (format!("f{bits:o}"), node(Node::File, bits, owner.0, owner.1));
            place(&admin, Ino::ROOT, &name, file).await;
            let file = seen(&guest, Ino::ROOT, &name).await;
            for who in &users {
                let fs = guest.for_user(&Arc::new(who.clone())).unwrap();
                let owns = who.uid == owner.0;
                let may = |wanted| permits(bits, owner, who, wanted);
                for (flags, expected) in [
                    // A user that may execute a program may read it, and the owner could change the mode.
                    (READING, owns || may(4) || may(1)),
                    (ONLY_WRITING, owns || may(2)),
                    (WRITING, owns || (may(4) || may(1)) && may(2)),
                ] {
                    let opened = fs.open(&Caller::default(), file, flags).await;
                    if let Ok(opened) = &opened {
                        fs.release(file, opened.handle).await;
                    }
                    assert_eq!(opened.is_ok(), expected, "{bits:o} {who:?} {flags:?}");
                }
                let touched = AttributeChange {
                    accessed: Some(TimeChange::Now),
                    modified: Some(TimeChange::Now),
                    ..AttributeChange::default()
                };
                let touched = fs.set_attributes(file, &touched).await.is_ok();
                assert_eq!(touched, owns || may(2), "{bits:o} {who:?}");
                let set = fs.set_attributes(file, &mode(bits)).await.is_ok();
                assert_eq!(set, owns, "{bits:o} {who:?}");
                let read = fs.xattr(file, b"user.u").await;
                assert_eq!(matches!(read, Err(FsError::NoAttribute)), may(4), "{bits:o} {who:?}");
            }
        }
    });
}

#[test]
fn directories_permit_what_they_say() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let admin = office.client.clone();
        let machine = scene.client_as(squashed("guest")).await.unwrap();
        let guest = machine.client.clone();
        let users = [(0, &[][..]), (7, &[]), (8, &[40]), (9, &[])]
            .map(|(uid, groups)| Credentials::new(uid, 1, groups));
        let owner = (7, 40);
        for bits in [0o777, 0o770, 0o755, 0o733, 0o731, 0o1777, 0o1770, 0o300, 0o144, 0o026] {
            let (name, new) = (format!("d{bits:o}"), node(Node::Directory, bits, owner.0, owner.1));
            let directory = place(&admin, Ino::ROOT, &name, new).await;
            place(&admin, directory, "eights", node(Node::File, 0o666, 8, 8)).await;
            seen(&guest, Ino::ROOT, &name).await;
            for who in &users {
                let fs = guest.for_user(&Arc::new(who.clone())).unwrap();
                let may = |wanted| permits(bits, owner, who, wanted);
                let note = format!("{bits:o} {who:?}");
                assert_eq!(fs.lookup(directory, b"eights").await.is_ok(), may(1), "{note}");
                let listed = fs.read_directory(directory, Cookie::START, 9, true).await;
                assert_eq!(listed.is_ok(), may(4), "{note}");
                let shown = listed.iter().flatten().any(|entry| entry.attributes.is_some());
                assert_eq!(shown, may(4) && may(1), "{note}");
                let new = node(Node::File, 0o666, who.uid, who.gid);
                let made = fs.create(directory, b"new", &new).await.is_ok();
                assert_eq!(made, may(3), "{note}");
                if made {
                    fs.unlink(directory, b"new").await.unwrap();
                }
                let removes = may(3) && (bits & 0o1000 == 0 || [7, 8].contains(&who.uid));
                let (from, to) = ((directory, &b"eights"[..]), (directory, &b"moved"[..]));
                let moved = fs.rename(from, to, Rename::Replace).await.is_ok();
                assert_eq!(moved, removes, "{note}");
                if moved {
                    fs.rename(to, from, Rename::Replace).await.unwrap();
                }
                let unlinked = fs.unlink(directory, b"eights").await.is_ok();
                assert_eq!(unlinked, removes, "{note}");
                if unlinked {
                    place(&admin, directory, "eights", node(Node::File, 0o666, 8, 8)).await;
                }
            }
        }
    });
}

#[test]
fn a_change_of_who_is_squashed_begins_another_session() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = scene.client("guest").await;
        assert!(!machine.client.checks_users());
        scene.admit(squashed("guest"));
        scene.network.reset(&scene.server, &machine.host);
        let _ = machine.client.statistics().await;
        assert!(machine.client.checks_users());
        let refused = machine.client.create(Ino::ROOT, b"f", &new(Node::File)).await;
        assert_eq!(errno(refused), "EACCES");
    });
}
