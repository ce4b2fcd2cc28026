//! What a device or file is, by the labels at its start: for messages about one that was named in the wrong place, and about
//! one that would be written over.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::inplace::format::{MAGIC as IN_PLACE_MAGIC, START};
use crate::journal::format::SUPERBLOCK_MAGIC as JOURNAL_MAGIC;
use crate::pool::foreign_content;
use crate::pool::format::{COPY, DATA_START, HEADER_MAGIC, Member, PAIR, Role, SLOTS, slot_offset};

/// A part of a chained volume, as a label names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The volume's identity.
    pub volume: Uuid,
    /// Its name.
    pub name: String,
    /// The part of it.
    pub role: Role,
}

/// What a device or file is, by the labels at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// It has parts of chained volumes; none if all labels are damaged.
    Member(Vec<Owner>),
    /// It is a volume that is updated in place; perhaps its superblocks are damaged.
    InPlace,
    /// It is the journal of a volume or of a client.
    Journal,
    /// It has known content of another program.
    Foreign(&'static str),
}

impl Identity {
    /// The identity by the first bytes of a device, [`DATA_START`] of them or as many as it has; `None` without a label.
    pub fn of(start: &[u8]) -> Option<Identity> {
        let has = |at: u64, magic: [u8; 8]| {
            start.get(at as usize..).is_some_and(|bytes| bytes.starts_with(&magic))
        };
        let in_copies = |magic| [0, COPY].into_iter().any(|at| has(at, magic));
        if in_copies(HEADER_MAGIC) {
            return Some(Identity::Member(owners(start)));
        }
        if in_copies(IN_PLACE_MAGIC) || has(START - COPY, IN_PLACE_MAGIC) {
            return Some(Identity::InPlace);
        }
        if in_copies(JOURNAL_MAGIC) {
            return Some(Identity::Journal);
        }
        foreign_content(start).map(Identity::Foreign)
    }
}

/// The volumes that have extents on the device or file at a path; `None` without a label, and if it cannot be read.
fn owners_at(path: &Path) -> Option<Vec<Owner>> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return None;
    }
    let mut file = File::open(path).ok()?;
    let mut start = Vec::new();
    // A folder may have very many other files: of those only the place of a header is read.
    file.by_ref().take(PAIR).read_to_end(&mut start).ok()?;
    if !matches!(Identity::of(&start), Some(Identity::Member(_))) {
        return None;
    }
    file.take(DATA_START - PAIR).read_to_end(&mut start).ok()?;
    Some(owners(&start))
}

/// The owners of a device's extents, each once.
fn owners(start: &[u8]) -> Vec<Owner> {
    let mut owners: Vec<Owner> = Vec::new();
    for pair in (0..SLOTS).filter_map(|slot| start.get(slot_offset(slot) as usize..)) {
        let (first, second) = pair.split_at(pair.len().min(COPY as usize));
        let decoded = Member::decode(first).or_else(|_| Member::decode(second));
        let owner = decoded.map(|it| Owner { volume: it.volume, name: it.name, role: it.role });
        owners.extend(owner.ok().filter(|it| !owners.contains(it)));
    }
    owners
}

/// The devices in a folder that belong to the same chained volume, with its name. Of several volumes, those of the one with
/// most devices there.
pub fn members_in(folder: &Path) -> Option<(Owner, Vec<PathBuf>)> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let mut volumes: Vec<(Owner, Vec<PathBuf>)> = Vec::new();
    for path in files {
        for owner in owners_at(&path).unwrap_or_default() {
            match volumes.iter_mut().find(|(known, _)| known.volume == owner.volume) {
                Some((_, paths)) if paths.last() == Some(&path) => {}
                Some((_, paths)) => paths.push(path.clone()),
                None => volumes.push((owner, vec![path.clone()])),
            }
        }
    }
    // The first of those with as many.
    volumes.into_iter().rev().max_by_key(|(_, paths)| paths.len())
}

const _: () = assert!(slot_offset(SLOTS - 1) + PAIR <= DATA_START);

#[cfg(test)]
mod tests {
    use super::*;

    fn member(volume: u128, role: Role) -> Member {
        Member {
            sequence: 1,
            device: Uuid::from_u128(1),
            volume: Uuid::from_u128(volume),
            name: format!("v{volume}"),
            role,
            group: Uuid::from_u128(2),
            columns: 1,
            column: 0,
            sides: 1,
            side: 0,
            unit: 0,
            sector: 0,
            start: DATA_START,
            length: 4096,
            map_bytes: 0,
            events: 1,
            in_sync: 1,
        }
    }

    fn labelled(members: &[Member]) -> Vec<u8> {
        let mut start = vec![0; DATA_START as usize];
        // The second copy of the header alone.
        start[COPY as usize..][..8].copy_from_slice(&HEADER_MAGIC);
        for (slot, member) in members.iter().enumerate() {
            let at = slot_offset(slot) as usize;
            start[at..at + 512].copy_from_slice(&member.encode());
        }
        start
    }

    #[test]
    fn every_kind_of_label_is_told_apart() {
        assert_eq!(Identity::of(&[]), None);
        assert_eq!(Identity::of(&[7; 100]), None);
        let mut start = vec![0; DATA_START as usize];
        assert_eq!(Identity::of(&start), None);
        start[..4].copy_from_slice(b"XFSB");
        assert_eq!(Identity::of(&start), Some(Identity::Foreign("an XFS filesystem")));
        start[..8].copy_from_slice(&JOURNAL_MAGIC);
        assert_eq!(Identity::of(&start), Some(Identity::Journal));
        start[..8].fill(0);
        start[(START - COPY) as usize..][..8].copy_from_slice(&IN_PLACE_MAGIC);
        assert_eq!(Identity::of(&start), Some(Identity::InPlace));
        assert_eq!(Identity::of(&labelled(&[])), Some(Identity::Member(Vec::new())));
        let members = [member(7, Role::Map), member(7, Role::Map), member(8, Role::TailCache)];
        let Some(Identity::Member(owners)) = Identity::of(&labelled(&members)) else { panic!() };
        let names: Vec<&str> = owners.iter().map(|owner| &*owner.name).collect();
        assert_eq!(names, ["v7", "v8"]);
    }

    #[test]
    fn the_devices_of_a_volume_in_a_folder_are_found() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(members_in(folder.path()), None);
        for (name, volume) in [("b", 7), ("a", 7), ("c", 8)] {
            let start = labelled(&[member(volume, Role::Link)]);
            std::fs::write(folder.path().join(name), start).unwrap();
        }
        std::fs::write(folder.path().join("other"), "text").unwrap();
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        let (owner, paths) = members_in(folder.path()).unwrap();
        assert_eq!(owner.name, "v7");
        assert_eq!(paths, ["a", "b"].map(|name| folder.path().join(name)));
    }
}
