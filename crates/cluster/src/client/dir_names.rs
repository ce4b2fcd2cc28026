//! The names of a directory that a client may use without a call.

use thalweg_env::HashMap;
use thalweg_fs::{Cookie, Ino};

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

    /// A name is this from now on.
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

    /// What a name is, if that is known.
    pub(super) fn known(&self, name: &[u8]) -> Option<NewName> {
        match self.names.get(name).copied() {
            Some(Name::ABSENT) => Some(NewName::Absent),
            Some(Name::CHANGING | Name::UNKNOWN) => None,
            Some(Name(ino)) => Some(NewName::Present(Ino(ino))),
            None => self.is_complete.then_some(NewName::Absent),
        }
    }
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
