//! How a follower applies what it is sent.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use thalweg_env::watch;

use bytes::Bytes;
use thalweg_store::block::{
    BLOCK_SIZE, Blocks, ByteRanges, Lba, Lineage, Retention, StoreError, Version, Write, WriteList,
};
use thalweg_store::chain::{BEFORE_COPY, Chain};
use thalweg_store::checksum::crc32c;
use tokio::sync::mpsc;

use super::following::{Following, Stopped, lost};
use super::protocol::FromPrimary;
use super::record::{self, Changes, Part, Record};

/// Applies changes in the order of versions, once they are durable at the primary.
pub(super) struct Applier<'a> {
    follower: &'a Following,
    chain: &'a Chain,
    /// Changes that are not applied yet.
    waiting: VecDeque<Waiting>,
    /// The last version received.
    received: Version,
    /// The newest version that is durable at the primary.
    durable: Version,
    applied: watch::Sender<Applied>,
}

/// A change that is not applied yet.
struct Waiting {
    record: Record,
    /// The primary's count of changed bytes after it, if it is known.
    total: Option<u64>,
}

/// How far a follower has applied changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Applied {
    pub(super) version: Version,
    /// The primary's count of changed bytes at that version, if it is known.
    pub(super) total: Option<u64>,
}

impl<'a> Applier<'a> {
    pub(super) fn new(follower: &'a Following, applied: watch::Sender<Applied>) -> Applier<'a> {
        let chain = &*follower.chain;
        let (waiting, received, durable) = (VecDeque::new(), chain.now(), Version(0));
        Applier { follower, chain, waiting, received, durable, applied }
    }

    pub(super) async fn run(
        &mut self,
        mut messages: mpsc::Receiver<(FromPrimary, Bytes)>,
    ) -> Result<(), Stopped> {
        loop {
            let Following { env, options, .. } = self.follower;
            let message = env.timeout(options.patience, messages.recv()).await;
            let Some((message, payload)) = message.ok_or_else(|| lost("it is silent"))? else {
                return Err(lost("it closed the connection"));
            };
            let bytes = payload.len() as u64;
            match message {
                FromPrimary::Changes { after, checksum, total } => {
                    self.take(after, (checksum, total), payload)?;
                }
                FromPrimary::Durable(version) => self.durable = self.durable.max(version),
                FromPrimary::Copy { until, blocks, size } => {
                    self.begin_copy(until, blocks, size).await?;
                }
                FromPrimary::Told { durable, .. } => self.durable = self.durable.max(durable),
            }
            self.apply().await?;
            self.follower.seen.lock().applied(bytes);
        }
    }

    /// Takes records that come after version `after`.
    fn take(
        &mut self,
        after: Version,
        (checksum, total): (u32, Option<u64>),
        mut payload: Bytes,
    ) -> Result<(), Stopped> {
        if crc32c(&payload) != checksum {
            return Err(lost("changes were damaged on the way"));
        }
        if after > self.received {
            let received = self.received;
            return Err(lost(format!(
                "changes are missing between versions {received} and {after}"
            )));
        }
        let mut records = Vec::new();
        let mut before = after;
        while !payload.is_empty() {
            let record = record::decode(before, &mut payload);
            let record = record.map_err(|error| lost(error.to_string()))?;
            before = record.version;
            records.push(record);
        }
        // The count at each record follows from that at the last one, which is exact: a copy has bytes that it does not count.
        let mut after = 0;
        let mut counted = Vec::with_capacity(records.len());
        for record in records.into_iter().rev() {
            let bytes = record.changed_bytes();
            counted.push((record, total.map(|total: u64| total.saturating_sub(after))));
            after += bytes;
        }
        for (record, total) in counted.into_iter().rev() {
            if record.version > self.received {
                self.received = record.version;
                self.waiting.push_back(Waiting { record, total });
            }
        }
        Ok(())
    }

    /// Notes that the volume has no state of the primary until version `until`. The state that it has stays readable
    /// as a snapshot. The volume gets the primary's size: now, or if that is smaller when the copy has ended.
    async fn begin_copy(&mut self, until: Version, blocks: u64, size: u64) -> Result<(), Stopped> {
        // It is durable at the primary, like everything that came before.
        self.durable = self.durable.max(until);
        self.apply().await?;
        if size > self.chain.blocks() {
            self.follower.resize(size).await?;
        }
        let alone = self.follower.before_copy.clone().lock_owned().await;
        let version = self.chain.now();
        if version >= until {
            // Only the size was another one.
            self.follower.size.store(size, Ordering::Release);
            return self.follower.shrink().await;
        }
        let chain = self.follower.chain.clone();
        let begin = async move {
            if version >= chain.whole_from() && version > Version(0) {
                // That of an earlier copy is older than what readers see now, which a crash must not take back without it.
                if chain.snapshot(BEFORE_COPY).is_some() {
                    chain.commit(version).await?;
                    chain.delete_snapshot(BEFORE_COPY).await?;
                }
                chain.create_snapshot(BEFORE_COPY).await?;
            }
            chain.set_whole_from(until).await.map(|()| alone)
        };
        let _alone = self.follower.to_the_end(begin).await?;
        self.follower.size.store(size, Ordering::Release);
        self.follower.wants_copy.store(false, Ordering::Release);
        self.follower.seen.lock().copy_begins(blocks);
        Ok(())
    }

    async fn apply(&mut self) -> Result<(), Stopped> {
        let durable = self.durable;
        while self.waiting.front().is_some_and(|waiting| waiting.record.version <= durable) {
            let Some(Waiting { record, total }) = self.waiting.pop_front() else { break };
            let Record { version, changes } = record;
            match changes {
                Changes::Discard { lba, count } => {
                    self.chain.discard_at(version, lba, count).await?;
                }
                Changes::Blocks(blocks) => {
                    self.follower.seen.lock().copied(blocks.len());
                    let mut writes = Vec::with_capacity(blocks.len());
                    for (lba, part) in blocks {
                        writes.push(self.write(lba, part).await?);
                    }
                    let writes = WriteList::new(writes)?;
                    let applied = self.chain.submit_at(version, writes, Retention::Newest).await?;
                    applied.settle().await;
                }
            }
            self.follower.reach(Some(total));
            self.applied.send_replace(Applied { version, total });
        }
        Ok(())
    }

    /// The write of a changed block, merged with the content that it has.
    async fn write(&self, lba: Lba, part: Part) -> Result<Write, Stopped> {
        let whole = |content| Write { content, ..Write::block(lba, Bytes::new()) };
        let parts = match part {
            Part::Discard => return Ok(whole(None)),
            Part::Whole(content) => return Ok(whole(Some(content))),
            Part::Bytes(parts) => parts,
        };
        let old = match self.chain.read(lba, 1, self.chain.now()).await {
            Err(error @ (StoreError::Corrupt { .. } | StoreError::Device(_))) => {
                self.follower.wants_copy.store(true, Ordering::Release);
                return Err(lost(format!("{error}; what has changed comes anew")));
            }
            read => read?.pop().flatten(),
        };
        let mut content = old.map_or_else(|| vec![0; BLOCK_SIZE], |old| old.to_vec());
        let mut changed = ByteRanges::none();
        for (start, bytes) in parts {
            let range = start..start + bytes.len();
            content[range.clone()].copy_from_slice(&bytes);
            changed.add(range);
        }
        Ok(Write { changed, ..whole(Some(Bytes::from(content))) })
    }
}
