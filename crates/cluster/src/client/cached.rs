//! What a client caches of one inode, and the names of a directory that it may use without a call.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use thalweg_env::HashMap;
use thalweg_fs::{Attributes, Cookie, Ino, Timestamp};

use super::partial_pages::PartialPages;
use crate::protocol::Changed;

/// What a client caches of one inode. Everything in it was granted by the server, or made by this client itself.
#[derive(Default)]
pub(super) struct CachedInode {
    /// If they may be used.
    pub(super) attributes: Option<Attributes>,
    /// If names of the directory may be used.
    pub(super) names: Option<Box<Names>>,
    /// The stamp of the last answer that named it; 0 if the server does not know it yet.
    pub(super) stamp: u64,
    /// Shows to the next server that this one has named it.
    pub(super) inode_token: u64,
    pub(super) references: u64,
    /// The file as it was when the server was last told that it is read: its time of change, as a number.
    read_at: Option<NonZeroU64>,
    /// Changes of this client that are under way. Nothing that they concern is put into the cache.
    changing: u32,
    /// The caller may cache its pages, and the server knows that.
    pub(super) content: bool,
    /// The caller may cache pages without the server's knowledge, since the file was this client's alone.
    pub(super) cached_under_delegation: bool,
    /// Pages that were written in parts.
    pub(super) partial_pages: Option<Box<PartialPages>>,
    /// It has lost its last name.
    pub(super) is_removed: bool,
    /// It was used since the last sweep, so the next one spares it.
    pub(super) used: bool,
}

impl CachedInode {
    /// The program's own change, or an answer, has given it these.
    pub(super) fn set_attributes(&mut self, attributes: Attributes) {
        (self.attributes, self.used) = (Some(attributes), true);
    }

    /// What the server has told of it may not be used any more.
    pub(super) fn forget_contents(&mut self) {
        (self.attributes, self.names, self.partial_pages) = (None, None, None);
    }

    /// An answer with this stamp has named it.
    pub(super) fn named(&mut self, stamp: u64, inode_token: u64) {
        self.stamp = self.stamp.max(stamp);
        self.inode_token = inode_token;
    }

    /// Whether a change of this client is under way.
    pub(super) fn is_changing(&self) -> bool {
        self.changing > 0
    }

    /// What the change leaves of the file's bytes is not foreseen.
    pub(super) fn begin_change(&mut self) {
        self.partial_pages = None;
        self.changing += 1;
    }

    pub(super) fn end_change(&mut self) {
        assert!(self.changing > 0, "a change of an inode ends twice");
        self.changing -= 1;
    }

    /// The server knows from now on that the caller caches pages. Whether the caller may have cached some before.
    pub(super) fn record_content(&mut self) -> bool {
        self.content = true;
        std::mem::take(&mut self.cached_under_delegation)
    }

    /// A read of the file as it is begins. Whether the server was told of one since it is so.
    pub(super) fn read_again(&mut self, changed: Timestamp) -> bool {
        // Another number for each time that filesystems store.
        let number = (changed.seconds as u64) << 30 | u64::from(changed.nanos);
        let changed = NonZeroU64::new(number);
        self.used = true;
        changed.is_some() && std::mem::replace(&mut self.read_at, changed) == changed
    }

    pub(super) fn invalidate(&mut self, change: &Changed) {
        if !matches!(change, Changed::Names(_) | Changed::Name { .. }) {
            self.partial_pages = None;
        }
        match change {
            Changed::Attributes(_) => self.attributes = None,
            Changed::Names(_) => self.names = None,
            Changed::Pages(_) => (self.content, self.cached_under_delegation) = (false, false),
            Changed::Name { name, .. } => {
                if let Some(names) = &mut self.names {
                    names.forget(name);
                }
            }
            Changed::Delegation(_) | Changed::Content { .. } | Changed::Size { .. } => {}
        }
    }

    /// Whether the caller does not refer to it, so that it may be forgotten.
    pub(super) fn is_unreferenced(&self) -> bool {
        self.references == 0 && self.changing == 0
    }

    pub(super) fn end_session(&mut self) {
        self.forget_contents();
        (self.content, self.cached_under_delegation) = (false, false);
        self.stamp = 0;
    }
}

/// The names of a directory that may be used without a call.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// All names of the directory are here: it is a new one, or all of it was listed.
    pub(super) is_complete: bool,
    names: HashMap<Box<[u8]>, Name>,
    /// The entries up to this one are here.
    listed: Option<Cookie>,
}

impl Names {
    /// Entries up to `last` were listed that follow `from`, the last ones if there is none; `counts` unless a change of this
    /// client was under way.
    pub(super) fn list(&mut self, from: Cookie, last: Option<Cookie>, counts: bool) {
        let follows = from == Cookie::START || self.listed == Some(from);
        self.listed = last.filter(|_| follows && counts);
        self.is_complete |= last.is_none() && follows && counts;
    }

    pub(super) fn set(&mut self, name: &[u8], found: NewName) {
        let found = match found {
            NewName::Present(ino) => Name::present(ino),
            // Of a complete directory the names that are there are enough.
            NewName::Absent if self.is_complete => {
                self.names.remove(name);
                return;
            }
            NewName::Absent => Name::ABSENT,
        };
        self.names.insert(name.into(), found);
    }

    /// A change of a name by this client is under way, and no other one.
    pub(super) fn begin_change(&mut self, name: &[u8]) {
        self.names.insert(name.into(), Name::CHANGING);
    }

    /// Whether no other change of a name has begun since.
    pub(super) fn is_changing(&self, name: &[u8]) -> bool {
        self.names.get(name) == Some(&Name::CHANGING)
    }

    /// A name was invalidated.
    pub(super) fn forget(&mut self, name: &[u8]) {
        self.names.insert(name.into(), Name::UNKNOWN);
    }

    /// All names that are there, if all are known and no change of one is under way; unless there are more than `most`.
    pub(super) fn all_present(&self, most: usize) -> Option<impl Iterator<Item = &[u8]>> {
        let is_unknown = |name: &Name| matches!(*name, Name::CHANGING | Name::UNKNOWN);
        let is_known = self.is_complete && self.names.len() <= most;
        if !is_known || self.names.values().any(is_unknown) {
            return None;
        }
        let present = self.names.iter().filter(|(_, it)| **it != Name::ABSENT);
        Some(present.map(|(name, _)| &**name))
    }

    /// All of them with the numbers of their inodes, for the client that goes on with the session on another machine.
    pub(super) fn export(&self) -> MovedNames {
        let known = |name: &Name| match *name {
            Name::CHANGING => Name::UNKNOWN,
            name => name,
        };
        let names = self.names.iter().map(|(name, it)| (name.clone(), known(it).0)).collect();
        MovedNames { is_complete: self.is_complete, names }
    }

    pub(super) fn import(moved: MovedNames) -> Names {
        let MovedNames { is_complete, names } = moved;
        let names = names.into_iter().map(|(name, it)| (name, Name(it))).collect();
        Names { is_complete, names, listed: None }
    }

    pub(super) fn known(&self, name: &[u8]) -> Option<NewName> {
        match self.names.get(name).copied() {
            Some(Name::ABSENT) => Some(NewName::Absent),
            Some(Name::CHANGING | Name::UNKNOWN) => None,
            Some(Name(ino)) => Some(NewName::Present(Ino(ino))),
            None => self.is_complete.then_some(NewName::Absent),
        }
    }
}

/// The names of a directory as they are sent to another machine.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MovedNames {
    is_complete: bool,
    names: Vec<(Box<[u8]>, u64)>,
}

/// What is known of a name: the inode, or one of the numbers that no inode has. There is one for each name, so that it is not an
/// enum of twice the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Name(u64);

impl Name {
    const ABSENT: Name = Name(u64::MAX);
    /// A change of this client is under way, and no other one has begun since, of this client or of another one.
    const CHANGING: Name = Name(u64::MAX - 1);
    /// It was invalidated.
    const UNKNOWN: Name = Name(u64::MAX - 2);

    fn present(ino: Ino) -> Name {
        // A server that names an inode by such a number is asked again.
        if ino.0 < Name::UNKNOWN.0 { Name(ino.0) } else { Name::UNKNOWN }
    }
}

/// What becomes of a name that this client has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NewName {
    Present(Ino),
    Absent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_if_all_are_known_and_they_are_few() {
        let mut names = Names { is_complete: true, ..Names::default() };
        names.set(b"a", NewName::Present(Ino(1)));
        names.set(b"b", NewName::Present(Ino(2)));
        names.set(b"b", NewName::Absent);
        let present = |names: &Names, most| {
            names.all_present(most).map(|it| it.map(<[u8]>::to_vec).collect())
        };
        assert_eq!(present(&names, 1), Some(vec![b"a".to_vec()]));
        assert_eq!(present(&names, 0), None);
        names.begin_change(b"c");
        assert_eq!(present(&names, 9), None);
        names.forget(b"c");
        assert_eq!(present(&names, 9), None);
        assert_eq!(present(&Names::default(), 9), None);
    }

    #[test]
    fn a_number_that_no_inode_has_is_no_inode() {
        let mut names = Names::default();
        for number in [1, u64::MAX - 3] {
            names.set(b"a", NewName::Present(Ino(number)));
            assert_eq!(names.known(b"a"), Some(NewName::Present(Ino(number))));
        }
        for number in [u64::MAX, u64::MAX - 1, u64::MAX - 2] {
            names.set(b"a", NewName::Present(Ino(number)));
            assert!(names.known(b"a").is_none() && !names.is_changing(b"a"));
        }
    }
}
