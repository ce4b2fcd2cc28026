//! What the mutations of a journal come to, inode by inode.

use std::collections::BTreeMap;

use bytes::Bytes;
use thalweg_env::HashMap;
use thalweg_fs::mutation::MutationKind;
use thalweg_fs::ranges::Ranges;
use thalweg_fs::{AttributeChange, Ino, NewNode, Rename};

use super::journal_runs::Run;

/// A change of the bytes of a file.
#[derive(Clone, Debug)]
pub enum Step {
    /// These are written from this offset on.
    Write(u64, Bytes),
    /// The size is set.
    Size(u64),
    /// The file has at least this size.
    Grow(u64),
}

/// The changes of one inode.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) steps: Vec<Step>,
    pub(super) sets_attributes: bool,
    /// If they make it: the directory, its name there, what it is.
    pub(super) made: Option<(Ino, Bytes, NewNode)>,
    /// Further names that they give it.
    pub(super) linked: Vec<Name>,
    /// Names that it had before, and what they are now; `None` of one that it lost.
    pub(super) moved: Vec<(Name, Option<Name>)>,
    /// They make it, and take its last name.
    pub(super) is_gone: bool,
    /// The attributes that they leave it with.
    pub(super) attributes: AttributeChange,
    /// The extended attributes that they set, or remove.
    pub(super) xattrs: BTreeMap<Bytes, Option<Bytes>>,
}

/// A directory, and a name there.
pub(super) type Name = (Ino, Bytes);

impl Changes {
    fn set(&mut self, change: &AttributeChange) {
        self.steps.extend(change.size.map(Step::Size));
        self.sets_attributes |= change.size.is_none();
        let last = &mut self.attributes;
        last.mode = change.mode.or(last.mode);
        last.uid = change.uid.or(last.uid);
        last.gid = change.gid.or(last.gid);
        last.modified = change.modified.or(last.modified);
        last.accessed = change.accessed.or(last.accessed);
    }

    fn set_xattr(&mut self, name: Bytes, value: Option<Bytes>) {
        self.sets_attributes = true;
        self.xattrs.insert(name, value);
    }

    fn is_made_as(&self, name: &Name) -> bool {
        self.made.as_ref().is_some_and(|(parent, made, _)| (*parent, made) == (name.0, &name.1))
    }

    /// The inode has another name instead of this one.
    fn change_name(&mut self, from: Name, to: Name) {
        if self.is_made_as(&from) {
            if let Some((parent, name, _)) = &mut self.made {
                (*parent, *name) = to;
            }
        } else if let Some(linked) = self.linked.iter_mut().find(|it| **it == from) {
            *linked = to;
        } else if let Some((_, now)) = self.moved.iter_mut().find(|it| it.1.as_ref() == Some(&from))
        {
            *now = Some(to);
        } else {
            self.moved.push((from, Some(to)));
        }
    }

    /// The inode has this name no more.
    fn lose(&mut self, name: Name) {
        if self.is_made_as(&name) {
            match (self.linked.pop(), &mut self.made) {
                (Some(other), Some((parent, name, _))) => (*parent, *name) = other,
                _ => self.is_gone = true,
            }
        } else if let Some(at) = self.linked.iter().position(|it| *it == name) {
            self.linked.remove(at);
        } else if let Some((_, now)) = self.moved.iter_mut().find(|it| it.1.as_ref() == Some(&name))
        {
            *now = None;
        } else {
            self.moved.push((name, None));
        }
    }
}

/// The rest of a journal.
#[derive(Default)]
pub(super) struct Rest {
    /// Inodes in the order of their first change.
    inodes: Vec<Ino>,
    changes: HashMap<Ino, Changes>,
    count: usize,
    time: i64,
}

impl Rest {
    /// Adds those of the mutations of these runs that `belongs` names. They have positions from `first` on.
    pub(super) fn add(&mut self, runs: Vec<Run>, first: u64, belongs: impl Fn(u64) -> bool) {
        let mutations = runs.into_iter().flat_map(|run| run.mutations).map(|it| it.mutation);
        for (_, mutation) in (first..).zip(mutations).filter(|(position, _)| belongs(*position)) {
            let seconds = mutation.time.seconds;
            self.time = if self.count == 0 { seconds } else { self.time.min(seconds) };
            self.count += 1;
            self.add_change(mutation.kind);
        }
    }

    fn of_inode(&mut self, ino: Ino) -> &mut Changes {
        self.changes.entry(ino).or_insert_with(|| {
            self.inodes.push(ino);
            Changes::default()
        })
    }

    fn add_change(&mut self, kind: MutationKind) {
        match kind {
            MutationKind::Create { parent, name, new, number } => {
                self.of_inode(number).made = Some((parent, name, new));
            }
            MutationKind::Write { ino, offset, data, .. } => {
                self.of_inode(ino).steps.push(Step::Write(offset, data));
            }
            MutationKind::SetAttributes { ino, change } => self.of_inode(ino).set(&change),
            MutationKind::Reserve { ino, offset, len, keep_size } => {
                let end = (!keep_size).then(|| offset.saturating_add(len));
                self.of_inode(ino).steps.extend(end.map(Step::Grow));
            }
            MutationKind::SetXattr { ino, name, value } => {
                self.of_inode(ino).set_xattr(name, Some(value));
            }
            MutationKind::RemoveXattr { ino, name } => self.of_inode(ino).set_xattr(name, None),
            // With a journal the server alone stores bytes.
            MutationKind::Stored { ino, .. } => self.of_inode(ino).sets_attributes = true,
            MutationKind::Unlink { parent, name, ino }
            | MutationKind::RemoveDirectory { parent, name, ino } => {
                self.of_inode(ino).lose((parent, name));
            }
            MutationKind::Link { parent, name, ino } => {
                self.of_inode(ino).linked.push((parent, name));
            }
            MutationKind::Rename { from, to, how, ino, there } => {
                match (there, how) {
                    (Some(there), Rename::Exchange) => {
                        self.of_inode(there).change_name(to.clone(), from.clone());
                    }
                    (Some(there), _) => self.of_inode(there).lose(to.clone()),
                    (None, _) => {}
                }
                self.of_inode(ino).change_name(from, to);
            }
        }
    }

    /// Whether they make an inode that stays.
    pub(super) fn makes(&self, ino: Ino) -> bool {
        self.changes.get(&ino).is_some_and(|it| it.made.is_some() && !it.is_gone)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn files(&self) -> usize {
        self.inodes.len()
    }

    /// When its first change was made, in seconds since 1970.
    pub(super) fn time(&self) -> i64 {
        self.time
    }

    /// The changes by inodes, in the order of the first one of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Ino, &Changes)> {
        self.inodes.iter().map(|ino| (*ino, &self.changes[ino]))
    }
}

/// The ranges that steps write, and the size that they make at least.
pub(super) fn extent(steps: &[Step]) -> (Vec<(u64, u64)>, Option<u64>) {
    let (mut ranges, mut size) = (Ranges::default(), None);
    for step in steps {
        match step {
            Step::Write(offset, data) => {
                let end = offset + data.len() as u64;
                size = size.max(Some(end));
                ranges.add(*offset..end);
            }
            Step::Size(cut) => {
                size = Some(*cut);
                ranges.cut(*cut);
            }
            Step::Grow(end) => size = size.max(Some(*end)),
        }
    }
    (ranges.iter().map(|it| (it.start, it.end - it.start)).collect(), size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, len: usize) -> Step {
        Step::Write(offset, vec![0; len].into())
    }

    #[test]
    fn ranges_are_joined_and_cut() {
        let steps = [write(10, 5), write(0, 4), write(4, 6), write(30, 10)];
        assert_eq!(extent(&steps), (vec![(0, 15), (30, 10)], Some(40)));
        let cut = [write(0, 10), Step::Size(4), write(20, 1), Step::Size(100)];
        assert_eq!(extent(&cut), (vec![(0, 4), (20, 1)], Some(100)));
        let grown = [write(0, 10), Step::Grow(4), Step::Grow(50), Step::Grow(20)];
        assert_eq!(extent(&grown), (vec![(0, 10)], Some(50)));
        assert_eq!(extent(&[]), (vec![], None));
    }
}
