//! Directories that are one client's alone: it lists them, says where they are and moves them by itself, and says how full the filesystem is with
//! what waits.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rand::RngExt;
use thalweg_cluster::client::Client;
use thalweg_env::Env;
use thalweg_fs::{Cookie, Entry, Filesystem, FsError, Ino, Kind, Node, Rename, WriteAt, WriteHow};
use thalweg_sim::{campaign, run};

use crate::scene::*;

/// A directory of this client alone: two names were made there by calls.
async fn alone(client: &Client, name: &str) -> Ino {
    let directory = make(client, Ino::ROOT, name, Node::Directory).await;
    client.reference(directory);
    for name in ["one", "two"] {
        make(client, directory, name, Node::File).await;
    }
    directory
}

/// All entries of a directory, so many at a time.
async fn list(fs: &dyn Filesystem, directory: Ino, most: usize, attributes: bool) -> Vec<Entry> {
    let (mut all, mut from) = (Vec::new(), Cookie::START);
    loop {
        let some = fs.read_directory(directory, from, most, attributes).await.unwrap();
        let Some(last) = some.last() else { return all };
        assert!(some.len() <= most && some.is_sorted_by_key(|entry| entry.cookie));
        from = last.cookie;
        all.extend(some);
    }
}

fn names(entries: &[Entry]) -> Vec<String> {
    let name = |it: &Entry| String::from_utf8(it.name.to_vec()).unwrap();
    let mut names: Vec<String> = entries.iter().map(name).collect();
    names.sort();
    names
}

async fn rename(client: &Client, from: (Ino, &str), to: (Ino, &str)) -> Result<(), FsError> {
    client.rename((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), Rename::Replace).await
}

#[test]
fn a_directory_of_ones_own_is_listed_without_a_call() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let top = alone(a, "d").await;
        let below = make(a, top, "below", Node::Directory).await;
        let mut made = BTreeMap::new();
        for number in 0..300_u64 {
            let node = if number % 3 == 0 { Node::Directory } else { Node::File };
            let name = format!("n{number}");
            made.insert(name.clone(), (make(a, below, &name, node.clone()).await, node.kind()));
        }
        let file = made["n1"].0;
        put(a, file, "text").await.unwrap();
        a.unlink(below, b"n2").await.unwrap();
        made.remove("n2");
        rename(a, (below, "n4"), (below, "other")).await.unwrap();
        let moved = made.remove("n4").unwrap();
        made.insert("other".into(), moved);
        let (before, unsent) = (calls(a), a.status().unsent);
        let wanted: Vec<String> = made.keys().cloned().collect();
        for (most, attributes) in [(1, false), (7, true), (128, true), (1000, false)] {
            let entries = list(a, below, most, attributes).await;
            assert_eq!(names(&entries), wanted);
            for entry in &entries {
                let (ino, kind) = made[std::str::from_utf8(&entry.name).unwrap()];
                assert_eq!((entry.ino, entry.kind), (ino, kind));
                let shown = entry.attributes.map(|it| (it.attributes.ino, it.attributes.kind));
                assert_eq!(shown, attributes.then_some((ino, kind)));
            }
            if attributes {
                let shown = entries.iter().find(|entry| entry.ino == file).unwrap().attributes;
                assert_eq!(shown.unwrap().attributes.size, 4);
            }
        }
        assert!(list(a, made["n0"].0, 10, true).await.is_empty());
        assert_eq!(a.parent(below).await.unwrap(), top);
        assert_eq!(a.parent(made["n0"].0).await.unwrap(), below);
        assert_eq!((calls(a), a.status().unsent), (before, unsent));
        // What was there before this client had it to itself is the server's to say, which gets nothing for that.
        assert_eq!(a.parent(top).await.unwrap(), Ino::ROOT);
        assert_eq!(a.status().unsent, unsent);
        b.find(Ino::ROOT, b"d").await.unwrap();
        b.find(top, b"below").await.unwrap();
        assert_eq!(names(&list(b, below, 100, false).await), wanted);
        assert_eq!(names(&list(a, below, 100, false).await), wanted);
        assert_eq!(a.status().lost, 0);
    });
}

/// A directory of a client in which names come and go, while another client looks at it.
struct Lively {
    env: Env,
    rng: thalweg_env::Rng,
    machines: [Machine; 2],
    top: Ino,
    there: BTreeSet<String>,
    /// Names that were there throughout a listing, and all that were there meanwhile.
    stays: BTreeSet<String>,
    ever: BTreeSet<String>,
    next: u32,
}

impl Lively {
    async fn new(env: &Env, scene: &Scene) -> Lively {
        let machines = [scene.client("a").await, scene.client("b").await];
        let top = alone(&machines[0].client, "d").await;
        let there: BTreeSet<String> = ["one", "two"].map(String::from).into();
        let (stays, ever, next) = Default::default();
        let (env, rng) = (env.clone(), env.rng());
        let mut lively = Lively { env, rng, machines, top, there, stays, ever, next };
        for _ in 0..lively.rng.random_range(5..60) {
            lively.make(0).await;
        }
        lively
    }

    fn new_name(&mut self) -> String {
        self.next += 1;
        format!("n{}", self.next)
    }

    fn comes(&mut self, name: String) {
        self.ever.insert(name.clone());
        self.there.insert(name);
    }

    fn goes(&mut self, name: &str) {
        self.there.remove(name);
        self.stays.remove(name);
    }

    async fn make(&mut self, by: usize) {
        let name = self.new_name();
        make(&self.machines[by].client, self.top, &name, Node::File).await;
        self.comes(name);
    }

    async fn change(&mut self) {
        let (a, b) = (self.machines[0].client.clone(), self.machines[1].client.clone());
        let some = self.there.iter().nth(self.rng.random_range(0..self.there.len())).cloned();
        let some = some.filter(|_| self.there.len() > 1);
        match (self.rng.random_range(0..8), some) {
            (0..3, _) => self.make(0).await,
            (3, Some(name)) => {
                a.unlink(self.top, name.as_bytes()).await.unwrap();
                self.goes(&name);
            }
            (4, Some(name)) => {
                let new = self.new_name();
                rename(&a, (self.top, &name), (self.top, &new)).await.unwrap();
                self.goes(&name);
                self.comes(new);
            }
            (5, _) => a.sync_all().await.unwrap(),
            (6, _) => {
                b.find(Ino::ROOT, b"d").await.unwrap();
                b.reference(self.top);
                let seen = names(&list(&b, self.top, 50, false).await);
                assert_eq!(BTreeSet::from_iter(seen), self.there);
            }
            (7, _) if self.rng.random_bool(0.3) => {
                b.find(Ino::ROOT, b"d").await.unwrap();
                self.make(1).await;
            }
            _ => self.env.sleep(LEASE / 4).await,
        }
    }

    /// A listing that goes on meanwhile.
    async fn list(&mut self) {
        (self.stays, self.ever) = (self.there.clone(), self.there.clone());
        let (mut seen, mut from) = (BTreeMap::new(), Cookie::START);
        loop {
            let (most, attributes) = (self.rng.random_range(1..12), self.rng.random_bool(0.5));
            let a = &self.machines[0].client;
            let some = a.read_directory(self.top, from, most, attributes).await.unwrap();
            let Some(last) = some.last() else { break };
            from = last.cookie;
            for name in names(&some) {
                *seen.entry(name).or_insert(0) += 1;
            }
            for _ in 0..self.rng.random_range(0..3) {
                self.change().await;
            }
        }
        for (name, times) in &seen {
            assert!(*times == 1 && self.ever.contains(name), "{name}: {times}");
        }
        let missing = self.stays.iter().find(|it| !seen.contains_key(*it));
        assert!(missing.is_none(), "{missing:?}");
    }
}

#[test]
fn an_entry_that_is_there_throughout_is_listed_once() {
    for seed in campaign::seeds(60) {
        run(seed, |env| async move {
            let scene = Scene::durable(&env).await;
            let mut lively = Lively::new(&env, &scene).await;
            for _ in 0..3 {
                lively.list().await;
            }
            let [a, b] = lively.machines.each_ref().map(|it| &it.client);
            assert_eq!(names(&list(a, lively.top, 10, true).await), Vec::from_iter(lively.there));
            assert_eq!((a.status().lost, b.status().lost), (0, 0));
        });
    }
}

#[test]
fn what_waits_counts_in_how_full_the_filesystem_is() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = scene.client("a").await;
        let a = &machine.client;
        let top = alone(a, "d").await;
        a.sync_all().await.unwrap();
        let before = a.statistics().await.unwrap();
        let file = make(a, top, "file", Node::File).await;
        for at in 0..10 {
            let data = vec![Bytes::from(vec![1; 4096])];
            a.write(file, WriteAt::Offset(4096 * at), data, WriteHow::default()).await.unwrap();
        }
        let again = vec![Bytes::from(vec![2; 4096])];
        a.write(file, WriteAt::Offset(0), again, WriteHow::default()).await.unwrap();
        let unsent = a.status().unsent;
        let waiting = a.statistics().await.unwrap();
        assert_eq!(a.status().unsent, unsent);
        assert_eq!(waiting.inodes, (before.inodes.0 + 1, before.inodes.1));
        assert_eq!(waiting.free, before.free - 10);
        a.sync_all().await.unwrap();
        assert_eq!(a.statistics().await.unwrap(), waiting);
        // What becomes free is free at once.
        a.unlink(top, b"file").await.unwrap();
        assert!(a.status().unsent > 0);
        let freed = a.statistics().await.unwrap();
        assert_eq!(a.status().unsent, 0);
        assert!(freed.inodes.0 <= waiting.inodes.0 && freed.free >= waiting.free, "{freed:?}");
    });
}

#[test]
fn directories_move_without_a_call() {
    run(2, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let top = alone(a, "d").await;
        let left = make(a, top, "left", Node::Directory).await;
        let right = make(a, top, "right", Node::Directory).await;
        let inner = make(a, left, "inner", Node::Directory).await;
        let file = make(a, inner, "file", Node::File).await;
        put(a, file, "text").await.unwrap();
        make(a, top, "plain", Node::File).await;
        let before = calls(a);
        rename(a, (left, "inner"), (right, "moved")).await.unwrap();
        assert_eq!(a.parent(inner).await.unwrap(), right);
        rename(a, (top, "left"), (inner, "deeper")).await.unwrap();
        assert_eq!(a.parent(left).await.unwrap(), inner);
        a.rename((right, b"moved"), (top, b"plain"), Rename::Exchange).await.unwrap();
        assert_eq!(a.parent(inner).await.unwrap(), top);
        put(a, file, "more").await.unwrap();
        assert_eq!(calls(a), before);
        let mut known = Vec::new();
        for ino in [top, right, inner, left, file] {
            known.push(a.attributes(ino).await.unwrap().attributes);
        }
        // It would lie below itself.
        for (from, to) in [((top, "plain"), left), ((top, "plain"), inner)] {
            let refused = rename(a, from, (to, "x")).await;
            assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
        }
        assert_eq!((a.status().lost, scene.service.status().refused_changes), (0, 0));
        b.find(Ino::ROOT, b"d").await.unwrap();
        assert_eq!(b.find(top, b"plain").await.unwrap().ino, inner);
        assert_eq!(b.find(inner, b"deeper").await.unwrap().ino, left);
        assert_eq!(b.find(top, b"right").await.unwrap().ino, right);
        assert_eq!(names(&list(b, right, 10, false).await), ["moved"]);
        assert_eq!(b.find(inner, b"file").await.unwrap().ino, file);
        b.reference(file);
        for known in known {
            assert_eq!(b.attributes(known.ino).await.unwrap().attributes, known);
        }
        assert_eq!(text(b, file).await, "more");
        assert_eq!(b.parent(left).await.unwrap(), inner);
    });
}

/// The names of all directories below one, each with the directory that it is in, as a client finds them.
async fn tree(client: &Client, top: Ino) -> BTreeMap<Ino, Ino> {
    let (mut found, mut open) = (BTreeMap::new(), vec![top]);
    while let Some(directory) = open.pop() {
        for entry in list(client, directory, 50, true).await {
            if entry.kind == Kind::Directory {
                assert!(found.insert(entry.ino, directory).is_none(), "it has two names");
                assert_eq!(client.parent(entry.ino).await.unwrap(), directory);
                open.push(entry.ino);
            }
        }
    }
    found
}

/// Two programs move directories at the same time, each of which may have become a place below the other one.
#[test]
fn no_directory_comes_to_lie_below_itself() {
    for seed in campaign::seeds(40) {
        run(seed, |env| async move {
            let scene = Scene::durable(&env).await;
            let machines = (scene.client("a").await, scene.client("b").await);
            let (a, b) = (&machines.0.client, &machines.1.client);
            let top = alone(a, "d").await;
            let mut all = vec![top];
            for number in 0..8 {
                all.push(make(a, top, &format!("n{number}"), Node::Directory).await);
            }
            let programs = (0..3_u64).map(|program| {
                let (a, all, env) = (a.clone(), all.clone(), env.clone());
                let mut rng = env.rng();
                env.clone().spawn(async move {
                    for _ in 0..30 {
                        let (which, to) =
                            (rng.random_range(1..all.len()), rng.random_range(0..all.len()));
                        let name = format!("n{}", which - 1);
                        let parent = a.parent(all[which]).await.unwrap();
                        // Another program may have moved it meanwhile.
                        match rename(&a, (parent, &name), (all[to], &name)).await {
                            Ok(()) | Err(FsError::Invalid(_) | FsError::NotFound) => {}
                            Err(FsError::NotEmpty | FsError::Exists) => {}
                            Err(error) => panic!("program {program}: {error}"),
                        }
                        if rng.random_bool(0.2) {
                            env.sleep(std::time::Duration::from_micros(rng.random_range(0..300)))
                                .await;
                        }
                    }
                })
            });
            for program in programs.collect::<Vec<_>>() {
                program.await.unwrap();
            }
            let seen = tree(a, top).await;
            assert_eq!(seen.len(), 8);
            a.sync_all().await.unwrap();
            assert_eq!((a.status().lost, scene.service.status().refused_changes), (0, 0));
            b.find(Ino::ROOT, b"d").await.unwrap();
            b.reference(top);
            assert_eq!(tree(b, top).await, seen);
        });
    }
}
