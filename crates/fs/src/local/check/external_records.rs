//! Records about contents that are kept elsewhere.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::local::deferred_removals::parse_removed;
use crate::local::format::Tag;
use crate::local::redirects::{Parsed, Redirect, parse_redirect};

#[derive(Debug, Default)]
pub(super) struct ExternalRecords {
    /// Contents are kept elsewhere.
    pub(super) is_there: bool,
    /// Removed files whose contents are to be removed.
    pub(super) removed: BTreeSet<u64>,
    /// Redirected bytes: inode, offset, and where they are.
    pub(super) redirects: Vec<(u64, u64, Redirect)>,
    /// The objects with redirected bytes that may be there.
    pub(super) objects: Range<u64>,
}

impl ExternalRecords {
    /// Takes a record of a removed file, or of redirected bytes; false when it is invalid.
    pub(super) fn take(&mut self, tag: Tag, key: &[u8], value: &[u8]) -> bool {
        if tag == Tag::Removed {
            return parse_removed(key, value).map(|(ino, _)| self.removed.insert(ino)).is_some();
        }
        match parse_redirect(key, value).filter(|_| self.is_there) {
            Some(Parsed::Bounds(objects)) => self.objects = objects,
            Some(Parsed::Redirect(ino, offset, redirect)) => {
                self.redirects.push((ino, offset, redirect));
            }
            None => return false,
        }
        true
    }
}
