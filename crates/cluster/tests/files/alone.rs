//! Directories that are one client's alone: what it makes there by itself, and what other clients see of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use thalweg_cluster::client::Client;
use thalweg_fs::{
    AttributeChange, Attributes, Caller, Cookie, Filesystem, FsError, Ino, Node, Rename, SetXattr,
    TimeChange, Timestamp, WriteAt, WriteHow,
};
use thalweg_net::keys::Access;
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::model::elsewhere;
use crate::scene::*;

async fn fill(client: &Client, directory: Ino, numbers: std::ops::Range<usize>) -> Vec<Ino> {
    let mut made = Vec::new();
    for number in numbers {
        made.push(make(client, directory, &format!("n{number}"), Node::File).await);
    }
    made
}

async fn names(fs: &dyn Filesystem, directory: Ino) -> BTreeSet<String> {
    let entries = fs.read_directory(directory, Cookie::START, 10_000, false).await.unwrap();
    entries.into_iter().map(|it| String::from_utf8(it.name.to_vec()).unwrap()).collect()
}

/// A directory of this client alone, in which it has made two files.
async fn alone(client: &Client) -> Ino {
    let directory = make(client, Ino::ROOT, "d", Node::Directory).await;
    client.reference(directory);
    fill(client, directory, 0..2).await;
    directory
}

#[test]
fn many_files_cost_few_calls() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let directory = make(&a.client, Ino::ROOT, "d", Node::Directory).await;
        let before = calls(&a.client);
        let made = fill(&a.client, directory, 0..1000).await;
        a.client.sync_all().await.unwrap();
        let used = calls(&a.client) - before;
        assert!(used <= 20, "{used} calls");
        let known: Vec<_> = {
            let mut all = Vec::new();
            for ino in &made {
                all.push(a.client.attributes(*ino).await.unwrap().attributes);
            }
            all
        };
        assert_eq!(calls(&a.client) - before, used, "attributes are known");
        assert_eq!(b.client.find(Ino::ROOT, b"d").await.unwrap().size, 1000);
        assert_eq!(names(&b.client, directory).await.len(), 1000);
        for (number, known) in known.iter().enumerate() {
            let found = b.client.find(directory, format!("n{number}").as_bytes()).await.unwrap();
            assert_eq!(found.attributes, *known);
        }
        let parent = a.client.attributes(directory).await.unwrap().attributes;
        assert_eq!(b.client.attributes(directory).await.unwrap().attributes, parent);
    });
}

#[test]
fn others_see_at_once_what_was_made() {
    run(2, |env| async move {
        let scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let directory = alone(&a.client).await;
        assert_eq!(a.client.status().unsent, 1);
        assert_eq!(b.client.find(Ino::ROOT, b"d").await.unwrap().ino, directory);
        b.client.reference(directory);
        let found = b.client.find(directory, b"n1").await.unwrap().ino;
        assert_eq!(a.client.find(directory, b"n1").await.unwrap().ino, found);
        // Now both change it, by calls.
        let refused = b.client.create(directory, b"n0", &new(Node::File)).await;
        assert!(matches!(refused, Err(FsError::Exists)), "{refused:?}");
        make(&b.client, directory, "b", Node::File).await;
        fill(&a.client, directory, 2..6).await;
        assert_eq!(a.client.status().unsent, 0);
        assert_eq!(names(&b.client, directory).await.len(), 7);
        let refused = a.client.create(directory, b"b", &new(Node::File)).await;
        assert!(matches!(refused, Err(FsError::Exists)), "{refused:?}");
        // When the other one has left it alone, it is the client's again.
        env.sleep(2 * LEASE).await;
        fill(&a.client, directory, 6..20).await;
        assert!(a.client.status().unsent > 0);
        b.client.unlink(directory, b"n19").await.unwrap();
        assert!(matches!(a.client.find(directory, b"n19").await, Err(FsError::NotFound)));
    });
}

#[test]
fn a_tree_is_made_with_its_attributes_and_bytes() {
    run(3, |env| async move {
        let scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (fs, top) = (&a.client, alone(&a.client).await);
        let before = calls(fs);
        let below = make(fs, top, "below", Node::Directory).await;
        let file = make(fs, below, "file", Node::File).await;
        put(fs, file, "one").await.unwrap();
        let more = vec!["two".into()];
        let went = fs.write(file, WriteAt::End, more, WriteHow::default()).await.unwrap();
        assert_eq!(went, 3);
        let then = Timestamp { seconds: 5, nanos: 6 };
        let modified = Some(TimeChange::At(then));
        let change = AttributeChange { mode: Some(0o640), modified, ..Default::default() };
        let set = fs.set_attributes(file, &change).await.unwrap().attributes;
        assert_eq!((set.mode, set.modified, set.size), (0o640, then, 6));
        let link = make(fs, below, "link", Node::Symlink("file".into())).await;
        let refused = fs.xattr(file, b"user.x").await;
        assert!(matches!(refused, Err(FsError::NoAttribute)), "{refused:?}");
        assert_eq!(calls(fs), before, "nothing was sent");
        assert_eq!(text(fs, file).await, "onetwo");
        assert_eq!(fs.read_link(link).await.unwrap(), "file");
        assert_eq!(calls(fs), before + 2, "a batch and a call: the bytes are here");
        let known = fs.attributes(file).await.unwrap().attributes;
        b.client.find(Ino::ROOT, b"d").await.unwrap();
        let found = b.client.find(top, b"below").await.unwrap();
        assert_eq!((found.size, found.ino), (2, below));
        let found = b.client.find(below, b"file").await.unwrap();
        // When it was read is not told to others.
        assert_eq!(Attributes { accessed: known.accessed, ..found.attributes }, known);
        assert_eq!(text(&b.client, file).await, "onetwo");
    });
}

#[test]
fn what_moves_elsewhere_is_shared() {
    run(4, |env| async move {
        let scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (fs, top) = (&a.client, alone(&a.client).await);
        let below = make(fs, top, "below", Node::Directory).await;
        let deep = make(fs, below, "deep", Node::Directory).await;
        let file = make(fs, top, "file", Node::File).await;
        fs.rename((top, b"below"), (Ino::ROOT, b"moved"), Rename::Replace).await.unwrap();
        fs.link(file, Ino::ROOT, b"linked").await.unwrap();
        assert_eq!(b.client.find(Ino::ROOT, b"moved").await.unwrap().ino, below);
        assert_eq!(b.client.find(below, b"deep").await.unwrap().ino, deep);
        assert_eq!(b.client.find(Ino::ROOT, b"linked").await.unwrap().ino, file);
        make(&b.client, deep, "b", Node::File).await;
        put(&b.client, file, "text").await.unwrap();
        let refused = fs.create(deep, b"b", &new(Node::File)).await;
        assert!(matches!(refused, Err(FsError::Exists)), "{refused:?}");
        make(fs, deep, "a", Node::File).await;
        assert_eq!(b.client.attributes(deep).await.unwrap().size, 2);
        assert_eq!(text(fs, file).await, "text");
        let change = AttributeChange { mode: Some(0o600), ..Default::default() };
        fs.set_attributes(file, &change).await.unwrap();
        assert_eq!(b.client.attributes(file).await.unwrap().mode, 0o600);
    });
}

#[test]
fn names_are_made_while_a_change_by_a_call_waits_for_earlier_ones() {
    for renames in [false, true] {
        run(9, |env| async move {
            let scene = Scene::durable(&env).await;
            let a = scene.client("a").await;
            let directory = alone(&a.client).await;
            fill(&a.client, directory, 2..300).await;
            let client = a.client.clone();
            let change = env.spawn(async move {
                let (from, to) = ((directory, &b"n0"[..]), (directory, &b"n1"[..]));
                match renames {
                    true => client.rename(from, to, Rename::Replace).await,
                    false => client.unlink(directory, b"n0").await,
                }
            });
            // It is about to send the names that wait.
            env.sleep(Duration::from_micros(20)).await;
            let before = calls(&a.client);
            fill(&a.client, directory, 300..400).await;
            assert_eq!(calls(&a.client), before, "renames: {renames}");
            change.await.unwrap().unwrap();
            assert_eq!(names(&a.client, directory).await.len(), 399);
        });
    }
}

#[test]
fn it_survives_the_server_and_not_its_client() {
    for (seed, left) in (5..).zip([Shape::Nothing, Shape::Everything]) {
        run(seed, |env| async move {
            let mut scene = Scene::durable(&env).await;
            let (a, b) = (scene.client("a").await, scene.client("b").await);
            let directory = alone(&a.client).await;
            // Some were sent and are kept, some were sent without an answer, some were not sent.
            fill(&a.client, directory, 2..600).await;
            env.sleep(Duration::from_millis(10)).await;
            assert!(a.client.status().kept > 0 && a.client.status().unsent == 0);
            fill(&a.client, directory, 600..1200).await;
            env.sleep(Duration::from_micros(50)).await;
            fill(&a.client, directory, 1200..1210).await;
            assert_eq!(a.client.status().unsent, 610);
            scene.crash(left).await;
            fill(&a.client, directory, 1210..1500).await;
            b.client.find(Ino::ROOT, b"d").await.unwrap();
            b.client.reference(directory);
            assert_eq!(names(&b.client, directory).await.len(), 1500);
            assert_eq!(a.client.status().lost, 0);
            // With its machine it goes, as on a local filesystem.
            env.sleep(2 * LEASE).await;
            fill(&a.client, directory, 1500..1510).await;
            a.client.sync(directory, false).await.unwrap();
            fill(&a.client, directory, 1510..1520).await;
            assert!(a.client.status().unsent > 0);
            a.process.kill();
            let found = names(&b.client, directory).await.len();
            assert!((1510..1520).contains(&found), "{found}");
        });
    }
}

#[test]
fn an_evicted_client_says_what_it_has_lost() {
    run(8, |env| async move {
        let scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let directory = alone(&a.client).await;
        a.client.sync_all().await.unwrap();
        let file = make(&a.client, directory, "lost", Node::File).await;
        let (hosts, server) = ([a.host.clone()], [scene.server.clone()]);
        scene.network.part(&hosts, &server);
        b.client.find(Ino::ROOT, b"d").await.unwrap();
        let found = b.client.find(directory, b"lost").await;
        assert!(matches!(found, Err(FsError::NotFound)), "{found:?}");
        scene.network.heal();
        env.sleep(LEASE).await;
        let status = a.client.status();
        assert_eq!((status.evictions, status.unsent), (1, 0));
        assert!(status.lost > 0);
        for ino in [directory, file] {
            let synced = a.client.sync(ino, false).await;
            assert!(matches!(synced, Err(FsError::Store(_))), "{synced:?}");
        }
        let found = a.client.find(Ino::ROOT, b"d").await.unwrap().ino;
        assert_eq!(names(&a.client, found).await.len(), 2);
        a.client.sync(found, false).await.unwrap();
    });
}

#[test]
fn open_files_are_those_of_the_server() {
    run(9, |env| async move {
        let scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (fs, directory) = (&a.client, alone(&a.client).await);
        let file = make(fs, directory, "file", Node::File).await;
        fs.reference(file);
        let handle = fs.open(&Caller::default(), file, WRITING).await.unwrap().handle;
        put(fs, file, "text").await.unwrap();
        b.client.find(Ino::ROOT, b"d").await.unwrap();
        b.client.find(directory, b"file").await.unwrap();
        b.client.unlink(directory, b"file").await.unwrap();
        assert_eq!(text(fs, file).await, "text");
        fs.release(file, handle).await;
    });
}

#[test]
fn a_reader_of_names_gets_no_directory() {
    run(10, |env| async move {
        let scene = Scene::durable(&env).await;
        let a = scene.client("a").await;
        let directory = alone(&a.client).await;
        let list = b"system.posix_acl_default";
        // Its owner, user 9, its group, all of these at most, and others.
        let entries =
            [(1, 7, u32::MAX), (2, 5, 9), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
        let mut acl = 2u32.to_le_bytes().to_vec();
        for (tag, bits, id) in entries {
            acl.extend([u16::to_le_bytes(tag), u16::to_le_bytes(bits)].concat());
            acl.extend(u32::to_le_bytes(id));
        }
        a.client.set_xattr(directory, list, acl.into(), SetXattr::Any).await.unwrap();
        // New files get their list from the directory, which the server knows.
        let refused = fill(&a.client, directory, 2..6).await;
        assert_eq!((refused.len(), a.client.status().unsent), (4, 0));
        let visit = Visit { path: "/d", access: Access::Read };
        let reader = scene.client_as(visit.of("reader")).await.unwrap();
        assert_eq!(names(&reader.client, Ino::ROOT).await.len(), 6);
        let refused = reader.client.create(Ino::ROOT, b"x", &new(Node::File)).await;
        assert!(matches!(refused, Err(FsError::ReadOnly)), "{refused:?}");
    });
}

#[test]
fn with_contents_elsewhere_names_and_bytes_are_sent_in_batches() {
    run(11, |env| async move {
        let scene = Scene::of(&env, Arc::new(elsewhere(&env).await)).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (fs, directory) = (&a.client, alone(&a.client).await);
        let before = calls(fs);
        let made = fill(fs, directory, 2..100).await;
        let change = AttributeChange { mode: Some(0o600), ..Default::default() };
        fs.set_attributes(made[0], &change).await.unwrap();
        put(fs, made[0], "text").await.unwrap();
        assert_eq!(calls(fs), before, "nothing was sent");
        let (far, data) = (WriteAt::Offset(5 << 20), vec!["far".into()]);
        fs.write(made[2], far, data, WriteHow::default()).await.unwrap();
        assert_eq!(calls(fs), before + 2, "a batch and a call");
        let cut = AttributeChange { size: Some(0), ..Default::default() };
        fs.set_attributes(made[1], &cut).await.unwrap();
        b.client.find(Ino::ROOT, b"d").await.unwrap();
        let found = b.client.find(directory, b"n2").await.unwrap();
        assert_eq!((found.mode, found.size), (0o600, 4));
        assert_eq!(text(&b.client, found.ino).await, "text");
        assert_eq!(names(&b.client, directory).await.len(), 100);
        assert_eq!(a.client.status().lost, 0);
    });
}

#[test]
fn of_a_batch_that_does_not_fit_what_fits_counts() {
    run(12, |env| async move {
        let scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (fs, directory) = (&a.client, alone(&a.client).await);
        fs.sync_all().await.unwrap();
        let most = b"thalweg.quota.max_files";
        scene.files.set_xattr(directory, most, "50".into(), SetXattr::Any).await.unwrap();
        // Behind the server's back, so that what the client was promised does not cover it.
        let made = fill(fs, directory, 2..100).await;
        let synced = fs.sync(directory, false).await;
        assert!(matches!(synced, Err(FsError::QuotaExceeded)), "{synced:?}");
        fs.sync(directory, false).await.unwrap();
        b.client.find(Ino::ROOT, b"d").await.unwrap();
        let left = names(&b.client, directory).await;
        assert_eq!(names(fs, directory).await, left);
        let lost = fs.status().lost as usize;
        assert_eq!((lost > 0, left.len() + lost), (true, 100), "{left:?}");
        for (number, ino) in (2..).zip(&made) {
            let is_there = left.contains(&format!("n{number}"));
            assert_eq!(fs.sync(*ino, false).await.is_ok(), is_there, "{number}");
        }
        let refused = fs.create(directory, b"more", &new(Node::File)).await;
        assert!(matches!(refused, Err(FsError::QuotaExceeded)), "{refused:?}");
        assert_eq!(scene.service.status().refused_changes, lost as u64);
        // A directory that lost a name can be renamed.
        fs.rename((Ino::ROOT, b"d"), (Ino::ROOT, b"e"), Rename::Replace).await.unwrap();
    });
}
