//! Bytes that are redirected ([`super::redirects`]): how they are stored, read and placed.
//!
//! Bytes are placed behind a sync, which makes the transactions durable that have redirected them: a crash leaves no batch half made.
//! Their redirects go after that. A call that changes bytes of a file in their place has passed its gate, and places those of them that
//! are redirected. A crash may bring redirects back, with the bytes before the call: then it has undone the call, too.
//!
//! Clients that reach contents themselves know of no redirects. While there may be some, bytes are placed at once, before anything
//! else is told of the change.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use super::batch_contents::Replaced;
use super::format::{REDIRECT_VERSION, Tag, key, key_behind};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use super::gates::ExternalContents;
use super::redirects::{
    ASIDE, Aside, Parsed, Redirect, RedirectChange, Redirects, bounds_key, bounds_record,
    parse_redirect,
};
use crate::attributes::Ino;
use crate::contents::Contents;
use crate::error::FsError;
use crate::filesystem::MAX_FILE;
use crate::stored_ahead::{StoredPart, StoredWrites};

/// Redirects that are placed in one transaction, and their bytes.
const PLACED_AT_ONCE: (usize, u64) = (4096, 32 << 20);
/// Files of which bytes are placed together, and those at the same time.
const PLACED_FILES: usize = 256;
const FILES_AT_ONCE: usize = 16;
/// Reads of redirected bytes that are made at the same time, and the bytes of one.
const READS_AT_ONCE: usize = 16;
const LONGEST_READ: u64 = 4 << 20;
/// A range that lies in more pieces is placed before it is read.
const MOST_PIECES: usize = 16;

/// Bytes of a batch that are stored aside.
pub(super) struct Redirected {
    pub(super) changes: Vec<RedirectChange>,
    /// Until the batch has committed.
    pub(super) held: Option<Aside>,
}

/// The writes of a file: ranges, each with where its bytes are, or with its bytes.
type Ranges = Vec<(Range<u64>, Result<u64, Vec<Bytes>>)>;

/// The ranges of a file that writes replace. Those whose bytes are not stored are as long as they can be.
fn ranges_of(ino: Ino, writes: &[(u64, Vec<Bytes>)], stored: &StoredWrites) -> Ranges {
    let mut ranges = Ranges::new();
    for (offset, data) in writes {
        let mut at = *offset;
        for buffer in data {
            let end = at + buffer.len() as u64;
            if let Some(places) = stored.of(ino, at, buffer.len() as u64) {
                for (start, len) in places {
                    ranges.push((at..at + len, Ok(*start)));
                    at += len;
                }
                assert!(at == end, "all of a write is stored");
                continue;
            }
            match ranges.last_mut() {
                Some((range, Err(before))) if range.end == at => {
                    range.end = end;
                    before.push(buffer.clone());
                }
                _ => ranges.push((at..end, Err(vec![buffer.clone()]))),
            }
            at = end;
        }
    }
    ranges
}

/// Bytes of the file aside that are read together.
struct Reading {
    range: Range<u64>,
    /// The redirects, each with its offset in its file.
    of: Vec<(u64, Redirect)>,
}

/// Redirects in the order of a file, whose bytes are read together where they lie together.
fn readings(mut redirects: Vec<(u64, Redirect)>) -> Vec<Reading> {
    redirects.sort_unstable_by_key(|(_, it)| it.at);
    let mut readings: Vec<Reading> = Vec::new();
    for (offset, redirect) in redirects {
        let end = redirect.at + redirect.len;
        match readings.last_mut() {
            Some(last)
                if last.range.end == redirect.at && end - last.range.start <= LONGEST_READ =>
            {
                last.range.end = end;
                last.of.push((offset, redirect));
            }
            _ => readings.push(Reading { range: redirect.at..end, of: vec![(offset, redirect)] }),
        }
    }
    readings
}

/// The bytes of redirects, in the order of their file: those that follow one another are one write.
async fn read_aside(
    contents: &dyn Contents,
    redirects: Vec<(u64, Redirect)>,
) -> Result<Vec<(u64, Vec<Bytes>)>, FsError> {
    let reading = readings(redirects).into_iter().map(|Reading { range, of }| async move {
        let bytes = contents.read(ASIDE, range.start, (range.end - range.start) as usize).await?;
        let part = |(offset, it): (u64, Redirect)| {
            let start = (it.at - range.start) as usize;
            (offset, bytes.slice(start..start + it.len as usize))
        };
        Ok::<_, FsError>(of.into_iter().map(part).collect::<Vec<_>>())
    });
    let parts = stream::iter(reading).buffer_unordered(READS_AT_ONCE).try_collect::<Vec<_>>();
    let mut parts = parts.await?.concat();
    parts.sort_unstable_by_key(|(offset, _)| *offset);
    let (mut writes, mut end) = (Vec::<(u64, Vec<Bytes>)>::new(), 0);
    for (offset, bytes) in parts {
        let begins = end != offset || writes.is_empty();
        end = offset + bytes.len() as u64;
        match writes.last_mut().filter(|_| !begins) {
            Some((_, data)) => data.push(bytes),
            None => writes.push((offset, vec![bytes])),
        }
    }
    Ok(writes)
}

impl FsCall<'_> {
    /// Changes the redirects of a file.
    pub(super) fn change_redirects(&mut self, change: RedirectChange) {
        if change.is_empty() {
            return;
        }
        for (key, value) in change.records() {
            match value {
                Some(value) => self.put(key, value),
                None => self.delete(key),
            }
        }
        self.effects.redirects.push(change);
    }

    /// Nothing of a file from this byte on is redirected any more: those bytes are not needed. The file's gate was passed alone, or
    /// nothing reads the file.
    pub(super) fn forget_redirects(&mut self, ino: u64, from: u64) {
        if let Some(external_contents) = &self.inner.external_contents {
            let behind = std::iter::once((from..MAX_FILE.max(from), None));
            self.change_redirects(external_contents.redirects().plan(ino, behind));
        }
    }
}

impl FsState {
    /// Finds the redirects that the filesystem has. Nothing reads contents before. A check, which reports invalid ones, leaves
    /// these out.
    ///
    /// # Errors
    /// Those of the store, and [`FsError::Damaged`].
    pub(super) async fn find_redirects(&self, is_check: bool) -> Result<(), FsError> {
        let Some(external_contents) = &self.external_contents else { return Ok(()) };
        let unit = external_contents.contents.unit();
        let txn = self.look().await?;
        let mut op = FsCall::new(self, &txn, false);
        let (mut bounds, mut found) = (0..0, Vec::new());
        let records = key(0, Tag::Redirect, &[])..key_behind(0, Tag::Redirect);
        for (key, value) in op.range(records, usize::MAX).await? {
            match parse_redirect(&key, &value) {
                Some(Parsed::Bounds(range)) => bounds = range,
                Some(Parsed::Redirect(ino, offset, it))
                    if bounds.contains(&(it.at / unit))
                        && it.at + it.len <= bounds.end.saturating_mul(unit) =>
                {
                    found.push((ino, offset, it))
                }
                Some(Parsed::Redirect(..)) | None if is_check => {}
                Some(Parsed::Redirect(..)) | None => {
                    return Err(FsError::Damaged("a record of redirected bytes is invalid".into()));
                }
            }
        }
        external_contents.set_redirects(Redirects::new(unit, bounds, found, self.env.now()));
        Ok(())
    }

    /// Takes bytes of the file aside.
    async fn take_aside(
        &self,
        external_contents: &ExternalContents,
        session: u64,
        len: u64,
    ) -> Result<Aside, FsError> {
        let redirects = external_contents.redirects();
        loop {
            if let Some(aside) = redirects.take(session, len) {
                return Ok(aside);
            }
            let _raising = redirects.raising.lock().await;
            if let Some(aside) = redirects.take(session, len) {
                return Ok(aside);
            }
            let bounds = redirects.raised(len);
            self.change(async |txn| {
                let mut op = FsCall::new(self, &txn, false);
                op.raise_version(REDIRECT_VERSION).await?;
                op.put(bounds_key(), bounds_record(&bounds));
                Ok(((), op.finish().await?))
            })
            .await?;
            self.sync_volume().await?;
            redirects.set_bounds(bounds);
        }
    }

    /// Stores bytes aside for a session.
    async fn write_aside(
        &self,
        external_contents: &ExternalContents,
        session: u64,
        bytes: Vec<Bytes>,
    ) -> Result<Aside, FsError> {
        let len = bytes.iter().map(|buffer| buffer.len() as u64).sum();
        let aside = self.take_aside(external_contents, session, len).await?;
        let writes = [(aside.start(), bytes)];
        external_contents.contents.write_all(ASIDE, &writes, aside.absent_from()).await?;
        Ok(aside)
    }

    /// [`SessionTable::store_ahead`](crate::SessionTable::store_ahead). Where bytes are placed at once, that waits for the batch.
    pub(super) async fn store_ahead(
        &self,
        external_contents: &ExternalContents,
        session: u64,
        part: Bytes,
    ) -> Result<Option<StoredPart>, FsError> {
        if external_contents.is_direct.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let len = part.len() as u64;
        let aside = self.write_aside(external_contents, session, vec![part]).await?;
        Ok(Some(StoredPart::new(aside.start(), len, Box::new(aside))))
    }

    /// Stores what a batch of a session replaces aside, as far as it is not stored. The caller has passed the gates of the files alone.
    pub(super) async fn store_aside(
        &self,
        external_contents: &ExternalContents,
        (session, stored): (u64, &StoredWrites),
        replaced: &Replaced,
    ) -> Result<Redirected, FsError> {
        let files = replaced.0.iter().map(|(ino, writes)| (*ino, ranges_of(*ino, writes, stored)));
        let files: Vec<(Ino, Ranges)> = files.collect();
        let all = files.iter().flat_map(|(_, ranges)| ranges);
        let rest = all.filter_map(|(_, place)| place.as_ref().err()).flatten().cloned();
        let rest: Vec<Bytes> = rest.collect();
        let held = match rest.is_empty() {
            true => None,
            false => Some(self.write_aside(external_contents, session, rest).await?),
        };
        let mut next = held.as_ref().map_or(0, Aside::start);
        let changes = files.into_iter().map(|(ino, ranges)| {
            let ranges = ranges.into_iter().map(|(range, place)| {
                let at = place.unwrap_or_else(|_| {
                    next += range.end - range.start;
                    next - (range.end - range.start)
                });
                (range, Some(at))
            });
            external_contents.redirects().plan(ino.0, ranges)
        });
        Ok(Redirected { changes: changes.collect(), held })
    }

    /// Bytes of a file, where they are. The caller has passed its gate; `None` if they lie in so many pieces that they are to be placed
    /// first.
    pub(super) async fn read_pieces(
        &self,
        external_contents: &ExternalContents,
        ino: Ino,
        range: Range<u64>,
    ) -> Result<Option<Vec<Bytes>>, FsError> {
        let pieces = external_contents.redirects().pieces(ino.0, range);
        if pieces.len() > MOST_PIECES && !self.options.read_only {
            return Ok(None);
        }
        let contents = &external_contents.contents;
        let reading = pieces.into_iter().map(|piece| async move {
            let len = (piece.range.end - piece.range.start) as usize;
            match piece.aside {
                Some(at) => contents.read(ASIDE, at, len).await,
                None => contents.read(ino, piece.range.start, len).await,
            }
        });
        let read = stream::iter(reading.collect::<Vec<_>>()).buffered(READS_AT_ONCE);
        read.try_collect().await.map(Some)
    }

    /// Makes what has freed redirected bytes durable: they may be used again, and no crash brings them back.
    pub(super) async fn release_redirects(
        &self,
        external_contents: &ExternalContents,
    ) -> Result<(), FsError> {
        let freed = external_contents.redirects().last_freed();
        self.sync_volume().await?;
        freed.into_iter().for_each(|last| external_contents.redirects().release(last));
        Ok(())
    }

    /// Places what is redirected of a range of a file. The caller has passed its gate alone.
    ///
    /// # Errors
    /// Those of the store and of the contents. All bytes are where they are read.
    pub(super) async fn place(
        &self,
        external_contents: &ExternalContents,
        ino: u64,
        range: Range<u64>,
    ) -> Result<(), FsError> {
        while self.place_some(external_contents, &[ino], &range).await? {}
        Ok(())
    }

    /// Places some of that of files, whose gates the caller has passed alone; whether there was any.
    async fn place_some(
        &self,
        external_contents: &ExternalContents,
        inodes: &[u64],
        range: &Range<u64>,
    ) -> Result<bool, FsError> {
        let ExternalContents { contents, .. } = external_contents;
        let redirects = external_contents.redirects();
        let (mut files, (mut count, mut bytes)) = (Vec::new(), PLACED_AT_ONCE);
        for ino in inodes {
            let some = redirects.some(*ino, range, (count, bytes));
            count = count.saturating_sub(some.len());
            bytes = bytes.saturating_sub(some.iter().map(|(_, it)| it.len).sum());
            if !some.is_empty() {
                files.push((*ino, some));
            }
        }
        if files.is_empty() {
            return Ok(false);
        }
        self.release_redirects(external_contents).await?;
        let placing = files.iter().map(|(ino, some)| async move {
            let writes = read_aside(&**contents, some.clone()).await?;
            contents.write_all(Ino(*ino), &writes, u64::MAX).await
        });
        let placing = stream::iter(placing.collect::<Vec<_>>()).buffer_unordered(FILES_AT_ONCE);
        placing.try_collect::<()>().await?;
        let changes = files.iter().map(|(ino, some)| {
            redirects.plan(*ino, some.iter().map(|(at, it)| (*at..at + it.len, None)))
        });
        let changes: Vec<RedirectChange> = changes.collect();
        self.change(async |txn| {
            if let Some(aside) = txn.aside() {
                aside.make_large();
            }
            let mut op = FsCall::new(self, &txn, false);
            changes.iter().for_each(|it| op.change_redirects(it.clone()));
            Ok(((), op.finish().await?))
        })
        .await?;
        Ok(true)
    }

    /// Before a batch replaces bytes in their place.
    pub(super) async fn before_replaced_in_place(
        &self,
        external_contents: &ExternalContents,
        replaced: &Replaced,
    ) -> Result<(), FsError> {
        for (ino, range) in replaced.ranges() {
            self.place(external_contents, ino.0, range).await?;
        }
        Ok(())
    }

    /// Behind a batch that has stored bytes aside: places them if clients may read the contents themselves.
    pub(super) async fn place_if_direct(
        &self,
        external_contents: &ExternalContents,
        replaced: &Replaced,
    ) -> Result<(), FsError> {
        if external_contents.is_direct.load(Ordering::SeqCst) {
            for (ino, _) in &replaced.0 {
                self.place(external_contents, ino.0, 0..MAX_FILE).await?;
            }
            // What such a client writes next is durable at once: no crash is to bring redirects back.
            self.release_redirects(external_contents).await?;
        } else if external_contents.redirects().is_over(4) {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Places the bytes of all files.
    pub(super) async fn place_all(
        &self,
        external_contents: &ExternalContents,
    ) -> Result<(), FsError> {
        for ino in external_contents.redirects().files() {
            let _alone = external_contents.alone(ino).await;
            self.place(external_contents, ino, 0..MAX_FILE).await?;
        }
        Ok(())
    }

    /// From now on clients may reach contents themselves: all bytes are in their places.
    pub(super) async fn begin_direct(
        &self,
        external_contents: &ExternalContents,
    ) -> Result<(), FsError> {
        external_contents.is_direct.store(true, Ordering::SeqCst);
        self.place_all(external_contents).await
    }

    /// Places bytes while there are too many redirects for another batch. The caller has passed no gate.
    pub(super) async fn limit_redirects(
        &self,
        external_contents: &ExternalContents,
    ) -> Result<(), FsError> {
        while external_contents.redirects().is_over(6) {
            self.place_oldest(external_contents).await?;
        }
        Ok(())
    }

    /// Places bytes of some files for which it is time; whether there were any.
    async fn place_oldest(&self, external_contents: &ExternalContents) -> Result<bool, FsError> {
        let mut due = external_contents.redirects().due(self.env.now(), PLACED_FILES);
        if due.is_empty() {
            return Ok(false);
        }
        due.sort_unstable();
        let _gates = external_contents.alone_all(due.iter().copied().map(Ino)).await;
        self.place_some(external_contents, &due, &(0..MAX_FILE)).await?;
        Ok(true)
    }

    /// Whether bytes are to be placed because there are too many redirects.
    pub(super) fn has_too_many_redirects(&self) -> bool {
        self.external_contents.as_ref().is_some_and(|it| it.redirects().is_over(4))
    }

    /// What the keeper does for redirects: places what is old, and removes objects that are not used.
    ///
    /// # Errors
    /// Those of the store and of the contents. The next call goes on.
    pub(super) async fn keep_redirects(&self) -> Result<(), FsError> {
        let Some(external_contents) = &self.external_contents else { return Ok(()) };
        let redirects = external_contents.redirects();
        if !redirects.has_work() || self.options.read_only {
            return Ok(());
        }
        while self.place_oldest(external_contents).await? {}
        if redirects.last_freed().is_some() {
            self.release_redirects(external_contents).await?;
        }
        let unused = redirects.take_unused();
        for (nth, object) in unused.iter().enumerate() {
            if let Err(error) = external_contents.contents.zero(ASIDE, object.clone()).await {
                redirects.give_unused_back(&unused[nth..]);
                return Err(error);
            }
        }
        Ok(())
    }
}
