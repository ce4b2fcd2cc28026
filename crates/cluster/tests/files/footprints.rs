//! What each kind of request reads and writes.

use std::fmt::Write;

use thalweg_cluster::protocol::{CallEffect, Changed, Footprint, Request};
use thalweg_fs::Ino;
use thalweg_net::traffic::name_of;

use crate::requests::every;

/// The directory and the file `f` in it.
const PLACE: (Ino, Ino) = (Ino(5), Ino(6));
const PAYLOAD: usize = 9;

fn change(change: &Changed) -> String {
    match change {
        Changed::Attributes(ino) => format!("attributes {}", ino.0),
        Changed::Name { parent, name } => {
            format!("name {}/{}", parent.0, String::from_utf8_lossy(name))
        }
        Changed::Content { ino, from, to: u64::MAX } => format!("bytes {} {from}..", ino.0),
        Changed::Content { ino, from, to } => format!("bytes {} {from}..{to}", ino.0),
        other => panic!("no operation by itself changes {other:?}"),
    }
}

fn describe(request: &Request, print: &Footprint<'_>) -> String {
    let inodes: Vec<u64> = print.inodes.iter().map(|ino| ino.0).collect();
    let mut text = format!("{} {inodes:?} {:?} {:?}", name_of(request), print.repeat, print.needs);
    if print.writes {
        text += " writes";
    }
    if print.shows {
        text += " shows";
    }
    for changed in print.changed() {
        write!(text, ", {}", change(&changed)).unwrap();
    }
    match print.effect() {
        None => {}
        Some(CallEffect::Makes) => text += "; makes",
        Some(CallEffect::Replaces { ino, offset, len, outcome }) => {
            write!(text, "; replaces {} {offset}+{len} = {outcome}", ino.0).unwrap();
        }
    }
    let besides: Vec<u64> = print.changed_besides(99).map(|ino| ino.0).collect();
    if !besides.is_empty() {
        write!(text, "; besides {besides:?}").unwrap();
    }
    text
}

/// A line for each request: the inodes that it names, how often it is carried out, what it needs; what clients drop;
/// what it may have come to at a server that crashed; the inodes that it has changed beside those that it names.
const FOOTPRINTS: &str = "\
Attach [] Session Named
Reclaim [] Session Named
ReclaimOpen [] Session Named
ReclaimLock [] Session Named
ReclaimNumbers [] Session Named
ReclaimRoom [] Session Named
Reclaimed [] Session Named
Renew [] Session Named
Detach [] Session Named
HandOver [] Session Named
Forget [] Session Named
Cancel [] Session Named
Reserve [] Once Nothing
Stage [] Any Nothing
Room [] Once Nothing
ReachContents [] Any Named
SyncAll [] Any Everything
Statistics [] Any Freed
RequestDelegation [5] Any Nothing
Batch [] Change Everything writes
Lookup [5] Any Named shows
Parent [5] Any Made
Path [] Any Named
UsedMeanwhile [] Any Named
Create [5] Change Everything writes, attributes 5, name 5/made; makes; besides [99]
Create [5] Change Everything writes, attributes 5, name 5/made; makes; besides [99]
Link [6, 5] Change Everything writes, attributes 5, name 5/made, attributes 6
Unlink [5] Change Everything writes, attributes 5, name 5/f, attributes 6; besides [6]
RemoveDirectory [5] Change Everything writes, attributes 5, name 5/f
Rename [5, 5] Change Everything writes, attributes 5, name 5/f, attributes 6, attributes 5, name 5/renamed; besides [6]
ReadDirectory [5] Any Named shows
ExtendWriteBound [6] Any Everything writes
KeepSizeRecord [6] Any Everything writes
Attributes [6] Any Named shows
Attributes [6] Any Named
SetAttributes [6] Change Everything writes, attributes 6
SetAttributes [6] Change Everything writes, attributes 6, bytes 6 0..
ReadLink [6] Any Made
Read [6] Any Named
Write [6] Change Everything writes, attributes 6, bytes 6 5..14; replaces 6 5+9 = 5
Write [6] Change Everything writes, attributes 6, bytes 6 0..
Allocate [6] Change Everything writes, attributes 6, bytes 6 3..7; replaces 6 3+4 = 0
Seek [6] Any Named
Copy [6, 6] Change Everything writes, attributes 6, bytes 6 2..4; replaces 6 2+2 = 2
Sync [6] Any Everything
Level [6] Any Named
Xattr [6] Any Named
SetXattr [6] Change Everything writes, attributes 6
Xattrs [6] Any Named
RemoveXattr [6] Change Everything writes, attributes 6
Open [6] Once Named
Open [6] Once Everything writes
Flush [6] Once Named
Release [6] Once Nothing
Lock [6] Once Named
Unlock [6] Once Named
ConflictingLock [6] Any Named
";

#[test]
fn every_kind_of_request_says_what_it_reads_and_writes() {
    let found: Vec<String> = every(PLACE.0, PLACE.1)
        .iter()
        .map(|request| describe(request, &request.footprint(PAYLOAD)))
        .collect();
    let expected: Vec<&str> = FOOTPRINTS.lines().collect();
    assert_eq!(found, expected, "{}", found.join("\n"));
}

/// The server finds another inode behind a name than the client knew: that one is changed.
#[test]
fn the_server_says_which_inodes_are_behind_the_names() {
    for request in every(PLACE.0, PLACE.1) {
        let print = request.footprint(PAYLOAD);
        let targets = print.names.iter().flatten().map(|_| Some(Ino(77)));
        let changed = print.changed_with(targets.clone());
        let there = changed.iter().filter(|it| **it == Changed::Attributes(Ino(77))).count();
        assert_eq!(there, print.names.iter().flatten().count(), "{request:?}");
        let stays = |it: &&Changed| !matches!(it, Changed::Attributes(Ino(6 | 77)));
        let own: Vec<Changed> = print.changed().iter().filter(stays).cloned().collect();
        let server: Vec<Changed> = changed.iter().filter(stays).cloned().collect();
        assert_eq!(own, server, "{request:?}");
    }
}
