//! Changes that were made elsewhere, applied in bulk.
//!
//! Where contents are kept elsewhere, the bytes of all events are stored first, and then names and sizes change in one
//! transaction. A crash between leaves bytes behind the end of a file, or of a file that there never was.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use thalweg_env::HashSet;
use thalweg_store::txn::Transaction;

use super::Local;
use super::direct::tail_key;
use super::effects::Effects;
use super::elsewhere::{REACH, reach_of};
use super::format::{TRUNCATING, encode_time};
use super::gates::Elsewhere;
use super::op::Op;
use super::rooms::Cover;
use crate::attributes::Ino;
use crate::error::FsError;
use crate::event::runs::{Run, Runs, is_stored, runs_of};
use crate::event::{Deed, Event};
use crate::filesystem::{MAX_FILE, WriteAt};

/// The maximum number of files that are stored concurrently.
const FILES_AT_ONCE: usize = 64;

/// The byte behind the last one that is written.
fn end_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.end).max().unwrap_or_default()
}

/// The end of the last hole that writes leave in a file of this size.
fn last_gap(runs: &[Run], mut size: u64) -> Option<u64> {
    let mut last = None;
    for run in runs {
        if run.offset > size {
            last = Some(run.offset);
        }
        size = size.max(run.end);
    }
    last
}

impl Local {
    /// [`Ledger::apply`](crate::Ledger::apply).
    ///
    /// # Errors
    /// [`FsError::NotSupported`] for changes of bytes beyond [`Ledger::byte_events`](crate::Ledger::byte_events).
    pub(super) async fn apply_all(&self, events: &[Event], cover: &Cover) -> Result<(), FsError> {
        let mut gates = Vec::new();
        if let Some(elsewhere) = self.elsewhere_to_change()? {
            if events.iter().any(|event| sets_size(&event.deed)) {
                return Err(FsError::NotSupported);
            }
            let runs = runs_of(events);
            // In the order of their numbers, so that two batches never wait for each other.
            for ino in runs.keys() {
                gates.push(elsewhere.alone(ino.0).await);
            }
            let (stored, runs) = runs.into_iter().partition(|(_, runs)| is_stored(runs));
            self.check_stored(stored, events).await?;
            self.store_runs(elsewhere, runs, events, cover).await?;
        }
        self.change(async |txn| {
            if let Some(aside) = txn.aside() {
                aside.make_large();
            }
            Ok(((), self.apply_in(&txn, events, cover.clone()).await?))
        })
        .await
    }

    /// Refuses events about bytes that their maker cannot have stored.
    async fn check_stored(&self, stored: Runs, events: &[Event]) -> Result<(), FsError> {
        let made: HashSet<Ino> = events.iter().filter_map(|event| event.deed.made()).collect();
        for (ino, runs) in stored {
            let (size, reach) = match made.contains(&ino) {
                true => (0, REACH),
                false => {
                    let record = self.inner.file_now(ino.0).await?;
                    let is_cut = record.flags & TRUNCATING != 0;
                    (record.size.get(), if is_cut { 0 } else { reach_of(&record) })
                }
            };
            let has_bytes = runs.iter().any(|run| !run.data.is_empty());
            if has_bytes || end_of(&runs) > reach || last_gap(&runs, size).is_some() {
                return Err(FsError::Invalid("the bytes may not be stored"));
            }
        }
        Ok(())
    }

    /// Stores what events write to files.
    async fn store_runs(
        &self,
        elsewhere: &Elsewhere,
        runs: Runs,
        events: &[Event],
        cover: &Cover,
    ) -> Result<(), FsError> {
        let made: HashSet<Ino> = events.iter().filter_map(|event| event.deed.made()).collect();
        let storing = runs.into_iter().map(|(ino, runs)| {
            let is_new = made.contains(&ino);
            async move {
                match is_new {
                    true => self.prepare_new(elsewhere, ino, &runs).await?,
                    false => self.prepare_old(elsewhere, ino, &runs, cover).await?,
                }
                for (number, run) in runs.iter().enumerate() {
                    match is_new && number == 0 {
                        true => elsewhere.contents.write_first(ino, run.offset, &run.data).await?,
                        false => elsewhere.contents.write(ino, run.offset, &run.data).await?,
                    }
                }
                Ok(())
            }
        });
        stream::iter(storing).buffer_unordered(FILES_AT_ONCE).try_collect::<()>().await
    }

    /// Before bytes of a file that there is are stored.
    async fn prepare_old(
        &self,
        elsewhere: &Elsewhere,
        ino: Ino,
        runs: &[Run],
        cover: &Cover,
    ) -> Result<(), FsError> {
        let end = end_of(runs);
        if end > MAX_FILE {
            return Err(FsError::FileTooLarge);
        }
        let record = self.inner.file_now(ino.0).await?;
        let start = last_gap(runs, record.size.get()).unwrap_or_default();
        self.inner.prepare_growth(elsewhere, ino.0, &record, (start, end), cover).await?;
        self.inner.raise_reach(elsewhere, ino.0, end).await
    }

    /// Before bytes of a file are stored that the same events make.
    async fn prepare_new(
        &self,
        elsewhere: &Elsewhere,
        ino: Ino,
        runs: &[Run],
    ) -> Result<(), FsError> {
        if end_of(runs) > REACH {
            return Err(FsError::NotSupported);
        }
        let txn = self.inner.look().await?;
        if Op::new(&self.inner, &txn, false).find_inode(ino.0).await?.is_some() {
            return Err(FsError::Invalid("an inode has the number"));
        }
        // A creation that a crash has undone may have left bytes.
        match last_gap(runs, 0) {
            None => Ok(()),
            Some(start) => elsewhere.contents.zero(ino, 0..start).await,
        }
    }

    async fn apply_in(
        &self,
        txn: &Arc<dyn Transaction>,
        events: &[Event],
        cover: Cover,
    ) -> Result<Effects, FsError> {
        let mut effects = Effects::default();
        let is_within = self.inner.elsewhere.is_none();
        // A call of its own does not see its writes of bytes. So the bytes of a file are changed once in each.
        let mut written = HashSet::default();
        let mut op = self.op(txn).covered(cover);
        let (recorder, now) = (op.recorder.take(), op.now);
        let session = recorder.as_ref().map(|it| it.call.session);
        for Event { time, deed } in events {
            if is_within && changes_bytes(deed) && !written.insert(deed.ino()) {
                effects.add(op.finish().await?);
                op = self.op(txn).covered(std::mem::take(&mut effects.cover));
                op.recorder = None;
                written.clear();
                written.insert(deed.ino());
            }
            op.now = encode_time(*time);
            op.is_stored = op.has_tail(session, deed).await?;
            op.apply(deed).await?;
            [Some(deed.ino()), deed.made()]
                .into_iter()
                .flatten()
                .for_each(|it| op.end_change(it.0));
        }
        (op.recorder, op.now, op.is_stored) = (recorder, now, false);
        effects.add(op.finish().await?);
        Ok(effects)
    }
}

fn changes_bytes(deed: &Deed) -> bool {
    match deed {
        Deed::Write { .. } | Deed::Stored { .. } => true,
        Deed::SetAttributes { .. } | Deed::Create { .. } => sets_size(deed),
    }
}

fn sets_size(deed: &Deed) -> bool {
    matches!(deed, Deed::SetAttributes { change, .. } if change.size.is_some())
}

impl Op<'_> {
    /// Whether a session has stored these bytes with the tail of their file. Its quota is younger than that.
    async fn has_tail(&mut self, session: Option<u64>, deed: &Deed) -> Result<bool, FsError> {
        let (Some(session), Deed::Stored { ino, by_tail: true, .. }) = (session, deed) else {
            return Ok(false);
        };
        Ok(self.file(ino.0).await?.quota.get() != 0
            && self.get(&tail_key(session, *ino)).await?.is_some())
    }

    async fn apply(&mut self, deed: &Deed) -> Result<(), FsError> {
        match deed {
            Deed::Create { parent, name, new, number } => {
                let next = self.next_number().await?;
                self.check_number(number.0, next).await?;
                self.create(parent.0, name, new, number.0).await?;
            }
            Deed::SetAttributes { ino, change } => {
                self.set_attributes(ino.0, change).await?;
            }
            Deed::Write { ino, offset, data, clear_suid } if self.inner.elsewhere.is_some() => {
                let end = offset.saturating_add(data.len() as u64);
                self.content_changed(ino.0, end, *clear_suid).await?;
            }
            Deed::Stored { ino, offset, len, clear_suid, .. } if self.inner.elsewhere.is_some() => {
                self.content_changed(ino.0, offset.saturating_add(*len), *clear_suid).await?;
            }
            Deed::Stored { .. } => return Err(FsError::NotSupported),
            Deed::Write { ino, offset, data, clear_suid } => {
                let at = WriteAt::Offset(*offset);
                self.write(ino.0, at, vec![data.clone()], *clear_suid).await?;
            }
        }
        Ok(())
    }
}
