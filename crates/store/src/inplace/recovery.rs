//! Opening a store, and replay of its journal (4.1.3).
//!
//! The journal does not change before all its transactions are in place and durable, and replay has
//! the same result each time: recovery may be interrupted anywhere and repeated.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::RwLock;
use thalweg_env::Env;
use tokio::sync::Notify;

use super::create::journal_device;
use super::format::{Entry, NOTE_CLEARED, NOTE_DIRECT, Superblock};
use super::map::Map;
use super::medium::Medium;
use super::options::Options;
use super::state::StoreState;
use super::turns::Turns;
use super::{InPlaceError, Inner, Parts};
use crate::block::{BLOCK_SIZE, Epoch, Lba, StoreError, Version};
use crate::copies;
use crate::damage::DamageNote;
use crate::device::{AlignedBuf, DeviceRef, Purpose};
use crate::journal::log::Callers;
use crate::journal::{self, Base, End, Journal, JournalError, Lost, Note, Plan, Replay};
use crate::lock::BriefMutex;

/// Blocks that are replayed together.
const BATCH: usize = 1024;
/// Requests in flight.
const REQUESTS: usize = 32;

/// Report of an opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    /// The version that the store has now.
    pub version: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Transactions found in the journal.
    pub transactions: u64,
    /// Bytes of these.
    pub journal_bytes: u64,
    /// Blocks that replay wrote in place.
    pub blocks: u64,
    /// Of those, blocks that had to be read first.
    pub read: u64,
    /// Updates that later ones revoked.
    pub revoked: u64,
    /// Blocks under a partial update that did not match their checksum: torn in writeback, or
    /// rotten.
    pub unverified: u64,
    /// Blocks under a partial update that the device could not read, and that were given up: reads
    /// of them fail until they are written.
    pub unreadable: u64,
    /// The last transaction was torn: it was never durable.
    pub torn: bool,
    /// Transactions behind a rotten one, which were given up.
    pub given_up: u64,
    /// Both superblocks were lost, and restored from a backup.
    pub superblock_restored: bool,
    /// Both superblocks of the journal were lost; its transactions were found without them.
    pub journal_rebuilt: bool,
    /// Transactions missing in a rebuilt journal before the first one found. Unless more than the
    /// superblocks is damaged, their changes were in place.
    pub journal_missing: u64,
    /// Duration of the scan, in microseconds.
    pub scan_us: u64,
    /// Duration of the revoke phase, in microseconds.
    pub revoke_us: u64,
    /// Duration of the replay, in microseconds.
    pub replay_us: u64,
}

/// Opens a store.
pub(super) async fn open(
    env: &Env,
    parts: Parts,
    options: Options,
    give_up: bool,
) -> Result<(Arc<Inner>, Recovered), InPlaceError> {
    let (superblock, superblock_restored) = match Superblock::read(&parts.data).await {
        Err(InPlaceError::NoSuperblock { .. }) if give_up => (restore(&parts.data).await?, true),
        found => (found?, false),
    };
    let device = journal_device(&parts, &superblock)?;
    let (journal, replay, missing) =
        open_journal(env, device, &superblock, options, give_up).await?;
    let mut recovered = Recovered {
        superblock_restored,
        journal_rebuilt: missing.is_some(),
        journal_missing: missing.unwrap_or(0),
        transactions: replay.transactions,
        journal_bytes: replay.bytes,
        revoked: replay.revoked,
        torn: replay.end == End::Torn,
        version: replay.stamp.max(superblock.version),
        scan_us: micros(replay.phases.scan),
        revoke_us: micros(replay.phases.revoke),
        ..Recovered::default()
    };
    if let End::Rotten { sequence, later } = replay.end {
        if !give_up {
            let device = journal.device().name();
            return Err(JournalError::Rotten { device, sequence, later }.into());
        }
        recovered.given_up = later - sequence + 1;
    }
    let version = Version(recovered.version);
    let map = Map::new(superblock.volume, superblock.map_format);
    let medium = Medium {
        turns: Turns::default(),
        data: parts.data,
        state: BriefMutex::new(StoreState::new(map, version, options)),
        damage: DamageNote::new(superblock.damaged),
        superblock: RwLock::new(superblock),
    };
    let begun = env.now();
    Replayer { medium: &medium, journal: &journal, give_up }.run(&replay, &mut recovered).await?;
    recovered.replay_us = micros(env.now().since(begun));
    let epoch = settle(&medium, journal.note()).await?;
    let journal = journal.begin().await?;
    recovered.epoch = epoch.0;
    let inner = Inner {
        env: env.clone(),
        medium,
        rate: Default::default(),
        journal,
        growing: AtomicBool::new(false),
        epoch,
        callers: Callers::new(version.0),
        pressed: Notify::new(),
        changed: Notify::new(),
        committing_from: BriefMutex::default(),
        writing_back: tokio::sync::Mutex::new(()),
        stages: Default::default(),
    };
    Ok((Arc::new(inner), recovered))
}

/// Restores both superblocks from the newest backup.
async fn restore(device: &DeviceRef) -> Result<Superblock, InPlaceError> {
    let backup = Superblock::read_backup(device).await;
    let backup = backup.ok_or_else(|| InPlaceError::NoStore { device: device.name() })?;
    tracing::error!(
        device = device.name(),
        "both superblocks are damaged: restoring them from a backup"
    );
    copies::write_all(&backup, device).await?;
    device.flush(Purpose::Label).await?;
    Ok(backup)
}

/// Opens the journal of a store. With `give_up` it rebuilds one whose superblocks are lost, and
/// also returns how many transactions are missing.
async fn open_journal(
    env: &Env,
    device: DeviceRef,
    superblock: &Superblock,
    options: Options,
    give_up: bool,
) -> Result<(journal::Recovery<Lba>, Replay<Lba>, Option<u64>), InPlaceError> {
    let is_inside = superblock.journal_at.1 > 0;
    let opened = Journal::open(env, device.clone(), superblock.volume, options.barrier).await;
    let error = match opened {
        Ok((journal, replay)) => return Ok((journal, replay, None)),
        Err(error) => error,
    };
    if !(give_up && error.is_lost()) {
        return Err(match error {
            JournalError::NoJournal { device } if is_inside => {
                JournalError::NoSuperblock { device }.into()
            }
            error => error.into(),
        });
    }
    tracing::error!(%error, "the journal is damaged: searching it for transactions");
    let lost = Lost {
        id: superblock.journal,
        owner: superblock.volume,
        note: superblock.journal_note,
        // Each opening and each orderly end raises the generation, and the epoch at most once.
        last_epoch: superblock.generation,
        stamp: superblock.version,
        is_here: is_inside,
    };
    let found = Journal::open_lost(env, device, &lost, options.barrier).await?;
    let (journal, replay, missing) = found;
    Ok((journal, replay, Some(missing)))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Notes the version in the superblock, and what the journal will be once it is emptied. The caller made
/// everything durable in place, and empties the journal next. Returns the superblock's generation, as an epoch: it
/// was never used before.
pub(super) async fn settle(medium: &Medium, journal_note: Note) -> Result<Epoch, InPlaceError> {
    let newest = Superblock::read(&medium.data).await?;
    let (version, barrier) = {
        let state = medium.state.lock();
        (state.now.0, state.options.barrier)
    };
    let generation = newest.generation + 1;
    let damaged = medium.damage.is_found();
    let next = Superblock { generation, version, journal_note, damaged, ..newest };
    copies::write(&next, &medium.data).await?;
    next.write_backups(&medium.data).await?;
    if barrier {
        medium.data.flush(Purpose::Label).await?;
    }
    medium.damage.recorded(damaged);
    Ok(Epoch(generation))
}

/// Replays a journal.
struct Replayer<'a> {
    medium: &'a Medium,
    journal: &'a journal::Recovery<Lba>,
    /// Whether to give up blocks that cannot be read.
    give_up: bool,
}

impl Replayer<'_> {
    /// Replays the journal, durably.
    async fn run(
        &self,
        replay: &Replay<Lba>,
        recovered: &mut Recovered,
    ) -> Result<(), InPlaceError> {
        if replay.is_empty() {
            return Ok(());
        }
        for void in &replay.voids {
            let range = self.medium.check(void.at, void.count).map_err(foreign)?;
            let entry = match void.note {
                NOTE_CLEARED => Entry::Empty,
                NOTE_DIRECT => Entry::Unsummed,
                note => {
                    let why = format!("the journal has an unknown note {note} on a run of blocks");
                    return Err(InPlaceError::Damaged(why));
                }
            };
            self.medium.map_all(range.clone()).await?;
            let mut state = self.medium.state.lock();
            let StoreState { map, retention, .. } = &mut *state;
            range.for_each(|lba| map.set(lba, entry, None, retention));
        }
        let blocks: Vec<(Lba, &Plan)> =
            replay.blocks.iter().map(|(at, plan)| (*at, plan)).collect();
        for batch in blocks.chunks(BATCH) {
            self.replay_batch(batch, recovered).await?;
        }
        self.medium.write_sectors().await?;
        // Also without barriers: the journal is emptied afterwards.
        self.medium.data.flush(Purpose::UserData).await?;
        Ok(())
    }

    /// Replays some blocks: reads the bases of neighbours together, applies the patches, and
    /// writes.
    async fn replay_batch(
        &self,
        batch: &[(Lba, &Plan)],
        recovered: &mut Recovered,
    ) -> Result<(), InPlaceError> {
        for (at, _) in batch {
            self.medium.check(*at, 1).map_err(foreign)?;
        }
        self.medium.map_all(batch.iter().map(|(at, _)| at.0)).await?;
        let follows =
            |a: &(Lba, &Plan), b: &(Lba, &Plan)| a.0.0 + 1 == b.0.0 && a.1.base == b.1.base;
        let runs = batch.chunk_by(follows).map(|run| self.replayed(run));
        let mut runs = futures::stream::iter(runs).buffered(REQUESTS);
        let (mut writes, mut unreadable) = (Vec::new(), Vec::new());
        while let Some(run) = runs.next().await {
            let run = run?;
            recovered.unreadable += run.unreadable.len() as u64;
            unreadable.extend(run.unreadable);
            recovered.blocks += run.blocks.len() as u64;
            recovered.read += run.read;
            recovered.unverified += run.unverified;
            writes.extend(run.blocks);
        }
        drop(runs);
        let mut joined: Vec<(u64, Vec<Bytes>)> = Vec::new();
        for (lba, block) in writes {
            match joined.last_mut() {
                Some((first, run)) if *first + run.len() as u64 == lba => run.push(block),
                _ => joined.push((lba, vec![block])),
            }
        }
        {
            let mut state = self.medium.state.lock();
            let StoreState { map, retention, .. } = &mut *state;
            for (first, blocks) in &joined {
                for (lba, content) in (*first..).zip(blocks) {
                    map.set(lba, Entry::of(content), None, retention);
                }
            }
            // These are not written: if this recovery crashes, the next one finds them as they are.
            for lba in unreadable {
                let entry = map.entry(lba).ok().flatten().unwrap_or(Entry::Unsummed);
                map.set(lba, entry.spoilt(), None, retention);
            }
        }
        let writes = joined.into_iter().map(|(first, blocks)| {
            self.medium.data.write(self.medium.place(first), blocks, Purpose::Journal)
        });
        let mut writes = futures::stream::iter(writes).buffer_unordered(REQUESTS);
        while let Some(written) = writes.next().await {
            written?;
        }
        Ok(())
    }

    /// Builds neighbouring blocks whose plans have the same kind of base.
    async fn replayed(&self, run: &[(Lba, &Plan)]) -> Result<Run, InPlaceError> {
        let first = run.first().map_or(0, |(at, _)| at.0);
        let mut made = Run::default();
        let home = match run.first().map(|(_, plan)| plan.base) {
            Some(Base::Home) => {
                made.read = run.len() as u64;
                self.bases(first, run.len()).await?
            }
            _ => Vec::new(),
        };
        for (nth, (at, plan)) in run.iter().enumerate() {
            let mut block = match plan.base {
                Base::Zeros => AlignedBuf::zeroed(BLOCK_SIZE),
                Base::Regular(offset) => {
                    AlignedBuf::copy_of(&self.journal.read_block(offset).await?)
                }
                Base::Home => match &home[nth] {
                    Some(block) => {
                        made.unverified += u64::from(!self.fits(at.0, block));
                        AlignedBuf::copy_of(block)
                    }
                    None => {
                        made.unreadable.push(at.0);
                        continue;
                    }
                },
            };
            for patch in &plan.patches {
                let range = patch.offset..patch.offset + patch.bytes.len();
                block[range].copy_from_slice(&patch.bytes);
            }
            made.blocks.push((at.0, block.freeze()));
        }
        Ok(made)
    }

    /// Reads neighbouring blocks that updates change in part; `None` for a block that is given up.
    ///
    /// # Errors
    /// [`InPlaceError::Unreadable`].
    async fn bases(&self, first: u64, count: usize) -> Result<Vec<Option<Bytes>>, InPlaceError> {
        let read = async |lba: u64, count: usize| {
            let place = self.medium.place(lba);
            self.medium.data.read(place, count * BLOCK_SIZE, Purpose::Journal).await
        };
        if let Ok(run) = read(first, count).await {
            let block = |nth| run.slice(nth * BLOCK_SIZE..(nth + 1) * BLOCK_SIZE);
            return Ok((0..count).map(|nth| Some(block(nth))).collect());
        }
        let mut blocks = Vec::with_capacity(count);
        for lba in (first..).take(count) {
            blocks.push(match read(lba, 1).await {
                Ok(block) => Some(block),
                Err(error) if self.give_up => {
                    tracing::error!(lba, %error, "gave up an unreadable block that the journal changes");
                    None
                }
                Err(source) => return Err(InPlaceError::Unreadable { lba: Lba(lba), source }),
            });
        }
        Ok(blocks)
    }

    /// Whether a block matches the map's entry.
    fn fits(&self, lba: u64, block: &[u8]) -> bool {
        match self.medium.state.lock().map.entry(lba) {
            // The map's entry may be older than the block.
            Ok(None | Some(Entry::Empty)) | Err(_) => false,
            Ok(Some(entry)) => entry.fits(block),
        }
    }
}

/// Neighbouring blocks after replay.
#[derive(Default)]
struct Run {
    blocks: Vec<(u64, Bytes)>,
    read: u64,
    unverified: u64,
    /// Blocks that were given up.
    unreadable: Vec<u64>,
}

/// The journal names blocks beyond the end of the volume.
fn foreign(error: StoreError) -> InPlaceError {
    InPlaceError::Damaged(format!("the journal does not fit the volume: {error}"))
}
