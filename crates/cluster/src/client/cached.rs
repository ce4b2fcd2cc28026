//! What a client caches of one inode.

use std::num::NonZeroU64;

use thalweg_fs::{Attributes, Timestamp};

use super::dir_names::Names;
use crate::protocol::{Changed, Grants};

/// What a client caches of one inode. Everything in it was granted by the server, or made by this client itself.
#[derive(Debug, Default)]
pub(super) struct CachedInode {
    /// If they may be used.
    pub(super) attributes: Option<Attributes>,
    /// If names of the directory may be used.
    pub(super) names: Option<Box<Names>>,
    /// The stamp of the last answer that named it; 0 if the server does not know it yet.
    pub(super) stamp: u64,
    /// Shows to the next server that this one has named it.
    pub(super) inode_token: u64,
    /// References of the caller.
    pub(super) references: u64,
    /// The file as it was when the server was last told that it is read: its time of change, as a number.
    read_at: Option<NonZeroU64>,
    /// Changes of this client that are under way. Nothing that they concern is put into the cache.
    changing: u32,
    /// The caller may cache its pages, and the server knows that.
    pub(super) content: bool,
    /// The caller may cache pages without the server's knowledge, since the file was this client's alone.
    pub(super) cached_under_delegation: bool,
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
        (self.attributes, self.names) = (None, None);
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

    pub(super) fn begin_change(&mut self) {
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

    /// What the server has granted of it, beside a delegation.
    pub(super) fn held(&self) -> Grants {
        Grants {
            attributes: self.attributes.is_some(),
            names: self.names.is_some(),
            content: self.content,
            delegation: false,
        }
    }

    /// The server has invalidated something.
    pub(super) fn invalidate(&mut self, change: &Changed) {
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

    /// The session has ended: nothing may be used.
    pub(super) fn end_session(&mut self) {
        self.forget_contents();
        (self.content, self.cached_under_delegation) = (false, false);
        self.stamp = 0;
    }
}
