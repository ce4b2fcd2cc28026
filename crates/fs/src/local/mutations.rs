//! Changes that were made elsewhere, applied in bulk.
//!
//! Where contents are kept elsewhere, the bytes of all mutations are stored first, and then names and sizes change in one
//! transaction. A crash between leaves bytes behind the end of a file, or of a file that there never was. Bytes that replace
//! others show at once. Those of a client with a journal are stored aside, and the transaction says where they are
//! ([`super::redirects`]), unless they are one change: then they are stored when the transaction is about to commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::HashSet;
use thalweg_store::txn::Transaction;

use super::LocalFs;
use super::batch_contents::Replaced;
use super::direct::size_record_key;
use super::effects::Effects;
use super::format::encode_time;
use super::fs_call::FsCall;
use super::gates::ExternalContents;
use super::redirects::RedirectChange;
use super::rooms::Cover;
use crate::attributes::Ino;
use crate::error::FsError;
use crate::filesystem::{SetXattr, WriteAt};
use crate::mutation::runs::{is_stored, runs_of};
use crate::mutation::{MAX_RESERVED, Mutation, MutationKind};
use crate::room::RoomShare;
use crate::session_table::JournalPosition;
use crate::stored_ahead::{StoreAhead, StoredPart, StoredWrites};

/// How the bytes that a batch replaces come to their files.
enum Replacing<'a> {
    /// They are there, or there are none.
    Done,
    /// They are stored when nothing refuses the batch any more, in one change.
    OneChange(&'a ExternalContents, Replaced),
    /// They are stored aside, and the transaction redirects to them.
    Aside(Vec<RedirectChange>),
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
        stored: &StoredWrites,
    ) -> Result<(), FsError> {
        let Some(external_contents) = self.external_to_change()? else {
            return self.commit_batch(mutations, cover, end, &Replacing::Done).await;
        };
        let is_call =
            |kind: &MutationKind| sets_size(kind) || matches!(kind, MutationKind::Reserve { .. });
        if mutations.iter().any(|mutation| is_call(&mutation.kind)) {
            return Err(FsError::NotSupported);
        }
        self.inner.limit_redirects(external_contents).await?;
        let runs = runs_of(mutations);
        // In the order of their numbers, so that two batches never wait for each other.
        let _gates = external_contents.alone_all(runs.keys().copied()).await;
        let (by_client, runs) = runs.into_iter().partition(|(_, runs)| is_stored(runs));
        self.inner.check_stored(by_client, mutations).await?;
        let replaced = self.inner.store_new(external_contents, runs, mutations, cover).await?;
        // Without a journal, what a client has not synced may be lost in part.
        let call = self.recorder.as_ref().map(|it| it.call).filter(|_| end.position > 0);
        let Some(call) = call.filter(|_| !replaced.is_empty()) else {
            self.inner.before_replaced_in_place(external_contents, &replaced).await?;
            replaced.store(external_contents).await?;
            return self.commit_batch(mutations, cover, end, &Replacing::Done).await;
        };
        if stored.has_none()
            && replaced.is_one_change(external_contents, mutations)
            && !replaced.is_redirected(external_contents)
        {
            self.inner.before_replaced_in_place(external_contents, &replaced).await?;
            // What is replaced is seen at once: so nothing before it may be undone by a crash.
            self.inner.sync_volume().await?;
            let replacing = Replacing::OneChange(external_contents, replaced);
            return self.commit_batch(mutations, cover, end, &replacing).await;
        }
        let of_call = (call.session, stored);
        let aside = self.inner.store_aside(external_contents, of_call, &replaced).await?;
        let replacing = Replacing::Aside(aside.changes);
        self.commit_batch(mutations, cover, end, &replacing).await?;
        drop(aside.held);
        self.inner.place_if_direct(external_contents, &replaced).await
    }

    /// The transaction of a batch, which stores bytes when nothing refuses it any more.
    async fn commit_batch(
        &self,
        mutations: &[Mutation],
        cover: &Cover,
        end: JournalPosition,
        replacing: &Replacing<'_>,
    ) -> Result<(), FsError> {
        let is_stored = AtomicBool::new(false);
        self.change(async |txn| {
            if let Some(aside) = txn.aside() {
                aside.make_large();
            }
            let changes = match replacing {
                Replacing::Aside(changes) => &changes[..],
                Replacing::Done | Replacing::OneChange(..) => &[],
            };
            let effects = self.apply_in(&txn, mutations, (cover.clone(), changes), end).await?;
            if let Replacing::OneChange(external_contents, replaced) = replacing
                && !is_stored.load(Ordering::Relaxed)
            {
                replaced.store(external_contents).await?;
                is_stored.store(true, Ordering::Relaxed);
            }
            Ok(((), effects))
        })
        .await
    }

    async fn apply_in(
        &self,
        txn: &Arc<dyn Transaction>,
        mutations: &[Mutation],
        (cover, changes): (Cover, &[RedirectChange]),
        end: JournalPosition,
    ) -> Result<Effects, FsError> {
        let mut effects = Effects::default();
        let is_within = self.inner.external_contents.is_none();
        // A call of its own does not see its writes of bytes, nor the extents and extended attributes that it adds. So those of
        // an inode are changed once in each, and records are searched for what an inode has before it is removed.
        let (mut written, mut is_begun) = (HashSet::default(), false);
        let mut op = self.op(txn).covered(cover);
        let (recorder, now) = (op.recorder.take(), op.now);
        let session = recorder.as_ref().map(|it| it.call.session);
        for Mutation { time, kind } in mutations {
            let looks = is_within && changes_bytes(kind) || changes_xattrs(kind);
            let looks_again = looks && written.contains(&kind.ino());
            if is_begun && (looks_again || kind.unlinked().is_some()) {
                effects.add(op.finish().await?);
                op = self.op(txn).after(&effects).covered(std::mem::take(&mut effects.cover));
                op.recorder = None;
                written.clear();
            }
            if looks {
                written.insert(kind.ino());
            }
            is_begun = true;
            op.now = encode_time(*time);
            op.is_stored = op.has_size_record(session, kind).await?;
            op.apply(kind).await?;
            kind.inodes().for_each(|it| op.end_change(it.0));
        }
        changes.iter().for_each(|it| op.change_redirects(it.clone()));
        (op.recorder, op.now, op.is_stored) = (recorder, now, false);
        (op.outcome, op.hash) = (end.position, end.hash);
        effects.add(op.finish().await?);
        Ok(effects)
    }
}

#[async_trait]
impl StoreAhead for LocalFs {
    async fn store_ahead(&self, session: u64, part: Bytes) -> Result<Option<StoredPart>, FsError> {
        match self.external_to_change()? {
            Some(external_contents) => {
                self.inner.store_ahead(external_contents, session, part).await
            }
            None => Ok(None),
        }
    }

    async fn apply_stored(
        &self,
        mutations: &[Mutation],
        charged: &[RoomShare],
        end: JournalPosition,
        stored: &StoredWrites,
    ) -> Result<(), FsError> {
        // What is made again after a crash has used its promise before.
        let call = self.recorder.as_ref().map(|it| it.call);
        let session = call.filter(|call| call.before.is_none()).map(|call| call.session);
        let cover = session.map(|it| self.inner.rooms.cover(it, charged)).unwrap_or_default();
        self.apply_all(mutations, &cover, end, stored).await?;
        session.into_iter().for_each(|session| self.inner.rooms.spend(session, charged));
        Ok(())
    }
}

fn changes_bytes(kind: &MutationKind) -> bool {
    match kind {
        MutationKind::Write { .. } | MutationKind::Stored { .. } | MutationKind::Reserve { .. } => {
            true
        }
        MutationKind::SetAttributes { .. }
        | MutationKind::SetXattr { .. }
        | MutationKind::RemoveXattr { .. }
        | MutationKind::Create { .. }
        | MutationKind::Unlink { .. }
        | MutationKind::RemoveDirectory { .. }
        | MutationKind::Link { .. }
        | MutationKind::Rename { .. } => sets_size(kind),
    }
}

fn changes_xattrs(kind: &MutationKind) -> bool {
    matches!(kind, MutationKind::SetXattr { .. } | MutationKind::RemoveXattr { .. })
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
            MutationKind::Reserve { ino, offset, len, keep_size } => {
                self.reserve_at_once(ino.0, (*offset, *len), *keep_size).await?;
            }
            MutationKind::SetXattr { ino, name, value } => {
                self.set_xattr(ino.0, name, value.clone(), SetXattr::Any).await?;
            }
            MutationKind::RemoveXattr { ino, name } => self.remove_xattr(ino.0, name).await?,
            MutationKind::Rename { from, to, how, ino, there } => {
                self.leads_to(from.0, &from.1, Some(*ino)).await?;
                self.leads_to(to.0, &to.1, *there).await?;
                self.rename((from.0.0, &from.1), (to.0.0, &to.1), *how).await?;
            }
        }
        Ok(())
    }

    /// Takes blocks for the holes of a range.
    async fn reserve_at_once(
        &mut self,
        ino: u64,
        (offset, len): (u64, u64),
        keep_size: bool,
    ) -> Result<(), FsError> {
        if len == 0 || len > MAX_RESERVED {
            return Err(FsError::Invalid("so much is not reserved by one mutation"));
        }
        let end = offset.checked_add(len).ok_or(FsError::FileTooLarge)?;
        let done = self.reserve(ino, offset..end, keep_size, u64::MAX).await?;
        assert!(done == end, "a range is reserved as a whole");
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
