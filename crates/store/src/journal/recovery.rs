//! Recovery: scan and revoke.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use thalweg_env::Env;
use uuid::Uuid;

use super::address::Address;
use super::log::{End, FoundRecord, LogRecovery, Lost, Note, Scanned};
use super::record::{Tag, Void, decode_tags};
use super::{Journal, JournalError};
use crate::block::BLOCK_SIZE;
use crate::device::DeviceRef;

/// The content of a block before patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The in-place content.
    Home,
    /// Zeros.
    Zeros,
    /// A regular block at this offset of the ring: see [`Recovery::read_block`].
    Regular(u64),
}

/// Bytes to be written over a block's base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Offset of the first byte.
    pub offset: usize,
    /// The bytes.
    pub bytes: Bytes,
}

/// How to build a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The content that it begins with.
    pub base: Base,
    /// Applied over that in order.
    pub patches: SmallVec<[Patch; 2]>,
}

/// Durations of scan and revoke; replay is the user's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Finding the last transaction.
    pub scan: Duration,
    /// Finding what still matters.
    pub revoke: Duration,
}

/// What to replay.
#[derive(Clone, Debug)]
pub struct Replay<A> {
    /// Transactions found.
    pub transactions: u64,
    /// Their bytes in the journal.
    pub bytes: u64,
    /// The stamp of the last transaction, released or not; 0 when there was none.
    pub stamp: u64,
    /// Revoked runs, in order. A plan in `blocks` is newer than a run that contains its block.
    pub voids: Vec<Void<A>>,
    /// How to build each block.
    pub blocks: BTreeMap<A, Plan>,
    /// Number of updates that were revoked.
    pub revoked: u64,
    /// How the journal ends.
    pub end: End,
    /// Durations of the phases.
    pub phases: Phases,
}

/// A whole transaction.
pub(super) struct Transaction<A> {
    pub(super) tags: Vec<Tag<A>>,
    multiwrite: Bytes,
    /// Offset of its regular blocks.
    regular: u64,
}

impl<A: Address> Transaction<A> {
    /// Decodes a record; `None` when its tags are invalid.
    pub(super) fn decode(record: FoundRecord) -> Option<Transaction<A>> {
        let tags = decode_tags::<A>(&record.header)?;
        let bytes = tags.iter().map(|tag| match tag {
            Tag::Bytes { len, .. } => *len,
            _ => 0,
        });
        let regular = tags.iter().filter(|tag| matches!(tag, Tag::Whole { .. })).count();
        let fits = bytes.sum::<usize>() == record.body.len() && regular == record.blocks as usize;
        fits.then_some(Transaction { tags, multiwrite: record.body, regular: record.blocks_at })
    }
}

/// A journal that is open for recovery. [`Recovery::begin`] opens it for appends.
pub struct Recovery<A> {
    log: LogRecovery,
    address: PhantomData<fn(A) -> A>,
}

impl<A> fmt::Debug for Recovery<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recovery").field(&self.log).finish()
    }
}

impl<A: Address> Journal<A> {
    /// Opens the journal of the volume `owner`, and finds what to replay.
    ///
    /// # Errors
    /// [`JournalError::NoJournal`], [`JournalError::Foreign`], [`JournalError::Newer`]; the device's.
    /// A rotten middle is no error here: see [`Replay::end`].
    pub async fn open(
        env: &Env,
        device: DeviceRef,
        owner: Uuid,
        barrier: bool,
    ) -> Result<(Recovery<A>, Replay<A>), JournalError> {
        let opened = LogRecovery::open(env, device, owner, barrier, Transaction::decode).await?;
        let (log, scanned) = opened;
        Ok((Recovery { log, address: PhantomData }, Replay::of(env, scanned)))
    }

    /// Opens a journal whose superblocks are both lost: as [`Journal::open`], with the transactions
    /// found in its ring, and how many are missing before those. Missing transactions were durable,
    /// and may have been released. [`Recovery::begin`] writes new superblocks.
    ///
    /// # Errors
    /// [`JournalError::NoJournal`] when nothing shows that the journal is on this device; the device's.
    pub async fn open_lost(
        env: &Env,
        device: DeviceRef,
        lost: &Lost,
        barrier: bool,
    ) -> Result<(Recovery<A>, Replay<A>, u64), JournalError> {
        let opened =
            LogRecovery::open_lost(env, device, lost, barrier, Transaction::decode).await?;
        let (log, scanned, missing) = opened;
        Ok((Recovery { log, address: PhantomData }, Replay::of(env, scanned), missing))
    }
}

impl<A: Address> Recovery<A> {
    /// Reads a regular block that is the base of a [`Plan`].
    ///
    /// # Errors
    /// The device's.
    pub async fn read_block(&self, offset: u64) -> Result<Bytes, JournalError> {
        self.log.read_block(offset).await
    }

    /// The journal's device.
    pub fn device(&self) -> &DeviceRef {
        self.log.device()
    }

    /// What the user should note durably before [`Recovery::begin`], for [`Journal::open_lost`].
    pub fn note(&self) -> Note {
        self.log.note()
    }

    /// Forgets every transaction, and opens the journal for appends: the user has made their changes durable in
    /// place.
    ///
    /// # Errors
    /// The device's.
    pub async fn begin(self) -> Result<Journal<A>, JournalError> {
        Ok(Journal { log: self.log.begin(1).await?, address: PhantomData })
    }
}

impl<A: Address> Replay<A> {
    /// Revokes, in a scanned journal.
    fn of(env: &Env, scanned: Scanned<Transaction<A>>) -> Replay<A> {
        let begun = env.now();
        let mut replay = Replay {
            transactions: scanned.records.len() as u64,
            bytes: scanned.bytes,
            stamp: scanned.stamp,
            voids: Vec::new(),
            blocks: BTreeMap::new(),
            revoked: 0,
            end: scanned.end,
            phases: Phases::default(),
        };
        scanned.records.into_iter().for_each(|transaction| replay.take(transaction));
        replay.phases = Phases { scan: scanned.took, revoke: env.now().since(begun) };
        replay
    }

    /// Whether there is nothing to replay.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.voids.is_empty()
    }

    /// Adds the next transaction.
    fn take(&mut self, transaction: Transaction<A>) {
        let (mut at_byte, mut regular) = (0, transaction.regular);
        for tag in transaction.tags {
            match tag {
                Tag::Bytes { at, offset, len, fresh } => {
                    let bytes = transaction.multiwrite.slice(at_byte..at_byte + len);
                    at_byte += len;
                    if fresh {
                        self.revoke(at, 1);
                    }
                    let base = if fresh { Base::Zeros } else { Base::Home };
                    let plan = self.blocks.entry(at);
                    let plan = plan.or_insert_with(|| Plan { base, patches: SmallVec::new() });
                    plan.patches.push(Patch { offset, bytes });
                }
                Tag::Whole { at } => {
                    self.revoke(at, 1);
                    let base = Base::Regular(regular);
                    self.blocks.insert(at, Plan { base, patches: SmallVec::new() });
                    regular += BLOCK_SIZE as u64;
                }
                Tag::Void(void) => {
                    self.revoke(void.at, void.count);
                    self.voids.push(void);
                }
            }
        }
    }

    /// Drops the plans of a run of blocks.
    fn revoke(&mut self, at: A, count: u64) {
        let Some(end) = at.plus(count) else { return };
        let gone: SmallVec<[A; 4]> = self.blocks.range(at..end).map(|(at, _)| *at).collect();
        for at in gone {
            if let Some(plan) = self.blocks.remove(&at) {
                self.revoked += plan.patches.len() as u64;
                self.revoked += u64::from(matches!(plan.base, Base::Regular(_)));
            }
        }
    }
}
