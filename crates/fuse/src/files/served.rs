//! The state that the requests of a mount share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use fuser::{FileAttr, Generation, ReplyEntry};
use parking_lot::Mutex;
use thalweg_fs::{Answer, Change, Filesystem, FsError, Ino, Statistics, Validity};

use super::attributes::{file_attr, nothing};
use super::coherence::Coherence;
use super::dirty::Dirty;
use super::grace::Grace;
use super::known::{Known, Noted};
use super::options::MountOptions;

/// No inode number is ever given again.
pub(super) const GENERATION: Generation = Generation(0);

/// What was known last of a filesystem behind a server.
#[derive(Debug, Default)]
pub(super) struct LastKnown {
    pub(super) root: Mutex<Option<Answer>>,
    pub(super) statistics: Mutex<Option<Statistics>>,
}

/// The state that the tasks share.
pub(crate) struct Served {
    pub(super) filesystem: Arc<dyn Filesystem>,
    pub(super) known: Arc<Known>,
    /// The tasks that run.
    pub(super) grace: Arc<Grace>,
    /// What is answered while the server is away.
    pub(super) last: Arc<LastKnown>,
    /// Notifies the kernel, on a thread of its own. Set before the first request.
    coherence: Arc<OnceLock<Coherence>>,
    /// The pages that the kernel has not written yet.
    pub(super) dirty: Arc<Dirty>,
    /// The kernel does not check what users may do.
    pub(super) checks_users: bool,
}

impl Served {
    pub(super) fn new(filesystem: Arc<dyn Filesystem>, options: &MountOptions) -> Served {
        let known = Arc::new(Known::new(&*filesystem));
        let (grace, last, coherence) = Default::default();
        let dirty = Arc::new(Dirty::new(options.writeback_cache));
        let checks_users = options.checks_users;
        Served { filesystem, known, grace, last, coherence, dirty, checks_users }
    }

    /// Fails unless the user of the request may use an inode in these ways, if the kernel has not checked that.
    pub(super) async fn check(&self, ino: Ino, wanted: u16) -> Result<(), FsError> {
        match self.checks_users {
            true => self.filesystem.check_access(ino, wanted).await,
            false => Ok(()),
        }
    }

    /// The same state, for requests of one user: with the filesystem for that user.
    pub(super) fn with(&self, filesystem: Arc<dyn Filesystem>) -> Served {
        let (known, grace, last) = (self.known.clone(), self.grace.clone(), self.last.clone());
        let (coherence, dirty) = (self.coherence.clone(), self.dirty.clone());
        let checks_users = self.checks_users;
        Served { filesystem, known, grace, last, coherence, dirty, checks_users }
    }

    /// Before the first request: how the kernel is told things.
    pub(crate) fn greet(&self, coherence: Coherence) {
        let _ = self.coherence.set(coherence);
    }

    pub(super) fn coherence(&self) -> Option<&Coherence> {
        self.coherence.get()
    }

    /// The kernel counts that it was told of an inode, and so does this.
    pub(super) fn tell(&self, answer: &Answer) -> Told {
        self.known.tell(&*self.filesystem, answer.ino);
        // The kernel takes no size that comes while a write makes the file longer.
        if !self.known.growing().is_growing(answer.ino) {
            self.known.note_size(answer.ino, answer.size);
        }
        Told { attr: file_attr(answer), valid: self.validity(answer) }
    }

    /// [`Served::tell`], of an inode by its name. The answer began at `epoch`.
    pub(super) fn tell_name(&self, parent: Ino, name: &Bytes, answer: &Answer, epoch: u64) -> Told {
        let mut told = self.tell(answer);
        told.valid.entry = self.name_valid(parent, name, told.valid.entry, epoch);
        told
    }

    /// How long the kernel may cache a name, or that it is absent.
    pub(super) fn name_valid(
        &self,
        parent: Ino,
        name: &Bytes,
        valid: Duration,
        epoch: u64,
    ) -> Duration {
        if valid.is_zero() {
            return valid;
        }
        match self.known.note_name(parent, name, epoch) {
            Noted::Cached => valid,
            Noted::Outdated => Duration::ZERO,
            Noted::Full => {
                // The kernel drops all names, and the list begins again.
                if let Some(coherence) = self.coherence() {
                    drop(coherence.invalidate(Change::Everything));
                }
                valid
            }
        }
    }
}

/// What the kernel is told of an inode, and how long it may cache that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) attr: FileAttr,
    pub(super) valid: Validity,
}

impl Told {
    /// The kernel is told that a name is absent.
    pub(super) fn absent(valid: Duration) -> Told {
        Told { attr: nothing(), valid: Validity { entry: valid, attributes: valid } }
    }

    /// For requests whose answers have a single time.
    pub(super) fn valid(&self) -> Duration {
        self.valid.entry.min(self.valid.attributes)
    }

    pub(super) fn answer(&self, reply: ReplyEntry) {
        let Validity { entry, attributes } = &self.valid;
        reply.entry_with_ttls(attributes, entry, &self.attr, GENERATION);
    }
}
