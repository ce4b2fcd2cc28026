//! An `fsync` of a file that grows, without the server: this client stores the last bytes together with how the file ends
//! ([`SizeRecord`]). The server hears of it later; should this client end before, the server looks for the size record.
//!
//! A size record counts if it is further than the size that the server has. So the file has to be this client's alone, and since it is,
//! the server must have made everything durable once that was known of the file; what follows are bytes only, and some of
//! them are behind the former end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Time;
use thalweg_fs::contents::SizeRecord;
use thalweg_fs::{Contents, FsError, Ino};
use tokio::sync::oneshot;

use super::cache::Cache;
use super::delegated::{Grant, SizeRecordState};
use super::direct::Direct;
use super::queue::Growth;
use super::{LinkError, Shared};
use crate::protocol::{Answer, Request};

/// Most files for which size records are stored.
const MOST: usize = 64;
/// An `fsync` of a file that is longer than at the `fsync` before counts for this; after so many of them in a row the server is
/// asked. It has to sync for that.
const GROWTHS: u32 = 3;
/// The server is asked again after so long: the file may have a quota now.
const ASKED_AGAIN: Duration = Duration::from_secs(10);

/// The bytes and the size record of an `fsync`.
struct NewSizeRecord {
    contents: Arc<dyn Contents>,
    generation: u64,
    writes: Vec<(u64, Vec<Bytes>)>,
    /// The number of mutations that it covers.
    mutations: usize,
    size_record: SizeRecord,
}

impl Cache {
    /// The grant by which an inode is this client's alone.
    fn grant_of(&self, ino: Ino) -> Option<Grant> {
        let own = &self.nodes.get(&ino)?.delegation;
        own.granted.or(own.within.map(|(_, grant)| grant)).filter(|_| self.has_delegation(ino))
    }

    /// What is to be stored so that a file ends where it does here.
    fn new_size_record(&self, ino: Ino, direct: Direct, now: Time) -> Option<NewSizeRecord> {
        let Direct { contents, generation, .. } = direct;
        let grant = self.grant_of(ino)?;
        let node = self.nodes.get(&ino)?;
        let attributes = node.attributes.filter(|_| node.changing == 0)?;
        let Growth { writes, mutations } = self.queue.growth_of(ino)?;
        let SizeRecordState::Allowed { asked, .. } = node.delegation.size_record() else {
            return None;
        };
        let kept = SizeRecordState::Allowed { generation, grant: Some(grant), asked };
        let is_kept = node.delegation.size_record() == kept && now.since(asked) < ASKED_AGAIN;
        let is_in_reach = attributes.size <= node.delegation.write_bound();
        let size_record = SizeRecord { end: attributes.size, modified: attributes.modified };
        (is_kept && is_in_reach && mutations > 0).then_some(NewSizeRecord {
            contents,
            generation,
            writes,
            mutations,
            size_record,
        })
    }

    /// Whether there are changes of an inode that the server does not have, and all of them are durable.
    pub(super) fn has_ended(&self, ino: Ino) -> bool {
        self.is_unsent(ino) && self.queue.ended.contains(&ino)
    }

    /// A file is durable by an `fsync` at the server, with this grant and size. Whether the server is to be asked for its size record.
    fn synced(&mut self, ino: Ino, (before, size): (Option<Grant>, u64), time: Time) -> bool {
        let now = self.grant_of(ino);
        let Some(own) = self.nodes.get_mut(&ino).map(|node| &mut node.delegation) else {
            return false;
        };
        let is_same = now.is_some() && now == before;
        let write_bound = own.write_bound();
        match own.size_record_mut() {
            SizeRecordState::Allowed { grant, asked, .. } => {
                *grant = before.filter(|_| is_same);
                is_same && time.since(*asked) >= ASKED_AGAIN
            }
            SizeRecordState::Synced { size: last, growths } if is_same && *last < size => {
                (*last, *growths) = (size, *growths + 1);
                *growths >= GROWTHS && write_bound > 0
            }
            SizeRecordState::Refused => false,
            size_record => {
                *size_record = SizeRecordState::Synced { size, growths: 0 };
                false
            }
        }
    }

    /// Another file whose size record is not stored any more, when there are too many. Nothing if there is no such file.
    fn size_record_to_leave(&mut self, ino: Ino) -> Option<Option<Ino>> {
        if self.queue.size_records.len() < MOST || self.queue.size_records.contains(&ino) {
            return Some(None);
        }
        let is_sent = |ino: &Ino| !self.is_unsent(*ino);
        let at = self.queue.size_records.iter().position(is_sent)?;
        let left = self.queue.size_records.remove(at)?;
        if let Some(node) = self.nodes.get_mut(&left) {
            *node.delegation.size_record_mut() = SizeRecordState::Unknown;
        }
        Some(Some(left))
    }

    fn keep_size_record(&mut self, ino: Ino, size_record: SizeRecordState) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            *node.delegation.size_record_mut() = size_record;
        }
    }
}

impl Shared {
    /// Makes a file durable by storing its size record; whether that was possible.
    pub(super) async fn sync_by_size_record(self: &Arc<Self>, ino: Ino) -> Result<bool, FsError> {
        let is_kept = |cache: &Cache| {
            let size_record = cache.nodes.get(&ino).map(|node| node.delegation.size_record());
            matches!(size_record, Some(SizeRecordState::Allowed { .. })) && cache.is_unsent(ino)
        };
        if !is_kept(&self.cache.lock()) {
            return Ok(false);
        }
        // Batches that are sent meanwhile would have bytes stored at the same time.
        let turn = self.sending.clone().lock_owned().await;
        let now = self.env.now();
        let new_size_record =
            self.contents().and_then(|it| self.cache.lock().new_size_record(ino, it, now));
        // What the server has of it, and has not made durable, may be more than its size.
        let Some(new_size_record) =
            new_size_record.filter(|_| !self.reclaim_state.replay_log.lock().has(ino))
        else {
            return Ok(false);
        };
        if self.cache.lock().has_ended(ino) {
            return Ok(true);
        }
        let (told, stored) = oneshot::channel();
        let shared = self.clone();
        // It goes on by itself when its caller has gone, before anything else is sent.
        let storing = async move {
            let outcome = shared.store_size_record(ino, new_size_record).await;
            drop(turn);
            let _ = told.send(outcome);
        };
        self.env.spawn(storing).detach();
        stored.await.unwrap_or_else(|_| Err(LinkError::Closed.into()))
    }

    async fn store_size_record(
        self: &Arc<Self>,
        ino: Ino,
        new_size_record: NewSizeRecord,
    ) -> Result<bool, FsError> {
        let NewSizeRecord { contents, generation, writes, mutations, size_record } =
            new_size_record;
        if let Err(error) = contents.write_with_size_record(ino, &writes, size_record).await {
            self.leave_contents(generation, &error).await?;
            return Ok(false);
        }
        let mut cache = self.cache.lock();
        // The changes of an earlier session are gone.
        if self.session.lock().generation != generation {
            return Ok(false);
        }
        cache.queue.are_stored(mutations);
        let unsent = cache.nodes.get(&ino).map_or(0, |node| node.delegation.unsent);
        if unsent as usize == mutations {
            cache.queue.ended.insert(ino);
        }
        Ok(true)
    }

    /// How a file is before an `fsync` at the server: the grant by which it is this client's alone, and its size.
    pub(super) fn before_sync(&self, ino: Ino) -> Option<(Option<Grant>, u64)> {
        let cache = self.cache.lock();
        let size = cache.nodes.get(&ino)?.attributes?.size;
        Some((cache.grant_of(ino), size))
    }

    /// A file is durable by an `fsync` at the server, as it was before. When that has happened again and again while it grew, the
    /// server is asked whether the size record may be stored instead.
    pub(super) async fn after_sync(self: &Arc<Self>, ino: Ino, before: (Option<Grant>, u64)) {
        let asked = self.env.now();
        if !self.cache.lock().synced(ino, before, asked) {
            return;
        }
        let Some(Direct { generation, .. }) = self.contents() else { return };
        let Some(instead_of) = self.cache.lock().size_record_to_leave(ino) else { return };
        let call = (Request::KeepSizeRecord { ino, instead_of }, Vec::new());
        let answer = self.call_in((None, None), [ino].into(), call, |_, _, _| {}).await;
        let mut cache = self.cache.lock();
        if self.session.lock().generation != generation {
            return;
        }
        let keeps = answer.is_ok_and(|(reply, _)| reply.answer == Answer::Number(1));
        if keeps {
            if !cache.queue.size_records.contains(&ino) {
                cache.queue.size_records.push_back(ino);
            }
            cache.keep_size_record(
                ino,
                SizeRecordState::Allowed { generation, grant: before.0, asked },
            );
        } else {
            cache.keep_size_record(ino, SizeRecordState::Refused);
        }
    }
}
