//! The visible state of a filesystem, and the states that a crash may leave.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use thalweg_fs::local::LocalFs;
use thalweg_fs::{Filesystem, FsError, Ino, Kind};
use thalweg_store::block::BLOCK_SIZE;

use super::rig::Promise;
use crate::support::*;

/// Bytes of a file that are looked at: more than any has, unless its size was scribbled on.
const MOST: u64 = 1 << 20;

/// All metadata of an inode: attributes, the target of a link, extended attributes.
type Metadata = (String, Vec<u8>, Vec<(Bytes, Bytes)>);

/// A state.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct State {
    /// By path.
    pub(crate) metadata: BTreeMap<String, Metadata>,
    /// The bytes of files that have names.
    pub(crate) files: BTreeMap<Ino, Vec<u8>>,
    /// The bytes of open files without names.
    pub(crate) nameless: BTreeMap<Ino, Vec<u8>>,
    /// The writes of the transaction that led to the state.
    pub(crate) passing: Vec<Passing>,
}

/// A write within a transaction that made further ones. A mode that writes data in place before its transaction
/// commits may leave a part of what the file held after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Passing {
    pub(crate) ino: Ino,
    /// The bytes that were written.
    pub(crate) range: Range<usize>,
    /// What the file held then.
    pub(crate) bytes: Vec<u8>,
}

/// A part of a file; nothing but zeros lies behind its end.
fn part(bytes: &[u8], at: usize, len: usize) -> Vec<u8> {
    let mut part = bytes[at.min(bytes.len())..(at + len).min(bytes.len())].to_vec();
    part.resize(len, 0);
    part
}

impl State {
    /// Reads the state; `known` are inodes that may have lost their names.
    pub(crate) async fn see(fs: &LocalFs, known: &[Ino]) -> State {
        let mut state = State::default();
        let mut ways = vec![(String::new(), Ino::ROOT)];
        while let Some((way, ino)) = ways.pop() {
            let attributes = attributes(fs, ino).await;
            let mut xattrs = Vec::new();
            for name in fs.xattrs(ino).await.unwrap() {
                match fs.xattr(ino, &name).await {
                    Ok(value) => xattrs.push((name, value)),
                    // A name that was scribbled on may be of no namespace.
                    Err(FsError::NotSupported) => xattrs.push((name, Bytes::new())),
                    Err(error) => panic!("{ino:?}: {error}"),
                }
            }
            let mut target = Vec::new();
            match attributes.kind {
                Kind::File if !state.files.contains_key(&ino) => {
                    let len = attributes.size.min(MOST) as usize;
                    state.files.insert(ino, read_left(fs, ino, len).await);
                }
                Kind::Symlink => target = fs.read_link(ino).await.unwrap().to_vec(),
                Kind::Directory => {
                    for entry in entries(fs, ino).await {
                        let name = String::from_utf8_lossy(&entry.name).into_owned();
                        ways.push((format!("{way}/{name}"), entry.ino));
                    }
                }
                _ => {}
            }
            state.metadata.insert(way, (format!("{attributes:?}"), target, xattrs));
        }
        for ino in known.iter().filter(|ino| !state.files.contains_key(ino)) {
            match fs.attributes(*ino).await {
                Ok(_) => drop(state.nameless.insert(*ino, content(fs, *ino).await)),
                Err(FsError::Stale) => {}
                Err(error) => panic!("{ino:?}: {error}"),
            }
        }
        state
    }

    /// A part of a file that is there, or zeros.
    fn part(&self, ino: Ino, at: usize, len: usize) -> Vec<u8> {
        let bytes = self.files.get(&ino).or_else(|| self.nameless.get(&ino));
        part(bytes.map_or(&[], |bytes| bytes), at, len)
    }

    /// Whether a part of a file was this in the state, or on the way to it.
    fn had(&self, ino: Ino, at: usize, now: &[u8]) -> bool {
        let mut passing = self.passing.iter().filter(|it| it.ino == ino);
        self.part(ino, at, now.len()) == now
            || passing.any(|it| part(&it.bytes, at, now.len()) == now)
    }
}

/// Finds the state that a crash left, if it keeps a promise: `states` are the states in order, and `least`
/// is the last synced one.
pub(crate) fn find(
    states: &[State],
    least: usize,
    found: &State,
    promise: Promise,
    sector: usize,
) -> Result<usize, Vec<String>> {
    let mut near = Vec::new();
    for (number, state) in states.iter().enumerate().skip(least) {
        match kept(states, least, number, found, promise, sector) {
            Ok(()) => return Ok(number),
            Err(why) if state.metadata == found.metadata => return Err(vec![why]),
            Err(why) => near.push(why),
        }
    }
    Err(near)
}

fn kept(
    states: &[State],
    least: usize,
    number: usize,
    found: &State,
    promise: Promise,
    sector: usize,
) -> Result<(), String> {
    let state = &states[number];
    if state.metadata != found.metadata {
        return Err(difference(state, found));
    }
    let since = match promise {
        Promise::OneMoment if state.files == found.files => return Ok(()),
        Promise::OneMoment => number..number + 1,
        Promise::Ordered | Promise::Elsewhere => number..states.len(),
        Promise::Synced => least..states.len(),
    };
    for ino in found.files.keys() {
        if promise == Promise::Elsewhere {
            bytes_of(&states[since.clone()], found, *ino)
                .map_err(|why| format!("state {number}: {why}"))?;
            continue;
        }
        made_of(&states[since.clone()], found, *ino, promise, sector)
            .map_err(|why| format!("state {number}: {why}"))?;
    }
    Ok(())
}

/// Whether every byte of a file has the value of one of the states that have such a byte.
fn bytes_of(states: &[State], found: &State, ino: Ino) -> Result<(), String> {
    let of = |state: &State| {
        state.files.get(&ino).or_else(|| state.nameless.get(&ino)).cloned().unwrap_or_default()
    };
    let had: Vec<Vec<u8>> = states.iter().map(of).collect();
    let now = &found.files[&ino];
    let lost = (0..now.len()).find(|at| !had.iter().any(|it| it.get(*at) == Some(&now[*at])));
    match lost {
        Some(at) => Err(format!("{ino:?} never had at {at} what it has there now: {}", now[at])),
        None => Ok(()),
    }
}

/// Whether every sector of a file has the content of one of the states.
fn made_of(
    states: &[State],
    found: &State,
    ino: Ino,
    promise: Promise,
    sector: usize,
) -> Result<(), String> {
    let len = found.files[&ino].len();
    for block in (0..len).step_by(BLOCK_SIZE) {
        // A block that was new since the last sync may hold anything. A large transaction moves blocks.
        let is_new = |state: &State| state.part(ino, block, BLOCK_SIZE).iter().all(|b| *b == 0);
        let moves = |state: &State| {
            let writes = |it: &Passing| it.range.start < block + BLOCK_SIZE && it.range.end > block;
            state.passing.iter().any(|it| it.ino == ino && writes(it))
        };
        if promise == Promise::Synced
            && (states.iter().any(is_new) || states[1..].iter().any(moves))
        {
            continue;
        }
        for at in (block..(block + BLOCK_SIZE).min(len)).step_by(sector) {
            // The end of the file hides the rest of the sector.
            let visible = sector.min(len - at);
            let now = found.part(ino, at, visible);
            if !states.iter().any(|state| state.had(ino, at, &now)) {
                return Err(format!(
                    "{ino:?} never had at {at} what it has there now: {promise:?}"
                ));
            }
        }
    }
    Ok(())
}

/// The first difference in metadata.
fn difference(a: &State, b: &State) -> String {
    let all: BTreeSet<&String> = a.metadata.keys().chain(b.metadata.keys()).collect();
    let first = all.into_iter().find(|way| a.metadata.get(*way) != b.metadata.get(*way));
    first.map_or_else(String::new, |way| {
        let short = |state: &State| state.metadata.get(way).map(|it| it.0.clone());
        format!("{way}: {:?} {:?}", short(a), short(b))
    })
}
