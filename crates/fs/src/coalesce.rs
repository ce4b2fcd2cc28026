//! Coalescing: what is left of mutations that are applied as one transaction.
//!
//! Nothing sees the states between. So bytes and extended attributes that a later mutation replaces are left out, and a file that is
//! made and removed again is not made. All attributes become what they would without this, also the times: an inode whose last change is left out is touched
//! instead.

use std::ops::Range;

use bytes::Bytes;
use thalweg_env::{HashMap, HashSet};

use crate::attributes::{AttributeChange, Ino, TimeChange, Timestamp};
use crate::mutation::{Mutation, MutationKind};
use crate::node::{Node, Rename};
use crate::ranges::Ranges;

/// A write is not cut to save fewer bytes.
const LEAST_SAVED: u64 = 256;
/// The most parts of a write that are left.
const MOST_PARTS: usize = 8;

/// What is left of a mutation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rest {
    /// All of it.
    Whole,
    /// Of a write: these of its bytes.
    Parts(Vec<Range<usize>>),
    /// The times of these inodes: none, if later mutations set them.
    Times(Vec<Ino>),
}

/// What is left of mutations.
#[derive(Clone, Debug)]
pub struct Coalesced {
    rests: Vec<Rest>,
    gone: HashSet<Ino>,
}

impl Coalesced {
    /// Of mutations in their order, each with the number of bytes that it writes, wherever these are. No inode that they make and
    /// leave without a name is in use.
    pub fn of<'a>(
        mutations: impl ExactSizeIterator<Item = (&'a Mutation, u64)> + DoubleEndedIterator + Clone,
    ) -> Coalesced {
        let gone = made_and_removed(mutations.clone().map(|(mutation, _)| &mutation.kind));
        let mut rests = vec![Rest::Whole; mutations.len()];
        let mut covered = Covered::default();
        for ((Mutation { kind, .. }, len), rest) in mutations.clone().zip(&mut rests).rev() {
            if is_about(kind, &gone) {
                let mut directories = Vec::new();
                for (directory, _) in kind.names() {
                    if !directories.contains(&directory) {
                        directories.push(directory);
                    }
                }
                *rest = Rest::Times(directories);
            } else {
                *rest = rest_of(kind, len, &mut covered);
            }
        }
        drop_times(mutations.map(|(mutation, _)| mutation), &mut rests);
        Coalesced { rests, gone }
    }

    /// Whether bytes of a mutation are left.
    pub fn keeps_bytes(&self, index: usize) -> bool {
        !matches!(self.rests[index], Rest::Times(_))
    }

    /// The inodes that are not made.
    pub fn gone(&self) -> impl Iterator<Item = Ino> {
        self.gone.iter().copied()
    }

    /// What is left of the mutations, which have their bytes as far as these are [kept](Self::keeps_bytes).
    pub fn apply(&self, mutations: &[Mutation]) -> Vec<Mutation> {
        assert!(mutations.len() == self.rests.len(), "other mutations are coalesced than planned");
        self.apply_from(0, mutations)
    }

    /// How many mutations are left.
    pub fn len(&self) -> usize {
        let left = self.rests.iter().map(|rest| match rest {
            Rest::Whole => 1,
            Rest::Parts(parts) => parts.len(),
            Rest::Times(inodes) => inodes.len(),
        });
        left.sum()
    }

    /// Whether no mutations are left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// [`Self::apply`] for some of the mutations, the first of which is this one.
    pub fn apply_from(&self, first: usize, mutations: &[Mutation]) -> Vec<Mutation> {
        let rests = &self.rests[first..first + mutations.len()];
        let mut left = Vec::with_capacity(mutations.len());
        for (mutation, rest) in mutations.iter().zip(rests) {
            let time = mutation.time;
            match rest {
                Rest::Whole => left.push(mutation.clone()),
                Rest::Parts(parts) => {
                    left.extend(
                        parts
                            .iter()
                            .map(|part| Mutation { time, kind: part_of(&mutation.kind, part) }),
                    );
                }
                Rest::Times(inodes) => {
                    let modified = (!is_xattr(&mutation.kind)).then_some(TimeChange::Now);
                    let change = AttributeChange { modified, ..AttributeChange::default() };
                    let touch = |ino: &Ino| MutationKind::SetAttributes { ino: *ino, change };
                    left.extend(inodes.iter().map(|ino| Mutation { time, kind: touch(ino) }));
                }
            }
        }
        left
    }
}

fn part_of(kind: &MutationKind, part: &Range<usize>) -> MutationKind {
    let MutationKind::Write { ino, offset, data, clear_suid } = kind else {
        unreachable!("only writes have parts");
    };
    let (data, offset): (Bytes, _) = (data.slice(part.clone()), offset + part.start as u64);
    MutationKind::Write { ino: *ino, offset, data, clear_suid: *clear_suid }
}

/// The inodes that mutations make, and leave without a name.
fn made_and_removed<'a>(kinds: impl Iterator<Item = &'a MutationKind>) -> HashSet<Ino> {
    // The number of names; `None` for one that has to be made.
    let mut made = HashMap::<Ino, Option<u32>>::default();
    for kind in kinds {
        match kind {
            MutationKind::Create { new, number, .. } => {
                made.insert(*number, (new.node != Node::Directory).then_some(1));
            }
            MutationKind::SetAttributes { .. }
            | MutationKind::Write { .. }
            | MutationKind::Reserve { .. }
            | MutationKind::SetXattr { .. }
            | MutationKind::RemoveXattr { .. } => {}
            MutationKind::Link { ino, .. } => {
                made.entry(*ino).and_modify(|names| *names = names.map(|it| it + 1));
            }
            MutationKind::Unlink { ino, .. } => {
                made.entry(*ino)
                    .and_modify(|names| *names = names.and_then(|it| it.checked_sub(1)));
            }
            MutationKind::Rename {
                how: Rename::Replace | Rename::NoReplace, there: None, ..
            } => {}
            MutationKind::Stored { .. }
            | MutationKind::RemoveDirectory { .. }
            | MutationKind::Rename { .. } => {
                for ino in kind.inodes() {
                    made.entry(ino).and_modify(|names| *names = None);
                }
            }
        }
    }
    made.into_iter().filter(|(_, names)| *names == Some(0)).map(|(ino, _)| ino).collect()
}

/// Whether a mutation is about an inode that is not made.
fn is_about(kind: &MutationKind, gone: &HashSet<Ino>) -> bool {
    !gone.is_empty() && kind.inodes().any(|ino| gone.contains(&ino))
}

/// What later mutations write.
#[derive(Default)]
struct Covered {
    /// Bytes of files.
    bytes: HashMap<Ino, Ranges>,
    /// Extended attributes of inodes.
    xattrs: HashSet<(Ino, Bytes)>,
}

/// What is left of a mutation of an inode that stays, of which later ones write what is covered.
fn rest_of(kind: &MutationKind, len: u64, covered: &mut Covered) -> Rest {
    let (ino, offset, clear_suid) = match kind {
        MutationKind::Write { ino, offset, clear_suid, .. } => (*ino, *offset, *clear_suid),
        // A later write of the same bytes leaves nothing of them, whatever size the file has between.
        MutationKind::Stored { ino, .. } => {
            covered.bytes.remove(ino);
            return Rest::Whole;
        }
        MutationKind::SetXattr { ino, name, .. } => {
            let is_new = covered.xattrs.insert((*ino, name.clone()));
            return if is_new { Rest::Whole } else { Rest::Times(vec![*ino]) };
        }
        // It finds what is set before.
        MutationKind::RemoveXattr { ino, name } => {
            covered.xattrs.remove(&(*ino, name.clone()));
            return Rest::Whole;
        }
        _ => return Rest::Whole,
    };
    let (end, later) = (offset.saturating_add(len), covered.bytes.entry(ino).or_default());
    let gaps = later.gaps(offset..end);
    let left: u64 = gaps.iter().map(|gap| gap.end - gap.start).sum();
    later.add(offset..end);
    if clear_suid || len == 0 || left == len {
        return Rest::Whole;
    }
    if left == 0 {
        return Rest::Times(vec![ino]);
    }
    if gaps.len() > MOST_PARTS || len - left < LEAST_SAVED {
        return Rest::Whole;
    }
    let part = |gap: Range<u64>| (gap.start - offset) as usize..(gap.end - offset) as usize;
    Rest::Parts(gaps.into_iter().map(part).collect())
}

/// Whether a mutation sets the time of the last change of content of an inode that it changes.
fn sets_modified(kind: &MutationKind, ino: Ino) -> bool {
    match kind {
        MutationKind::SetAttributes { change, .. } => {
            change.modified.is_some() || change.size.is_some()
        }
        MutationKind::Write { .. } | MutationKind::Stored { .. } | MutationKind::Reserve { .. } => {
            true
        }
        MutationKind::SetXattr { .. } | MutationKind::RemoveXattr { .. } => false,
        MutationKind::Create { .. }
        | MutationKind::Unlink { .. }
        | MutationKind::RemoveDirectory { .. }
        | MutationKind::Link { .. }
        | MutationKind::Rename { .. } => kind.names().any(|(directory, _)| directory == ino),
    }
}

/// Whether a mutation changes an extended attribute, and so no other time than that of the last change.
fn is_xattr(kind: &MutationKind) -> bool {
    matches!(kind, MutationKind::SetXattr { .. } | MutationKind::RemoveXattr { .. })
}

/// Leaves out times that later mutations set. A change of an inode is later than the one before, whatever the clock says: so each that is
/// left out, or made in several parts, is one more or less, unless the next one is later by the clock.
fn drop_times<'a>(mutations: impl Iterator<Item = &'a Mutation>, rests: &mut [Rest]) {
    // The last change of each inode, and the mutation that made it; whether that was of an extended attribute.
    let mut last = HashMap::<Ino, (Timestamp, usize, bool)>::default();
    for (index, Mutation { time, kind }) in mutations.enumerate() {
        let touched: Vec<Ino> = match &rests[index] {
            Rest::Times(inodes) => inodes.clone(),
            Rest::Whole | Rest::Parts(_) => kind.inodes().collect(),
        };
        for ino in touched {
            let mut changed = *time;
            if let Some((before, earlier, was_xattr)) = last.get(&ino) {
                changed = changed.max(before.next());
                let is_later = *time > *before;
                match &mut rests[*earlier] {
                    Rest::Times(inodes) if is_later && (*was_xattr || sets_modified(kind, ino)) => {
                        inodes.retain(|it| *it != ino);
                    }
                    parts @ Rest::Parts(_) if !is_later => *parts = Rest::Whole,
                    Rest::Whole | Rest::Parts(_) | Rest::Times(_) => {}
                }
            }
            if let Rest::Parts(parts) = &rests[index] {
                changed = parts[1..].iter().fold(changed, |changed, _| changed.next());
            }
            last.insert(ino, (changed, index, is_xattr(kind)));
        }
    }
}
