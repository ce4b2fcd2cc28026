//! What a primary sends to one follower, at that one's pace.

use std::io;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use thalweg_net::channel::Channel;
use thalweg_store::block::{BlockStore, Lba, StoreError, Version, Write, WriteList};
use thalweg_store::chain::{Change, Changed, YieldingHold};
use thalweg_store::checksum::crc32c;

use super::backlog::{Chunk, Next};
use super::protocol::{FromPrimary, State};
use super::record;
use super::shared::Shared;

/// Blocks of a copy in one record, unless one version has more.
const COPY_BLOCKS: usize = 64;
/// Reads of a copy at a time.
const COPY_READS: usize = 16;
/// Unsent bytes above which no more are queued for a follower.
const WINDOW: usize = 1 << 20;

/// Sends changes to a follower.
pub(super) struct Sender<'a> {
    pub(super) shared: &'a Shared,
    pub(super) channel: &'a Channel,
    pub(super) number: u64,
}

impl Sender<'_> {
    /// Sends what comes after the follower's state, until the connection or the primary ends.
    pub(super) async fn run(&self, from: State) -> io::Result<()> {
        let backlog = &self.shared.backlog;
        let shape = backlog.news().reshaped;
        let (mut sent, mut told) = (from.version, Version(0));
        let mut partial = !from.is_whole;
        self.shared.roster.note(self.number, |known| known.sent = sent);
        loop {
            let told_more = backlog.told();
            let next = if partial { Next::Missing } else { backlog.next(sent) };
            let now = backlog.news();
            if now.reshaped != shape {
                // The follower connects again, and hears what has become of its state.
                return Ok(());
            }
            let idle = matches!(next, Next::Nothing);
            match next {
                Next::Chunk(chunk) => sent = self.chunk(chunk)?,
                Next::Missing => {
                    sent = self.copy(sent).await?;
                    partial = false;
                }
                Next::Nothing => {}
            }
            if now.durable > told {
                told = now.durable;
                self.tell(&FromPrimary::Durable(told), &[])?;
            }
            self.channel.flush_soon();
            self.channel.drained(WINDOW).await;
            if idle {
                told_more.await;
            }
        }
    }

    fn tell(&self, message: &FromPrimary, payload: &[Bytes]) -> io::Result<()> {
        self.channel.tell(message, payload).map_err(io::Error::other)
    }

    fn chunk(&self, chunk: Chunk) -> io::Result<Version> {
        let Chunk { after, last, payload, checksum, total } = chunk;
        self.shared.roster.note(self.number, |known| {
            known.sent = last;
            known.bytes += payload.len() as u64;
        });
        self.tell(&FromPrimary::Changes { after, checksum, total }, &[payload])?;
        Ok(last)
    }

    /// Sends the newest content of what changed since the follower's version; returns the version that it has then.
    async fn copy(&self, from: Version) -> io::Result<Version> {
        let (hold, total) = self.hold_newest().await.map_err(io::Error::other)?;
        tokio::select! {
            biased;
            // The follower connects again, and the copy goes on from where it is, with a newer version.
            () = hold.asked() => Err(io::Error::other("writers need the room that the copy takes")),
            sent = self.copy_until(from, hold.version(), total) => sent,
        }
    }

    /// Sends what changed since the follower's version up to version `until`, which is held; `total` is the count of changed
    /// bytes there.
    async fn copy_until(&self, from: Version, until: Version, total: u64) -> io::Result<Version> {
        let chain = &self.shared.chain;
        let mut changed = chain.changed_since(from, until).await.map_err(io::Error::other)?;
        if changed.is_empty() {
            // The follower is to reach this version all the same: with a block as it is.
            let stored = chain.allocation(Lba(0), 1, Some(until)).iter().any(|(_, stored)| *stored);
            changed.push(Changed { version: until, lba: 0, stored });
        }
        let blocks = changed.len() as u64;
        self.tell(&FromPrimary::Copy { until, blocks }, &[])?;
        let (mut sent, mut done) = (from, 0);
        for part in parts(&changed) {
            done += part.len() as u64;
            let (last, total) = match done == blocks {
                true => (until, Some(total)),
                false => (part[part.len() - 1].version, None),
            };
            let record = self.copied(part, until, (sent, last)).await.map_err(io::Error::other)?;
            sent = self.chunk(Chunk { total, ..record })?;
            self.shared.roster.note(self.number, |known| known.copy = Some((done, blocks)));
            self.channel.flush_soon();
            self.channel.drained(WINDOW).await;
        }
        self.shared.roster.note(self.number, |known| known.copy = None);
        Ok(sent)
    }

    /// The record of a part of a copy.
    async fn copied(
        &self,
        part: &[Changed],
        at: Version,
        (after, last): (Version, Version),
    ) -> Result<Chunk, StoreError> {
        let chain = &self.shared.chain;
        let read = |changed: Changed| async move {
            let lba = Lba(u64::from(changed.lba));
            let content = match changed.stored {
                true => chain.read(lba, 1, at).await?.pop().flatten(),
                false => None,
            };
            Ok(Write { content, ..Write::block(lba, Bytes::new()) })
        };
        let reads = stream::iter(part.iter().copied().map(read)).buffered(COPY_READS);
        let writes: Vec<Result<Write, StoreError>> = reads.collect().await;
        let writes = WriteList::new(writes.into_iter().collect::<Result<_, _>>()?)?;
        let mut payload = BytesMut::new();
        record::encode(after, last, Change::Writes(&writes), &mut payload);
        let payload = payload.freeze();
        Ok(Chunk { after, last, checksum: crc32c(&payload), payload, total: None })
    }

    /// Holds the newest version, and makes it durable; returns the count of changed bytes there as well.
    async fn hold_newest(&self) -> Result<(YieldingHold, u64), StoreError> {
        let Shared { chain, backlog, .. } = self.shared;
        let (hold, total) = loop {
            let newest = backlog.newest();
            let hold = chain.hold_yielding(newest.version);
            let hold = hold.or_else(|| chain.hold_yielding(chain.now()));
            if let Some(hold) = hold {
                break (hold, newest.total);
            }
        };
        chain.commit(hold.version()).await?;
        Ok((hold, total))
    }
}

/// Groups blocks so that those of one version stay together.
fn parts(changed: &[Changed]) -> impl Iterator<Item = &[Changed]> {
    let mut rest = changed;
    std::iter::from_fn(move || {
        let least = rest.len().min(COPY_BLOCKS);
        let last = rest.get(least.checked_sub(1)?)?.version;
        let end = rest.partition_point(|changed| changed.version <= last);
        let (part, others) = rest.split_at(end);
        rest = others;
        Some(part)
    })
}
