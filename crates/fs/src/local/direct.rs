//! Clients that read and write contents elsewhere themselves: where they are at the store, and how far they may write.

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_store::txn::Durability;

use super::Local;
use super::elsewhere::reach_of;
use super::format::{TRUNCATING, Tag, encode_time, key, key_behind};
use super::gates::Elsewhere;
use super::sessions::{MAX_ADDRESS, Record, TAILS, parse_record, session_key};
use crate::attributes::Ino;
use crate::direct::DirectContents;
use crate::error::FsError;
use crate::filesystem::MAX_FILE;

/// Most files for which a session stores tails.
const MAX_TAILS: usize = 256;

/// The key of a session's address.
fn address_key(session: u64) -> Vec<u8> {
    let mut key = session_key(session);
    key.extend_from_slice(&[0; 3]);
    key
}

/// The key of the record that a session stores tails of a file.
pub(super) fn tail_key(session: u64, ino: Ino) -> Vec<u8> {
    let mut key = session_key(session);
    key.extend_from_slice(&TAILS);
    key.extend_from_slice(&ino.0.to_be_bytes());
    key
}

impl Local {
    fn outside(&self) -> Result<&Elsewhere, FsError> {
        self.elsewhere_to_change()?.ok_or(FsError::NotSupported)
    }

    /// The address of a session; empty if it has none.
    async fn address_of(&self, session: u64) -> Result<String, FsError> {
        self.look(async |txn| {
            let mut op = self.op(&txn);
            let found = op.get(&address_key(session)).await?.unwrap_or_default();
            let bad = |_| FsError::Damaged("the address of a session is invalid".to_owned());
            String::from_utf8(found.to_vec()).map_err(bad)
        })
        .await
    }

    /// The files whose tails a session stores.
    async fn tails_of(&self, session: u64) -> Result<Vec<Ino>, FsError> {
        self.look(async |txn| {
            let mut op = self.op(&txn);
            let range = tail_key(session, Ino(0))..tail_key(session, Ino(u64::MAX));
            let records = op.range(range, usize::MAX).await?;
            let files = records.iter().filter_map(|(key, value)| match parse_record(key, value)? {
                (_, Record::Tail(ino)) => Some(ino),
                _ => None,
            });
            Ok(files.collect())
        })
        .await
    }

    /// Has a file end where a session that was shut out has stored its tail, if that is further.
    async fn end_at_tail(&self, elsewhere: &Elsewhere, ino: Ino) -> Result<(), FsError> {
        let _alone = elsewhere.alone(ino.0).await;
        let record = match self.inner.file_now(ino.0).await {
            Ok(record) => record,
            // It was removed.
            Err(FsError::Stale | FsError::IsDirectory | FsError::Invalid(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        // Its tails are about to be removed.
        if record.flags & TRUNCATING != 0 {
            return Ok(());
        }
        let size = record.size.get();
        let tail = elsewhere.contents.tail(ino, size..reach_of(&record)).await?;
        let Some(tail) = tail.filter(|tail| tail.end > size) else { return Ok(()) };
        tracing::info!(
            inode = ino.0,
            size,
            end = tail.end,
            "a file ends where its client has stored it"
        );
        self.change(async |txn| {
            let mut op = self.op(&txn);
            (op.now, op.is_stored) = (encode_time(tail.modified), true);
            op.content_changed(ino.0, tail.end, false).await?;
            Ok(((), op.finish().await?))
        })
        .await
    }

    /// Whether another session has an address.
    async fn is_taken(&self, address: &str, session: u64) -> Result<bool, FsError> {
        self.look(async |txn| {
            let mut op = self.op(&txn);
            let range = key(0, Tag::Session, &[])..key_behind(0, Tag::Session);
            let records = op.range(range, usize::MAX).await?;
            Ok(records.iter().any(|(key, value)| {
                let is_of_other = matches!(
                    parse_record(key, value), Some((other, Record::Address)) if other != session
                );
                is_of_other && **value == *address.as_bytes()
            }))
        })
        .await
    }
}

#[async_trait]
impl DirectContents for Local {
    fn location(&self) -> Bytes {
        let elsewhere = self.inner.elsewhere.as_ref();
        elsewhere.and_then(|it| it.contents.location()).unwrap_or_default()
    }

    async fn admit(&self, session: u64, address: &str) -> Result<(), FsError> {
        let contents = &self.outside()?.contents;
        let before = self.address_of(session).await?;
        if before == address {
            return Ok(());
        }
        if address.len() > MAX_ADDRESS {
            return Err(FsError::Invalid("the address is too long"));
        }
        if !address.is_empty()
            && (contents.address().await? == address || self.is_taken(address, session).await?)
        {
            return Err(FsError::Invalid("the address is that of another program"));
        }
        if !before.is_empty() {
            contents.shut_out(&before).await?;
        }
        self.change_as(Durability::Synced, async |txn| {
            let mut op = self.op(&txn);
            if op.get(&session_key(session)).await?.is_none() {
                return Err(FsError::Stale);
            }
            match address.is_empty() {
                true => op.delete(address_key(session)),
                false => op.put(address_key(session), address.as_bytes().to_vec()),
            }
            Ok(((), op.finish().await?))
        })
        .await
    }

    async fn shut_out(&self, sessions: &[u64]) -> Result<(), FsError> {
        for session in sessions {
            let address = self.address_of(*session).await?;
            let elsewhere = self.outside()?;
            if !address.is_empty() {
                elsewhere.contents.shut_out(&address).await?;
            }
            for ino in self.tails_of(*session).await? {
                self.end_at_tail(elsewhere, ino).await?;
            }
        }
        Ok(())
    }

    async fn keep_tail(
        &self,
        session: u64,
        ino: Ino,
        instead_of: Option<Ino>,
    ) -> Result<bool, FsError> {
        self.outside()?;
        let kept = self.tails_of(session).await?;
        let has_quota = self.inner.file_now(ino.0).await?.quota.get() != 0;
        if has_quota || kept.contains(&ino) {
            return Ok(!has_quota);
        }
        let has_room = kept.len() < MAX_TAILS || instead_of.is_some_and(|it| kept.contains(&it));
        self.change_as(Durability::Synced, async |txn| {
            let mut op = self.op(&txn);
            if op.get(&session_key(session)).await?.is_none() {
                return Err(FsError::Stale);
            }
            let has_quota = op.file(ino.0).await?.quota.get() != 0;
            let keeps = !has_quota && has_room;
            if keeps {
                instead_of.into_iter().for_each(|other| op.delete(tail_key(session, other)));
                op.put(tail_key(session, ino), Vec::new());
            }
            Ok((keeps, op.finish().await?))
        })
        .await
    }

    async fn reach(&self, ino: Ino) -> Result<u64, FsError> {
        self.raise_reach(ino, 0).await
    }

    async fn raise_reach(&self, ino: Ino, end: u64) -> Result<u64, FsError> {
        let elsewhere = self.outside()?;
        if end > MAX_FILE {
            return Err(FsError::FileTooLarge);
        }
        let _alone = elsewhere.alone(ino.0).await;
        // Bytes behind its end are about to be removed.
        if self.inner.file_now(ino.0).await?.flags & TRUNCATING != 0 {
            return Ok(0);
        }
        self.inner.raise_reach(elsewhere, ino.0, end).await?;
        Ok(reach_of(&self.inner.file_now(ino.0).await?))
    }
}
