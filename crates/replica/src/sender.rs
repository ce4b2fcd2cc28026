//! What a primary sends to one follower, at that one's pace.

use std::io;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use thalweg_net::channel::Channel;
use thalweg_store::block::{Blocks, Lba, StoreError, Version, Write, WriteList};
use thalweg_store::chain::{Change, Changed, YieldingHold};
use thalweg_store::checksum::crc32c;

use super::backlog::{Chunk, Next};
use super::protocol::{FromPrimary, State};
use super::record;
use super::shared::Shared;

/// What contents of copies are counted for: as the message that begins a copy.
const COPY: &str = "Copy";
/// Blocks of a copy in one record, unless one version has more.
const COPY_BLOCKS: usize = 64;
/// Reads of a record at a time.
const COPY_READS: usize = 16;
/// Records of a copy that are read while one is sent.
const COPY_AHEAD: usize = 4;
/// Bytes of a record besides its contents for each block, about.
const HEAD: usize = 16;
/// Unsent bytes above which no more are queued for a follower.
const WINDOW: usize = 1 << 20;

/// Sends changes to a follower.
pub(super) struct Sender<'a> {
    pub(super) shared: &'a Shared,
    pub(super) channel: &'a Channel,
    pub(super) number: u64,
}

impl Sender<'_> {
    /// Sends what comes after the state of a follower that was told a size, until the connection or the primary ends.
    pub(super) async fn run(&self, from: State, told_blocks: u64) -> io::Result<()> {
        let backlog = &self.shared.backlog;
        let shape = backlog.news().reshaped;
        if self.shared.chain.blocks() != told_blocks {
            return Ok(());
        }
        let (mut sent, mut told) = (from.version, Version(0));
        // The size comes with a copy, of little where little has changed.
        let mut partial = !from.is_whole || from.blocks != told_blocks;
        if partial && from.is_whole && from.version >= backlog.newest().version {
            // Nothing but the size has.
            let (until, blocks, size) = (from.version, 0, told_blocks);
            self.tell(&FromPrimary::Copy { until, blocks, size }, &[])?;
            partial = false;
        }
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
                Next::Chunk(chunk) => sent = self.chunk(None, chunk)?,
                Next::Missing => {
                    sent = self.copy(sent, from.blocks).await?;
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

    /// Sends changes; `purpose` says what for, if it is not that the follower is behind.
    fn chunk(&self, purpose: Option<&'static str>, chunk: Chunk) -> io::Result<Version> {
        let Chunk { after, last, payload, checksum, total } = chunk;
        self.shared.roster.note(self.number, |known| {
            known.sent = last;
            known.bytes += payload.len() as u64;
        });
        let changes = FromPrimary::Changes { after, checksum, total };
        self.channel.tell_for(purpose, &changes, &[payload]).map_err(io::Error::other)?;
        Ok(last)
    }

    /// Sends the newest content of what changed since the follower's version; returns the version that it has then.
    async fn copy(&self, from: Version, size: u64) -> io::Result<Version> {
        let (hold, total) = self.hold_newest().await.map_err(io::Error::other)?;
        tokio::select! {
            biased;
            // The follower connects again, and the copy goes on from where it is, with a newer version.
            () = hold.asked() => Err(io::Error::other("writers need the room that the copy takes")),
            sent = self.copy_until((from, size), hold.version(), total) => sent,
        }
    }

    /// Sends what changed since the follower's version up to version `until`, which is held, to a follower of a size; `total`
    /// is the count of changed bytes there.
    async fn copy_until(
        &self,
        (from, size): (Version, u64),
        until: Version,
        total: u64,
    ) -> io::Result<Version> {
        let chain = &self.shared.chain;
        let changed = chain.changed_since(from, until, size).await;
        let mut changed = changed.map_err(io::Error::other)?;
        if changed.is_empty() {
            // The follower is to reach this version all the same: with a block as it is.
            let stored = chain.allocation(Lba(0), 1, Some(until)).iter().any(|(_, stored)| *stored);
            changed.push(Changed { version: until, lba: 0, stored });
        }
        let blocks = changed.len() as u64;
        let size = chain.blocks();
        self.tell(&FromPrimary::Copy { until, blocks, size }, &[])?;
        let mut parts = parts(&changed);
        let (mut after, mut left) = (from, blocks);
        let mut ahead = FuturesOrdered::new();
        let (mut sent, mut done) = (from, 0);
        loop {
            while ahead.len() < COPY_AHEAD
                && let Some(part) = parts.next()
            {
                left -= part.len() as u64;
                let last = if left == 0 { until } else { part[part.len() - 1].version };
                ahead.push_back(self.copied(part, until, (after, last)));
                after = last;
            }
            let Some(chunk) = ahead.next().await else { break };
            let (chunk, count) = chunk.map_err(io::Error::other)?;
            done += count;
            self.shared.pace.take(chunk.payload.len()).await;
            let total = (done == blocks).then_some(total);
            sent = self.chunk(Some(COPY), Chunk { total, ..chunk })?;
            self.shared.roster.note(self.number, |known| known.copy = Some((done, blocks)));
            self.channel.flush_soon();
            self.channel.drained(WINDOW).await;
        }
        self.shared.roster.note(self.number, |known| known.copy = None);
        Ok(sent)
    }

    /// The record of a part of a copy, and the number of its blocks.
    fn copied<'a>(
        &'a self,
        part: &'a [Changed],
        at: Version,
        (after, last): (Version, Version),
    ) -> BoxFuture<'a, Result<(Chunk, u64), StoreError>> {
        let chain = &self.shared.chain;
        // Adjacent blocks are read at once, and adjacent discards take one entry of the follower's log in this order.
        let count = part.len() as u64;
        let mut part = part.to_vec();
        part.sort_unstable_by_key(|changed| changed.lba);
        let follows = |a: &Changed, b: &Changed| a.lba + 1 == b.lba && a.stored == b.stored;
        let read = |run: &[Changed]| {
            let (first, count) = (u64::from(run[0].lba), run.len() as u64);
            let stored = run[0].stored;
            async move {
                let contents = match stored {
                    true => chain.read(Lba(first), count, at).await?,
                    false => vec![None; count as usize],
                };
                let write =
                    |(lba, content)| Write { content, ..Write::block(Lba(lba), Bytes::new()) };
                Ok::<_, StoreError>((first..).zip(contents).map(write).collect::<Vec<Write>>())
            }
        };
        let reads: Vec<_> = part.chunk_by(follows).map(read).collect();
        let record = async move {
            let reads = stream::iter(reads).buffered(COPY_READS);
            let writes: Vec<Vec<Write>> = reads.try_collect().await?;
            let writes = WriteList::new(writes.into_iter().flatten().collect())?;
            let bytes = writes.iter().filter_map(|write| write.content.as_ref()).map(Bytes::len);
            let mut payload = BytesMut::with_capacity(bytes.sum::<usize>() + HEAD * writes.len());
            record::encode(after, last, Change::Writes(&writes), &mut payload);
            let payload = payload.freeze();
            let checksum = crc32c(&payload);
            Ok((Chunk { after, last, checksum, payload, total: None }, count))
        };
        record.boxed()
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
