//! Storage that a client reserves for its own files, and extended attributes of what it has made, without a call.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::future::join;
use thalweg_cluster::client::Client;
use thalweg_cluster::conflicts::ConflictKind;
use thalweg_fs::{
    Allocation, AttributeChange, Attributes, Credentials, Filesystem, FsError, Ino, Level, NewNode,
    Node, SetXattr, WriteAt, WriteHow,
};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::absence::lists;
use crate::access::squashed;
use crate::full::{alone, is_refused};
use crate::journal::{Journaled, begin, find};
use crate::move_node::{arrived, receive, target};
use crate::scene::*;

const GROW: Allocation = Allocation::Reserve { keep_size: false };
const KEEP: Allocation = Allocation::Reserve { keep_size: true };
const BLOCK: u64 = 4096;

async fn attributes(fs: &dyn Filesystem, ino: Ino) -> Attributes {
    fs.attributes(ino).await.unwrap().attributes
}

async fn set(fs: &dyn Filesystem, ino: Ino, name: &str, value: &str) -> Result<(), FsError> {
    let value = Bytes::copy_from_slice(value.as_bytes());
    fs.set_xattr(ino, name.as_bytes(), value, SetXattr::Any).await
}

/// All extended attributes of an inode.
async fn xattrs(fs: &dyn Filesystem, ino: Ino) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for name in fs.xattrs(ino).await.unwrap() {
        let value = fs.xattr(ino, &name).await.unwrap();
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        found.insert(text(&name), text(&value));
    }
    found
}

fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// A database makes its file longer, and commits.
#[test]
fn storage_is_reserved_and_synced_without_a_message() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        put(&client, file, "text").await.unwrap();
        client.sync(file, false).await.unwrap();
        // Room is promised once.
        client.allocate(file, 4, 1, GROW).await.unwrap();
        let messages = calls(&client);
        for number in 0..5 {
            let size = attributes(&client, file).await.size;
            client.allocate(file, size, 64 << 10, GROW).await.unwrap();
            client.sync(file, false).await.unwrap();
            let grown = attributes(&client, file).await;
            assert_eq!(grown.size, size + (64 << 10), "{number}");
            assert_eq!(grown.stored, grown.size.next_multiple_of(BLOCK));
            let how = WriteHow::default();
            client.write(file, WriteAt::Offset(size), vec!["more".into()], how).await.unwrap();
        }
        // Behind the end, and in the file.
        let size = attributes(&client, file).await.size;
        client.allocate(file, size, 20_000, KEEP).await.unwrap();
        client.allocate(file, 0, 9, KEEP).await.unwrap();
        assert_eq!(client.read(file, size - 10, 100).await.unwrap().concat(), [0; 10]);
        client.sync(file, false).await.unwrap();
        assert_eq!(calls(&client), messages);
        let known = attributes(&client, file).await;
        assert_eq!((known.size, known.stored), (size, (size + 20_000).next_multiple_of(BLOCK)));
        machine.crash(Shape::Nothing);
        drop(client);
        let again = machine.mount(&scene, true).await.unwrap();
        let visitor = scene.client("other").await;
        for client in [&again, &visitor.client] {
            let file = find(client).await;
            let found = attributes(client, file).await;
            assert_eq!(Attributes { accessed: known.accessed, ..found }, known);
            let read = client.read(file, 0, size as usize).await.unwrap().concat();
            assert_eq!(read.len() as u64, size);
            assert_eq!((&read[..4], &read[4..5]), (&b"text"[..], &[0][..]));
        }
    });
}

/// What a file has is foreseen, or asked for.
#[test]
fn others_see_what_was_foreseen_of_reserved_storage() {
    for (first, second) in [
        ((0, 1), (1, 5000)),
        ((100, 9000), (9100, 1)),
        ((0, 3 * BLOCK), (BLOCK, BLOCK)),
        ((50_000, 10), (0, 50_000)),
        // In two mutations.
        ((0, 1), ((16 << 20) - 5000, 10_000)),
    ] {
        for hows in [[GROW, GROW], [KEEP, KEEP], [KEEP, GROW], [GROW, KEEP]] {
            run(1, move |env| async move {
                let scene = Scene::durable(&env).await;
                let (one, other) = (scene.client("a").await, scene.client("b").await);
                let (a, b) = (&one.client, &other.client);
                let directory = alone(a, "d").await;
                let file = make(a, directory, "f", Node::File).await;
                a.reference(file);
                put(a, file, "text").await.unwrap();
                for ((offset, len), how) in [first, second].into_iter().zip(hows) {
                    a.allocate(file, offset, len, how).await.unwrap();
                }
                let at = WriteAt::Offset(first.0 + 3);
                a.write(file, at, vec!["data".into()], WriteHow::default()).await.unwrap();
                let cut = attributes(a, file).await.size / 2;
                let change = AttributeChange { size: Some(cut), ..Default::default() };
                let shown = a.set_attributes(file, &change).await.unwrap().attributes;
                let known = attributes(a, file).await;
                assert_eq!(shown, known);
                let directory = b.find(Ino::ROOT, b"d").await.unwrap().ino;
                b.reference(directory);
                let found = b.find(directory, b"f").await.unwrap().attributes;
                assert_eq!(found, known, "{first:?} {second:?}");
                assert_eq!(a.status().lost, 0);
            });
        }
    }
}

#[test]
fn what_reserves_nothing_or_too_much_is_a_call() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = scene.client("a").await;
        let a = &machine.client;
        let directory = alone(a, "d").await;
        let file = make(a, directory, "f", Node::File).await;
        a.reference(file);
        a.allocate(file, 0, BLOCK, GROW).await.unwrap();
        let messages = calls(a);
        a.allocate(file, BLOCK, BLOCK, GROW).await.unwrap();
        assert_eq!(calls(a), messages);
        for (offset, len) in [(0, 0), (u64::MAX, 2), (1 << 62, 1 << 62)] {
            let messages = calls(a);
            let refused = a.allocate(file, offset, len, GROW).await;
            assert!(matches!(refused, Err(FsError::Invalid(_) | FsError::FileTooLarge)));
            assert!(calls(a) > messages);
        }
        let refused = a.allocate(directory, 0, 1, GROW).await;
        assert!(matches!(refused, Err(FsError::IsDirectory)), "{refused:?}");
        put(a, file, "text").await.unwrap();
        a.allocate(file, 1, 2, Allocation::Punch).await.unwrap();
        a.allocate(file, 0, 1, Allocation::Zero { keep_size: true }).await.unwrap();
        assert_eq!(a.read(file, 0, 4).await.unwrap().concat(), *b"\0\0\0t");
        let refused = a.allocate(file, 0, 1 << 40, GROW).await;
        assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    });
}

#[test]
fn attributes_are_set_read_and_removed_without_a_message() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        client.sync(file, false).await.unwrap();
        let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
        let below = make(&client, directory, "below", Node::Directory).await;
        client.reference(below);
        let fifo = make(&client, directory, "fifo", Node::Fifo).await;
        client.reference(fifo);
        client.sync(file, false).await.unwrap();
        let messages = calls(&client);
        assert_eq!(xattrs(&client, file).await, map([]));
        set(&client, file, "user.b", "1").await.unwrap();
        set(&client, file, "security.capability", "2").await.unwrap();
        set(&client, file, "user.a", "3").await.unwrap();
        set(&client, file, "user.b", "4").await.unwrap();
        set(&client, below, "trusted.t", "5").await.unwrap();
        let value = || Bytes::from_static(b"6");
        let created = client.set_xattr(file, b"user.a", value(), SetXattr::Create).await;
        assert!(matches!(created, Err(FsError::Exists)), "{created:?}");
        let replaced = client.set_xattr(file, b"user.c", value(), SetXattr::Replace).await;
        assert!(matches!(replaced, Err(FsError::NoAttribute)), "{replaced:?}");
        client.set_xattr(file, b"user.c", value(), SetXattr::Create).await.unwrap();
        client.set_xattr(file, b"user.a", value(), SetXattr::Replace).await.unwrap();
        client.remove_xattr(file, b"security.capability").await.unwrap();
        let removed = client.remove_xattr(file, b"security.capability").await;
        assert!(matches!(removed, Err(FsError::NoAttribute)), "{removed:?}");
        // The answers of the server.
        for (ino, name) in [(fifo, "user.a"), (file, "user."), (file, "other.a")] {
            let refused = set(&client, ino, name, "").await.unwrap_err();
            let there = set(&*scene.files, Ino::ROOT, name, "").await;
            match there {
                Err(there) => assert_eq!(refused.to_string(), there.to_string()),
                Ok(()) => assert!(matches!(refused, FsError::NotPermitted), "{refused:?}"),
            }
        }
        let expected = map([("user.a", "6"), ("user.b", "4"), ("user.c", "6")]);
        assert_eq!(xattrs(&client, file).await, expected);
        client.sync(file, false).await.unwrap();
        assert_eq!(calls(&client), messages);
        let known = attributes(&client, file).await;
        // Also when the server has them.
        client.drain().await.unwrap();
        let messages = calls(&client);
        assert_eq!(xattrs(&client, file).await, expected);
        set(&client, file, "user.d", "7").await.unwrap();
        client.remove_xattr(file, b"user.d").await.unwrap();
        client.sync(file, false).await.unwrap();
        assert_eq!(calls(&client), messages);
        assert!(attributes(&client, file).await.changed > known.changed);
        let known = attributes(&client, file).await;
        machine.crash(Shape::Nothing);
        drop(client);
        let again = machine.mount(&scene, true).await.unwrap();
        let visitor = scene.client("other").await;
        for client in [&again, &visitor.client] {
            let file = find(client).await;
            assert_eq!(xattrs(client, file).await, expected);
            assert_eq!(attributes(client, file).await, known);
            let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
            let below = client.find(directory, b"below").await.unwrap().ino;
            client.reference(below);
            assert_eq!(xattrs(client, below).await, map([("trusted.t", "5")]));
        }
    });
}

/// An access control list with the permissions of the owner, its group, and others.
fn access_list(bits: [u16; 3]) -> Bytes {
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, bits) in [1u16, 4, 32].into_iter().zip(bits) {
        list.extend([tag.to_le_bytes(), bits.to_le_bytes()].concat());
        list.extend(u32::MAX.to_le_bytes());
    }
    list.into()
}

/// After a change that the client does not foresee it does not say what an inode has.
#[test]
fn what_is_not_foreseen_is_a_call() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = scene.client("a").await;
        let a = &machine.client;
        let directory = alone(a, "d").await;
        let large = "x".repeat(9 << 10);
        for (number, name) in
            ["system.posix_acl_access", "user.large", "thalweg.quota.max_bytes"].iter().enumerate()
        {
            let file = make(a, directory, &format!("f{number}"), Node::File).await;
            a.reference(file);
            set(a, file, "user.a", "1").await.unwrap();
            let messages = calls(a);
            assert_eq!(xattrs(a, file).await, map([("user.a", "1")]));
            assert_eq!(calls(a), messages);
            let value = match number {
                0 => access_list([6, 4, 0]),
                _ => Bytes::from(large.clone()),
            };
            let done = a.set_xattr(file, name.as_bytes(), value, SetXattr::Any).await;
            assert!(calls(a) > messages && done.is_ok() == (number < 2), "{done:?}");
            let messages = calls(a);
            let expected = match number {
                1 => map([("user.a", "1"), ("user.large", &large)]),
                _ => map([("user.a", "1")]),
            };
            assert_eq!(xattrs(a, file).await, expected);
            let absent = a.xattr(file, b"user.absent").await;
            assert!(matches!(absent, Err(FsError::NoAttribute)), "{absent:?}");
            assert_eq!(calls(a), messages + expected.len() as u64 + 2);
            let mode = if number == 0 { 0o640 } else { 0o755 };
            assert_eq!(attributes(a, file).await.mode & 0o777, mode);
            // Another one of the same directory is known as before.
            let next = make(a, directory, &format!("g{number}"), Node::File).await;
            set(a, next, "user.b", "2").await.unwrap();
        }
        // What another client has made or changed is not known.
        let visitor = scene.client("other").await;
        let other = &visitor.client;
        let seen = other.find(Ino::ROOT, b"d").await.unwrap().ino;
        other.reference(seen);
        let theirs = other.find(seen, b"g2").await.unwrap().ino;
        other.reference(theirs);
        assert_eq!(xattrs(other, theirs).await, map([("user.b", "2")]));
        set(other, theirs, "user.b", "3").await.unwrap();
        assert_eq!(a.xattr(theirs, b"user.b").await.unwrap(), "3");
    });
}

/// What was set here finds room when it is sent, whatever other clients store meanwhile.
#[test]
fn attributes_that_were_acknowledged_have_room() {
    run(1, |env| async move {
        let scene = Scene::small(&env).await;
        let mut machine = Journaled::sized(&scene, "a", 16 << 20).await;
        machine.memory = 8 << 20;
        let (client, _) = begin(&scene, &machine, true).await;
        let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
        let mut own = Vec::new();
        for number in 0..4 {
            let file = make(&client, directory, &format!("own{number}"), Node::File).await;
            client.reference(file);
            own.push(file);
        }
        client.drain().await.unwrap();
        let value = Bytes::from(vec![b'x'; 7 << 10]);
        let messages = calls(&client);
        for file in &own {
            let value = value.clone();
            client.set_xattr(*file, b"user.a", value, SetXattr::Create).await.unwrap();
        }
        assert_eq!((calls(&client), client.status().unsent), (messages, own.len()));
        // Another client takes what is left, in parts that become smaller.
        let visitor = scene.client("other").await;
        let other = &visitor.client;
        let mut refusals = 0;
        for len in [60 << 10, 3 << 10, 100] {
            for number in 0..2000 {
                let name = format!("their{len}-{number}");
                let made = other.create(Ino::ROOT, name.as_bytes(), &new(Node::File)).await;
                if is_refused(&made) {
                    refusals += 1;
                    break;
                }
                let (file, value) = (made.unwrap().ino, Bytes::from(vec![1; len]));
                if is_refused(&other.set_xattr(file, b"user.a", value, SetXattr::Any).await) {
                    refusals += 1;
                    break;
                }
            }
        }
        assert_eq!(refusals, 3);
        // The server may have asked for what is promised, and got the changes with that.
        client.drain().await.unwrap();
        assert_eq!(client.status().lost, 0);
        let directory = other.find(Ino::ROOT, b"d").await.unwrap().ino;
        for number in 0..own.len() {
            let name = format!("own{number}");
            let file = other.find(directory, name.as_bytes()).await.unwrap().ino;
            other.reference(file);
            assert_eq!(other.xattr(file, b"user.a").await.unwrap(), value);
        }
    });
}

/// A mount that moves brings what it knows.
#[test]
fn a_mount_that_moves_knows_the_attributes_there() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (from, to) = (Journaled::new(&scene, "a").await, Journaled::new(&scene, "b").await);
        let (client, file) = begin(&scene, &from, true).await;
        set(&client, file, "user.a", "sent").await.unwrap();
        client.drain().await.unwrap();
        set(&client, file, "user.b", "not sent").await.unwrap();
        client.allocate(file, 0, 9000, GROW).await.unwrap();
        let known = attributes(&client, file).await;
        let receiver = receive(&scene, &to, true).await.unwrap();
        let moving = client.move_to(target(&from, &to), false);
        let (moved, there) = join(moving, arrived(&receiver)).await;
        moved.unwrap();
        let file = find(&there).await;
        let messages = calls(&there);
        let expected = map([("user.a", "sent"), ("user.b", "not sent")]);
        assert_eq!(xattrs(&there, file).await, expected);
        assert_eq!(attributes(&there, file).await, known);
        there.remove_xattr(file, b"user.a").await.unwrap();
        there.sync(file, false).await.unwrap();
        assert_eq!(calls(&there), messages);
        there.close().await;
        let visitor = scene.client("other").await;
        let seen = find(&visitor.client).await;
        assert_eq!(xattrs(&visitor.client, seen).await, map([("user.b", "not sent")]));
    });
}

/// Another client has read a file while its client was away: the copy has what that one has set.
#[test]
fn a_foreign_use_conflicts_with_attributes_and_storage() {
    for reserves in [false, true] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let (client, file) = begin(&scene, &machine, true).await;
            put(&client, file, "old").await.unwrap();
            client.wait_for(file, Level::Server, LEASE).await.unwrap();
            if reserves {
                client.allocate(file, 3, 9, GROW).await.unwrap();
            } else {
                set(&client, file, "user.a", "1").await.unwrap();
            }
            let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
            let second = make(&client, directory, "second", Node::File).await;
            set(&client, second, "user.b", "2").await.unwrap();
            client.allocate(second, 0, 5, GROW).await.unwrap();
            client.sync_all().await.unwrap();
            machine.crash(Shape::Nothing);
            drop(client);
            let visitor = scene.client("other").await;
            let other = &visitor.client;
            assert_eq!(text(other, find(other).await).await, "old");
            let again = machine.mount(&scene, true).await.unwrap();
            let file = find(&again).await;
            assert_eq!(
                (xattrs(&again, file).await, text(&again, file).await),
                (map([]), "old".into())
            );
            let sets = lists(&again).await;
            let [set] = &sets[..] else { panic!("{sets:?}") };
            let [first, second] = &set.entries[..] else { panic!("{set:?}") };
            let found = async |path: &str| {
                let name = path.rsplit('/').next().unwrap();
                let directory = other.find(Ino::ROOT, b"d").await.unwrap().ino;
                let found = other.find(directory, name.as_bytes()).await.unwrap();
                other.reference(found.ino);
                found
            };
            if reserves {
                assert_eq!((first.kind, first.size), (ConflictKind::Complete, Some(12)));
                assert_eq!(found(first.copy.as_ref().unwrap()).await.size, 12);
            } else {
                assert_eq!((first.kind, first.attributes), (ConflictKind::Attributes, true));
            }
            assert_eq!(second.kind, ConflictKind::New);
            let copy = found(second.copy.as_ref().unwrap()).await;
            assert_eq!((xattrs(other, copy.ino).await, copy.size), (map([("user.b", "2")]), 5));
        });
    }
}

/// Users of a client that is not trusted with what they may do.
#[test]
fn users_that_the_server_checks_have_their_own_attributes() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let node = NewNode { node: Node::Directory, mode: 0o777, umask: 0, uid: 9, gid: 9 };
        office.client.create(Ino::ROOT, b"own", &node).await.unwrap();
        office.client.close().await;
        let machine = scene.client_as(squashed("guest")).await.unwrap();
        let client: &Client = &machine.client;
        let own = client.for_user(&Credentials::new(9, 9, &[]).into()).unwrap();
        let above = own.find(Ino::ROOT, b"own").await.unwrap().ino;
        own.reference(above);
        let directory = own.create(above, b"mine", &node).await.unwrap().ino;
        own.reference(directory);
        let file = |name: &'static str, mode| {
            let new = NewNode { node: Node::File, mode, umask: 0, uid: 9, gid: 9 };
            let own = own.clone();
            async move {
                let made = own.create(directory, name.as_bytes(), &new).await.unwrap().ino;
                own.reference(made);
                made
            }
        };
        for name in ["one", "two", "three"] {
            file(name, 0o644).await;
        }
        let (shown, secret) = (file("shown", 0o644).await, file("secret", 0o200).await);
        let messages = calls(client);
        set(&*own, shown, "user.a", "1").await.unwrap();
        set(&*own, secret, "user.a", "2").await.unwrap();
        own.allocate(shown, 0, 10, GROW).await.unwrap();
        assert_eq!(calls(client), messages);
        assert_eq!(xattrs(&*own, shown).await, map([("user.a", "1")]));
        assert_eq!(calls(client), messages);
        let refused = own.xattr(secret, b"user.a").await;
        assert!(matches!(refused, Err(FsError::Denied)), "{refused:?}");
        let other = client.for_user(&Credentials::new(8, 8, &[]).into()).unwrap();
        assert_eq!(other.xattr(shown, b"user.a").await.unwrap(), "1");
        for (user, name, expected) in [
            (&own, "trusted.a", "EPERM"),
            (&own, "security.a", "EPERM"),
            (&other, "user.a", "EACCES"),
        ] {
            let refused = set(&**user, shown, name, "3").await.unwrap_err();
            let found = match refused {
                FsError::NotPermitted => "EPERM",
                FsError::Denied => "EACCES",
                _ => panic!("{refused:?}"),
            };
            assert_eq!(found, expected, "{name}");
        }
        let change = AttributeChange { mode: Some(0o444), ..Default::default() };
        own.set_attributes(shown, &change).await.unwrap();
        let refused = set(&*own, shown, "user.a", "4").await;
        assert!(matches!(refused, Err(FsError::Denied)), "{refused:?}");
        own.sync_all().await.unwrap();
        assert_eq!(client.status().lost, 0);
    });
}
