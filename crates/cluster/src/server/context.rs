//! The context of a call: its session and user, its footprint, and the dependencies of its answer; and its response, with what
//! its client may cache of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use thalweg_fs::room::RoomShare;
use thalweg_fs::session_table::{Committed, RecordedCall, Recorder, SupersededCall};
use thalweg_fs::{Credentials, Filesystem, FsError, Handle, Ino};
use thalweg_net::traffic::name_of;

use super::capabilities::{GrantRequest, Late, PageTurn};
use super::session::{OpenFile, Session};
use crate::protocol::{Answer, Footprint, ListedEntry, Request};
use crate::squash::acting;

/// The number of a call in its session, and its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) slot: u16,
}

#[derive(Debug)]
pub(super) struct RequestContext<'a> {
    pub(super) session: &'a Session,
    pub(super) place: Place,
    pub(super) kind: &'static str,
    /// The user that it counts for; `None` if the client is trusted to have checked what its users may do.
    pub(super) user: Option<Credentials>,
    /// The client makes it for itself, and not for one of its users.
    pub(super) is_own: bool,
    pub(super) footprint: Footprint<'a>,
    /// The filesystem, which records changes that are made through it as those of this call.
    pub(super) files: Arc<dyn Filesystem>,
    recorder: Option<Arc<Recorder>>,
    /// What its user may do is not asked.
    is_unchecked: AtomicBool,
    depends: AtomicBool,
    seen: Mutex<SmallVec<[Ino; 4]>>,
    turns: Mutex<SmallVec<[PageTurn; 1]>>,
    /// What other sessions have to drop or to know before it is answered.
    late: Mutex<Vec<Late>>,
}

impl<'a> RequestContext<'a> {
    /// A call for a user of the client, with so many bytes of payload; `before` is its outcome if it is made again after a
    /// crash.
    pub(super) fn new(
        files: &Arc<dyn Filesystem>,
        session: &'a Session,
        place: Place,
        user: Option<&Credentials>,
        (request, payload): (&'a Request, usize),
        before: Option<Committed>,
    ) -> RequestContext<'a> {
        let footprint = request.footprint(payload);
        let (files, recorder) = match files.session_table().filter(|_| footprint.is_change()) {
            Some(table) => {
                let Place { number, slot } = place;
                let call = RecordedCall { session: session.serial, slot, number, before };
                let recorder = Arc::new(Recorder::new(call));
                (table.recording(recorder.clone()), Some(recorder))
            }
            None => (files.clone(), None),
        };
        RequestContext {
            session,
            place,
            kind: name_of(request),
            user: acting(session.visitor.squash, user),
            is_own: user.is_none(),
            footprint,
            files,
            recorder,
            is_unchecked: AtomicBool::new(false),
            depends: AtomicBool::new(false),
            seen: Mutex::default(),
            turns: Mutex::default(),
            late: Mutex::default(),
        }
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

    pub(super) fn is_replay(&self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.call.before.is_some())
    }

    /// It is carried out whatever its user may do, or not.
    pub(super) fn set_unchecked(&self, is_unchecked: bool) {
        self.is_unchecked.store(is_unchecked, Ordering::Relaxed);
    }

    pub(super) fn is_unchecked(&self) -> bool {
        self.is_unchecked.load(Ordering::Relaxed)
    }

    /// It has seen this inode; `depends` says whether what it saw may not survive a crash.
    pub(super) fn saw(&self, ino: Ino, depends: bool) {
        self.seen.lock().push(ino);
        if depends {
            self.depend();
        }
    }

    pub(super) fn drain_seen(&self) -> SmallVec<[Ino; 4]> {
        std::mem::take(&mut *self.seen.lock())
    }

    /// It changes bytes, until it is answered.
    pub(super) fn hold(&self, turn: Option<PageTurn>) {
        self.turns.lock().extend(turn);
    }

    /// It is not answered before other sessions have heard of its changes.
    pub(super) fn wait_for_others(&self) {
        self.turns.lock().iter().for_each(PageTurn::wait);
    }

    pub(super) fn add_late(&self, late: impl IntoIterator<Item = Late>) {
        self.late.lock().extend(late);
    }

    pub(super) fn drain_late(&self) -> Vec<Late> {
        std::mem::take(&mut *self.late.lock())
    }

    /// Whether its answer waits for a sync, or for other sessions.
    pub(super) fn is_answered_later(&self) -> bool {
        self.depends() || !self.late.lock().is_empty()
    }

    pub(super) fn depend(&self) {
        self.depends.store(true, Ordering::Relaxed);
    }

    pub(super) fn depends(&self) -> bool {
        self.depends.load(Ordering::Relaxed)
    }
}

/// What a call has come to, before anything is granted.
#[derive(Debug, Default)]
pub(super) struct Response {
    pub(super) answer: Answer,
    pub(super) payload: Vec<Bytes>,
    /// What the client may cache of it, if no change came between.
    pub(super) wants: GrantRequest,
    /// Entries of a directory, which become the payload.
    pub(super) entries: Option<Vec<ListedEntry>>,
    pub(super) opened: Option<(Handle, OpenFile)>,
    /// Inodes that the call has taken references to, for the client.
    pub(super) referenced: SmallVec<[Ino; 1]>,
    pub(super) committed: Option<Committed>,
    /// The client wants room in these quotas; 0 is the volume.
    pub(super) room_for: Vec<u64>,
    /// The room that the client is promised in addition.
    pub(super) room: Vec<RoomShare>,
    /// The root of the quota of what it would like to delegate.
    pub(super) quota: u64,
    /// The inodes that its mutations have made, and whether each is a directory.
    pub(super) made: Vec<(Ino, bool)>,
}

pub(super) type Answered = Result<Response, FsError>;

impl Response {
    pub(super) fn of(answer: Answer) -> Response {
        Response { answer, ..Response::default() }
    }

    pub(super) fn done() -> Response {
        Response::default()
    }

    pub(super) fn number(number: u64) -> Response {
        Response::of(Answer::Number(number))
    }

    pub(super) fn with(answer: Answer, payload: Vec<Bytes>) -> Response {
        Response { payload, ..Response::of(answer) }
    }

    pub(super) fn tells(&self) -> SmallVec<[Ino; 2]> {
        match &self.answer {
            Answer::Inode(attributes) => smallvec![attributes.ino],
            Answer::Directory(ino) => smallvec![*ino],
            Answer::Made => self.made.iter().map(|(ino, _)| *ino).collect(),
            _ => {
                let entries = self.entries.iter().flatten();
                entries.filter(|it| it.attributes.is_some()).map(|it| it.ino).collect()
            }
        }
    }
}
