//! What two clients see of each other, and what they can do without a call.

use std::sync::Arc;

use thalweg_fs::{Cookie, Filesystem, FsError, Ino, Lookup, Node, Rename};
use thalweg_net::keys::Access;
use thalweg_sim::run;

use crate::model::on_volume;
use crate::scene::*;

#[test]
fn clients_see_each_others_changes() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&a.client, &b.client);
        assert!(matches!(b.lookup(Ino::ROOT, b"d").await, Ok(Lookup::Absent(_))));
        let directory = make(a, Ino::ROOT, "d", Node::Directory).await;
        let found = b.find(Ino::ROOT, b"d").await.unwrap();
        assert_eq!(found.ino, directory);
        assert!(matches!(b.find(directory, b"f").await, Err(FsError::NotFound)));
        let file = make(a, directory, "f", Node::File).await;
        assert_eq!(b.find(directory, b"f").await.unwrap().size, 0);
        for text_now in ["one", "another", "a third"] {
            put(a, file, text_now).await.unwrap();
            assert_eq!(b.attributes(file).await.unwrap().size, text_now.len() as u64);
            assert_eq!(text(b, file).await, text_now);
            // Its own change is seen at once.
            assert_eq!(a.attributes(file).await.unwrap().size, text_now.len() as u64);
        }
        b.rename((directory, b"f"), (Ino::ROOT, b"g"), Rename::Replace).await.unwrap();
        assert!(matches!(a.find(directory, b"f").await, Err(FsError::NotFound)));
        assert_eq!(a.find(Ino::ROOT, b"g").await.unwrap().ino, file);
        let names = |entries: Vec<thalweg_fs::Entry>| -> Vec<_> {
            entries.into_iter().map(|entry| entry.name).collect()
        };
        let listed = a.read_directory(Ino::ROOT, Cookie::START, 10, true).await.unwrap();
        assert_eq!(names(listed), ["d", "g"]);
        a.link(file, directory, b"h").await.unwrap();
        assert_eq!(b.attributes(file).await.unwrap().links, 2);
        a.unlink(Ino::ROOT, b"g").await.unwrap();
        assert_eq!(b.attributes(file).await.unwrap().links, 1);
        assert!(matches!(b.remove_directory(Ino::ROOT, b"d").await, Err(FsError::NotEmpty)));
        b.unlink(directory, b"h").await.unwrap();
        b.remove_directory(Ino::ROOT, b"d").await.unwrap();
        assert!(matches!(a.find(Ino::ROOT, b"d").await, Err(FsError::NotFound)));
    });
}

#[test]
fn what_is_cached_costs_no_call() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let directory = make(&a.client, Ino::ROOT, "d", Node::Directory).await;
        make(&a.client, directory, "f", Node::File).await;
        let sent = |machine: &Machine| scene.network.tally(&machine.host, &scene.server).writes;
        // The client that made the directory knows all its names; another one learns them.
        for (machine, expected) in [(&a, [0, 0]), (&b, [3, 0])] {
            machine.client.find(Ino::ROOT, b"d").await.unwrap();
            for expected in expected {
                let before = sent(machine);
                machine.client.find(directory, b"f").await.unwrap();
                machine.client.attributes(directory).await.unwrap();
                for name in [&b"x"[..], b"y"] {
                    let found = machine.client.lookup(directory, name).await.unwrap();
                    assert!(matches!(found, Lookup::Absent(_)));
                }
                assert_eq!(sent(machine) - before, expected);
            }
        }
        // A change by one of them costs the other a call.
        let before = sent(&b);
        make(&a.client, directory, "x", Node::File).await;
        assert_eq!(sent(&b) - before, 1, "it has dropped the name");
        b.client.find(directory, b"x").await.unwrap();
        assert_eq!(sent(&b) - before, 2);
        b.client.find(directory, b"f").await.unwrap();
        b.client.find(directory, b"x").await.unwrap();
        assert_eq!(sent(&b) - before, 2);
    });
}

#[test]
fn a_client_sees_nothing_outside_of_its_path() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let all = scene.client("all").await;
        let all = &all.client;
        let home = make(all, Ino::ROOT, "home", Node::Directory).await;
        let secret = make(all, Ino::ROOT, "secret", Node::File).await;
        let alice = Visit { path: "/home", access: Access::Write };
        let alice = scene.client_as(alice.of("alice")).await.unwrap();
        let alice = &alice.client;
        let inside = make(alice, Ino::ROOT, "inside", Node::Directory).await;
        assert_eq!(all.find(home, b"inside").await.unwrap().ino, inside);
        assert_eq!(alice.attributes(Ino::ROOT).await.unwrap().ino, Ino::ROOT);
        assert_eq!(alice.parent(inside).await.unwrap(), Ino::ROOT);
        assert_eq!(alice.parent(Ino::ROOT).await.unwrap(), Ino::ROOT);
        // Numbers that it was not told are refused, whichever call has them.
        for guess in [secret, Ino(secret.0 + 100), Ino(u64::MAX)] {
            assert!(matches!(alice.attributes(guess).await, Err(FsError::Stale)));
            assert!(matches!(alice.read(guess, 0, 1).await, Err(FsError::Stale)));
            assert!(matches!(put(alice, guess, "x").await, Err(FsError::Stale)));
            assert!(matches!(alice.link(guess, Ino::ROOT, b"l").await, Err(FsError::Stale)));
        }
        assert_eq!(alice.find(Ino::ROOT, b"..").await.unwrap().ino, Ino::ROOT);
        let reader = Visit { path: "/home", access: Access::Read };
        let reader = scene.client_as(reader.of("reader")).await.unwrap();
        let reader = &reader.client;
        assert!(reader.is_read_only() && !alice.is_read_only());
        reader.find(Ino::ROOT, b"inside").await.unwrap();
        let refused = reader.create(inside, b"x", &new(Node::File)).await;
        assert!(matches!(refused, Err(FsError::ReadOnly)));
        let absent = Visit { path: "/nowhere", access: Access::Read };
        assert!(scene.client_as(absent.of("absent")).await.is_err());
        let file = Visit { path: "/secret", access: Access::Read };
        assert!(scene.client_as(file.of("file")).await.is_err());
    });
}

#[test]
fn a_name_that_the_client_does_not_know_is_removed() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&a.client, &b.client);
        let file = make(a, Ino::ROOT, "f", Node::File).await;
        for name in [b"g", b"h"] {
            a.link(file, Ino::ROOT, name).await.unwrap();
        }
        assert_eq!(b.find(Ino::ROOT, b"f").await.unwrap().links, 3);
        // It caches the attributes, and not that these names are names of the inode.
        b.unlink(Ino::ROOT, b"g").await.unwrap();
        assert_eq!(b.attributes(file).await.unwrap().links, 2);
        b.rename((Ino::ROOT, b"h"), (Ino::ROOT, b"i"), Rename::Replace).await.unwrap();
        make(b, Ino::ROOT, "x", Node::File).await;
        b.rename((Ino::ROOT, b"x"), (Ino::ROOT, b"i"), Rename::Replace).await.unwrap();
        assert_eq!(b.attributes(file).await.unwrap().links, 1);
    });
}

#[test]
fn dots_lead_to_no_directory_above_the_clients_root() {
    run(1, |env| async move {
        let scene = Scene::of(&env, Arc::new(on_volume(&env).await)).await;
        let all = scene.client("all").await;
        let all = &all.client;
        make(all, Ino::ROOT, "home", Node::Directory).await;
        let alice = Visit { path: "/home", access: Access::Write };
        let alice = scene.client_as(alice.of("alice")).await.unwrap();
        let alice = &alice.client;
        let home = alice.attributes(Ino::ROOT).await.unwrap().created;
        env.sleep(LEASE).await;
        let one = make(alice, Ino::ROOT, "one", Node::Directory).await;
        let two = make(alice, Ino::ROOT, "two", Node::Directory).await;
        let child = make(alice, one, "child", Node::Directory).await;
        for (directory, name, expected) in
            [(Ino::ROOT, &b"."[..], home), (Ino::ROOT, b"..", home), (one, b"..", home)]
        {
            let found = alice.find(directory, name).await.unwrap();
            assert_eq!(found.created, expected);
            assert_eq!(found.ino, Ino::ROOT);
        }
        // A directory that is moved has another parent.
        assert_eq!(alice.find(child, b"..").await.unwrap().ino, one);
        all.find(Ino::ROOT, b"home").await.unwrap();
        alice.rename((one, b"child"), (two, b"child"), Rename::Replace).await.unwrap();
        assert_eq!(alice.find(child, b"..").await.unwrap().ino, two);
        assert_eq!(alice.find(child, b".").await.unwrap().ino, child);
    });
}
