//! Calls that the server before this one has not answered, and that their clients send again.
//!
//! Other clients see what such a call has come to before it is sent again:
//!
//! - It has made an inode, and its record has survived. Another call may remove that before the client has the answer, so it
//!   is referenced until then.
//! - It has replaced bytes in their place, without a record. Another client may have read these, and written something else since. When
//!   the call comes, it leaves alone what was written since this server started: to other clients it came before that. Of two such
//!   calls that were first sent to different servers, the one at the later server comes last: its client may have seen
//!   the other one.

mod replacement;
mod written;

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use thalweg_env::{HashMap, HashSet};
use thalweg_fs::session_table::{SlotRecord, SupersededCall};
use thalweg_fs::{
    Answer, AttributeChange, Filesystem, FsError, Ino, TimeChange, WriteAt, WriteHow,
};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::context::RequestContext;
use super::session::Session;
use crate::protocol::{self, CallEffect, SLOTS, decode_list};
pub(super) use replacement::Replacement;
use written::{AFTER_ALL, Written};

/// A call: its session, and its number.
type Number = (u64, u64);

#[derive(Debug)]
enum ReplayEffect {
    /// This inode, which is referenced.
    Made(Ino),
    /// Other bytes of a file.
    Replaced {
        ino: Ino,
        range: Range<u64>,
        /// The number of the first server that it was sent to.
        server: u64,
        /// Its session, and its record, if others replace all of them.
        session: Arc<Session>,
        record: SlotRecord,
    },
}

/// The calls of all sessions, while there are some: when the grace period is over and each has come or is not sent again, calls
/// are carried out without a look at this.
#[derive(Debug)]
pub(super) struct Replay {
    files: Arc<dyn Filesystem>,
    /// There are none, and none are to come.
    is_over: AtomicBool,
    calls: Mutex<Option<ReplayedCalls>>,
}

#[derive(Debug, Default)]
struct ReplayedCalls {
    by_number: BTreeMap<Number, ReplayEffect>,
    files: HashMap<Ino, File>,
    /// The grace period is over: no calls are added.
    is_complete: bool,
}

#[derive(Debug, Default)]
struct File {
    calls: usize,
    /// What was written since this server started.
    written: Arc<AsyncMutex<Written>>,
}

/// The turn of a call to replace bytes of a file that has such calls: one at a time.
struct Turn<'a> {
    replay: &'a Replay,
    ctx: &'a RequestContext<'a>,
    ino: Ino,
    /// The number of the first server that the call was sent to, if it is one of those.
    server: Option<u64>,
    written: OwnedMutexGuard<Written>,
    /// What will have been written after it.
    next: Written,
    /// The calls that it leaves nothing of, with their sessions.
    superseded: Vec<(Arc<Session>, SlotRecord)>,
}

impl ReplayedCalls {
    fn add(&mut self, number: Number, effect: ReplayEffect) {
        assert!(!self.is_complete, "a call is reclaimed after the grace period");
        if let ReplayEffect::Replaced { ino, .. } = effect {
            self.files.entry(ino).or_default().calls += 1;
        }
        let before = self.by_number.insert(number, effect);
        assert!(before.is_none(), "a call is reclaimed twice");
    }

    /// Removes these calls; the inodes that they have made.
    fn remove(
        &mut self,
        numbers: impl RangeBounds<Number>,
        is_one: impl Fn(u64) -> bool,
    ) -> Vec<Ino> {
        let found = self.by_number.range(numbers).map(|(number, _)| *number);
        let found: Vec<Number> = found.filter(|(_, number)| is_one(*number)).collect();
        let mut made = Vec::new();
        for effect in found.iter().filter_map(|number| self.by_number.remove(number)) {
            match effect {
                ReplayEffect::Made(ino) => made.push(ino),
                ReplayEffect::Replaced { ino, .. } => {
                    if let Entry::Occupied(mut file) = self.files.entry(ino) {
                        let calls = &mut file.get_mut().calls;
                        assert!(*calls > 0, "a call of a file is removed twice");
                        *calls -= 1;
                        if *calls == 0 {
                            file.remove();
                        }
                    }
                }
            }
        }
        made
    }

    /// The first server of a call that may have replaced bytes of the file.
    fn server_of(&self, number: Number, file: Ino) -> Option<u64> {
        match self.by_number.get(&number)? {
            ReplayEffect::Replaced { ino, server, .. } if *ino == file => Some(*server),
            _ => None,
        }
    }

    /// The other calls of which nothing is left once these bytes of the file were written.
    fn covered(
        &self,
        file: Ino,
        own: Number,
        written: &Written,
    ) -> Vec<(Arc<Session>, SlotRecord)> {
        let covered = self.by_number.iter().filter_map(|(number, effect)| {
            let ReplayEffect::Replaced { ino, range, server, session, record } = effect else {
                return None;
            };
            let is_other = *ino == file && *number != own;
            (is_other && written.gaps_since(*server, range.clone()).is_empty())
                .then(|| (session.clone(), *record))
        });
        covered.collect()
    }
}

impl Replay {
    pub(super) fn new(files: &Arc<dyn Filesystem>) -> Replay {
        Replay { files: files.clone(), is_over: AtomicBool::new(true), calls: Mutex::new(None) }
    }

    /// A grace period begins, before any call is served: clients may reclaim calls.
    pub(super) fn begin(&self) {
        let before = self.calls.lock().replace(ReplayedCalls::default());
        assert!(before.is_none(), "a grace period begins twice");
        self.is_over.store(false, Ordering::Release);
    }

    /// The grace period is over: no client reclaims calls any more.
    pub(super) fn complete(&self) {
        let Some(mut calls) = self.lock() else { return };
        calls.is_complete = true;
        drop(calls);
        self.remove(.., |_| false);
    }

    fn lock(&self) -> Option<MappedMutexGuard<'_, ReplayedCalls>> {
        if self.is_over.load(Ordering::Acquire) {
            return None;
        }
        MutexGuard::try_map(self.calls.lock(), Option::as_mut).ok()
    }

    /// Removes these calls, which are not sent again, and then itself if none are left.
    fn remove(&self, numbers: impl RangeBounds<Number>, is_one: impl Fn(u64) -> bool) {
        if self.is_over.load(Ordering::Acquire) {
            return;
        }
        let made = {
            let mut all = self.calls.lock();
            let Some(calls) = all.as_mut() else { return };
            let made = calls.remove(numbers, is_one);
            if calls.is_complete && calls.by_number.is_empty() {
                assert!(calls.files.is_empty(), "a file is watched for calls that are gone");
                *all = None;
                self.is_over.store(true, Ordering::Release);
            }
            made
        };
        made.into_iter().for_each(|ino| self.files.unreference(ino, 1));
    }

    /// Whether a file has such a call. It becomes no client's alone meanwhile: what that would write without a call has no
    /// order with these.
    pub(super) fn has_file(&self, ino: Ino) -> bool {
        self.lock().is_some_and(|calls| calls.files.contains_key(&ino))
    }

    pub(super) fn has(&self, number: Number) -> bool {
        self.lock().is_some_and(|calls| calls.by_number.contains_key(&number))
    }

    /// The calls of a client that the server before this one has not answered.
    pub(super) fn reclaim(&self, session: &Arc<Session>, payload: &[u8]) -> Result<(), FsError> {
        let reclaimed: Vec<protocol::ReplayedCall> = decode_list(payload, usize::from(SLOTS))?;
        let numbers: HashSet<_> = reclaimed.iter().map(|it| it.number).collect();
        if reclaimed.iter().any(|it| it.slot >= SLOTS) {
            return Err(FsError::Invalid("there is no such slot"));
        }
        let effects = reclaimed.iter().filter_map(|it| Some((it.number, effect_of(session, it)?)));
        let effects: Vec<(u64, ReplayEffect)> = effects.collect();
        let Some(mut calls) = self.lock().filter(|calls| !calls.is_complete) else {
            return Err(FsError::Invalid("nothing can be reclaimed now"));
        };
        let is_known = |number| calls.by_number.contains_key(&(session.serial, number));
        if numbers.len() < reclaimed.len() || numbers.into_iter().any(is_known) {
            return Err(FsError::Invalid("a call twice"));
        }
        for (number, effect) in effects {
            if let ReplayEffect::Made(ino) = effect {
                self.files.reference(ino);
            }
            calls.add((session.serial, number), effect);
        }
        drop(calls);
        // The end of a session removes its calls once, and may have come before these.
        if session.lock().has_ended {
            self.forget(session.serial);
        }
        Ok(())
    }

    pub(super) fn has_answer(&self, session: u64, number: u64) {
        self.remove((session, number)..=(session, number), |_| true);
    }

    /// A client sends no call again that is older than `oldest` or one of these, and does not run.
    pub(super) fn sends_no_more(&self, session: &Session, oldest: u64, answered: &[u64]) {
        let is_over = |number| number < oldest || answered.contains(&number);
        self.remove((session.serial, 0)..=(session.serial, u64::MAX), |number| {
            is_over(number) && !session.replies.runs(number)
        });
    }

    /// A session has ended: its client sends nothing again.
    pub(super) fn forget(&self, session: u64) {
        self.remove((session, 0)..=(session, u64::MAX), |_| true);
    }

    /// The turn of a call to replace bytes of a file; `None` while the file has no such call. A change that is made again came
    /// before such a call, or at the same time. So did the mutations of a batch: the file was their client's alone when this server
    /// started.
    ///
    /// # Errors
    /// [`FsError::Stale`]: the session has ended while the call waited, and it is not known any more what it was.
    async fn turn<'a>(
        &'a self,
        ctx: &'a RequestContext<'a>,
        ino: Ino,
    ) -> Result<Option<Turn<'a>>, FsError> {
        if ctx.is_replay() {
            return Ok(None);
        }
        let watched = self.lock().and_then(|calls| Some(calls.files.get(&ino)?.written.clone()));
        let Some(written) = watched else { return Ok(None) };
        let written = written.lock_owned().await;
        if ctx.session.lock().has_ended {
            return Err(FsError::Stale);
        }
        let number = (ctx.session.serial, ctx.place.number);
        let server = self.lock().and_then(|calls| calls.server_of(number, ino));
        let next = written.clone();
        Ok(Some(Turn { replay: self, ctx, ino, server, written, next, superseded: Vec::new() }))
    }

    /// Replaces bytes of a file. A call that was sent again leaves alone what was written since. Returns how many bytes it has
    /// come to.
    pub(super) async fn replace(
        &self,
        ctx: &RequestContext<'_>,
        (ino, range): (Ino, Range<u64>),
        with: &Replacement,
    ) -> Result<u64, FsError> {
        match self.turn(ctx, ino).await? {
            Some(turn) => turn.replace(range, with).await,
            None => Ok(with.make(&ctx.files, (ino, &range), range.clone()).await? - range.start),
        }
    }

    pub(super) async fn append(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
        data: Bytes,
        how: WriteHow,
    ) -> Result<u64, FsError> {
        let turn = self.turn(ctx, ino).await?;
        let len = data.len() as u64;
        let offset = ctx.files.write(ino, WriteAt::End, vec![data], how).await?;
        if let Some(turn) = turn {
            turn.replaced(offset..offset + len);
        }
        Ok(offset)
    }

    /// Changes attributes of a file. A new size replaces what is behind it.
    pub(super) async fn set_attributes(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
        change: &AttributeChange,
    ) -> Result<Answer, FsError> {
        let mut truncating = None;
        if let Some(size) = change.size
            && let Some(mut turn) = self.turn(ctx, ino).await?
        {
            turn.replaces(size..u64::MAX);
            truncating = Some((turn, size..u64::MAX));
        }
        let set = ctx.files.set_attributes(ino, change).await?;
        if let Some((turn, range)) = truncating {
            turn.replaced(range);
        }
        Ok(set)
    }
}

/// What a call may have come to; `None` for nothing that another client sees.
fn effect_of(session: &Arc<Session>, call: &protocol::ReplayedCall) -> Option<ReplayEffect> {
    let protocol::ReplayedCall { number, slot, server, effect } = *call;
    match effect {
        CallEffect::Makes => {
            session.lock().record_of(number).map(|made| ReplayEffect::Made(Ino(made.outcome)))
        }
        // Of a file outside of its path it could keep other clients from having that alone.
        CallEffect::Replaces { ino, .. } if session.knows(ino).is_err() => None,
        CallEffect::Replaces { ino, offset, len, outcome } => {
            let (session, record) =
                (session.clone(), SlotRecord { slot, number, outcome, hash: 0 });
            let range = offset..offset.saturating_add(len);
            Some(ReplayEffect::Replaced { ino, range, server, session, record })
        }
    }
}

impl Turn<'_> {
    fn number(&self) -> Number {
        (self.ctx.session.serial, self.ctx.place.number)
    }

    async fn replace(mut self, range: Range<u64>, with: &Replacement) -> Result<u64, FsError> {
        let (ctx, at) = (self.ctx, (self.ino, &range));
        let replay = self.replay;
        let gaps = match self.server {
            Some(server) if !range.is_empty() => self.written.gaps_since(server, range.clone()),
            _ => vec![range.clone()],
        };
        if gaps.is_empty() && ctx.session.lock().record_of(ctx.place.number).is_some() {
            ctx.depend();
            return Ok(range.end - range.start);
        }
        if gaps == [range.clone()] {
            if with.is_whole() {
                self.replaces(range.clone());
            }
            let end = with.make(&ctx.files, at, range.clone()).await?;
            let written = with.written(&ctx.files, (self.ino, range.start..end)).await?;
            self.replaced(written);
            return Ok(end - range.start);
        }
        let mut end = range.end;
        for gap in gaps {
            let made = with.make(&replay.files, at, gap.clone()).await?;
            if made < gap.end {
                end = made;
                break;
            }
        }
        // The record that it was made, which must be durable: it may not be made again as a whole.
        let touched = AttributeChange { modified: Some(TimeChange::Now), ..Default::default() };
        ctx.files.set_attributes(self.ino, &touched).await?;
        ctx.depend();
        let written = with.written(&ctx.files, (self.ino, range.start..end)).await?;
        self.replaced(written);
        Ok(end - range.start)
    }

    /// The call is about to replace all of these bytes. Its record will have those calls, too, of which nothing is left then;
    /// otherwise the next server could make them after this one.
    fn replaces(&mut self, range: Range<u64>) {
        self.next.add(self.server.unwrap_or(AFTER_ALL), range);
        let Some(calls) = self.replay.lock() else { return };
        let covered = calls.covered(self.ino, self.number(), &self.next);
        drop(calls);
        if !covered.is_empty() {
            let superseded = covered.iter().map(|(session, record)| SupersededCall {
                session: session.serial,
                record: *record,
            });
            self.ctx.supersede(superseded.collect());
            self.ctx.depend();
            self.superseded.extend(covered);
        }
    }

    /// The call has replaced these bytes.
    fn replaced(mut self, range: Range<u64>) {
        self.next.add(self.server.unwrap_or(AFTER_ALL), range);
        *self.written = self.next;
        for (session, record) in &self.superseded {
            session.lock().recorded.insert(record.slot, *record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inode_limit::InodeLimit;
    use super::super::options::Visitor;
    use super::super::session::SessionJournal;
    use super::*;
    use thalweg_net::keys::{Access, Squash};

    const FILE: Ino = Ino(5);

    fn session(serial: u64) -> Arc<Session> {
        let (name, path) = Default::default();
        let visitor = Visitor { name, path, access: Access::Write, squash: Squash::None };
        let limit = Arc::new(InodeLimit::new(1, Default::default()));
        Arc::new(Session::new(
            (Default::default(), serial),
            visitor,
            vec![],
            SessionJournal::new(None, Default::default(), Default::default()),
            (Default::default(), &limit),
        ))
    }

    fn add(
        calls: &mut ReplayedCalls,
        session: &Arc<Session>,
        number: u64,
        file: (Ino, Range<u64>),
    ) {
        let (ino, range) = file;
        let record = SlotRecord { slot: 0, number, outcome: 0, hash: 0 };
        let (session_of, server) = (session.clone(), session.serial);
        let effect = ReplayEffect::Replaced { ino, range, server, session: session_of, record };
        calls.add((session.serial, number), effect);
    }

    #[test]
    fn a_file_is_watched_while_it_has_such_a_call() {
        let (mut calls, [one, two]) = (ReplayedCalls::default(), [1, 2].map(session));
        add(&mut calls, &one, 3, (FILE, 0..8));
        add(&mut calls, &two, 3, (FILE, 0..8));
        calls.add((1, 4), ReplayEffect::Made(Ino(6)));
        assert_eq!([FILE, Ino(4)].map(|file| calls.server_of((1, 3), file)), [Some(1), None]);
        assert_eq!(calls.remove((1, 0)..(1, 5), |number| number > 3), [Ino(6)]);
        assert_eq!(calls.remove((1, 3)..=(1, 3), |_| true), []);
        assert!(calls.files.contains_key(&FILE));
        assert_eq!(calls.remove((2, 0)..=(2, u64::MAX), |_| true), []);
        assert!(calls.files.is_empty());
    }

    #[test]
    fn a_call_is_superseded_when_nothing_of_it_is_left() {
        let (mut calls, [one, two]) = (ReplayedCalls::default(), [1, 2].map(session));
        add(&mut calls, &one, 3, (FILE, 4..8));
        add(&mut calls, &two, 7, (FILE, 4..10));
        add(&mut calls, &two, 8, (Ino(6), 4..8));
        let mut written = Written::default();
        let superseded = |written: &Written, own| {
            let covered = calls.covered(FILE, own, written).into_iter();
            covered.map(|(session, record)| (session.serial, record.number)).collect::<Vec<_>>()
        };
        written.add(AFTER_ALL, 5..9);
        assert_eq!(superseded(&written, (3, 1)), []);
        written.add(1, 0..5);
        assert_eq!(superseded(&written, (3, 1)), [(1, 3)]);
        // Of the second session's call, the earlier one that comes behind it leaves what it has written.
        written.add(1, 5..u64::MAX);
        assert_eq!(superseded(&written, (3, 1)), [(1, 3)]);
        written.add(2, 0..u64::MAX);
        assert_eq!(superseded(&written, (3, 1)), [(1, 3), (2, 7)]);
        assert_eq!(superseded(&written, (1, 3)), [(2, 7)]);
    }
}
