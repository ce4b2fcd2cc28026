//! Clients that read and write contents elsewhere themselves: where they are at the store, and how far they may write.

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_store::txn::Durability;

use super::LocalFs;
use super::external_contents::write_bound_of;
use super::format::{TRUNCATING, Tag, encode_time, key, key_behind};
use super::gates::ExternalContents;
use super::sessions::{MAX_ADDRESS, Record, TAILS, parse_record, session_key};
use crate::attributes::Ino;
use crate::direct::DirectContents;
use crate::error::FsError;
use crate::filesystem::MAX_FILE;

/// Most files for which a session stores size records.
const MAX_TAILS: usize = 256;

/// The key of a session's address.
fn address_key(session: u64) -> Vec<u8> {
    let mut key = session_key(session);
    key.extend_from_slice(&[0; 3]);
    key
}

/// The key of the record that a session stores size records of a file.
pub(super) fn size_record_key(session: u64, ino: Ino) -> Vec<u8> {
    let mut key = session_key(session);
    key.extend_from_slice(&TAILS);
    key.extend_from_slice(&ino.0.to_be_bytes());
    key
}

impl LocalFs {
    fn outside(&self) -> Result<&ExternalContents, FsError> {
        self.external_to_change()?.ok_or(FsError::NotSupported)
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

    /// The files whose size records a session stores.
    async fn size_records_of(&self, session: u64) -> Result<Vec<Ino>, FsError> {
        self.look(async |txn| {
            let mut op = self.op(&txn);
            let range = size_record_key(session, Ino(0))..size_record_key(session, Ino(u64::MAX));
            let records = op.range(range, usize::MAX).await?;
            let files = records.iter().filter_map(|(key, value)| match parse_record(key, value)? {
                (_, Record::Sizes(ino)) => Some(ino),
                _ => None,
            });
            Ok(files.collect())
        })
        .await
    }

    /// Has a file end where a session that was shut out has stored its size record, if that is further.
    async fn end_at_size_record(
        &self,
        external_contents: &ExternalContents,
        ino: Ino,
    ) -> Result<(), FsError> {
        let _alone = external_contents.alone(ino.0).await;
        let record = match self.inner.external_file(ino.0).await {
            Ok(record) => record,
            // It was removed.
            Err(FsError::Stale | FsError::IsDirectory | FsError::Invalid(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        // Its size records are about to be removed.
        if record.flags & TRUNCATING != 0 {
            return Ok(());
        }
        let size = record.size.get();
        let size_record =
            external_contents.contents.size_record(ino, size..write_bound_of(&record)).await?;
        let Some(size_record) = size_record.filter(|size_record| size_record.end > size) else {
            return Ok(());
        };
        tracing::info!(
            inode = ino.0,
            size,
            end = size_record.end,
            "a file ends where its client has stored it"
        );
        self.change(async |txn| {
            let mut op = self.op(&txn);
            (op.now, op.is_stored) = (encode_time(size_record.modified), true);
            op.content_changed(ino.0, size_record.end, false).await?;
            Ok(((), op.finish().await?))
        })
        .await
    }

    /// Whether another session has an address.
    async fn is_taken(&self, address: &str, session: u64) -> Result<bool, FsError> {
        let addresses = self.addresses().await?;
        Ok(addresses.iter().any(|(other, it)| *other != session && **it == *address.as_bytes()))
    }

    /// Sessions that reach contents themselves, with their addresses.
    pub(super) async fn addresses(&self) -> Result<Vec<(u64, Bytes)>, FsError> {
        self.look(async |txn| {
            let mut op = self.op(&txn);
            let range = key(0, Tag::Session, &[])..key_behind(0, Tag::Session);
            let records = op.range(range, usize::MAX).await?;
            let address = |(key, value): (Bytes, Bytes)| match parse_record(&key, &value)? {
                (session, Record::Address) => Some((session, value)),
                _ => None,
            };
            Ok(records.into_iter().filter_map(address).collect())
        })
        .await
    }
}

impl LocalFs {
    /// An opening finds sessions that reach contents themselves, and go on to do so.
    pub(super) async fn go_on_directly(&self) -> Result<(), FsError> {
        match &self.inner.external_contents {
            Some(external_contents) if !self.addresses().await?.is_empty() => {
                self.inner.begin_direct(external_contents).await
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl DirectContents for LocalFs {
    fn location(&self) -> Bytes {
        let external_contents = self.inner.external_contents.as_ref();
        external_contents.and_then(|it| it.contents.location()).unwrap_or_default()
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
        if !address.is_empty() {
            self.inner.begin_direct(self.outside()?).await?;
        }
        self.change_as(Durability::Synced, async |txn| {
            let mut op = self.op(&txn);
            if op.get(&session_key(session)).await?.is_none() {
                return Err(FsError::Stale);
            }
            if address.is_empty() {
                op.delete(address_key(session))
            } else {
                op.put(address_key(session), address.as_bytes().to_vec())
            }
            Ok(((), op.finish().await?))
        })
        .await
    }

    async fn shut_out(&self, sessions: &[u64]) -> Result<(), FsError> {
        for session in sessions {
            let address = self.address_of(*session).await?;
            let external_contents = self.outside()?;
            if !address.is_empty() {
                external_contents.contents.shut_out(&address).await?;
            }
            for ino in self.size_records_of(*session).await? {
                self.end_at_size_record(external_contents, ino).await?;
            }
        }
        Ok(())
    }

    async fn keep_size_record(
        &self,
        session: u64,
        ino: Ino,
        instead_of: Option<Ino>,
    ) -> Result<bool, FsError> {
        self.outside()?;
        let kept = self.size_records_of(session).await?;
        let has_quota = self.inner.external_file(ino.0).await?.quota.get() != 0;
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
                instead_of.into_iter().for_each(|other| op.delete(size_record_key(session, other)));
                op.put(size_record_key(session, ino), Vec::new());
            }
            Ok((keeps, op.finish().await?))
        })
        .await
    }

    async fn write_bound(&self, ino: Ino) -> Result<u64, FsError> {
        self.extend_write_bound(ino, 0).await
    }

    async fn extend_write_bound(&self, ino: Ino, end: u64) -> Result<u64, FsError> {
        let external_contents = self.outside()?;
        if end > MAX_FILE {
            return Err(FsError::FileTooLarge);
        }
        let _alone = external_contents.alone(ino.0).await;
        // Bytes behind its end are about to be removed.
        if self.inner.external_file(ino.0).await?.flags & TRUNCATING != 0 {
            return Ok(0);
        }
        self.inner.extend_write_bound(external_contents, ino.0, end).await?;
        Ok(write_bound_of(&self.inner.external_file(ino.0).await?))
    }
}
