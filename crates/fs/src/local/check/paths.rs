//! Paths of inodes, from the names that were found.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::LostRange;
use super::damage::{Damage, DamagedItem};
use super::scan::Scan;
use crate::attributes::Ino;
use crate::local::content::BLOCK;

/// Paths of inodes.
pub(super) struct Paths<'a> {
    scan: &'a Scan,
    /// The first name of each inode, by its place among the names.
    names: BTreeMap<u64, usize>,
}

impl Paths<'_> {
    pub(super) fn new(scan: &Scan) -> Paths<'_> {
        let mut names = BTreeMap::new();
        for (nth, name) in scan.names.iter().enumerate() {
            names.entry(name.ino).or_insert(nth);
        }
        Paths { scan, names }
    }

    /// The path of an inode from the root, by its first name; `None` when no name leads from there.
    pub(super) fn of(&self, ino: u64) -> Option<Bytes> {
        let (mut parts, mut at) = (Vec::new(), ino);
        while at != Ino::ROOT.0 {
            let name = &self.scan.names[*self.names.get(&at)?];
            // Directories that lie in each other.
            if parts.len() > self.names.len() {
                return None;
            }
            parts.push(name.name.clone());
            at = name.directory;
        }
        let mut path = Vec::new();
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        Some(if path.is_empty() { Bytes::from_static(b"/") } else { path.into() })
    }

    /// The path of damage.
    pub(super) fn of_damage(&self, damage: &Damage) -> Option<Bytes> {
        match damage.place() {
            DamagedItem::None => None,
            DamagedItem::Inode(ino) => self.of(ino),
            DamagedItem::Name(directory, name) => {
                let path = self.of(directory).filter(|path| path.len() > 1).unwrap_or_default();
                self.of(directory)?;
                Some([&path, &b"/"[..], name].concat().into())
            }
        }
    }
}

impl Scan {
    /// The lost bytes of files, up to their ends.
    pub(super) fn lost_ranges(&self) -> Vec<LostRange> {
        if self.lost.is_empty() {
            return Vec::new();
        }
        let (paths, mut found) = (Paths::new(self), Vec::<LostRange>::new());
        for (ino, blocks) in &self.lost {
            let Some(node) = self.nodes.get(ino) else { continue };
            let bytes = blocks.start * BLOCK..(blocks.end * BLOCK).min(node.record.size.get());
            match found.last_mut().filter(|it| it.ino == *ino && it.bytes.end == bytes.start) {
                Some(before) => before.bytes.end = bytes.end,
                None if bytes.is_empty() => {}
                None => found.push(LostRange { ino: *ino, path: paths.of(*ino), bytes }),
            }
        }
        found
    }
}
