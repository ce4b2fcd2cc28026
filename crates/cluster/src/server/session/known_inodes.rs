//! The inodes that a client knows: it may use no other one.

use std::sync::Arc;

use thalweg_env::HashMap;
use thalweg_fs::Ino;

use super::super::inode_limit::{InodeLimit, ReleaseRequest};

/// The stamp of a session's root, which is never forgotten.
const ROOT: u64 = u64::MAX;

/// The highest stamp that a client may reclaim. Stamps of later answers are higher, and never come to that of the root.
pub(in crate::server) const MAX_RECLAIMED: u64 = u64::MAX / 2;

/// The inodes that a client knows, and those that it has lost.
#[derive(Debug)]
pub(in crate::server) struct KnownInodes {
    /// Of the last answer that named inodes.
    stamp: u64,
    /// The stamp of the last answer that named each.
    told: HashMap<Ino, u64>,
    /// Inodes that were moved out of the client's root, and the generation in which each was: it may have been told of some again.
    revoked: HashMap<Ino, u64>,
    /// How often that happened here.
    pub(in crate::server) lost: u64,
    /// What was moved out of the client's root, and is: for each top, [`Self::moves`] when it had left.
    leaving: HashMap<Ino, u64>,
    /// How often such a move began or ended here.
    pub(in crate::server) moves: u64,
    /// The client was asked to forget inodes, and still knows too many.
    pub(in crate::server) asked: Option<ReleaseRequest>,
    limit: Arc<InodeLimit>,
}

impl KnownInodes {
    /// Those of a new session: its client knows the root alone.
    pub(super) fn new(root: Ino, limit: &Arc<InodeLimit>) -> KnownInodes {
        limit.add(1);
        KnownInodes {
            stamp: 0,
            told: HashMap::from_iter([(root, ROOT)]),
            revoked: HashMap::default(),
            lost: 0,
            leaving: HashMap::default(),
            moves: 0,
            asked: None,
            limit: limit.clone(),
        }
    }

    pub(in crate::server) fn has(&self, ino: Ino) -> bool {
        self.told.contains_key(&ino)
    }

    pub(in crate::server) fn len(&self) -> usize {
        self.told.len()
    }

    /// The client is told of inodes: the answer's stamp, and those that it did not know.
    pub(in crate::server) fn tell(&mut self, inodes: &[Ino]) -> (u64, Vec<Ino>) {
        if inodes.is_empty() {
            return (self.stamp, Vec::new());
        }
        self.stamp += 1;
        if !self.leaving.is_empty() {
            // They are back, and the client may be told so.
            for ino in inodes {
                self.leaving.remove(ino);
            }
        }
        let mut new = Vec::new();
        for ino in inodes {
            match self.told.get_mut(ino) {
                Some(stamp) if *stamp == ROOT => {}
                Some(stamp) => *stamp = self.stamp,
                None => {
                    self.told.insert(*ino, self.stamp);
                    new.push(*ino);
                }
            }
        }
        self.limit.add(new.len());
        (self.stamp, new)
    }

    /// The client has forgotten an inode, of which it heard last in the answer with this stamp; whether it does not know
    /// it any more.
    pub(in crate::server) fn forget(&mut self, ino: Ino, stamp: u64) -> bool {
        let is_last = self.told.get(&ino) == Some(&stamp);
        if is_last {
            self.told.remove(&ino);
            self.limit.remove(1);
            self.asked = self.asked.filter(|asked| self.told.len() > asked.most);
        }
        is_last
    }

    /// The client does not know an inode any more, which leaves its root; the stamp of the last answer that named it, if it knew it.
    pub(super) fn revoke(&mut self, ino: Ino) -> Option<u64> {
        let stamp = self.told.get(&ino).copied().filter(|stamp| *stamp != ROOT)?;
        self.told.remove(&ino);
        self.limit.remove(1);
        self.revoked.insert(ino, self.stamp.max(1));
        self.lost += 1;
        Some(stamp)
    }

    /// An inode is about to be moved out of the client's root. The client is not told of it, which it could find in its place still.
    pub(in crate::server) fn begin_move(&mut self, top: Ino) {
        self.moves += 1;
        self.leaving.insert(top, u64::MAX);
    }

    /// The inode has left: no call tells of it that began before. Or it has not, or has another name in the client's root; then
    /// nothing more is done when it has left.
    pub(in crate::server) fn end_move(&mut self, top: Ino, has_left: bool) {
        self.moves += 1;
        match self.leaving.get_mut(&top) {
            Some(left) if has_left => *left = self.moves,
            _ => {
                self.leaving.remove(&top);
            }
        }
    }

    /// Whether the client must not be told of an inode by a call that began after so many [`Self::moves`].
    pub(in crate::server) fn is_leaving(&self, ino: Ino, moves: u64) -> bool {
        self.leaving.get(&ino).is_some_and(|left| *left > moves)
    }

    pub(super) fn restore(&mut self, ino: Ino, stamp: u64) {
        if self.told.insert(ino, stamp).is_none() {
            self.limit.add(1);
        }
    }

    /// Of each inode that an earlier server has revoked, the generation.
    pub(in crate::server) fn set_revoked(&mut self, revoked: Vec<(Ino, u64)>) {
        assert!(self.revoked.is_empty(), "the record of a session is read once");
        self.stamp = revoked.iter().map(|(_, generation)| *generation).fold(self.stamp, u64::max);
        self.revoked = revoked.into_iter().collect();
    }

    /// The client reclaims that it knows an inode; whether that is news here.
    pub(super) fn reclaim(&mut self, ino: Ino, stamp: u64) -> bool {
        assert!(stamp <= MAX_RECLAIMED, "a stamp that no answer had");
        self.stamp = self.stamp.max(stamp);
        let is_new = self.told.insert(ino, stamp).is_none();
        self.limit.add(usize::from(is_new));
        is_new
    }

    /// Whether an inode was revoked, and the client was not told of it again.
    pub(in crate::server) fn is_revoked(&self, ino: Ino) -> bool {
        self.revoked.contains_key(&ino) && !self.told.contains_key(&ino)
    }

    /// The generation in which an inode was last revoked; 0 if it never was. Inode tokens are of a generation.
    pub(in crate::server) fn generation(&self, ino: Ino) -> u64 {
        self.revoked.get(&ino).copied().unwrap_or_default()
    }

    /// The client is asked to know at most so many inodes, if it knows more; whether it does.
    pub(super) fn ask(&mut self, request: ReleaseRequest) -> bool {
        let is_asked = self.told.len() > request.most;
        let since = self.asked.map_or(request.since, |asked| asked.since);
        self.asked = is_asked.then_some(ReleaseRequest { since, ..request });
        is_asked
    }

    /// The client forgets everything but the root.
    pub(super) fn forget_all(&mut self) -> Vec<Ino> {
        let forgotten = self.told.extract_if(|_, stamp| *stamp != ROOT).map(|(ino, _)| ino);
        let forgotten: Vec<Ino> = forgotten.collect();
        self.limit.remove(forgotten.len());
        self.asked = None;
        forgotten
    }

    pub(super) fn clear(&mut self) -> Vec<Ino> {
        let told = std::mem::take(&mut self.told);
        self.limit.remove(told.len());
        told.into_keys().collect()
    }
}
