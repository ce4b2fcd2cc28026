//! A call that is carried out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_fs::session_table::{Committed, RecordedCall, Recorder, SupersededCall};
use thalweg_fs::{Credentials, Filesystem, Ino};

use super::commit_on_share::{CommitOnShare, Dependency};
use super::page_turn::PageTurn;
use super::pages::Late;
use super::session::Session;
use crate::squash::acting;

/// The number of a call in its session, and its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) slot: u16,
}

/// A call of a session.
#[derive(Debug)]
pub(super) struct RequestContext<'a> {
    pub(super) session: &'a Session,
    pub(super) number: u64,
    /// What kind of call it is, for an administrator.
    pub(super) kind: &'static str,
    /// The user that it counts for; `None` if the client is trusted to have checked what its users may do.
    pub(super) user: Option<Credentials>,
    /// Changes that are made through it are recorded.
    pub(super) filesystem: Arc<dyn Filesystem>,
    recorder: Option<Arc<Recorder>>,
    depends: AtomicBool,
    /// The inodes that it has seen.
    seen: Mutex<SmallVec<[Ino; 4]>>,
    /// The changes of bytes that it makes.
    turns: Mutex<SmallVec<[PageTurn; 1]>>,
    /// What other sessions have to drop or to know before it is answered.
    late: Mutex<Vec<Late>>,
}

impl<'a> RequestContext<'a> {
    /// A call that changes nothing, or is not recorded.
    pub(super) fn plain(
        session: &'a Session,
        number: u64,
        filesystem: &Arc<dyn Filesystem>,
    ) -> RequestContext<'a> {
        let (filesystem, depends) = (filesystem.clone(), AtomicBool::new(false));
        let (seen, user) = (Mutex::default(), acting(session.visitor.squash, None));
        let (turns, late) = (Mutex::default(), Mutex::default());
        RequestContext {
            session,
            number,
            kind: "",
            user,
            filesystem,
            recorder: None,
            depends,
            seen,
            turns,
            late,
        }
    }

    /// The same call; its kind has this name.
    pub(super) fn named(self, kind: &'static str) -> RequestContext<'a> {
        RequestContext { kind, ..self }
    }

    /// The same call, made for this user of the client.
    pub(super) fn made_for(self, user: Option<Credentials>) -> RequestContext<'a> {
        RequestContext { user: acting(self.session.visitor.squash, user.as_ref()), ..self }
    }

    /// A call that changes something. It may have been made before.
    pub(super) fn recorded(
        session: &'a Session,
        Place { number, slot }: Place,
        filesystem: &Arc<dyn Filesystem>,
        before: Option<Committed>,
    ) -> RequestContext<'a> {
        let plain = RequestContext::plain(session, number, filesystem);
        let Some(session_table) = filesystem.session_table() else { return plain };
        let call = RecordedCall { session: session.serial, slot, number, before };
        let recorder = Arc::new(Recorder::new(call));
        let filesystem = session_table.recording(recorder.clone());
        RequestContext { filesystem, recorder: Some(recorder), ..plain }
    }

    /// What it has come to, if it has changed something and is recorded.
    pub(super) fn committed(&self) -> Option<Committed> {
        self.recorder.as_ref()?.committed()
    }

    /// It has replaced everything that these would come to: its record has them, too.
    pub(super) fn supersede(&self, calls: Vec<SupersededCall>) {
        if let Some(recorder) = &self.recorder {
            recorder.supersede(calls);
        }
    }

    /// Whether it was made before a crash.
    pub(super) fn is_replay(&self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.call.before.is_some())
    }

    /// It has seen these.
    pub(super) fn sees(&self, commit_on_share: &CommitOnShare, dependencies: &[Dependency]) {
        self.seen.lock().extend(dependencies.iter().map(Dependency::ino));
        if commit_on_share.depends(self.session.serial, dependencies) {
            self.depend();
        }
    }

    /// It has seen these inodes.
    pub(super) fn sees_inodes(&self, commit_on_share: &CommitOnShare, inodes: &[Ino]) {
        inodes.iter().for_each(|ino| self.sees(commit_on_share, &[Dependency::Inode(*ino)]));
    }

    /// What it has seen so far.
    pub(super) fn take_seen(&self) -> SmallVec<[Ino; 4]> {
        std::mem::take(&mut *self.seen.lock())
    }

    /// It changes bytes, until it is answered.
    pub(super) fn holds(&self, turn: Option<PageTurn>) {
        self.turns.lock().extend(turn);
    }

    /// It is not answered before other sessions have heard of its changes.
    pub(super) fn waits_for_others(&self) {
        self.turns.lock().iter().for_each(PageTurn::wait);
    }

    /// Before it is answered, a session has to drop or to know something.
    pub(super) fn is_late(&self, late: Late) {
        self.late.lock().push(late);
    }

    /// Whether its answer waits for a sync, or for other sessions.
    pub(super) fn is_answered_later(&self) -> bool {
        self.depends() || !self.late.lock().is_empty()
    }

    /// What sessions have to drop or to know.
    pub(super) fn take_late(&self) -> Vec<Late> {
        std::mem::take(&mut *self.late.lock())
    }

    /// Its answer depends on what may not survive a crash.
    pub(super) fn depend(&self) {
        self.depends.store(true, Ordering::Relaxed);
    }

    /// Whether it does.
    pub(super) fn depends(&self) -> bool {
        self.depends.load(Ordering::Relaxed)
    }
}
