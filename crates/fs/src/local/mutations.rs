//! Changes that were made elsewhere, applied in bulk.
//!
//! Where contents are kept elsewhere, the bytes of all mutations are stored first, and then names and sizes change in one
//! transaction. A crash between leaves bytes behind the end of a file, or of a file that there never was.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use thalweg_env::HashSet;
use thalweg_store::txn::Transaction;

use super::LocalFs;
use super::direct::size_record_key;
use super::effects::Effects;
use super::external_contents::{REACH, write_bound_of};
use super::format::{TRUNCATING, encode_time};
use super::fs_call::FsCall;
use super::gates::ExternalContents;
use super::rooms::Cover;
use crate::attributes::Ino;
use crate::error::FsError;
use crate::filesystem::{MAX_FILE, WriteAt};
use crate::mutation::runs::{Run, Runs, is_stored, runs_of};
use crate::mutation::{Mutation, MutationKind};
use crate::session_table::JournalPosition;

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

impl LocalFs {
    /// [`SessionTable::apply`](crate::SessionTable::apply).
    ///
    /// # Errors
    /// [`FsError::NotSupported`] for changes of bytes beyond [`SessionTable::byte_mutations`](crate::SessionTable::byte_events).
    pub(super) async fn apply_all(
        &self,
        mutations: &[Mutation],
        cover: &Cover,
        end: JournalPosition,
    ) -> Result<(), FsError> {
        let mut gates = Vec::new();
        if let Some(external_contents) = self.external_to_change()? {
            if mutations.iter().any(|mutation| sets_size(&mutation.kind)) {
                return Err(FsError::NotSupported);
            }
            let runs = runs_of(mutations);
            // In the order of their numbers, so that two batches never wait for each other.
            for ino in runs.keys() {
                gates.push(external_contents.alone(ino.0).await);
            }
            let (stored, runs) = runs.into_iter().partition(|(_, runs)| is_stored(runs));
            self.check_stored(stored, mutations).await?;
            self.store_runs(external_contents, runs, mutations, cover).await?;
        }
        self.change(async |txn| {
            if let Some(aside) = txn.aside() {
                aside.make_large();
            }
            Ok(((), self.apply_in(&txn, mutations, cover.clone(), end).await?))
        })
        .await
    }

    /// Refuses mutations about bytes that their maker cannot have stored.
    async fn check_stored(&self, stored: Runs, mutations: &[Mutation]) -> Result<(), FsError> {
        let made: HashSet<Ino> =
            mutations.iter().filter_map(|mutation| mutation.kind.made()).collect();
        for (ino, runs) in stored {
            let (size, write_bound) = if made.contains(&ino) {
                (0, REACH)
            } else {
                let record = self.inner.external_file(ino.0).await?;
                let is_cut = record.flags & TRUNCATING != 0;
                (record.size.get(), if is_cut { 0 } else { write_bound_of(&record) })
            };
            let has_bytes = runs.iter().any(|run| !run.data.is_empty());
            if has_bytes || end_of(&runs) > write_bound || last_gap(&runs, size).is_some() {
                return Err(FsError::Invalid("the bytes may not be stored"));
            }
        }
        Ok(())
    }

    /// Stores what mutations write to files.
    async fn store_runs(
        &self,
        external_contents: &ExternalContents,
        runs: Runs,
        mutations: &[Mutation],
        cover: &Cover,
    ) -> Result<(), FsError> {
        let made: HashSet<Ino> =
            mutations.iter().filter_map(|mutation| mutation.kind.made()).collect();
        let storing = runs.into_iter().map(|(ino, runs)| {
            let is_new = made.contains(&ino);
            async move {
                if is_new {
                    self.prepare_new(external_contents, ino, &runs).await?
                } else {
                    self.prepare_old(external_contents, ino, &runs, cover).await?
                }
                let writes: Vec<_> = runs.into_iter().map(Run::into_write).collect();
                external_contents.contents.write_all(ino, &writes, is_new).await
            }
        });
        stream::iter(storing).buffer_unordered(FILES_AT_ONCE).try_collect::<()>().await
    }

    /// Before bytes of a file that there is are stored.
    async fn prepare_old(
        &self,
        external_contents: &ExternalContents,
        ino: Ino,
        runs: &[Run],
        cover: &Cover,
    ) -> Result<(), FsError> {
        let end = end_of(runs);
        if end > MAX_FILE {
            return Err(FsError::FileTooLarge);
        }
        let record = self.inner.external_file(ino.0).await?;
        let start = last_gap(runs, record.size.get()).unwrap_or_default();
        self.inner.prepare_growth(external_contents, ino.0, &record, (start, end), cover).await?;
        self.inner.extend_write_bound(external_contents, ino.0, end).await
    }

    /// Before bytes of a file are stored that the same mutations make.
    async fn prepare_new(
        &self,
        external_contents: &ExternalContents,
        ino: Ino,
        runs: &[Run],
    ) -> Result<(), FsError> {
        if end_of(runs) > REACH {
            return Err(FsError::NotSupported);
        }
        let txn = self.inner.look().await?;
        if FsCall::new(&self.inner, &txn, false).find_inode(ino.0).await?.is_some() {
            return Err(FsError::Invalid("an inode has the number"));
        }
        // A creation that a crash has undone may have left bytes.
        match last_gap(runs, 0) {
            None => Ok(()),
            Some(start) => external_contents.contents.zero(ino, 0..start).await,
        }
    }

    async fn apply_in(
        &self,
        txn: &Arc<dyn Transaction>,
        mutations: &[Mutation],
        cover: Cover,
        end: JournalPosition,
    ) -> Result<Effects, FsError> {
        let mut effects = Effects::default();
        let is_within = self.inner.external_contents.is_none();
        // A call of its own does not see its writes of bytes. So the bytes of a file are changed once in each, and records are
        // searched for what an inode has before it is removed.
        let (mut written, mut is_begun) = (HashSet::default(), false);
        let mut op = self.op(txn).covered(cover);
        let (recorder, now) = (op.recorder.take(), op.now);
        let session = recorder.as_ref().map(|it| it.call.session);
        for Mutation { time, kind } in mutations {
            let rewrites = is_within && changes_bytes(kind) && written.contains(&kind.ino());
            if is_begun && (rewrites || kind.unlinked().is_some()) {
                effects.add(op.finish().await?);
                op = self.op(txn).after(&effects).covered(std::mem::take(&mut effects.cover));
                op.recorder = None;
                written.clear();
            }
            if changes_bytes(kind) {
                written.insert(kind.ino());
            }
            is_begun = true;
            op.now = encode_time(*time);
            op.is_stored = op.has_size_record(session, kind).await?;
            op.apply(kind).await?;
            kind.inodes().for_each(|it| op.end_change(it.0));
        }
        (op.recorder, op.now, op.is_stored) = (recorder, now, false);
        (op.outcome, op.hash) = (end.position, end.hash);
        effects.add(op.finish().await?);
        Ok(effects)
    }
}

fn changes_bytes(kind: &MutationKind) -> bool {
    match kind {
        MutationKind::Write { .. } | MutationKind::Stored { .. } => true,
        MutationKind::SetAttributes { .. }
        | MutationKind::Create { .. }
        | MutationKind::Unlink { .. }
        | MutationKind::RemoveDirectory { .. }
        | MutationKind::Link { .. }
        | MutationKind::Rename { .. } => sets_size(kind),
    }
}

fn sets_size(kind: &MutationKind) -> bool {
    matches!(kind, MutationKind::SetAttributes { change, .. } if change.size.is_some())
}

impl FsCall<'_> {
    /// Whether a session has stored these bytes with the size record of their file. Its quota is younger than that.
    async fn has_size_record(
        &mut self,
        session: Option<u64>,
        kind: &MutationKind,
    ) -> Result<bool, FsError> {
        let (Some(session), MutationKind::Stored { ino, by_size_record: true, .. }) =
            (session, kind)
        else {
            return Ok(false);
        };
        Ok(self.file(ino.0).await?.quota.get() != 0
            && self.get(&size_record_key(session, *ino)).await?.is_some())
    }

    async fn apply(&mut self, kind: &MutationKind) -> Result<(), FsError> {
        match kind {
            MutationKind::Create { parent, name, new, number } => {
                let next = self.next_number().await?;
                self.check_number(number.0, next).await?;
                self.create(parent.0, name, new, number.0).await?;
            }
            MutationKind::SetAttributes { ino, change } => {
                self.set_attributes(ino.0, change).await?;
            }
            MutationKind::Write { ino, offset, data, clear_suid }
                if self.inner.external_contents.is_some() =>
            {
                let end = offset.saturating_add(data.len() as u64);
                self.content_changed(ino.0, end, *clear_suid).await?;
            }
            MutationKind::Stored { ino, offset, len, clear_suid, .. }
                if self.inner.external_contents.is_some() =>
            {
                self.content_changed(ino.0, offset.saturating_add(*len), *clear_suid).await?;
            }
            MutationKind::Stored { .. } => return Err(FsError::NotSupported),
            MutationKind::Write { ino, offset, data, clear_suid } => {
                let at = WriteAt::Offset(*offset);
                self.write(ino.0, at, vec![data.clone()], *clear_suid).await?;
            }
            MutationKind::Unlink { parent, name, ino } => {
                self.leads_to(*parent, name, Some(*ino)).await?;
                self.unlink(parent.0, name).await?;
            }
            MutationKind::RemoveDirectory { parent, name, ino } => {
                self.leads_to(*parent, name, Some(*ino)).await?;
                self.remove_directory(parent.0, name).await?;
            }
            MutationKind::Link { parent, name, ino } => {
                self.link(ino.0, parent.0, name).await?;
            }
            MutationKind::Rename { from, to, how, ino, there } => {
                self.leads_to(from.0, &from.1, Some(*ino)).await?;
                self.leads_to(to.0, &to.1, *there).await?;
                self.rename((from.0.0, &from.1), (to.0.0, &to.1), *how).await?;
            }
        }
        Ok(())
    }

    /// Refuses a mutation of a name that does not lead where its maker saw it lead.
    async fn leads_to(
        &mut self,
        directory: Ino,
        name: &[u8],
        expected: Option<Ino>,
    ) -> Result<(), FsError> {
        let found = self.find(directory.0, name).await?.found;
        if found.map(|there| Ino(there.entry.ino)) == expected {
            Ok(())
        } else {
            Err(FsError::Invalid("the name leads to another inode"))
        }
    }
}
