//! Lives of a client with a journal that goes away, with power cuts at any point, and of other clients that go on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_cluster::client::{Client, ConflictScope};
use thalweg_cluster::conflicts::{ConflictEntry, ConflictKind, ConflictSet};
use thalweg_env::Rng;
use thalweg_fs::{Cookie, Filesystem, Ino, Kind, WriteAt, WriteHow};
use thalweg_sim::{campaign, run};

use crate::absence::{come_back, lists};
use crate::journal::Journaled;
use crate::journal_crashes::{
    self, History, State, Tally, bystander, found, has_objects, left, len_of, recover,
};
use crate::scene::*;

/// What another client does in a directory while its owner is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Foreign {
    Nothing,
    Lists,
    Reads,
    Writes,
    /// It reads one file.
    ReadsOne,
    /// It writes to one file, and reads nothing.
    WritesOne,
}

impl Foreign {
    const ALL: [Foreign; 6] = [
        Foreign::Nothing,
        Foreign::Lists,
        Foreign::Reads,
        Foreign::Writes,
        Foreign::ReadsOne,
        Foreign::WritesOne,
    ];

    fn is_one(self) -> bool {
        matches!(self, Foreign::ReadsOne | Foreign::WritesOne)
    }
}

/// By names of files, offsets and bytes of ranges.
pub(crate) type Ranges = BTreeMap<String, Vec<(u64, Vec<u8>)>>;

/// Bytes that other clients have written.
const THEIRS: u8 = 0;

/// What others find, and have written.
struct Seen {
    /// Before they changed something. Of all files, or one.
    before: State,
    written: Option<String>,
    /// The file that they have used, if it is one.
    one: Option<String>,
}

async fn use_it(other: &Client, directory: Ino, what: Foreign, rng: &mut Rng) -> Option<Seen> {
    let names: Vec<Bytes> = match what {
        Foreign::Nothing => return None,
        _ => {
            let all = other.read_directory(directory, Cookie::START, 1000, false).await.unwrap();
            all.into_iter().filter(|it| it.kind == Kind::File).map(|it| it.name).collect()
        }
    };
    if what == Foreign::Lists || names.is_empty() {
        return None;
    }
    let name = &names[rng.random_range(0..names.len())];
    let text = String::from_utf8(name.to_vec()).unwrap();
    let before = match what {
        Foreign::WritesOne => State::new(),
        Foreign::ReadsOne => {
            let file = other.find(directory, name).await.unwrap();
            other.reference(file.ino);
            let bytes = other.read(file.ino, 0, 1 << 20).await.unwrap().concat();
            other.unreference(file.ino, 1);
            State::from([(text.clone(), Some(Arc::new(bytes)))])
        }
        _ => found(other, directory).await,
    };
    let mut written = None;
    if matches!(what, Foreign::Writes | Foreign::WritesOne) {
        let file = other.find(directory, name).await.unwrap().ino;
        other.reference(file);
        let data = vec![Bytes::from(vec![THEIRS; 20_000])];
        other.write(file, WriteAt::Offset(0), data, WriteHow::default()).await.unwrap();
        other.sync(file, false).await.unwrap();
        other.unreference(file, 1);
        written = Some(text.clone());
    }
    Some(Seen { before, written, one: what.is_one().then_some(text) })
}

/// The state that the files at the server and the conflict copies come to, without a file that other clients have written; the bytes of
/// that in the copy; and its name.
pub(crate) async fn merged(
    client: &Client,
    directory: Ino,
    sets: &[ConflictSet],
    written: Option<&String>,
) -> (State, Ranges, Option<String>) {
    // A file that was open without a name has no path.
    let entries = sets.iter().flat_map(|set| &set.entries).filter(|it| it.path.is_some());
    let entries: Vec<&ConflictEntry> = entries.collect();
    let base = |path: &String| path.rsplit('/').next().unwrap().to_owned();
    let all = found(client, directory).await;
    let mut state = all.clone();
    for entry in &entries {
        entry.copy.iter().for_each(|copy| drop(state.remove(&base(copy))));
        if entry.removed || entry.renamed.is_some() {
            state.remove(&base(entry.path.as_ref().unwrap()));
        }
    }
    let (mut ranges, mut name) = (Ranges::new(), written.cloned());
    for entry in entries {
        let path = base(entry.path.as_ref().unwrap());
        let is_written = written == Some(&path) && entry.kind != ConflictKind::New;
        let last = if entry.removed {
            None
        } else {
            entry.renamed.as_ref().map(base).or(Some(path.clone()))
        };
        if is_written {
            name = last.clone();
        }
        let copy = entry.copy.as_ref().map(|copy| all[&base(copy)].clone());
        let Some(last) = last else { continue };
        if entry.kind == ConflictKind::Ranges {
            assert!(is_written, "no other client has written to {path}");
            let bytes = copy.flatten().unwrap();
            let parts = entry.ranges.iter();
            let parts =
                parts.map(|(at, len)| (*at, bytes[*at as usize..(*at + *len) as usize].to_vec()));
            ranges.insert(last, parts.collect());
            continue;
        }
        if let Some(content) = copy.or_else(|| all.get(&path).cloned()) {
            state.insert(last.clone(), content.clone());
            entry.linked.iter().for_each(|it| drop(state.insert(base(it), content.clone())));
        }
    }
    name.iter().for_each(|name| drop(state.remove(name)));
    (state, ranges, name)
}

/// Everything that was synced is at the server or in a conflict copy.
pub(crate) fn check_all(
    what: &str,
    history: &History,
    (now, ranges, written): (State, Ranges, Option<String>),
) {
    let fits = |state: &State| {
        let mut state = state.clone();
        for (name, parts) in &ranges {
            let Some(Some(bytes)) = state.get(name) else { return false };
            for (at, part) in parts {
                let at = *at as usize;
                if bytes.get(at..at + part.len()) != Some(&part[..]) {
                    return false;
                }
            }
        }
        written.iter().for_each(|written| drop(state.remove(written)));
        state == now
    };
    let at = history.states.iter().rposition(fits);
    let differs = |state: &State| -> Vec<String> {
        let names = state.keys().chain(now.keys()).collect::<BTreeSet<_>>().into_iter();
        let wrong = names.filter(|name| state.get(*name) != now.get(*name));
        let shown = |name: &String| {
            let len = |state: &State| state.get(name).map(len_of);
            format!("{name}: {:?} {:?}", len(state), len(&now))
        };
        wrong.map(shown).collect()
    };
    let nearest = history.states.iter().map(differs).enumerate().min_by_key(|it| it.1.len());
    assert!(
        at.is_some_and(|at| at >= history.synced),
        "{what}: it is {at:?} of {}, of which {} was synced; the nearest is {nearest:?}, with {written:?} and {:?}",
        history.states.len(),
        history.synced,
        ranges.keys()
    );
}

/// How a client goes away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaves {
    Crashes,
    /// The network is cut, and the client lives on.
    IsCut,
}

/// The client goes away; it is still there if it was cut off.
fn leave(
    scene: &Scene,
    machine: &mut Journaled,
    client: Client,
    leaves: Leaves,
    rng: &mut Rng,
) -> Option<Client> {
    match leaves {
        Leaves::Crashes => {
            machine.crash(left(rng));
            None
        }
        Leaves::IsCut => {
            scene.network.part(&[machine.host()], std::slice::from_ref(&scene.server));
            Some(client)
        }
    }
}

/// What other clients have seen is not changed behind their backs.
async fn check_seen(other: &Client, directory: Ino, seen: Option<&Seen>) {
    let Some(Seen { before, written, .. }) = seen else { return };
    let now = found(other, directory).await;
    for (name, bytes) in before.iter().filter(|(name, _)| Some(*name) != written.as_ref()) {
        assert!(now.get(name) == Some(bytes), "{name} has changed");
    }
}

/// If other clients have used one file, all other files are written back.
fn check_others(name: &str, seen: Option<&Seen>, entries: &[&ConflictEntry]) {
    let Some(one) = seen.and_then(|seen| seen.one.as_ref()) else { return };
    let path = format!("/top/d/{one}");
    let is_one = |it: &&ConflictEntry| it.path.as_ref() == Some(&path);
    assert!(entries.iter().all(is_one), "{name}: {one} was used, and not {entries:?}");
}

fn live(seed: u64, leaves: Leaves, conflict: ConflictScope) -> (Tally, usize, usize) {
    run(seed, move |env| async move {
        let mut scene = Scene::either(&env, options(), has_objects(seed)).await;
        let mut rng = env.rng();
        let mut tally = Tally::default();
        let (visitor, top) = bystander(&scene).await;
        let other = visitor.client.clone();
        let mut machine = Journaled::new(&scene, "a").await;
        machine.conflict = conflict;
        let client = machine.mount(&scene, rng.random_bool(0.7)).await.unwrap();
        let mut program = journal_crashes::begin(&machine, &client, "d").await;
        program.renames = rng.random_bool(0.5);
        // Copies are compared by their bytes.
        program.sets_xattrs = false;
        let renames = program.renames;
        let history: Arc<_> = program.history.clone();
        let working = machine.process.env().spawn(async move {
            loop {
                program.step().await;
            }
        });
        env.sleep(Duration::from_millis(rng.random_range(50..4000))).await;
        if rng.random_bool(0.3) {
            scene.crash(left(&mut rng)).await;
            env.sleep(Duration::from_millis(rng.random_range(0..500))).await;
        }
        drop(working);
        let client = leave(&scene, &mut machine, client, leaves, &mut rng);
        let what = Foreign::ALL[rng.random_range(0..Foreign::ALL.len())];
        if rng.random_bool(0.5) {
            env.sleep(EXPIRE + LEASE).await;
        }
        if rng.random_bool(0.3) {
            scene.crash(left(&mut rng)).await;
        }
        let directory = other.find(top, b"d").await.unwrap().ino;
        other.reference(directory);
        let seen = use_it(&other, directory, what, &mut rng).await;
        let name = format!("seed {seed}, {what:?}");
        let written = seen.as_ref().and_then(|seen| seen.written.clone());
        if let Some(Seen { before, one: None, .. }) = &seen {
            let seen = history.lock().position_of(before, has_objects(seed));
            assert!(seen.is_some(), "{name}: others see no prefix");
        }
        if rng.random_bool(0.3) {
            scene.crash(left(&mut rng)).await;
        }
        let recovered = match client {
            Some(client) => {
                come_back(&scene, &client).await;
                client
            }
            None => recover(&mut scene, &mut machine, &mut rng, &mut tally).await,
        };
        let sets = lists(&recovered).await;
        let entries: Vec<_> = sets.iter().flat_map(|set| &set.entries).collect();
        check_seen(&other, directory, seen.as_ref()).await;
        if matches!(what, Foreign::Nothing | Foreign::Lists) {
            assert!(sets.is_empty(), "{name}: {sets:?}");
        }
        if conflict == ConflictScope::File && !renames {
            check_others(&name, seen.as_ref(), &entries);
        }
        let copies = entries.iter().filter(|entry| entry.copy.is_some()).count();
        let all = merged(&other, directory, &sets, written.as_ref()).await;
        check_all(&name, &history.lock(), all);
        recovered.close().await;
        (tally, sets.len(), copies)
    })
}

#[test]
fn what_was_synced_is_at_the_server_or_in_a_copy() {
    let (mut crashes, mut sets, mut copies) = (0, 0, 0);
    for seed in campaign::seeds(60) {
        let (tally, some, few) = live(seed, Leaves::Crashes, ConflictScope::Prefix);
        crashes += tally.client_crashes + tally.server_crashes;
        (sets, copies) = (sets + some, copies + few);
    }
    println!("{crashes} crashes in recoveries, {sets} conflict sets with {copies} copies");
    assert!(crashes > 10 && sets > 5 && copies > 10);
}

#[test]
fn a_client_that_was_cut_off_goes_on_with_its_journal() {
    let (mut sets, mut copies) = (0, 0);
    for seed in campaign::seeds(60) {
        let (_, some, few) = live(seed, Leaves::IsCut, ConflictScope::Prefix);
        (sets, copies) = (sets + some, copies + few);
    }
    println!("{sets} conflict sets with {copies} copies");
    assert!(sets > 5 && copies > 10);
}

#[test]
fn file_by_file_what_was_synced_is_at_the_server_or_in_a_copy() {
    let (mut crashes, mut sets, mut copies) = (0, 0, 0);
    for seed in campaign::seeds(100) {
        let leaves = if seed % 4 == 0 { Leaves::IsCut } else { Leaves::Crashes };
        let (tally, some, few) = live(seed, leaves, ConflictScope::File);
        crashes += tally.client_crashes + tally.server_crashes;
        (sets, copies) = (sets + some, copies + few);
    }
    println!("{crashes} crashes in recoveries, {sets} conflict sets with {copies} copies");
    assert!(crashes > 10 && sets > 5 && copies > 10);
}
