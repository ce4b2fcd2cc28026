//! Keeps the kernel's caches right when others change files.
//!
//! The kernel waits for locks while it takes something out of its caches, and who holds these may
//! wait for an answer of this process: so it happens on a thread of its own, which no request waits
//! for.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, Sender, channel};

use fuser::{INodeNo, Notifier};
use thalweg_fs::Change;
use tokio::sync::oneshot;

/// The way to the thread. It ends when the last of these is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Coherence(Sender<Task>);

#[derive(Debug)]
enum Task {
    Invalidate(Change),
    Settle(oneshot::Sender<()>),
}

impl Coherence {
    pub(crate) fn start(notifier: Notifier) -> io::Result<Coherence> {
        let (sender, tasks) = channel();
        let thread = std::thread::Builder::new().name("thalweg-caches".to_owned());
        thread.spawn(move || serve(&notifier, &tasks))?;
        Ok(Coherence(sender))
    }

    /// Has the kernel look again at what changed, soon.
    pub(crate) fn invalidate(&self, change: Change) {
        // Without the thread there is no mount, and so no cache.
        let _ = self.0.send(Task::Invalidate(change));
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
