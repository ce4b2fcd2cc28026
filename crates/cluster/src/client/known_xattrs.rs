//! The extended attributes of an inode that this client has made.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Bytes of names and values of an inode at most: with more of them the server has them alone.
const MAX_BYTES: usize = 8 << 10;

/// The extended attributes of an inode: names, and their values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownXattrs(BTreeMap<Bytes, Bytes>);

impl KnownXattrs {
    pub(super) const NONE: &'static KnownXattrs = &KnownXattrs(BTreeMap::new());

    /// The value of one.
    pub(super) fn get(&self, name: &[u8]) -> Option<&Bytes> {
        self.0.get(name)
    }

    /// In the order in which the server lists them.
    pub(super) fn names(&self) -> Vec<Bytes> {
        self.0.keys().cloned().collect()
    }

    /// Whether a name with so many bytes of a value fits.
    pub(super) fn has_room(&self, name: &[u8], value: usize) -> bool {
        let others = self.0.iter().filter(|(other, _)| **other != name);
        let bytes: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        bytes + name.len() + value <= MAX_BYTES
    }

    pub(super) fn set(&mut self, name: Bytes, value: Bytes) {
        self.0.insert(name, value);
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        self.0.remove(name);
    }

    /// Whether a client can have sent them.
    pub(super) fn is_valid(&self) -> bool {
        self.has_room(&[], 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bytes_are_kept() {
        let mut known = KnownXattrs::default();
        assert!(known.has_room(b"user.a", MAX_BYTES - 6) && !known.has_room(b"user.a", MAX_BYTES));
        known.set(Bytes::from_static(b"user.b"), vec![1; MAX_BYTES - 12].into());
        assert!(known.has_room(b"user.a", 0) && !known.has_room(b"user.a", 1));
        assert!(
            known.has_room(b"user.b", MAX_BYTES - 6),
            "a value takes the place of the one before"
        );
        known.set(Bytes::from_static(b"user.a"), Bytes::new());
        assert_eq!(known.names(), [&b"user.a"[..], &b"user.b"[..]]);
        assert!(known.is_valid());
        known.set(Bytes::from_static(b"user.c"), Bytes::new());
        assert!(!known.is_valid());
        known.remove(b"user.b");
        assert_eq!((known.get(b"user.b"), known.names().len()), (None, 2));
    }
}
