//! Keeps the kernel's caches coherent when files change through other handles, and when direct writes
//! bypass them.
//!
//! The kernel takes locks while it drops something from its caches, and a holder of these locks may wait
//! for an answer of this process. So invalidations run on a thread of their own that no request waits for.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, Sender, channel};

use fuser::{INodeNo, Notifier};
use thalweg_fs::{Change, Ino};
use tokio::sync::oneshot;

/// The way to the thread. It ends when the last of these is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Coherence(Sender<Task>);

#[derive(Debug)]
enum Task {
    Invalidate(Change),
    /// A file's bytes changed behind its cached pages.
    Written(Ino, Range<i64>, oneshot::Sender<()>),
    Settle(oneshot::Sender<()>),
}

impl Coherence {
    pub(crate) fn start(notifier: Notifier) -> io::Result<Coherence> {
        let (sender, tasks) = channel();
        let thread = std::thread::Builder::new().name("thalweg-caches".to_owned());
        thread.spawn(move || serve(&notifier, &tasks))?;
        Ok(Coherence(sender))
    }

    /// Soon has the kernel drop its cache of a change.
    pub(crate) fn invalidate(&self, change: Change) {
        // Without the thread there is no mount, and so no cache.
        let _ = self.0.send(Task::Invalidate(change));
    }

    /// Returns when the kernel has dropped the pages of a range that it had in its cache.
    pub(crate) async fn drop_pages(&self, ino: Ino, offset: u64, len: u64) {
        let end = |end| i64::try_from(end).unwrap_or(i64::MAX);
        let range = end(offset)..end(offset.saturating_add(len));
        let (done, dropped) = oneshot::channel();
        if self.0.send(Task::Written(ino, range, done)).is_ok() {
            let _ = dropped.await;
        }
    }

    /// Returns when everything told before has reached the kernel.
    pub(crate) async fn settle(&self) {
        let (done, settled) = oneshot::channel();
        if self.0.send(Task::Settle(done)).is_ok() {
            let _ = settled.await;
        }
    }
}

fn serve(notifier: &Notifier, tasks: &Receiver<Task>) {
    for task in tasks {
        let result = match task {
            Task::Invalidate(Change::Inode { ino, content }) => {
                // From no offset on: the attributes alone.
                let from = if content { 0 } else { -1 };
                notifier.inval_inode(INodeNo(ino.0), from, 0)
            }
            Task::Invalidate(Change::Name { parent, name }) => {
                notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(&name))
            }
            Task::Written(ino, range, done) => {
                let len = range.end - range.start;
                let told = notifier.inval_inode(INodeNo(ino.0), range.start, len);
                let _ = done.send(());
                told
            }
            Task::Settle(done) => {
                let _ = done.send(());
                Ok(())
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "the kernel keeps something in its caches");
        }
    }
}
