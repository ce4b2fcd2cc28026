//! What the server does not take of what a client with a journal has made.
//!
//! Nothing is lost by that (rule 8 of a client's journal): the mutation waits again, with everything behind it, in the journal and in the
//! queue, and is sent again after a while, or when a program wants it to be at the server. A journal that is written back is different:
//! then the mount fails, and a later one tries again.

use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::{HashSet, Time};
use thalweg_fs::mutation::Mutation;
use thalweg_fs::{FsError, Ino};

/// The time before mutations that were refused are sent again by themselves, at first.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// And at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

struct Refusal {
    error: FsError,
    /// The inodes of the mutations that were sent in vain.
    inodes: HashSet<Ino>,
    /// How many these are, from the first one in the queue on.
    mutations: usize,
    pause: Duration,
    /// When they are sent again; `None` for those of a journal that is written back.
    again: Option<Time>,
}

/// Why the first of the mutations that wait was sent in vain, if it was. Its lock takes no other one.
#[derive(Default)]
pub(super) struct Refusals(Mutex<Option<Refusal>>);

impl Refusals {
    /// These mutations are the first ones that wait, and the server has not taken them; whether the one before it has.
    pub(super) fn refuse(&self, mutations: &[Mutation], error: &FsError, now: Time) -> bool {
        let mut current = self.0.lock();
        let before = current.as_ref().map(|it| it.pause);
        let pause = before.map_or(PAUSE, |pause| (2 * pause).min(LONGEST_PAUSE));
        let inodes = mutations.iter().flat_map(|it| it.kind.inodes()).collect();
        *current = Some(Refusal {
            error: error.clone(),
            inodes,
            mutations: mutations.len(),
            pause,
            again: Some(now + pause),
        });
        before.is_none()
    }

    /// The server has refused a mutation of a journal that is written back: nothing behind it is sent.
    pub(super) fn refuse_recovered(&self, error: &FsError) {
        let (inodes, mutations, pause, again) = Default::default();
        let refusal = Refusal { error: error.clone(), inodes, mutations, pause, again };
        self.0.lock().get_or_insert(refusal);
    }

    /// The server takes mutations again, or there are none any more; whether it had refused some.
    pub(super) fn end(&self) -> bool {
        let mut current = self.0.lock();
        current.take_if(|it| it.again.is_some()).is_some()
    }

    /// Why nothing is sent now. Mutations that a program wants at the server are sent without a pause.
    pub(super) fn holds(&self, now: Time, is_wanted: bool) -> Option<FsError> {
        let current = self.0.lock();
        let held = current.as_ref().filter(|it| match it.again {
            Some(again) => !is_wanted && now < again,
            None => true,
        });
        held.map(|it| it.error.clone())
    }

    /// How many mutations the next batch has: those that were sent in vain. The server may have taken them after all, and none behind them.
    pub(super) fn mutations(&self) -> Option<usize> {
        self.0.lock().as_ref().map(|it| it.mutations)
    }

    /// Whether changes of an inode were refused, or of any.
    pub(super) fn concern(&self, ino: Option<Ino>) -> bool {
        let current = self.0.lock();
        current.as_ref().is_some_and(|it| ino.is_none_or(|ino| it.inodes.contains(&ino)))
    }

    /// Why the server does not take mutations.
    pub(super) fn current(&self) -> Option<FsError> {
        self.0.lock().as_ref().map(|it| it.error.clone())
    }

    /// Mutations that were refused are sent again at once. Not those of a journal that is written back; whether they are not among these.
    pub(super) fn hurry(&self, now: Time) -> bool {
        let mut current = self.0.lock();
        let again = current.as_mut().map(|it| &mut it.again);
        again.is_none_or(|again| again.as_mut().map(|again| *again = now).is_some())
    }
}
