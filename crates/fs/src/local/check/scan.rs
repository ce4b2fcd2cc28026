//! One reading of a whole filesystem, and the damage found.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::txn::{Transaction, TxnError};

use super::Report;
use super::damage::Damage;
use super::external_records::ExternalRecords;
use crate::acl::Acl;
use crate::attributes::{Ino, Kind};
use crate::error::FsError;
use crate::filesystem::{MAX_FILE, MAX_TARGET};
use crate::local::area::BitmapPage;
use crate::local::content::BLOCK;
use crate::local::dir_slots::position_of;
use crate::local::extents::Run;
use crate::local::format::{
    DirSlot, END_OF_NUMBERS, Extent, HAS_ACL, HAS_DEFAULT_ACL, HAS_LOST, HAS_XATTRS, InodeRecord,
    LOST_NAME, MAX_SLOTS, QuotaRecord, TRUNCATING, Tag, UsageRecord, decode, decode_kind,
    parse_key,
};
use crate::local::fs_call::FsCall;
use crate::local::fs_state::FsState;
use crate::local::orphans::freed_run;
use crate::local::sessions::parse_record;
use crate::local::table::table_key;
use crate::xattr_name::{ACCESS_ACL, DEFAULT_ACL};

/// Pages of bits, and blocks of data, that are read at a time.
const READ_AT_ONCE: u64 = 64;

/// A name that leads to an inode.
#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) directory: u64,
    pub(super) name: Bytes,
    pub(super) ino: u64,
    pub(super) position: u64,
    kind: Kind,
}

/// An inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) record: InodeRecord,
    pub(super) kind: Kind,
    /// Names that lead to it.
    pub(super) names: u32,
    /// The directory of the first of them.
    pub(super) parent: u64,
    /// Of a directory: directories in it, and names.
    pub(super) subdirectories: u32,
    pub(super) entries: u64,
    /// Blocks of its extents.
    blocks: u64,
}

/// The records of one inode, while they are read.
#[derive(Debug, Default)]
struct Group {
    ino: u64,
    record: Option<InodeRecord>,
    records: u64,
    target: Option<usize>,
    flags: u8,
    entries: Vec<(u64, Option<Name>, bool)>,
    extents: Vec<Extent>,
}

/// The records read, and the damage found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) nodes: BTreeMap<u64, Node>,
    pub(super) names: Vec<Name>,
    /// The inodes that have data blocks.
    owners: Vec<(Run, u64, u64)>,
    /// The same, merged, with the blocks to be freed.
    taken: Vec<Run>,
    /// Lost blocks of files: the inode, and blocks of the file.
    pub(super) lost: Vec<(u64, Range<u64>)>,
    orphans: BTreeSet<u64>,
    freed: Vec<Run>,
    /// The block of the table of reservations, reserved runs, and the number of reservations.
    table: Option<u64>,
    reserved: Vec<Run>,
    reservations: u64,
    quotas: BTreeSet<u64>,
    usage: BTreeMap<u64, (i64, i64)>,
    next_number: u64,
    pub(super) external: ExternalRecords,
    /// Of contents elsewhere: files of which nothing is stored, and all objects.
    pub(super) empty: Vec<u64>,
    pub(super) objects: u64,
    extents: u64,
    blocks: u64,
    pub(super) damages: Vec<Damage>,
}

impl Scan {
    /// The damage found.
    pub(super) fn damages(&self) -> Vec<Damage> {
        self.damages.clone()
    }

    /// The report.
    pub(super) fn report(&self) -> Report {
        let directories = self.nodes.values().filter(|node| node.kind == Kind::Directory).count();
        Report {
            findings: Vec::new(),
            lost: self.lost_ranges(),
            inodes: self.nodes.len() as u64,
            directories: directories as u64,
            names: self.names.len() as u64,
            extents: self.extents,
            blocks: self.blocks,
            unfinished: (self.orphans.len() + self.freed.len() + self.external.removed.len())
                as u64
                + self.reservations,
            contents: self.external.is_there.then(|| self.contents_report()),
        }
    }

    /// The name at a place of a directory.
    pub(super) fn name_at(&self, directory: u64, position: u64) -> Option<&Name> {
        let key = (directory, position);
        let at = self.names.binary_search_by_key(&key, |name| (name.directory, name.position));
        at.ok().and_then(|at| self.names.get(at))
    }

    /// The name that leads to a directory, or the first one that leads to something else.
    pub(super) fn name_of(&self, ino: u64) -> Option<&Name> {
        self.names.iter().find(|name| name.ino == ino)
    }
}

/// Reads a whole filesystem.
pub(super) async fn scan(fs: &FsState, data: bool) -> Result<Scan, FsError> {
    let mut scan = Scan::default();
    scan.external.is_there = fs.external_contents.is_some();
    if let Err(error) = fs.tree.check().await {
        scan.damages.push(tree_damage(error.into())?);
        return Ok(scan);
    }
    let txn = fs.look().await?;
    if let Err(error) = scan.read_records(fs, &txn).await {
        let damage = tree_damage(error)?;
        let is_there = scan.external.is_there;
        let external = ExternalRecords { is_there, ..ExternalRecords::default() };
        return Ok(Scan { damages: vec![damage], external, ..Scan::default() });
    }
    scan.check_names(fs);
    scan.check_reach();
    scan.check_nodes();
    scan.check_orphans();
    scan.check_quotas();
    scan.check_overlaps();
    scan.check_contents(fs).await?;
    scan.read_reservations(fs, &txn).await?;
    scan.check_bits(fs, &txn, data).await?;
    if data {
        scan.check_data(fs, &txn).await?;
    }
    Ok(scan)
}

/// The damage of the tree that an error stands for; other errors are returned.
pub(super) fn tree_damage(error: FsError) -> Result<Damage, FsError> {
    if error.is_damage_below() { Ok(Damage::Tree(error.to_string())) } else { Err(error) }
}

impl Scan {
    async fn read_records(
        &mut self,
        fs: &FsState,
        txn: &Arc<dyn Transaction>,
    ) -> Result<(), FsError> {
        let mut iter = fs.tree.iter_in(txn.clone());
        let mut group = Group::default();
        while let Some((key, value)) = iter.next().await? {
            let Some((ino, tag, rest)) = parse_key(&key) else {
                self.damages.push(Damage::UnknownRecord(key));
                continue;
            };
            if ino == 0 {
                if !self.take_own(fs, tag, rest, &key, &value) {
                    self.damages.push(Damage::BadRecord(key));
                }
                continue;
            }
            if ino != group.ino {
                self.end_group(std::mem::replace(&mut group, Group { ino, ..Group::default() }));
            }
            group.records += 1;
            if !self.take(fs, &mut group, tag, &key, &value) {
                self.damages.push(Damage::BadRecord(key));
            }
        }
        self.end_group(group);
        Ok(())
    }

    /// Takes a record of the filesystem; false when it is invalid.
    fn take_own(&mut self, fs: &FsState, tag: Tag, rest: &[u8], key: &[u8], value: &[u8]) -> bool {
        let number = |bytes: &[u8]| Some(u64::from_be_bytes(bytes.try_into().ok()?));
        let none = String::new;
        match tag {
            Tag::Super => rest.is_empty(),
            Tag::Counts => rest.is_empty() && value.len() == 8,
            Tag::Numbers => match value.try_into() {
                Ok(next) if rest.is_empty() => {
                    self.next_number = u64::from_le_bytes(next);
                    true
                }
                _ => false,
            },
            Tag::Orphan => match number(rest).filter(|_| value.is_empty()) {
                Some(ino) => self.orphans.insert(ino),
                None => false,
            },
            Tag::Freed => freed_run(key, value, &fs.area).map(|run| self.freed.push(run)).is_some(),
            Tag::Reservations => match value.try_into().ok().map(u64::from_le_bytes) {
                Some(table) if rest.is_empty() => {
                    self.table = Some(table);
                    true
                }
                _ => false,
            },
            Tag::Session => parse_record(key, value).is_some(),
            Tag::Removed | Tag::Redirect => self.external.take(tag, key, value),
            Tag::Quota => match (number(rest), decode::<QuotaRecord>(value, none)) {
                (Some(root), Ok(_)) => self.quotas.insert(root),
                _ => false,
            },
            Tag::Usage => {
                let root = rest.split_last().and_then(|(_, root)| number(root));
                match (root, decode::<UsageRecord>(value, none)) {
                    (Some(root), Ok(usage)) => {
                        let sum = self.usage.entry(root).or_default();
                        sum.0 = sum.0.saturating_add(usage.blocks.get());
                        sum.1 = sum.1.saturating_add(usage.inodes.get());
                        true
                    }
                    _ => false,
                }
            }
            _ => false,
        }
    }

    /// Takes a record of an inode; false when it is invalid.
    fn take(
        &mut self,
        fs: &FsState,
        group: &mut Group,
        tag: Tag,
        key: &Bytes,
        value: &Bytes,
    ) -> bool {
        let rest = &key[9..];
        match tag {
            Tag::Inode => {
                let record = decode::<InodeRecord>(value, String::new).ok();
                let sound = |record: &InodeRecord| decode_kind(record.kind).is_some();
                group.record = record.filter(|record| rest.is_empty() && sound(record));
                group.record.is_some()
            }
            Tag::Target => {
                group.target = Some(value.len());
                rest.is_empty() && (1..=MAX_TARGET).contains(&value.len())
            }
            Tag::Xattr => {
                group.flags |= HAS_XATTRS;
                if rest == ACCESS_ACL || rest == DEFAULT_ACL {
                    let sound = Acl::decode(value).is_ok_and(|acl| !acl.is_empty());
                    if sound {
                        group.flags |= if rest == ACCESS_ACL { HAS_ACL } else { HAS_DEFAULT_ACL }
                    } else {
                        let name = key.slice(9..);
                        self.damages.push(Damage::BadList { ino: group.ino, name });
                    }
                }
                !rest.is_empty()
            }
            Tag::Entry => {
                let (Some(position), Some(slot)) = (position_of(key), DirSlot::decode(value))
                else {
                    return false;
                };
                let DirSlot::Taken(entry) = slot else {
                    group.entries.push((position, None, true));
                    return true;
                };
                let (ino, kind, name) = (entry.ino, entry.kind, entry.name);
                let name = Name { directory: group.ino, name, ino, position, kind };
                group.entries.push((position, Some(name), entry.chained));
                true
            }
            Tag::Extent if self.external.is_there => false,
            Tag::Extent => match fs.area.extent(rest, value) {
                Some(extent) => {
                    group.extents.push(extent);
                    true
                }
                None => false,
            },
            _ => false,
        }
    }

    fn end_group(&mut self, group: Group) {
        if group.ino == 0 {
            return;
        }
        let ino = group.ino;
        self.extents += group.extents.len() as u64;
        let mut end = 0;
        for extent in &group.extents {
            if extent.is_lost() {
                self.lost.push((ino, extent.at..extent.end()))
            } else {
                let run = Run { start: extent.start, blocks: extent.blocks };
                self.owners.push((run, ino, extent.at));
                self.blocks += extent.blocks;
            }
            if extent.at < end {
                let blocks = (end - extent.at).min(extent.blocks);
                self.damages.push(Damage::Overlap { ino, at: extent.at, blocks, with: ino });
            }
            end = end.max(extent.end());
        }
        let kind = group.record.and_then(|record| decode_kind(record.kind));
        let (Some(record), Some(kind)) = (group.record, kind) else {
            self.damages.push(Damage::MissingInode { ino, records: group.records });
            return;
        };
        let names = group.entries.len() as u64;
        if kind != Kind::Directory && names > 0 {
            self.damages.push(Damage::NamesInFile { ino, names });
            return;
        }
        if kind != Kind::File && !group.extents.is_empty() {
            let extents = group.extents.len() as u64;
            self.damages.push(Damage::ExtentsOfOther { ino, extents });
        }
        let size = record.size.get();
        match kind {
            Kind::Symlink if group.target.map(|len| len as u64) != Some(size) => {
                self.damages.push(Damage::NoTarget { ino });
            }
            Kind::File if size > MAX_FILE => {
                self.damages.push(Damage::WrongSize { ino, stored: size });
            }
            _ => {}
        }
        let listed = HAS_XATTRS | HAS_ACL | HAS_DEFAULT_ACL;
        // That there are attributes may be said although the last one is gone.
        let said = record.flags & listed | group.flags & HAS_XATTRS;
        let missing = group.flags & HAS_XATTRS != 0 && record.flags & HAS_XATTRS == 0;
        let lists = HAS_ACL | HAS_DEFAULT_ACL;
        let lost = group.extents.iter().any(Extent::is_lost) && record.flags & HAS_LOST == 0;
        if missing || lost || said & lists != group.flags & lists {
            self.damages.push(Damage::WrongFlags { ino });
        }
        let stored = group.extents.iter().filter(|extent| !extent.is_lost());
        let blocks = match kind {
            Kind::File if self.external.is_there => size.div_ceil(BLOCK),
            _ => stored.map(|extent| extent.blocks).sum(),
        };
        self.nodes.insert(
            ino,
            Node { record, kind, names: 0, parent: 0, subdirectories: 0, entries: 0, blocks },
        );
        self.check_places(group.entries);
    }

    /// Checks that names follow each other without gaps from where their hash says.
    fn check_places(&mut self, entries: Vec<(u64, Option<Name>, bool)>) {
        let mut before: Option<(u64, bool)> = None;
        for (position, name, chained) in entries {
            let follows = before.is_some_and(|(it, chained)| it + 1 == position && chained);
            let found = position.is_multiple_of(MAX_SLOTS) || follows;
            before = Some((position, chained));
            if !found {
                // Nothing behind it is found either.
                before = None;
            }
            if let Some(name) = name {
                if !found {
                    let Name { directory, name, position, .. } = name.clone();
                    self.damages.push(Damage::MisplacedName { directory, name, position });
                }
                self.names.push(name);
            }
        }
    }

    fn check_names(&mut self, fs: &FsState) {
        let mut seen: BTreeSet<(u64, Bytes)> = BTreeSet::new();
        let mut directory = 0;
        for name in &self.names {
            if name.directory != directory {
                directory = name.directory;
                seen.clear();
            }
            let Name { directory, name: text, ino, position, kind } = name.clone();
            if fs.position(&text) != position / MAX_SLOTS * MAX_SLOTS {
                let name = text.clone();
                self.damages.push(Damage::MisplacedName { directory, name, position });
            }
            let double = !seen.insert((directory, text.clone()));
            if double {
                let name = text.clone();
                self.damages.push(Damage::DoubleName { directory, name, position });
            }
            let Some(node) = self.nodes.get_mut(&ino) else {
                self.damages.push(Damage::DanglingName { directory, name: text, ino, position });
                if let Some(parent) = self.nodes.get_mut(&directory) {
                    parent.entries += 1;
                }
                continue;
            };
            if node.kind != kind {
                let name = text.clone();
                self.damages.push(Damage::WrongKind { directory, name, ino, position });
            }
            let is_directory = node.kind == Kind::Directory;
            if is_directory && (node.names > 0 || ino == Ino::ROOT.0) {
                self.damages.push(Damage::SecondName { directory, name: text, ino, position });
            }
            if node.names == 0 {
                node.parent = directory;
            }
            node.names += 1;
            if let Some(parent) = self.nodes.get_mut(&directory) {
                parent.entries += 1;
                parent.subdirectories += u32::from(is_directory);
            }
        }
    }

    /// Finds inodes that are not below the root.
    fn check_reach(&mut self) {
        let root = Ino::ROOT.0;
        match self.nodes.get(&root) {
            Some(node) if node.kind == Kind::Directory => {}
            _ => return self.damages.push(Damage::NoRoot),
        }
        let nameless: Vec<u64> =
            self.nodes.iter().filter(|(_, it)| it.names == 0).map(|it| *it.0).collect();
        for ino in nameless.into_iter().filter(|ino| *ino != root) {
            if self.nodes[&ino].record.links.get() > 0 {
                self.damages.push(Damage::Unreachable { ino });
            }
        }
        // The parents of a directory end at the root, at a directory without a name, or in a cycle.
        let mut known: BTreeSet<u64> = BTreeSet::from([root]);
        for (&ino, node) in self.nodes.iter().filter(|(_, node)| node.kind == Kind::Directory) {
            let (mut way, mut at, mut names) = (BTreeSet::new(), ino, node.names);
            while names > 0 && !known.contains(&at) {
                if !way.insert(at) {
                    self.damages.push(Damage::Cycle { ino: at });
                    break;
                }
                at = self.nodes[&at].parent;
                names = self.nodes.get(&at).map_or(0, |node| node.names);
            }
            known.extend(way);
            known.insert(ino);
        }
    }

    fn check_nodes(&mut self) {
        let highest = self.nodes.last_key_value().map_or(0, |(ino, _)| *ino);
        if self.next_number <= highest || self.next_number > END_OF_NUMBERS {
            self.damages.push(Damage::WrongNumber { next: self.next_number, highest });
        }
        for (&ino, node) in &self.nodes {
            let (record, root) = (&node.record, ino == Ino::ROOT.0);
            let stored = record.links.get();
            let is_directory = node.kind == Kind::Directory;
            let found = match is_directory {
                true if root || node.names > 0 => 2 + node.subdirectories,
                // It is told elsewhere that it has no name.
                _ if node.names == 0 => stored,
                _ => node.names,
            };
            if stored != found {
                self.damages.push(Damage::WrongLinks { ino, stored, found });
            }
            if is_directory {
                let found = if root { ino } else { node.parent };
                let stored = record.parent.get();
                if (root || node.names > 0) && stored != found {
                    self.damages.push(Damage::WrongParent { ino, stored, found });
                }
                let (stored, found) = (record.size.get(), node.entries);
                if stored != found {
                    self.damages.push(Damage::WrongCount { ino, stored, found });
                }
            }
            let (stored, found) = (record.blocks.get(), node.blocks);
            if stored != found {
                self.damages.push(Damage::WrongBlocks { ino, stored, found });
            }
        }
    }

    fn check_orphans(&mut self) {
        for (&ino, node) in &self.nodes {
            let dead = node.names == 0 && node.record.links.get() == 0;
            let due = dead || node.record.flags & TRUNCATING != 0;
            match (due, self.orphans.contains(&ino)) {
                (true, false) => self.damages.push(Damage::UnlistedOrphan { ino }),
                (false, true) => self.damages.push(Damage::StaleOrphan { ino }),
                _ => {}
            }
        }
        let exist = self.external.removed.iter().filter(|ino| self.nodes.contains_key(ino));
        self.damages.extend(exist.map(|ino| Damage::StaleRemoval { ino: *ino }));
        let gone = self.orphans.iter().filter(|ino| !self.nodes.contains_key(ino));
        self.damages.extend(gone.map(|ino| Damage::StaleOrphan { ino: *ino }));
    }

    fn check_quotas(&mut self) {
        for &root in &self.quotas {
            if self.nodes.get(&root).is_none_or(|node| node.kind != Kind::Directory) {
                self.damages.push(Damage::NoQuotaRoot { root });
            }
        }
        let mut found: BTreeMap<u64, (i64, i64)> = BTreeMap::new();
        let mut nearest: BTreeMap<u64, u64> = BTreeMap::new();
        let mut wrong = Vec::new();
        let mut others: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let is_other = |name: &&Name| {
            let node = self.nodes.get(&name.ino);
            node.is_some_and(|it| it.kind != Kind::Directory && it.parent != name.directory)
        };
        for name in self.names.iter().filter(is_other) {
            others.entry(name.ino).or_default().push(name.directory);
        }
        for (&ino, node) in &self.nodes {
            let stored = node.record.quota.get();
            let used = found.entry(stored).or_default();
            *used = (used.0 + node.blocks as i64, used.1 + 1);
            if node.record.flags & LOST_NAME != 0 || node.names == 0 && ino != Ino::ROOT.0 {
                continue;
            }
            let expected = match node.kind {
                Kind::Directory => self.nearest_quota(ino, &mut nearest),
                _ => self.nearest_quota(node.parent, &mut nearest),
            };
            // A directory above one of several names may have become the root of a quota since.
            let mut others = others.get(&ino).into_iter().flatten();
            if others.any(|it| self.nearest_quota(*it, &mut nearest) == Some(stored)) {
                continue;
            }
            if let Some(found) = expected.filter(|expected| *expected != stored) {
                wrong.push(Damage::WrongQuota { ino, stored, found });
            }
        }
        // The usage can be counted only when every inode's quota is right.
        if !wrong.is_empty() {
            return self.damages.append(&mut wrong);
        }
        let roots: BTreeSet<u64> = self.quotas.iter().chain(self.usage.keys()).copied().collect();
        for root in roots {
            let stored = self.usage.get(&root).copied().unwrap_or_default();
            let found = if self.quotas.contains(&root) {
                found.get(&root).copied().unwrap_or_default()
            } else {
                (0, 0)
            };
            if stored != found {
                self.damages.push(Damage::WrongUsage { root, stored, found });
            }
        }
    }

    /// The root of the quota that a directory counts for; `None` when no way leads to the root.
    fn nearest_quota(&self, directory: u64, nearest: &mut BTreeMap<u64, u64>) -> Option<u64> {
        let (mut way, mut at) = (Vec::new(), directory);
        let found = loop {
            if let Some(found) = nearest.get(&at) {
                break *found;
            }
            if self.quotas.contains(&at) {
                break at;
            }
            if at == Ino::ROOT.0 {
                break 0;
            }
            let node = self.nodes.get(&at).filter(|node| node.names > 0)?;
            if way.len() > self.nodes.len() {
                return None;
            }
            way.push(at);
            at = node.parent;
        };
        nearest.extend(way.into_iter().map(|at| (at, found)));
        Some(found)
    }

    /// Finds blocks that two have.
    fn check_overlaps(&mut self) {
        self.owners.sort_unstable_by_key(|(run, ino, at)| (run.start, *ino, *at));
        let mut end: Option<(u64, u64)> = None;
        for (run, ino, at) in &self.owners {
            if let Some((stop, with)) = end.filter(|(stop, _)| *stop > run.start) {
                let blocks = (stop - run.start).min(run.blocks);
                self.damages.push(Damage::Overlap { ino: *ino, at: *at, blocks, with });
            }
            let stop = run.start + run.blocks;
            if end.is_none_or(|(before, _)| before < stop) {
                end = Some((stop, *ino));
            }
        }
        let freed = std::mem::take(&mut self.freed);
        for run in &freed {
            let end = run.start + run.blocks;
            let taken = self
                .owners
                .iter()
                .any(|(it, _, _)| it.start < end && run.start < it.start + it.blocks);
            if taken {
                self.damages.push(Damage::BadFreed { start: run.start, blocks: run.blocks });
            }
        }
        self.freed = freed;
    }

    /// Notes which blocks transactions have reserved that a crash has ended.
    async fn read_reservations(
        &mut self,
        fs: &FsState,
        txn: &Arc<dyn Transaction>,
    ) -> Result<(), FsError> {
        let Some(table) = self.table else { return Ok(()) };
        let read = FsCall::new(fs, txn, false).reserved_runs(table).await;
        let (runs, count) = match read {
            Ok(read) => read,
            Err(FsError::Damaged(_) | FsError::Aborted(_)) => {
                self.damages.push(Damage::BadRecord(table_key().into()));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // The owners are sorted.
        let meets = |run: &Run| {
            let end = self.owners.partition_point(|(it, ..)| it.start < run.start + run.blocks);
            let last = self.owners[..end].last();
            last.is_some_and(|(it, ..)| it.start + it.blocks > run.start)
        };
        if runs.iter().any(meets) {
            self.damages.push(Damage::BadRecord(table_key().into()))
        } else {
            (self.reserved, self.reservations) = (runs, count)
        }
        Ok(())
    }

    /// Merges the runs that are in use, or were and are not freed yet.
    fn join_taken(&mut self) {
        let mut all: Vec<Run> = self.owners.iter().map(|(run, _, _)| *run).collect();
        all.extend(self.freed.iter().chain(&self.reserved));
        all.sort_unstable_by_key(|run| run.start);
        for run in all {
            match self.taken.last_mut() {
                Some(last) if run.start <= last.start + last.blocks => {
                    let end = (last.start + last.blocks).max(run.start + run.blocks);
                    last.blocks = end - last.start;
                }
                _ => self.taken.push(run),
            }
        }
    }

    /// The parts of a range of blocks that are in use, counted from its start.
    pub(super) fn taken_within(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.taken.partition_point(|run| run.start + run.blocks <= range.start);
        let (start, end) = (range.start, range.end);
        let inside = self.taken[first..].iter().take_while(move |run| run.start < end);
        inside
            .map(move |run| run.start.max(start) - start..(run.start + run.blocks).min(end) - start)
    }

    /// Compares the bitmap with the blocks in use.
    async fn check_bits(
        &mut self,
        fs: &FsState,
        txn: &Arc<dyn Transaction>,
        data: bool,
    ) -> Result<(), FsError> {
        let area = &fs.area;
        self.join_taken();
        for page in 0..area.pages() {
            let covered = area.covered(page);
            let base = covered.start;
            let mut expected = vec![false; (covered.end - base) as usize];
            for bits in self.taken_within(&covered) {
                expected[bits.start as usize..bits.end as usize].fill(true);
            }
            let read = async || {
                let content = txn.read(area.page_lba(page)).await?;
                BitmapPage::read(area, page, &content)
            };
            let stored = match read().await {
                Ok(stored) => stored,
                Err(FsError::Damaged(_) | FsError::Aborted(_)) => {
                    self.damages.push(Damage::BadBitmap { page });
                    continue;
                }
                Err(error) => return Err(error),
            };
            let is_used = |bit: usize| stored.is_used(bit as u64);
            for (start, blocks) in runs(expected.len(), |bit| expected[bit] && !is_used(bit)) {
                self.damages.push(Damage::NotMarked { start: base + start, blocks });
            }
            for (start, blocks) in runs(expected.len(), |bit| !expected[bit] && is_used(bit)) {
                self.damages.push(Damage::NotUsed { start: base + start, blocks });
            }
            if data {
                self.check_empty(fs, txn, base, &expected).await?;
            }
        }
        Ok(())
    }

    /// Checks that blocks that are in no file read as zeros.
    async fn check_empty(
        &mut self,
        fs: &FsState,
        txn: &Arc<dyn Transaction>,
        base: u64,
        expected: &[bool],
    ) -> Result<(), FsError> {
        for (start, blocks) in runs(expected.len(), |bit| !expected[bit]) {
            let mut at = 0;
            while at < blocks {
                let some = READ_AT_ONCE.min(blocks - at);
                let first = base + start + at;
                let read = txn.read_run(fs.area.lba(first), some).await;
                let full = |content: &Bytes| content.iter().any(|byte| *byte != 0);
                let holds = match read {
                    Ok(blocks) => blocks.iter().map(full).collect(),
                    Err(TxnError::Store(_)) => vec![true; some as usize],
                    Err(error) => return Err(error.into()),
                };
                for (start, blocks) in runs(holds.len(), |number| holds[number]) {
                    self.damages.push(Damage::NotEmpty { start: first + start, blocks });
                }
                at += some;
            }
        }
        Ok(())
    }

    /// Reads blocks of a file one by one, the first one at that place among the data and in the file:
    /// a run of them could not be read.
    async fn check_each(
        &mut self,
        fs: &FsState,
        txn: &Arc<dyn Transaction>,
        ino: u64,
        (place, at): (u64, u64),
        blocks: u64,
    ) -> Result<(), FsError> {
        let mut bad = Vec::with_capacity(blocks as usize);
        for nth in 0..blocks {
            bad.push(match txn.read(fs.area.lba(place + nth)).await {
                Ok(read) => read.len() != BLOCK_SIZE,
                Err(TxnError::Store(_)) => true,
                Err(error) => return Err(error.into()),
            });
        }
        for (first, blocks) in runs(bad.len(), |nth| bad[nth]) {
            self.damages.push(Damage::Unreadable { ino, at: at + first, blocks });
        }
        Ok(())
    }

    /// Reads all blocks of files.
    async fn check_data(
        &mut self,
        fs: &FsState,
        txn: &Arc<dyn Transaction>,
    ) -> Result<(), FsError> {
        for (run, ino, at) in self.owners.clone() {
            let mut done = 0;
            while done < run.blocks {
                let some = READ_AT_ONCE.min(run.blocks - done);
                let lba = fs.area.lba(run.start + done);
                match txn.read_run(lba, some).await {
                    Ok(read) if read.iter().all(|it| it.len() == BLOCK_SIZE) => {}
                    Ok(_) | Err(TxnError::Store(_)) => {
                        let first = (run.start + done, at + done);
                        self.check_each(fs, txn, ino, first, some).await?;
                    }
                    Err(error) => return Err(error.into()),
                }
                done += some;
            }
        }
        Ok(())
    }
}

/// Runs of numbers below `len` that are wanted: the first, and how many.
fn runs(len: usize, wanted: impl Fn(usize) -> bool) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < len {
        let start = at;
        while at < len && wanted(at) {
            at += 1;
        }
        if at > start {
            found.push((start as u64, (at - start) as u64));
        }
        at += 1;
    }
    found
}
