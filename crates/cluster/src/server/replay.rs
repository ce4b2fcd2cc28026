//! Calls that the server before this one has not answered, and that their clients send again.
//!
//! Other clients see what such a call has come to before it is sent again:
//!
//! - It has made an inode, and its record has survived. Another call may remove that before the client has the answer, so it
//!   is referenced until then.
//! - It has replaced bytes in their place, without a record. Another client may have read these, and written something else since. When
//!   the call comes, it leaves alone what was written since this server started: to other clients it came before that.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{HashMap, HashSet};
use thalweg_fs::session_table::{SlotRecord, SupersededCall};
use thalweg_fs::{
    Allocation, AttributeChange, Filesystem, FsError, Ino, TimeChange, WriteAt, WriteHow,
};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::Shared;
use super::context::RequestContext;
use super::session::Session;
use crate::protocol::{self, CallEffect, SLOTS, decode_list};

/// A call: its session, and its number.
type Number = (u64, u64);

/// What a call may have come to.
#[derive(Clone, PartialEq, Eq, Debug)]
enum ReplayEffect {
    /// This inode, which is referenced.
    Made(Ino),
    /// Other bytes of a file.
    Replaced {
        ino: Ino,
        range: Range<u64>,
        /// Its record, if others replace all of them.
        record: SlotRecord,
    },
}

/// What bytes of a file are replaced with.
#[derive(Debug)]
pub(super) enum Replacement {
    Bytes(Bytes, WriteHow),
    /// Zeros, or what was there.
    Space(Allocation),
    /// The bytes of another file, from there on.
    Copy(Ino, u64),
}

impl Replacement {
    /// Whether it writes a range as a whole, or fails: a copy may come to less.
    fn is_whole(&self) -> bool {
        matches!(self, Replacement::Bytes(..))
    }

    /// Whether it leaves nothing of what was written there before. Space may keep the bytes, or the size of the file.
    fn is_written(&self) -> bool {
        !matches!(self, Replacement::Space(..))
    }

    /// Replaces a part of the range; up to where.
    async fn make(
        &self,
        filesystem: &Arc<dyn Filesystem>,
        (ino, range): (Ino, &Range<u64>),
        part: Range<u64>,
    ) -> Result<u64, FsError> {
        let is_part = range.start <= part.start && part.start <= part.end && part.end <= range.end;
        assert!(is_part, "{part:?} is not a part of {range:?}");
        let (len, skipped) = (part.end - part.start, part.start - range.start);
        match self {
            Replacement::Bytes(bytes, how) => {
                let bytes = bytes.slice(skipped as usize..(skipped + len) as usize);
                filesystem.write(ino, WriteAt::Offset(part.start), vec![bytes], *how).await?;
            }
            Replacement::Space(how) => filesystem.allocate(ino, part.start, len, *how).await?,
            Replacement::Copy(from, offset) => {
                let from = (*from, offset.saturating_add(skipped));
                return Ok(part.start + filesystem.copy(from, (ino, part.start), len).await?);
            }
        }
        Ok(part.end)
    }
}

/// The calls of all sessions.
#[derive(Debug, Default)]
pub(super) struct Replay {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: BTreeMap<Number, ReplayEffect>,
    /// The files that such calls are about.
    files: HashMap<Ino, File>,
}

#[derive(Debug, Default)]
struct File {
    /// How many such calls it has.
    calls: usize,
    /// What was written since.
    written: Arc<AsyncMutex<Written>>,
}

/// Ranges of a file that were written: they are sorted, and do not touch.
#[derive(Clone, Debug, Default)]
struct Written(Vec<Range<u64>>);

/// The turn of a call to replace bytes of a file that has such calls: one at a time.
pub(super) struct Turn<'a> {
    shared: &'a Shared,
    ctx: &'a RequestContext<'a>,
    ino: Ino,
    written: OwnedMutexGuard<Written>,
    /// What will have been written after it.
    next: Written,
    superseded: Vec<SupersededCall>,
}

impl Written {
    fn add(&mut self, new: Range<u64>) {
        if new.is_empty() {
            return;
        }
        let touches = |old: &Range<u64>| old.start <= new.end && new.start <= old.end;
        let all = self
            .0
            .iter()
            .filter(|old| touches(old))
            .fold(new.clone(), |all, old| all.start.min(old.start)..all.end.max(old.end));
        self.0.retain(|old| !touches(old));
        let at = self.0.partition_point(|old| old.start < all.start);
        self.0.insert(at, all);
    }

    /// The parts of a range that were not written.
    fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut gaps, mut from) = (Vec::new(), range.start);
        for written in self.0.iter().filter(|it| it.start < range.end && range.start < it.end) {
            gaps.push(from..written.start);
            from = written.end;
        }
        gaps.push(from..range.end);
        gaps.retain(|gap| gap.start < gap.end);
        gaps
    }
}

impl Replay {
    fn add(&self, number: Number, effect: ReplayEffect) {
        let mut state = self.state.lock();
        if let ReplayEffect::Replaced { ino, .. } = effect {
            state.files.entry(ino).or_default().calls += 1;
        }
        state.calls.insert(number, effect);
    }

    /// Removes these calls; the inodes that they have made.
    fn take(&self, numbers: impl RangeBounds<Number>, is_one: impl Fn(u64) -> bool) -> Vec<Ino> {
        let mut state = self.state.lock();
        if state.calls.is_empty() {
            return Vec::new();
        }
        let State { calls, files } = &mut *state;
        let found = calls.range(numbers).map(|(number, _)| *number);
        let found: Vec<Number> = found.filter(|(_, number)| is_one(*number)).collect();
        let mut made = Vec::new();
        for number in found {
            match calls.remove(&number) {
                Some(ReplayEffect::Made(ino)) => made.push(ino),
                Some(ReplayEffect::Replaced { ino, .. }) => {
                    if let Entry::Occupied(mut file) = files.entry(ino) {
                        let calls = &mut file.get_mut().calls;
                        assert!(*calls > 0, "a call of a file is removed twice");
                        *calls -= 1;
                        if file.get().calls == 0 {
                            file.remove();
                        }
                    }
                }
                None => {}
            }
        }
        made
    }

    /// Whether a file has such a call. It becomes no client's alone meanwhile: what that would write without a call has no
    /// order with these.
    pub(super) fn has_file(&self, ino: Ino) -> bool {
        self.state.lock().files.contains_key(&ino)
    }

    /// Whether this is such a call.
    pub(super) fn has(&self, number: Number) -> bool {
        self.state.lock().calls.contains_key(&number)
    }

    /// Whether this call may have replaced bytes of the file.
    fn has_replaced(&self, number: Number, file: Ino) -> bool {
        let state = self.state.lock();
        matches!(state.calls.get(&number), Some(ReplayEffect::Replaced { ino, .. }) if *ino == file)
    }

    /// The other calls of which nothing is left once these bytes of the file were written.
    fn covered(&self, file: Ino, own: Number, written: &Written) -> Vec<SupersededCall> {
        let state = self.state.lock();
        let covered = state.calls.iter().filter_map(|(number, effect)| match effect {
            ReplayEffect::Replaced { ino, range, record }
                if *ino == file && *number != own && written.gaps(range.clone()).is_empty() =>
            {
                Some(SupersededCall { session: number.0, record: *record })
            }
            _ => None,
        });
        covered.collect()
    }
}

impl Shared {
    /// The calls of a client that the server before this one has not answered.
    ///
    /// # Errors
    /// [`FsError::Invalid`]
    pub(super) fn reclaim_calls(&self, session: &Session, payload: &[u8]) -> Result<(), FsError> {
        let calls: Vec<protocol::ReplayedCall> = decode_list(payload, usize::from(SLOTS))?;
        let numbers: HashSet<_> = calls.iter().map(|it| it.number).collect();
        let is_known = |number| self.replay.has((session.serial, number));
        if numbers.len() < calls.len() || numbers.into_iter().any(is_known) {
            return Err(FsError::Invalid("a call twice"));
        }
        if calls.iter().any(|it| it.slot >= SLOTS) {
            return Err(FsError::Invalid("there is no such slot"));
        }
        for protocol::ReplayedCall { number, slot, effect } in calls {
            let effect = match effect {
                CallEffect::Makes => {
                    let recorded = session.recorded.lock();
                    let Some(made) = recorded.values().find(|it| it.number == number) else {
                        continue;
                    };
                    self.filesystem.reference(Ino(made.outcome));
                    ReplayEffect::Made(Ino(made.outcome))
                }
                // Of a file outside of its path it could keep other clients from having that alone.
                CallEffect::Replaces { ino, .. } if session.knows(ino).is_err() => continue,
                CallEffect::Replaces { ino, offset, len, outcome } => {
                    let record = SlotRecord { slot, number, outcome };
                    ReplayEffect::Replaced {
                        ino,
                        range: offset..offset.saturating_add(len),
                        record,
                    }
                }
            };
            self.replay.add((session.serial, number), effect);
        }
        Ok(())
    }

    /// A call has its answer.
    pub(super) fn has_answer(&self, session: u64, number: u64) {
        let number = (session, number);
        self.release(self.replay.take(number..=number, |_| true));
    }

    /// A client sends no call again that is older than `oldest` or one of these, and does not run.
    pub(super) fn sends_no_more(&self, session: &Session, oldest: u64, answered: &[u64]) {
        if self.replay.state.lock().calls.is_empty() {
            return;
        }
        let state = session.state.lock();
        let all = (session.serial, 0)..=(session.serial, u64::MAX);
        let is_over = |number| number < oldest || answered.contains(&number);
        let made = self.replay.take(all, |number| is_over(number) && !state.calls.runs(number));
        drop(state);
        self.release(made);
    }

    /// A session has ended: its client sends nothing again.
    pub(super) fn forget_replays(&self, session: u64) {
        self.release(self.replay.take((session, 0)..=(session, u64::MAX), |_| true));
    }

    fn release(&self, made: Vec<Ino>) {
        made.into_iter().for_each(|ino| self.filesystem.unreference(ino, 1));
    }

    /// The turn of a call to replace bytes of a file; `None` while the file has no such call. A change that is made again came
    /// before such a call, or at the same time. So did the mutations of a batch: the file was their client's alone when this server
    /// started.
    pub(super) async fn turn<'a>(
        &'a self,
        ctx: &'a RequestContext<'a>,
        ino: Ino,
    ) -> Option<Turn<'a>> {
        if ctx.is_replay() {
            return None;
        }
        let written = self.replay.state.lock().files.get(&ino)?.written.clone();
        let written = written.lock_owned().await;
        let next = written.clone();
        Some(Turn { shared: self, ctx, ino, written, next, superseded: Vec::new() })
    }

    /// Replaces bytes of a file. A call that was sent again leaves alone what was written since. Returns how many bytes it has
    /// come to.
    pub(super) async fn replace(
        &self,
        ctx: &RequestContext<'_>,
        (ino, range): (Ino, Range<u64>),
        with: &Replacement,
    ) -> Result<u64, FsError> {
        let at = (ino, &range);
        let Some(mut turn) = self.turn(ctx, ino).await else {
            return Ok(with.make(&ctx.filesystem, at, range.clone()).await? - range.start);
        };
        let own = (ctx.session.serial, ctx.number);
        let gaps = match self.replay.has_replaced(own, ino) && !range.is_empty() {
            true => turn.written.gaps(range.clone()),
            false => vec![range.clone()],
        };
        if gaps.is_empty() && ctx.session.has_recorded(ctx.number) {
            ctx.depend();
            return Ok(range.end - range.start);
        }
        if gaps == [range.clone()] {
            if with.is_whole() {
                turn.replaces(range.clone());
            }
            let end = with.make(&ctx.filesystem, at, range.clone()).await?;
            if with.is_written() {
                turn.replaced(range.start..end);
            }
            return Ok(end - range.start);
        }
        let mut end = range.end;
        for gap in gaps {
            let effect = with.make(&self.filesystem, at, gap.clone()).await?;
            if effect < gap.end {
                end = effect;
                break;
            }
        }
        // The record that it was made, which must be durable: it may not be made again as a whole.
        let touched = AttributeChange { modified: Some(TimeChange::Now), ..Default::default() };
        ctx.filesystem.set_attributes(ino, &touched).await?;
        ctx.depend();
        if with.is_written() {
            turn.replaced(range.start..end);
        }
        Ok(end - range.start)
    }
}

impl Turn<'_> {
    /// The call is about to replace all of these bytes. Its record will have those calls, too, of which nothing is left then;
    /// otherwise the next server could make them after this one.
    pub(super) fn replaces(&mut self, range: Range<u64>) {
        self.next.add(range);
        let own = (self.ctx.session.serial, self.ctx.number);
        let calls = self.shared.replay.covered(self.ino, own, &self.next);
        if !calls.is_empty() {
            self.ctx.supersede(calls.clone());
            self.ctx.depend();
            self.superseded.extend(calls);
        }
    }

    /// The call has replaced these bytes.
    pub(super) fn replaced(mut self, range: Range<u64>) {
        self.next.add(range);
        *self.written = self.next;
        let sessions = self.shared.sessions.lock();
        for SupersededCall { session, record } in self.superseded {
            if let Some(session) = sessions.values().find(|it| it.serial == session) {
                session.recorded.lock().insert(record.slot, record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ranges: &[Range<u64>]) -> Vec<(u64, u64)> {
        ranges.iter().map(|it| (it.start, it.end)).collect()
    }

    #[test]
    fn what_was_written_since_leaves_gaps() {
        let mut written = Written::default();
        let gaps = |written: &Written, range| pairs(&written.gaps(range));
        assert_eq!(gaps(&written, 3..9), [(3, 9)]);
        for range in [5..5, 20..30, 10..12, 12..14, 28..40] {
            written.add(range);
        }
        assert_eq!(pairs(&written.0), [(10, 14), (20, 40)]);
        assert_eq!(gaps(&written, 0..50), [(0, 10), (14, 20), (40, 50)]);
        assert_eq!(gaps(&written, 11..20), [(14, 20)]);
        assert_eq!(gaps(&written, 20..40), []);
        assert_eq!(gaps(&written, 12..13), []);
        written.add(14..u64::MAX);
        assert_eq!(pairs(&written.0), [(10, u64::MAX)]);
    }

    fn replaced(ino: Ino, range: Range<u64>, number: u64) -> ReplayEffect {
        ReplayEffect::Replaced { ino, range, record: SlotRecord { slot: 0, number, outcome: 0 } }
    }

    #[test]
    fn a_file_is_watched_while_it_has_such_a_call() {
        let replay = Replay::default();
        let file = Ino(5);
        replay.add((1, 3), replaced(file, 0..8, 3));
        replay.add((2, 3), replaced(file, 0..8, 3));
        replay.add((1, 4), ReplayEffect::Made(Ino(6)));
        assert!(replay.has_replaced((1, 3), file) && !replay.has_replaced((1, 3), Ino(4)));
        assert_eq!(replay.take((1, 0)..(1, 5), |number| number > 3), [Ino(6)]);
        assert_eq!(replay.take((1, 3)..=(1, 3), |_| true), []);
        assert!(replay.state.lock().files.contains_key(&file));
        assert_eq!(replay.take((2, 0)..=(2, u64::MAX), |_| true), []);
        assert!(replay.state.lock().files.is_empty());
    }

    #[test]
    fn a_call_is_superseded_when_nothing_of_it_is_left() {
        let replay = Replay::default();
        let file = Ino(5);
        replay.add((1, 3), replaced(file, 4..8, 3));
        replay.add((2, 7), replaced(file, 4..10, 7));
        replay.add((2, 8), replaced(Ino(6), 4..8, 8));
        let mut written = Written::default();
        let superseded = |written: &Written, own| {
            let calls = replay.covered(file, own, written);
            calls.into_iter().map(|it| (it.session, it.record.number)).collect::<Vec<_>>()
        };
        written.add(5..9);
        assert_eq!(superseded(&written, (3, 1)), []);
        written.add(0..5);
        assert_eq!(superseded(&written, (3, 1)), [(1, 3)]);
        written.add(9..u64::MAX);
        assert_eq!(superseded(&written, (3, 1)), [(1, 3), (2, 7)]);
        assert_eq!(superseded(&written, (1, 3)), [(2, 7)]);
    }
}
