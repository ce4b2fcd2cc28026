//! Times and clocks of a client that was away: those of its changes stay, what is written back is compared with the rule of Arion's paper by
//! times (6.2.3, 7.2.5), and wall clocks that are wrong decide nothing.

use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_cluster::client::{self, Client, ConflictScope};
use thalweg_env::Rng;
use thalweg_fs::{AttributeChange, Attributes, Filesystem, Ino, Node, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::{campaign, run};

use crate::absence::{lists, text_at};
use crate::full::alone;
use crate::journal::{Journaled, begin};
use crate::scene::*;

const HOUR: Duration = Duration::from_secs(3600);
/// Nanoseconds of a day.
const DAY: i64 = 24 * 3600 * 1_000_000_000;

async fn attributes(fs: &dyn Filesystem, ino: Ino) -> Attributes {
    fs.attributes(ino).await.unwrap().attributes
}

/// A program such as make or rsync compares times: a change that was written back late was made when it was made.
#[test]
fn what_is_written_back_an_hour_later_has_the_times_of_its_changes() {
    for (conflict, restarts) in [
        (None, false),
        (None, true),
        (Some(ConflictScope::File), false),
        (Some(ConflictScope::File), true),
    ] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            machine.conflict = conflict.unwrap_or_default();
            let (client, file) = begin(&scene, &machine, true).await;
            let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
            let mut inodes = vec![file, directory];
            for name in ["used", "cut", "mode"] {
                let file = make(&client, directory, name, Node::File).await;
                client.reference(file);
                put(&client, file, "old").await.unwrap();
                inodes.push(file);
            }
            let used = inodes.remove(2);
            put(&client, file, "old").await.unwrap();
            client.drain().await.unwrap();
            env.sleep(Duration::from_secs(10)).await;
            let begun = attributes(&client, file).await.modified;
            put(&client, used, "new").await.unwrap();
            for (at, change) in [
                (2, AttributeChange { size: Some(1), ..Default::default() }),
                (3, AttributeChange { mode: Some(0o600), ..Default::default() }),
            ] {
                env.sleep(Duration::from_millis(100)).await;
                client.set_attributes(inodes[at], &change).await.unwrap();
            }
            put(&client, file, "new").await.unwrap();
            env.sleep(Duration::from_millis(100)).await;
            let made = make(&client, directory, "made", Node::File).await;
            client.reference(made);
            inodes.push(made);
            client.sync_all().await.unwrap();
            let mut before = Vec::new();
            for ino in &inodes {
                before.push(attributes(&client, *ino).await);
            }
            assert!(before[0].modified > begun && client.pending().unsent.changes >= 5);
            machine.crash(Shape::Nothing);
            drop(client);
            if conflict.is_some() {
                let visitor = scene.client("other").await;
                assert_eq!(text_at(&visitor.client, "d/used").await.as_deref(), Some("old"));
            }
            if restarts {
                scene.crash(Shape::Nothing).await;
            }
            env.sleep(HOUR).await;
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(lists(&again).await.len(), usize::from(conflict.is_some()));
            for (ino, before) in inodes.iter().zip(before) {
                // A conflict copy is made now, beside the file.
                if conflict.is_some() && *ino == directory {
                    continue;
                }
                let now = attributes(&*scene.files, *ino).await;
                assert_eq!(now.modified, before.modified, "{ino:?}");
                assert_eq!(now.changed, before.changed, "{ino:?}");
            }
        });
    }
}

/// Bytes of each file.
const LEN: usize = 1000;
/// The range of each file that the client writes to.
const OURS: std::ops::Range<usize> = 300..400;

/// What another client does with a file while its owner is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Nothing,
    /// Its attributes.
    Looks,
    Reads,
    /// To bytes that the client has written.
    WritesSame,
    /// To others.
    WritesOther,
    ReadsAndWritesOther,
    Cuts,
    Mode,
}

const USES: [Use; 8] = [
    Use::Nothing,
    Use::Looks,
    Use::Reads,
    Use::WritesSame,
    Use::WritesOther,
    Use::ReadsAndWritesOther,
    Use::Cuts,
    Use::Mode,
];

async fn write(fs: &dyn Filesystem, ino: Ino, at: usize, bytes: Vec<u8>) {
    let data = vec![Bytes::from(bytes)];
    fs.write(ino, WriteAt::Offset(at as u64), data, WriteHow::default()).await.unwrap();
}

async fn use_file(other: &Client, directory: Ino, name: &str, how: Use) {
    if how == Use::Nothing {
        return;
    }
    let file = other.find(directory, name.as_bytes()).await.unwrap().ino;
    other.reference(file);
    let change = match how {
        Use::Cuts => AttributeChange { size: Some(350), ..Default::default() },
        _ => AttributeChange { mode: Some(0o640), ..Default::default() },
    };
    match how {
        Use::Nothing | Use::Looks => drop(other.attributes(file).await.unwrap()),
        Use::Reads => drop(other.read(file, 0, 10).await.unwrap()),
        Use::WritesSame => write(other, file, OURS.start + 50, vec![3; 100]).await,
        Use::WritesOther => write(other, file, OURS.end, vec![3; 100]).await,
        Use::ReadsAndWritesOther => {
            other.read(file, 0, 10).await.unwrap();
            write(other, file, OURS.end, vec![3; 100]).await;
        }
        Use::Cuts | Use::Mode => drop(other.set_attributes(file, &change).await.unwrap()),
    }
}

/// By how many nanoseconds wall clocks jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Jumps {
    /// The client's, before it makes its changes, and in its reboot.
    changes: i64,
    reboots: i64,
    /// The server's, while the client is away.
    server: i64,
}

impl Jumps {
    fn by_chance(rng: &mut Rng) -> Jumps {
        let mut one = || DAY * rng.random_range(-1..=1);
        Jumps { changes: one(), reboots: one(), server: one() }
    }
}

/// The paper's rule: what the server has is no newer than what the client had with its change.
fn paper_keeps(journal: &Attributes, server: &Attributes) -> bool {
    journal.modified >= server.modified
        && journal.changed >= server.changed
        && journal.accessed >= server.accessed
}

/// Of one file: how it was used, and whether the client's change is in it, and would be by the paper's rule.
struct Outcome {
    how: Use,
    is_ours: bool,
    is_papers: bool,
}

/// Makes files that the server has, and then changes of all of them; the files, and their attributes after that.
async fn go_away(
    scene: &Scene,
    machine: &Journaled,
    count: usize,
    jump: i64,
) -> (Vec<Ino>, Vec<Attributes>) {
    let (env, mut rng) = (&scene.env, scene.env.rng());
    let client = machine.mount(scene, true).await.unwrap();
    let directory = alone(&client, "d").await;
    let (mut files, mut journal) = (Vec::new(), Vec::new());
    for number in 0..count {
        let file = make(&client, directory, &format!("f{number}"), Node::File).await;
        client.reference(file);
        write(&client, file, 0, vec![1; LEN]).await;
        files.push(file);
    }
    client.drain().await.unwrap();
    env.sleep(Duration::from_millis(rng.random_range(1..3000))).await;
    machine.process.shift_wall_clock(jump);
    for file in &files {
        write(&client, *file, OURS.start, vec![2; OURS.len()]).await;
        journal.push(attributes(&client, *file).await);
        env.sleep(Duration::from_micros(rng.random_range(1..50_000))).await;
    }
    client.sync_all().await.unwrap();
    assert!(client.pending().unsent.changes >= count as u64);
    (files, journal)
}

/// Lets a client change files and go away, another one use them, and the first one come back.
fn come_and_go(seed: u64, jumps: Option<Jumps>) -> Vec<Outcome> {
    run(seed, move |env| async move {
        let (mut scene, mut rng) = (Scene::durable(&env).await, env.rng());
        let mut machine = Journaled::new(&scene, "a").await;
        machine.conflict = ConflictScope::File;
        let visitor = scene.client("other").await;
        let jumps = jumps.unwrap_or_default();
        // No clock comes before 1970.
        scene.shift_wall_clock(3 * DAY);
        machine.process.shift_wall_clock(3 * DAY);
        visitor.process.shift_wall_clock(3 * DAY);
        let uses: Vec<Use> = (0..12).map(|_| USES[rng.random_range(0..USES.len())]).collect();
        let (files, journal) = go_away(&scene, &machine, uses.len(), jumps.changes).await;
        machine.crash(Shape::Nothing);
        let wall = 3 * DAY + jumps.changes + jumps.reboots;
        machine.process.shift_wall_clock(wall.max(0));
        let restarts = jumps == Jumps::default() && rng.random_bool(0.3);
        if restarts {
            scene.crash(Shape::Nothing).await;
            scene.shift_wall_clock(3 * DAY);
        }
        env.sleep(Duration::from_millis(rng.random_range(0..20_000))).await;
        scene.shift_wall_clock(jumps.server);
        let other = &visitor.client;
        let seen = other.find(Ino::ROOT, b"d").await.unwrap().ino;
        other.reference(seen);
        for (number, how) in uses.iter().enumerate() {
            use_file(other, seen, &format!("f{number}"), *how).await;
            env.sleep(Duration::from_millis(rng.random_range(1..200))).await;
        }
        other.sync_all().await.unwrap();
        let mut server = Vec::new();
        for file in &files {
            server.push(attributes(&*scene.files, *file).await);
        }
        let again = machine.mount(&scene, true).await.unwrap();
        let mut outcomes = Vec::new();
        for (at, how) in uses.into_iter().enumerate() {
            let bytes = other.find(seen, format!("f{at}").as_bytes()).await.unwrap().ino;
            let bytes = other.read(bytes, 0, LEN).await.unwrap().concat();
            let ours = bytes.iter().filter(|it| **it == 2).count();
            assert!(ours == 0 || ours == OURS.len(), "a part of a change: {ours}");
            let is_papers = paper_keeps(&journal[at], &server[at]);
            outcomes.push(Outcome { how, is_ours: ours > 0, is_papers });
        }
        let away = outcomes.iter().filter(|it| !it.is_ours).count();
        let entries: usize = lists(&again).await.iter().map(|set| set.entries.len()).sum();
        assert_eq!(entries, away, "each change is in its file, or in a conflict copy");
        assert_eq!(again.status().evictions, 0);
        outcomes
    })
}

/// What `conflict=file` writes back, and what the paper's rule by times would.
#[test]
fn no_file_is_written_back_that_the_papers_rule_discards_but_beside_other_bytes() {
    let (mut both, mut stricter, mut beside) = (0, 0, 0);
    for seed in campaign::seeds(60) {
        for Outcome { how, is_ours, is_papers } in come_and_go(seed, None) {
            match how {
                Use::Nothing => assert!(is_ours && is_papers, "{seed}: {is_ours} {is_papers}"),
                Use::WritesOther => assert!(is_ours && !is_papers, "{seed}: {is_ours}"),
                _ => assert!(!is_ours || is_papers, "{seed}: {how:?}"),
            }
            both += usize::from(is_ours == is_papers);
            stricter += usize::from(is_papers && !is_ours);
            beside += usize::from(is_ours && !is_papers);
        }
    }
    println!("{both} alike, {stricter} only by the paper's rule, {beside} beside bytes of others");
    assert!(both > 300 && beside > 30);
}

/// A machine whose wall clock is a day off, or jumps by a day, writes back what no client has used, and nothing else. Times alone would say otherwise.
#[test]
fn wall_clocks_that_jump_decide_nothing() {
    let (mut overwritten, mut dropped) = (0, 0);
    for seed in campaign::seeds(80) {
        let jumps = run(seed, |env| async move { Jumps::by_chance(&mut env.rng()) });
        for Outcome { how, is_ours, is_papers } in come_and_go(seed, Some(jumps)) {
            match how {
                Use::Nothing | Use::WritesOther => assert!(is_ours, "{seed}: {jumps:?} {how:?}"),
                Use::Looks => {}
                _ => assert!(!is_ours, "{seed}: {jumps:?} {how:?}"),
            }
            let is_used = !matches!(how, Use::Nothing | Use::Looks | Use::WritesOther);
            overwritten += usize::from(is_used && is_papers);
            dropped += usize::from(how == Use::Nothing && !is_papers);
        }
    }
    println!("by times {overwritten} would be lost at others, and {dropped} of the client");
    assert!(overwritten > 10 && dropped > 10, "the clocks differ too little");
}

/// A jump of a wall clock ends no session, makes no lease longer or shorter, and holds no commit up.
#[test]
fn leases_and_commits_do_not_follow_the_wall_clock() {
    for jump in [-DAY, DAY] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            scene.shift_wall_clock(3 * DAY);
            machine.process.shift_wall_clock(3 * DAY);
            let (client, file) = begin(&scene, &machine, true).await;
            put(&client, file, "old").await.unwrap();
            client.drain().await.unwrap();
            for side in 0..2 {
                put(&client, file, "early").await.unwrap();
                match side {
                    0 => machine.process.shift_wall_clock(jump),
                    _ => scene.shift_wall_clock(jump),
                }
                assert!(client.pending().unsent.changes > 0);
                env.sleep(2 * EXPIRE).await;
                assert_eq!((client.status().evictions, client.status().lost), (0, 0));
            }
            put(&client, file, "newer").await.unwrap();
            let commit = client::Options::default().commit;
            env.sleep(commit + commit / 10).await;
            machine.crash(Shape::Nothing);
            drop(client);
            let visitor = scene.client("other").await;
            let begun = env.now();
            let seen = text_at(&visitor.client, "d/file").await;
            let took = env.now().since(begun);
            assert!((LEASE / 2..2 * LEASE).contains(&took), "{took:?}");
            let again = machine.mount(&scene, true).await.unwrap();
            assert_ne!(seen.as_deref(), Some("newer"));
            let sets = lists(&again).await;
            let copy = sets[0].entries[0].copy.as_deref().unwrap();
            assert_eq!(text_at(&again, &copy[1..]).await.as_deref(), Some("newer"));
        });
    }
}
