//! Keeps the kernel's caches coherent when files change through other handles, and when direct writes bypass
//! them.
//!
//! The kernel takes locks while it drops something from its caches, and a holder of these locks may wait for
//! an answer of this process. So invalidations run on threads of their own that no request waits for, and none of them waits
//! for another one ([`workers`](super::workers)).

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{INodeNo, Notifier};
use thalweg_fs::{Change, Ino, Invalidation};

use super::grace::Grace;
use super::known::Known;
use super::sizes::Sizes;
use super::workers::Workers;

/// Sends changes to the threads. They end when the last of these is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Coherence {
    workers: Arc<Workers<Change>>,
    known: Arc<Known>,
}

impl Coherence {
    pub(crate) fn start(
        (notifier, sizes): (Notifier, Sizes),
        known: Arc<Known>,
        grace: Arc<Grace>,
    ) -> io::Result<Coherence> {
        let of_threads = known.clone();
        let workers = Workers::start("thalweg-caches", move |change| {
            grace.wait();
            invalidate((&notifier, &sizes), &of_threads, &change);
        })?;
        Ok(Coherence { workers: Arc::new(workers), known })
    }

    /// Takes note of a change through another handle, and has the kernel drop its cache of it.
    pub(crate) fn change(&self, change: Change) -> Invalidation {
        match &change {
            // The inode may have privileges from now on.
            Change::Inode { ino, .. } => self.known.granted(*ino),
            Change::Name { .. } | Change::Removed { .. } | Change::Grown { .. } => {}
            Change::Everything => self.known.begin_epoch(),
        }
        self.invalidate(change)
    }

    /// Has the kernel drop its cache of a change.
    pub(crate) fn invalidate(&self, change: Change) -> Invalidation {
        self.workers.run(change)
    }

    /// Returns when the kernel has dropped the pages of a range that it had in its cache.
    pub(crate) async fn drop_pages(&self, ino: Ino, offset: u64, len: u64) {
        let content = Some(offset..offset.saturating_add(len));
        self.invalidate(Change::Inode { ino, content }).wait().await;
    }

    /// Returns when the kernel has a size of at least so many bytes for a file.
    pub(crate) async fn raise_size(&self, ino: Ino, size: u64) {
        self.invalidate(Change::Grown { ino, size }).wait().await;
    }

    /// Returns when all earlier invalidations have reached the kernel.
    pub(crate) async fn settle(&self) {
        self.workers.settle().wait().await;
    }
}

fn invalidate((notifier, sizes): (&Notifier, &Sizes), known: &Known, change: &Change) {
    let report = |result: io::Result<()>| {
        if let Err(error) = result {
            tracing::debug!(%error, "the kernel keeps something in its caches");
        }
    };
    match change {
        Change::Inode { ino, content } => {
            let (from, len) = kernel_range(content.as_ref());
            report(notifier.inval_inode(INodeNo(ino.0), from, len));
        }
        Change::Name { parent, name } => {
            report(notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name)));
        }
        Change::Removed { parent, name, ino } => {
            let (parent, ino) = (INodeNo(parent.0), INodeNo(ino.0));
            report(notifier.delete(parent, ino, OsStr::from_bytes(name)));
        }
        Change::Grown { ino, size } => report(sizes.raise(*ino, *size)),
        Change::Everything => {
            for (parent, name) in known.take_names() {
                report(notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(&name)));
            }
            for ino in known.inodes() {
                report(notifier.inval_inode(INodeNo(ino.0), 0, 0));
            }
        }
    }
}

/// A range of bytes as the kernel takes it: no offset for the attributes alone, no length for the rest of the file.
fn kernel_range(content: Option<&Range<u64>>) -> (i64, i64) {
    let Some(content) = content else { return (-1, 0) };
    let place = |at| i64::try_from(at).unwrap_or(i64::MAX);
    match content.end {
        u64::MAX => (place(content.start), 0),
        end => (place(content.start), place(end) - place(content.start)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_given_to_the_kernel() {
        assert_eq!(kernel_range(None), (-1, 0));
        assert_eq!(kernel_range(Some(&(0..u64::MAX))), (0, 0));
        assert_eq!(kernel_range(Some(&(4096..u64::MAX))), (4096, 0));
        assert_eq!(kernel_range(Some(&(4096..8192))), (4096, 4096));
    }
}
