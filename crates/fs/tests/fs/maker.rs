//! A maker of mutations, which foresees what they come to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{
    AttributeChange, Attributes, Ino, Kind, NewNode, Node, Rename, TimeChange, Timestamp,
};

use crate::support::*;

const BLOCK: u64 = 4096;

/// The blocks of a range of bytes.
fn blocks(offset: u64, len: u64) -> Range<u64> {
    offset / BLOCK..(offset + len).div_ceil(BLOCK)
}

/// Makes mutations, and knows what they come to.
pub(crate) struct Maker {
    pub(crate) rng: Rng,
    pub(crate) nodes: BTreeMap<Ino, Attributes>,
    pub(crate) bytes: BTreeMap<Ino, Vec<u8>>,
    /// The blocks that files have, where these do not follow from the sizes.
    pub(crate) blocks: BTreeMap<Ino, BTreeSet<u64>>,
    pub(crate) xattrs: BTreeMap<Ino, BTreeMap<Bytes, Bytes>>,
    pub(crate) next: u64,
    /// Writes may leave holes.
    pub(crate) leaves_holes: bool,
    /// Names, each with its directory.
    pub(crate) names: BTreeMap<(Ino, Bytes), Ino>,
    /// Inodes that stay when they have no names.
    pub(crate) held: BTreeSet<Ino>,
    /// The clock is never set back: the last time.
    pub(crate) steady: Option<Timestamp>,
}

impl Maker {
    pub(crate) fn new(env: &Env, root: Attributes, next: u64, leaves_holes: bool) -> Maker {
        let (rng, nodes) = (env.rng(), BTreeMap::from([(ROOT, root)]));
        let (bytes, blocks, xattrs, names, held) = Default::default();
        let steady = None;
        Maker { rng, nodes, bytes, blocks, xattrs, next, leaves_holes, names, held, steady }
    }

    /// Programs use some of the inodes that there are, and that the next mutations make: these ones from now on.
    pub(crate) fn hold(&mut self) -> Vec<Ino> {
        let next = (self.next..self.next + 20).map(Ino);
        let mut some: Vec<Ino> = self.nodes.keys().copied().chain(next).collect();
        some.retain(|ino| self.rng.random_bool(0.3) && self.held.insert(*ino));
        some
    }

    pub(crate) fn of_kind(&mut self, kind: Kind) -> Option<Ino> {
        let some: Vec<Ino> =
            self.nodes.values().filter(|it| it.kind == kind).map(|it| it.ino).collect();
        (!some.is_empty()).then(|| some[self.rng.random_range(0..some.len())])
    }

    pub(crate) fn time(&mut self) -> Timestamp {
        if let Some(last) = &mut self.steady {
            let on = [0, 1_000, 400_000_000][self.rng.random_range(0..3)];
            *last = Timestamp::of_nanos(
                last.seconds as u64 * 1_000_000_000 + u64::from(last.nanos) + on,
            );
            return *last;
        }
        // Clocks stand still, and are set back.
        let seconds = 1_000 + self.rng.random_range(0..3);
        Timestamp { seconds, nanos: self.rng.random_range(0..3) * 499_999_999 }
    }

    pub(crate) fn create(&mut self, time: Timestamp) -> Option<MutationKind> {
        let parent = self.of_kind(Kind::Directory).filter(|ino| self.nodes[ino].links > 0)?;
        let node = match self.rng.random_range(0..6) {
            0..2 => Node::File,
            2 => Node::Directory,
            3 => Node::Symlink("there".into()),
            4 => Node::CharDevice(7),
            _ => Node::Fifo,
        };
        let mode = self.rng.random_range(0..0o10000);
        let new = NewNode { node, mode, umask: 0o1027, uid: 5, gid: 6 };
        let number = Ino(self.next);
        self.next += 1;
        let made = Attributes::of_new(&self.nodes[&parent], &new, number, time);
        self.nodes.get_mut(&parent)?.got_name(made.kind, time);
        self.nodes.insert(number, made);
        let name = self.unused_name(parent)?;
        self.names.insert((parent, name.clone()), number);
        Some(MutationKind::Create { parent, name, new, number })
    }

    /// A name that the directory does not have: often one that it had.
    pub(crate) fn unused_name(&mut self, directory: Ino) -> Option<Bytes> {
        let first = self.rng.random_range(0..8);
        let mut names = (first..).map(|number| Bytes::from(format!("n{number}")));
        names.find(|name| !self.names.contains_key(&(directory, name.clone())))
    }

    pub(crate) fn some_name(&mut self) -> Option<((Ino, Bytes), Ino)> {
        let at = self.rng.random_range(0..self.names.len().max(1));
        self.names.iter().nth(at).map(|(name, ino)| (name.clone(), *ino))
    }

    /// An inode has lost a name at this time.
    pub(crate) fn lost_name(&mut self, ino: Ino, time: Timestamp) {
        let node = self.nodes.get_mut(&ino).unwrap();
        node.lost_name(time);
        if node.links == 0 && !self.held.contains(&ino) {
            self.nodes.remove(&ino);
            self.bytes.remove(&ino);
            self.blocks.remove(&ino);
            self.xattrs.remove(&ino);
        }
    }

    pub(crate) fn may_go(&self, ino: Ino) -> bool {
        let node = &self.nodes[&ino];
        node.kind != Kind::Directory || node.size == 0
    }

    pub(crate) fn remove(&mut self, time: Timestamp) -> Option<MutationKind> {
        let ((parent, name), ino) = self.some_name()?;
        if !self.may_go(ino) {
            return None;
        }
        let kind = self.nodes[&ino].kind;
        self.names.remove(&(parent, name.clone()));
        self.nodes.get_mut(&parent)?.changed_names(None, Some(kind), time);
        self.lost_name(ino, time);
        Some(match kind {
            Kind::Directory => MutationKind::RemoveDirectory { parent, name, ino },
            _ => MutationKind::Unlink { parent, name, ino },
        })
    }

    pub(crate) fn link(&mut self, time: Timestamp) -> Option<MutationKind> {
        let parent = self.of_kind(Kind::Directory).filter(|ino| self.nodes[ino].links > 0)?;
        let kind = [Kind::File, Kind::Fifo, Kind::Symlink][self.rng.random_range(0..3)];
        let ino = self.of_kind(kind).filter(|ino| self.nodes[ino].links > 0)?;
        let name = self.unused_name(parent)?;
        self.names.insert((parent, name.clone()), ino);
        self.nodes.get_mut(&parent)?.got_name(kind, time);
        self.nodes.get_mut(&ino)?.got_link(time);
        Some(MutationKind::Link { parent, name, ino })
    }

    /// Whether a directory is this one, or below it.
    pub(crate) fn is_below(&self, directory: Ino, top: Ino) -> bool {
        let above =
            self.names.iter().find(|(_, ino)| **ino == directory).map(|((above, _), _)| *above);
        directory == top || above.is_some_and(|above| self.is_below(above, top))
    }

    pub(crate) fn rename(&mut self, time: Timestamp) -> Option<MutationKind> {
        let (from, ino) = self.some_name()?;
        let how =
            [Rename::Replace, Rename::NoReplace, Rename::Exchange][self.rng.random_range(0..3)];
        let (to, there) = if how == Rename::NoReplace || self.rng.random_bool(0.3) {
            let parent = self.of_kind(Kind::Directory)?;
            ((parent, self.unused_name(parent)?), None)
        } else {
            let (to, there) = self.some_name()?;
            (to, Some(there))
        };
        let kind = self.nodes[&ino].kind;
        let other = there.map(|there| self.nodes[&there].kind);
        let are_alike =
            other.is_none_or(|other| (kind == Kind::Directory) == (other == Kind::Directory));
        let is_possible = match (how, there) {
            (_, Some(there)) if there == ino => false,
            (Rename::Exchange, None) => false,
            (Rename::Exchange, Some(there)) => !self.is_below(from.0, there),
            (_, Some(there)) => are_alike && self.may_go(there),
            (_, None) => true,
        };
        if !is_possible || self.is_below(to.0, ino) || self.nodes[&to.0].links == 0 {
            return None;
        }
        self.names.remove(&from);
        self.names.insert(to.clone(), ino);
        let exchanged = other.filter(|_| how == Rename::Exchange);
        if let (Rename::Exchange, Some(there)) = (how, there) {
            self.names.insert(from.clone(), there);
            self.nodes.get_mut(&there)?.moved(time);
        }
        if from.0 == to.0 {
            let lost = other.filter(|_| how == Rename::Replace);
            self.nodes.get_mut(&from.0)?.changed_names(None, lost, time);
        } else {
            self.nodes.get_mut(&from.0)?.changed_names(exchanged, Some(kind), time);
            self.nodes.get_mut(&to.0)?.changed_names(Some(kind), other, time);
        }
        self.nodes.get_mut(&ino)?.moved(time);
        if let (Rename::Replace, Some(there)) = (how, there) {
            self.lost_name(there, time);
        }
        Some(MutationKind::Rename { from, to, how, ino, there })
    }

    pub(crate) fn set(&mut self, time: Timestamp) -> Option<MutationKind> {
        let kind = [Kind::File, Kind::Directory, Kind::Fifo][self.rng.random_range(0..3)];
        let ino = self.of_kind(kind)?;
        let (can_cut, size) =
            (kind == Kind::File && !self.leaves_holes, self.rng.random_range(0..9000));
        let mut some = |value| self.rng.random_bool(0.3).then_some(value);
        let change = AttributeChange {
            mode: some(0o6711),
            uid: some(11).map(u32::from),
            gid: some(12).map(u32::from),
            size: if can_cut { some(0).map(|_| size) } else { None },
            accessed: some(0).map(|_| TimeChange::At(Timestamp { seconds: -5, nanos: 5 })),
            modified: some(0).map(|_| TimeChange::Now),
            clear_suid: some(0).is_some(),
        };
        self.nodes.get_mut(&ino)?.set(&change, time);
        if let Some(size) = change.size {
            self.bytes.entry(ino).or_default().resize(size as usize, 0);
            self.blocks.entry(ino).or_default().retain(|block| block * BLOCK < size);
        }
        Some(MutationKind::SetAttributes { ino, change })
    }

    pub(crate) fn write(&mut self, time: Timestamp) -> Option<MutationKind> {
        let ino = self.of_kind(Kind::File)?;
        let bytes = self.bytes.entry(ino).or_default();
        // The bytes of a file follow one another, or are written again.
        let gap = if self.leaves_holes && self.rng.random_bool(0.2) { 5000 } else { 0 };
        let offset = self.rng.random_range(0..=bytes.len()) + gap;
        let len = self.rng.random_range(1..6000);
        let data = vec![self.rng.random_range(1..=255); len];
        bytes.resize(bytes.len().max(offset + len), 0);
        bytes[offset..offset + len].copy_from_slice(&data);
        let clear_suid = self.rng.random_bool(0.5);
        let offset = offset as u64;
        self.blocks.entry(ino).or_default().extend(blocks(offset, len as u64));
        self.nodes.get_mut(&ino)?.wrote(offset + len as u64, clear_suid, time);
        Some(MutationKind::Write { ino, offset, data: data.into(), clear_suid })
    }

    /// Storage is reserved: in the file, behind its end, and also far behind that.
    pub(crate) fn reserve(&mut self, time: Timestamp) -> Option<MutationKind> {
        let ino = self.of_kind(Kind::File).filter(|_| !self.leaves_holes)?;
        let bytes = self.bytes.entry(ino).or_default();
        let gap = if self.rng.random_bool(0.2) { 9000 } else { 0 };
        let offset = (self.rng.random_range(0..=bytes.len()) + gap) as u64;
        let (len, keep_size) = (self.rng.random_range(1..30_000), self.rng.random_bool(0.4));
        let end = offset + len;
        if !keep_size {
            bytes.resize(bytes.len().max(end as usize), 0);
        }
        self.blocks.entry(ino).or_default().extend(blocks(offset, len));
        self.nodes.get_mut(&ino)?.reserved(end, keep_size, time);
        Some(MutationKind::Reserve { ino, offset, len, keep_size })
    }

    /// An extended attribute is set or removed: of few names, so that one is often set again.
    pub(crate) fn change_xattr(&mut self, time: Timestamp) -> Option<MutationKind> {
        let kind = [Kind::File, Kind::Directory, Kind::Fifo][self.rng.random_range(0..3)];
        let ino = self.of_kind(kind)?;
        let names = ["trusted.a", "trusted.b", "user.a", "user.b"];
        let name = Bytes::from(
            names[self.rng.random_range(0..if kind == Kind::Fifo { 2 } else { names.len() })],
        );
        let xattrs = self.xattrs.entry(ino).or_default();
        let is_removed = self.rng.random_bool(0.3);
        if is_removed {
            xattrs.remove(&name)?;
            self.nodes.get_mut(&ino)?.changed_xattr(time);
            return Some(MutationKind::RemoveXattr { ino, name });
        }
        let most = if self.rng.random_bool(0.1) { 9000 } else { 100 };
        let len = self.rng.random_range(0..most);
        let value = Bytes::from(vec![self.rng.random(); len]);
        xattrs.insert(name.clone(), value.clone());
        self.nodes.get_mut(&ino)?.changed_xattr(time);
        Some(MutationKind::SetXattr { ino, name, value })
    }

    pub(crate) fn mutation(&mut self) -> Mutation {
        let time = self.time();
        loop {
            let kind = match self.rng.random_range(0..20) {
                0..5 => self.create(time),
                5..8 => self.set(time),
                8..11 => self.write(time),
                11..13 => self.remove(time),
                13 => self.link(time),
                16 => self.reserve(time),
                17..20 => self.change_xattr(time),
                _ => self.rename(time),
            };
            if let Some(kind) = kind {
                return Mutation { time, kind };
            }
        }
    }
}
