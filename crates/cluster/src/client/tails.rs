//! An `fsync` of a file that grows, without the server: this client stores the last bytes together with how the file ends
//! ([`Tail`]). The server hears of it later; should this client end before, the server looks for the tail.
//!
//! A tail counts if it is further than the size that the server has. So the file has to be this client's alone, and since it is,
//! the server must have made everything durable once that was known of the file; what follows are bytes only, and some of
//! them are behind the former end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Time;
use thalweg_fs::contents::Tail;
use thalweg_fs::{Contents, FsError, Ino};
use tokio::sync::oneshot;

use super::cache::Cache;
use super::direct::Direct;
use super::own::{Growth, Keeping};
use super::{LinkError, Shared};
use crate::protocol::{Answer, Request};

/// Most files for which tails are stored.
const MOST: usize = 64;
/// An `fsync` of a file that is longer than at the `fsync` before counts for this; after so many of them in a row the server is
/// asked. It has to sync for that.
const GROWTHS: u32 = 3;
/// The server is asked again after so long: the file may have a quota now.
const ASKED_AGAIN: Duration = Duration::from_secs(10);

/// The bytes and the tail of an `fsync`.
struct Ending {
    contents: Arc<dyn Contents>,
    generation: u64,
    writes: Vec<(u64, Vec<Bytes>)>,
    /// The number of events that it covers.
    events: usize,
    tail: Tail,
}

impl Cache {
    /// The grant by which an inode is this client's alone.
    fn grant_of(&self, ino: Ino) -> Option<u64> {
        let own = &self.nodes.get(&ino)?.own;
        own.granted.or(own.within.map(|(_, grant)| grant)).filter(|_| self.is_own(ino))
    }

    /// What is to be stored so that a file ends where it does here.
    fn ending(&self, ino: Ino, direct: Direct, now: Time) -> Option<Ending> {
        let Direct { contents, generation, .. } = direct;
        let grant = self.grant_of(ino)?;
        let node = self.nodes.get(&ino)?;
        let attributes = node.attributes.filter(|_| node.changing == 0)?;
        let Growth { writes, events } = self.pending.growth_of(ino)?;
        let Keeping::Kept { asked, .. } = node.own.keeping else { return None };
        let kept = Keeping::Kept { generation, grant: Some(grant), asked };
        let is_kept = node.own.keeping == kept && now.since(asked) < ASKED_AGAIN;
        let is_in_reach = attributes.size <= node.own.reach;
        let tail = Tail { end: attributes.size, modified: attributes.modified };
        (is_kept && is_in_reach && events > 0).then_some(Ending {
            contents,
            generation,
            writes,
            events,
            tail,
        })
    }

    /// Whether there are changes of an inode that the server does not have, and all of them are durable.
    pub(super) fn has_ended(&self, ino: Ino) -> bool {
        self.is_unsent(ino) && self.pending.ended.contains(&ino)
    }

    /// A file is durable by an `fsync` at the server, with this grant and size. Whether the server is to be asked for its tail.
    fn synced(&mut self, ino: Ino, (before, size): (Option<u64>, u64), time: Time) -> bool {
        let now = self.grant_of(ino);
        let Some(own) = self.nodes.get_mut(&ino).map(|node| &mut node.own) else { return false };
        let is_same = now.is_some() && now == before;
        match &mut own.keeping {
            Keeping::Kept { grant, asked, .. } => {
                *grant = before.filter(|_| is_same);
                is_same && time.since(*asked) >= ASKED_AGAIN
            }
            Keeping::Synced { size: last, growths } if is_same && *last < size => {
                (*last, *growths) = (size, *growths + 1);
                *growths >= GROWTHS && own.reach > 0
            }
            Keeping::Refused => false,
            keeping => {
                *keeping = Keeping::Synced { size, growths: 0 };
                false
            }
        }
    }

    /// Another file whose tail is not stored any more, when there are too many. Nothing if there is no such file.
    fn tail_to_leave(&mut self, ino: Ino) -> Option<Option<Ino>> {
        if self.pending.tails.len() < MOST || self.pending.tails.contains(&ino) {
            return Some(None);
        }
        let is_sent = |ino: &Ino| !self.is_unsent(*ino);
        let at = self.pending.tails.iter().position(is_sent)?;
        let left = self.pending.tails.remove(at)?;
        if let Some(node) = self.nodes.get_mut(&left) {
            node.own.keeping = Keeping::Unknown;
        }
        Some(Some(left))
    }

    fn keep_tail(&mut self, ino: Ino, keeping: Keeping) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.own.keeping = keeping;
        }
    }
}

impl Shared {
    /// Makes a file durable by storing its tail; whether that was possible.
    pub(super) async fn sync_by_tail(self: &Arc<Self>, ino: Ino) -> Result<bool, FsError> {
        let is_kept = |cache: &Cache| {
            let keeping = cache.nodes.get(&ino).map(|node| node.own.keeping);
            matches!(keeping, Some(Keeping::Kept { .. })) && cache.is_unsent(ino)
        };
        if !is_kept(&self.cache.lock()) {
            return Ok(false);
        }
        // Batches that are sent meanwhile would have bytes stored at the same time.
        let turn = self.sending.clone().lock_owned().await;
        let now = self.env.now();
        let ending = self.contents().and_then(|it| self.cache.lock().ending(ino, it, now));
        // What the server has of it, and has not made durable, may be more than its size.
        let Some(ending) = ending.filter(|_| !self.holdings.kept.lock().has(ino)) else {
            return Ok(false);
        };
        if self.cache.lock().has_ended(ino) {
            return Ok(true);
        }
        let (told, stored) = oneshot::channel();
        let shared = self.clone();
        // It goes on by itself when its caller has gone, before anything else is sent.
        let storing = async move {
            let outcome = shared.store_tail(ino, ending).await;
            drop(turn);
            let _ = told.send(outcome);
        };
        self.env.spawn(storing).detach();
        stored.await.unwrap_or_else(|_| Err(LinkError::Closed.into()))
    }

    async fn store_tail(self: &Arc<Self>, ino: Ino, ending: Ending) -> Result<bool, FsError> {
        let Ending { contents, generation, writes, events, tail } = ending;
        if let Err(error) = contents.write_tail(ino, &writes, tail).await {
            self.leave_contents(generation, &error).await?;
            return Ok(false);
        }
        let mut cache = self.cache.lock();
        // The changes of an earlier session are gone.
        if self.session.lock().generation != generation {
            return Ok(false);
        }
        cache.pending.are_stored(events);
        let unsent = cache.nodes.get(&ino).map_or(0, |node| node.own.unsent);
        if unsent as usize == events {
            cache.pending.ended.insert(ino);
        }
        Ok(true)
    }

    /// How a file is before an `fsync` at the server: the grant by which it is this client's alone, and its size.
    pub(super) fn before_sync(&self, ino: Ino) -> Option<(Option<u64>, u64)> {
        let cache = self.cache.lock();
        let size = cache.nodes.get(&ino)?.attributes?.size;
        Some((cache.grant_of(ino), size))
    }

    /// A file is durable by an `fsync` at the server, as it was before. When that has happened again and again while it grew, the
    /// server is asked whether the tail may be stored instead.
    pub(super) async fn after_sync(self: &Arc<Self>, ino: Ino, before: (Option<u64>, u64)) {
        let asked = self.env.now();
        if !self.cache.lock().synced(ino, before, asked) {
            return;
        }
        let Some(Direct { generation, .. }) = self.contents() else { return };
        let Some(instead_of) = self.cache.lock().tail_to_leave(ino) else { return };
        let call = (Request::KeepTail { ino, instead_of }, Vec::new());
        let answer = self.call_in((None, None), [ino].into(), call, |_, _, _| {}).await;
        let mut cache = self.cache.lock();
        if self.session.lock().generation != generation {
            return;
        }
        let keeps = answer.is_ok_and(|(reply, _)| reply.answer == Answer::Number(1));
        if keeps {
            if !cache.pending.tails.contains(&ino) {
                cache.pending.tails.push_back(ino);
            }
            cache.keep_tail(ino, Keeping::Kept { generation, grant: before.0, asked });
        } else {
            cache.keep_tail(ino, Keeping::Refused);
        }
    }
}
