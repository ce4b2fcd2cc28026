//! What a client caches of one inode.

use std::num::NonZeroU64;

use thalweg_fs::{Attributes, Timestamp};

use super::dir_names::Names;
use crate::protocol::{Changed, Grants};

/// What a client caches of one inode. Everything in it was granted by the server, or made by this client itself.
#[derive(Debug, Default)]
pub(super) struct CachedInode {
    /// If they may be used.
    attributes: Option<Attributes>,
    /// If names of the directory may be used.
    names: Option<Box<Names>>,
    /// The stamp of the last answer that named it.
    stamp: u64,
    /// Shows to the next server that this one has named it.
    inode_token: u64,
    /// References of the caller.
    references: u64,
    /// The file as it was when the server was last told that it is read: its time of change, as a number.
    read_at: Option<NonZeroU64>,
    /// Changes of this client that are under way. Nothing that they concern is put into the cache.
    changing: u32,
    /// The caller may cache its pages.
    content: bool,
    /// The caller may cache pages without the server's knowledge, since the file was this client's alone.
    cached_under_delegation: bool,
    /// It has lost its last name.
    removed: bool,
    /// It was used since the last sweep.
    used: bool,
}

impl CachedInode {
    pub(super) fn attributes(&self) -> Option<Attributes> {
        self.attributes
    }

    /// The program's own change, or an answer, has given it these.
    pub(super) fn set_attributes(&mut self, attributes: Attributes) {
        (self.attributes, self.used) = (Some(attributes), true);
    }

    /// What the server has told of it may not be used any more.
    pub(super) fn forget_contents(&mut self) {
        (self.attributes, self.names) = (None, None);
    }

    /// It is used now, so the next sweep spares it.
    pub(super) fn mark_used(&mut self) {
        self.used = true;
    }

    pub(super) fn names(&self) -> Option<&Names> {
        self.names.as_deref()
    }

    pub(super) fn names_mut(&mut self) -> Option<&mut Names> {
        self.names.as_deref_mut()
    }

    /// Names of the directory may be used from now on.
    pub(super) fn hold_names(&mut self) -> &mut Names {
        self.names.get_or_insert_default()
    }

    /// The stamp of the last answer that named it; 0 if the server does not know it yet.
    pub(super) fn stamp(&self) -> u64 {
        self.stamp
    }

    pub(super) fn inode_token(&self) -> u64 {
        self.inode_token
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

    /// Whether the server knows that the caller caches its pages.
    pub(super) fn holds_content(&self) -> bool {
        self.content
    }

    pub(super) fn hold_content(&mut self) {
        self.content = true;
    }

    /// The caller may cache pages; the server does not know.
    pub(super) fn cache_under_delegation(&mut self) {
        self.cached_under_delegation |= !self.content;
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

    pub(super) fn reference(&mut self) {
        self.references += 1;
    }

    pub(super) fn unreference(&mut self, count: u64) {
        self.references = self.references.saturating_sub(count);
    }

    /// It has lost its last name.
    pub(super) fn remove(&mut self) {
        (self.removed, self.attributes) = (true, None);
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed
    }

    /// Whether the caller does not refer to it, so that it may be forgotten.
    pub(super) fn is_unreferenced(&self) -> bool {
        self.references == 0 && self.changing == 0
    }

    /// Whether it was used since this was asked last.
    pub(super) fn clear_used(&mut self) -> bool {
        std::mem::take(&mut self.used)
    }

    /// The session has ended: nothing may be used.
    pub(super) fn end_session(&mut self) {
        self.forget_contents();
        (self.content, self.cached_under_delegation) = (false, false);
        self.stamp = 0;
    }
}
