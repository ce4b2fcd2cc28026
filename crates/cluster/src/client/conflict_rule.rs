//! Which mutations of a journal conflict with what other clients have done while its client was away, and which depend on those.
//!
//! The server refuses a mutation that conflicts. It may take one that depends on a refused one, so the client has to know these: a write to a
//! file whose earlier write is refused, a name below a directory that is not made.

use bytes::Bytes;
use thalweg_env::{HashMap, HashSet};
use thalweg_fs::Ino;
use thalweg_fs::mutation::MutationKind;
use thalweg_fs::ranges::Ranges;

use super::journal_runs::Run;
use super::options::ConflictScope;
use super::used_meanwhile::UsedMeanwhile;

/// What the mutations of a journal come upon, one after the other.
pub(super) struct ConflictRule<'a> {
    scope: ConflictScope,
    used: &'a UsedMeanwhile,
    /// Inodes that the client has made since the filesystem was used without a server.
    made: HashSet<Ino>,
    /// The mutations that follow conflict.
    has_stopped: bool,
    /// Inodes that are not made.
    unmade: HashSet<Ino>,
    /// Inodes that stay as they are.
    blocked: HashSet<Ino>,
    /// Bytes that are not written, by files that get others.
    unwritten: HashMap<Ino, Ranges>,
    /// Names that stay as they are, and their directories.
    names: HashSet<(Ino, Bytes)>,
    directories: HashSet<Ino>,
}

impl<'a> ConflictRule<'a> {
    pub(super) fn new(scope: ConflictScope, used: &'a UsedMeanwhile) -> ConflictRule<'a> {
        let (made, has_stopped, unmade, blocked) = Default::default();
        let (unwritten, names, directories) = Default::default();
        ConflictRule {
            scope,
            used,
            made,
            has_stopped,
            unmade,
            blocked,
            unwritten,
            names,
            directories,
        }
    }

    /// Whether an inode was there when the filesystem was used without a server, if it was.
    fn is_of_all(&self, ino: Ino) -> bool {
        self.used.all.is_some() && !self.made.contains(&ino)
    }

    /// Whether a mutation conflicts with what other clients have done, or depends on one that is skipped.
    pub(super) fn conflicts(&self, kind: &MutationKind) -> bool {
        if self.has_stopped {
            return true;
        }
        let is_of_skipped = |(parent, name): (Ino, &Bytes)| {
            self.unmade.contains(&parent) || self.names.contains(&(parent, name.clone()))
        };
        if kind.names().any(is_of_skipped) {
            return true;
        }
        match kind {
            MutationKind::Write { ino, offset, data, .. } => {
                let range = *offset..offset.saturating_add(data.len() as u64);
                let overlaps = |it: &Ranges| it.overlaps(&range);
                let is_used = match self.used.inodes.get(ino) {
                    Some(it) => it.conflicts_with(&range),
                    None => self.is_of_all(*ino),
                };
                is_used
                    || self.blocked.contains(ino)
                    || self.unwritten.get(ino).is_some_and(overlaps)
            }
            // A name in it stays.
            MutationKind::RemoveDirectory { ino, .. } if self.directories.contains(ino) => true,
            kind => kind.subjects().any(|ino| {
                self.used.inodes.contains_key(&ino)
                    || self.is_of_all(ino)
                    || self.blocked.contains(&ino)
                    || self.unwritten.contains_key(&ino)
            }),
        }
    }

    /// Adds the positions of mutations that are skipped: those that were before, and what conflicts behind the last position that the server
    /// has. These runs have positions from `first` on.
    pub(super) fn add_skipped(
        &mut self,
        (runs, first): (&[Run], u64),
        (reached, before): (u64, &Ranges),
        skipped: &mut Ranges,
    ) {
        let mutations = runs.iter().flat_map(|run| &run.mutations).map(|it| &it.mutation.kind);
        for (position, kind) in (first..).zip(mutations) {
            let is_skipped =
                before.contains(position) || (position > reached && self.conflicts(kind));
            if is_skipped {
                self.skip(kind);
                skipped.add(position..position + 1);
            } else if self.used.all.is_some_and(|all| position > all.position) {
                self.made.extend(kind.made());
            }
        }
    }

    /// A mutation is skipped.
    pub(super) fn skip(&mut self, kind: &MutationKind) {
        let is_foreseen = self.conflicts(kind);
        self.has_stopped |= self.scope == ConflictScope::Prefix;
        for (parent, name) in kind.names() {
            self.names.insert((parent, name.clone()));
            self.directories.insert(parent);
        }
        match kind {
            // Of one that the server refuses unexpectedly it is not known what of the file other clients have used.
            MutationKind::Write { ino, offset, data, .. } if is_foreseen => {
                let range = *offset..offset.saturating_add(data.len() as u64);
                self.unwritten.entry(*ino).or_default().add(range);
            }
            kind => {
                self.blocked.extend(kind.subjects().chain(kind.made()));
                self.unmade.extend(kind.made());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_fs::mutation::Mutation;
    use thalweg_fs::{AttributeChange, NewNode, Node, Rename, Timestamp};

    use super::super::journal_runs::JournaledMutation;
    use super::*;
    use crate::protocol::UsedInode;

    fn skipped_of(
        mut rule: ConflictRule<'_>,
        runs: (&[Run], u64),
        reached: u64,
        before: &Ranges,
    ) -> Ranges {
        let mut skipped = Ranges::default();
        rule.add_skipped(runs, (reached, before), &mut skipped);
        skipped
    }

    const TOP: Ino = Ino(1);

    fn create(parent: Ino, name: &'static str, number: u64, node: Node) -> MutationKind {
        let new = NewNode { node, mode: 0, umask: 0, uid: 0, gid: 0 };
        MutationKind::Create { parent, name: name.into(), new, number: Ino(number) }
    }

    fn write(ino: u64, offset: u64, len: usize) -> MutationKind {
        let data = vec![1; len].into();
        MutationKind::Write { ino: Ino(ino), offset, data, clear_suid: false }
    }

    fn unlink(name: &'static str, ino: u64) -> MutationKind {
        MutationKind::Unlink { parent: TOP, name: name.into(), ino: Ino(ino) }
    }

    fn rename(from: &'static str, to: &'static str, ino: u64) -> MutationKind {
        MutationKind::Rename {
            from: (TOP, from.into()),
            to: (TOP, to.into()),
            how: Rename::Replace,
            ino: Ino(ino),
            there: None,
        }
    }

    fn chmod(ino: u64) -> MutationKind {
        let change = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
        MutationKind::SetAttributes { ino: Ino(ino), change }
    }

    /// What is skipped of these, which are counted from 1 on.
    fn skipped(
        scope: ConflictScope,
        used: &[UsedInode],
        refused: &[u64],
        kinds: Vec<MutationKind>,
    ) -> Vec<u64> {
        let inodes = used.iter().map(|it| (it.ino, it.clone())).collect();
        let used = UsedMeanwhile { inodes, all: None };
        let of = |kind| Mutation { time: Timestamp::default(), kind };
        let mutations = kinds.into_iter().map(of);
        let mutations =
            mutations.map(|mutation| JournaledMutation { mutation, blocks: 0, quota: 0 });
        let runs = [Run { user: None, mutations: mutations.collect() }];
        let before = refused.iter().map(|it| *it..it + 1).collect();
        let rule = ConflictRule::new(scope, &used);
        skipped_of(rule, (&runs, 1), 0, &before).iter().flatten().collect()
    }

    fn read(ino: u64) -> UsedInode {
        UsedInode { ino: Ino(ino), changed: Timestamp::default(), written: None }
    }

    fn file(used: &[UsedInode], refused: &[u64], kinds: Vec<MutationKind>) -> Vec<u64> {
        skipped(ConflictScope::File, used, refused, kinds)
    }

    #[test]
    fn a_file_is_skipped_and_the_others_are_not() {
        let kinds = || vec![write(7, 0, 9), write(8, 0, 9), chmod(7), chmod(8), write(7, 90, 9)];
        assert_eq!(file(&[read(8)], &[], kinds()), [2, 4]);
        assert_eq!(file(&[], &[1], kinds()), [1, 3, 5]);
        assert_eq!(skipped(ConflictScope::Prefix, &[read(8)], &[], kinds()), [2, 3, 4, 5]);
        assert_eq!(file(&[], &[], kinds()), [] as [u64; 0]);
    }

    #[test]
    fn what_depends_on_a_name_is_skipped() {
        // A directory that is not made, and what is in it.
        let made = vec![
            create(TOP, "d", 7, Node::Directory),
            create(Ino(7), "f", 8, Node::File),
            write(8, 0, 9),
            create(TOP, "e", 9, Node::File),
            unlink("d", 7),
            create(TOP, "d", 10, Node::File),
            write(10, 0, 1),
            write(9, 0, 1),
        ];
        assert_eq!(file(&[], &[1], made), [1, 2, 3, 5, 6, 7]);
        // A file that keeps its name, and what was to have that.
        let renamed = vec![
            rename("f", "g", 7),
            create(TOP, "f", 8, Node::File),
            create(TOP, "g", 9, Node::File),
            create(TOP, "h", 10, Node::File),
        ];
        assert_eq!(file(&[read(7)], &[], renamed), [1, 2, 3]);
        // A directory that does not become empty.
        let top = Ino(7);
        let removed = vec![
            MutationKind::Unlink { parent: top, name: "f".into(), ino: Ino(8) },
            MutationKind::RemoveDirectory { parent: TOP, name: "d".into(), ino: top },
        ];
        assert_eq!(file(&[read(8)], &[], removed), [1, 2]);
    }

    #[test]
    fn only_ranges_that_overlap_conflict() {
        let written = UsedInode {
            ino: Ino(7),
            changed: Timestamp::default(),
            written: Some(std::iter::once(10..20).collect()),
        };
        let writes = vec![
            write(7, 0, 10),
            write(7, 19, 11),
            write(7, 20, 5),
            write(7, 30, 5),
            write(8, 10, 5),
        ];
        // The third one overlaps with what is not written.
        assert_eq!(file(std::slice::from_ref(&written), &[], writes), [2, 3]);
        let others = vec![write(7, 0, 10), chmod(7), write(7, 30, 1)];
        assert_eq!(file(std::slice::from_ref(&written), &[], others), [2, 3]);
        let cut = vec![write(7, 12, 1), write(7, 0, 1), unlink("f", 7)];
        assert_eq!(file(&[written], &[], cut), [1, 3]);
    }

    #[test]
    fn what_was_skipped_before_a_crash_stays_skipped() {
        let used = UsedMeanwhile::default();
        let of = |kind| JournaledMutation {
            mutation: Mutation { time: Timestamp::default(), kind },
            blocks: 0,
            quota: 0,
        };
        let kinds = [create(TOP, "f", 7, Node::File), chmod(8), write(7, 0, 1), chmod(8)];
        let runs = [Run { user: None, mutations: kinds.into_iter().map(of).collect() }];
        let before = std::iter::once(11..12).collect();
        let rule = ConflictRule::new(ConflictScope::File, &used);
        let skipped = skipped_of(rule, (&runs, 11), 12, &before);
        assert_eq!(skipped.iter().collect::<Vec<_>>(), [11..12, 13..14]);
    }
}
