//! Scrub: reads every copy of all live blocks and metadata, and repairs damaged copies.

use std::sync::Arc;

use async_recursion::async_recursion;
use zerocopy::FromBytes;

use super::clean::clean_segment;
use super::format::{ENTRIES_PER_SECTOR, LABEL_BYTES, MapSector, SECTOR, block_checksum};
use super::index::{Location, is_slot};
use super::label::Label;
use super::read::read_copies;
use super::segments::SegmentState;
use super::{Chain, ChainError, Counts, Inner, Speed, checkpoint};
use crate::block::{BLOCK_SIZE, Lba, StoreError};
use crate::device::{DeviceRef, Purpose};

/// Blocks in one request.
const RUN_BLOCKS: usize = 256;
/// Maximum damaged blocks listed in a report.
const NAMED: usize = 100;

/// The result of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ScrubReport {
    /// Blocks whose every copy was read.
    pub blocks: u64,
    /// Copies that did not match and were overwritten with a right one.
    pub repaired: u64,
    /// Blocks of which no copy is right.
    pub damaged: u64,
    /// The first hundred of them, as logical blocks.
    pub damaged_blocks: Vec<u64>,
    /// Segments whose map was damaged; their blocks were moved, so that the map counts no more.
    pub maps_replaced: u64,
    /// Copies of the label that were damaged and written again.
    pub labels_replaced: u64,
    /// Whether the checkpoint was damaged and written again.
    pub checkpoint_replaced: bool,
}

/// A block to be checked.
pub(super) struct Check {
    pub(super) lba: u32,
    pub(super) at: Location,
}

impl Inner {
    /// A read has found a block of which no copy is right.
    pub(super) fn note_damage(&self) {
        Counts::add(&self.counts.damaged, 1);
        if self.counts.damage.note() {
            self.checkpoint_kick.notify_one();
        }
    }

    /// Waits for what the task that writes checkpoints is to look at, and records damage meanwhile.
    pub(super) async fn wait_for_work(&self) {
        self.checkpoint_kick.notified().await;
        self.record_damage().await;
    }

    /// Has the label say whether there is damage, for the processes that have the volume open later. If it cannot be written,
    /// the chain refuses writes.
    pub(super) async fn record_damage(&self) {
        if self.options.read_only || self.counts.damage.to_record().is_none() {
            return;
        }
        let _label = self.label_lock.lock().await;
        // Another task may have recorded it.
        let Some(damaged) = self.counts.damage.to_record() else { return };
        match self.change_label(|label| label.damaged = damaged).await {
            Ok(()) => self.counts.damage.recorded(damaged),
            Err(error) => {
                tracing::warn!(volume = %self.volume, %error, "damage was not recorded");
            }
        }
    }
}

impl Chain {
    /// Reads every copy of every live block, the maps, the checkpoint and the labels, and repairs damage from
    /// another copy or from the index; of a read-only chain, it only counts the damage. Calls `progress` with
    /// the number of blocks done and of all.
    ///
    /// # Errors
    /// A failure that ends the scrub; damage is in the report, not an error.
    #[async_recursion]
    pub async fn scrub(
        &self,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Result<ScrubReport, ChainError> {
        let inner = &self.inner;
        let labels_replaced = renew_labels(inner).await?;
        let mut report = ScrubReport { labels_replaced, ..ScrubReport::default() };
        scrub_checkpoint(inner, &mut report).await?;
        let mut checks = Vec::new();
        inner.state.lock().index.for_each(|lba, at| {
            if !is_slot(at.block) {
                checks.push(Check { lba, at });
            }
        });
        checks.sort_unstable_by_key(|check| check.at.block);
        let total = checks.len() as u64;
        for run in runs(&checks, inner.segment_blocks) {
            progress(report.blocks, total);
            scrub_run(inner, run, &mut report).await;
            report.blocks += run.len() as u64;
        }
        progress(total, total);
        scrub_maps(inner, &mut report).await?;
        inner.clean_repaired();
        inner.counts.damage.scrubbed(report.damaged > 0);
        inner.record_damage().await;
        Ok(report)
    }
}

/// Checks in order of place, cut where they are not contiguous or a request is full.
pub(super) fn runs(checks: &[Check], per: u32) -> impl Iterator<Item = &[Check]> {
    checks
        .chunk_by(move |a, b| a.at.block + 1 == b.at.block && a.at.block / per == b.at.block / per)
        .flat_map(|run| run.chunks(RUN_BLOCKS))
}

async fn scrub_run(inner: &Arc<Inner>, run: &[Check], report: &mut ScrubReport) {
    let place = {
        let state = inner.state.lock();
        let place = state.segments.place(run[0].at.block);
        place.map(|(link, offset)| (state.segments.links[link].device.clone(), offset))
    };
    let Some((device, offset)) = place else { return };
    let mut suspects = vec![false; run.len()];
    for copy in 0..device.copies() {
        check_copy(&device, copy, offset, run, &mut suspects).await;
    }
    for (check, _) in run.iter().zip(suspects).filter(|(_, suspect)| *suspect) {
        mend(inner, check, report).await;
    }
}

/// Reads a run from one copy and marks the blocks that do not match.
async fn check_copy(
    device: &DeviceRef,
    copy: usize,
    offset: u64,
    run: &[Check],
    suspects: &mut [bool],
) {
    let read = device.read_copy(copy, offset, run.len() * BLOCK_SIZE, Purpose::Repair).await;
    for (number, (check, suspect)) in run.iter().zip(suspects).enumerate() {
        let right = read.as_ref().is_ok_and(|bytes| {
            let content = &bytes[number * BLOCK_SIZE..][..BLOCK_SIZE];
            block_checksum(Lba(u64::from(check.lba)), content) == check.at.check
        });
        *suspect |= !right;
    }
}

/// Verifies one block again, copy by copy, unless it has moved or is not written yet.
async fn mend(inner: &Arc<Inner>, check: &Check, report: &mut ScrubReport) {
    let current = |inner: &Inner| {
        let state = inner.state.lock();
        state.index.refers(check.lba, check.at.block)
            && state.unwritten_content(check.at.block).is_none()
    };
    if !current(inner) {
        return;
    }
    let lba = Lba(u64::from(check.lba));
    match mend_copies(inner, lba, check.at).await {
        Ok(mended) => report.repaired += mended,
        Err(_) if !current(inner) => {}
        Err(error) => {
            tracing::error!(volume = %inner.volume, %error, "scrub found a damaged block");
            report.damaged += 1;
            if report.damaged_blocks.len() < NAMED {
                report.damaged_blocks.push(lba.0);
            }
        }
    }
}

/// Overwrites each copy that does not match; returns their number.
async fn mend_copies(inner: &Inner, lba: Lba, at: Location) -> Result<u64, StoreError> {
    let before = inner.counts.repaired.load(std::sync::atomic::Ordering::Relaxed);
    let content = read_copies(inner, lba, at).await?;
    let mut mended = inner.counts.repaired.load(std::sync::atomic::Ordering::Relaxed) - before;
    // `read_copies` ends at the first right copy: verify the later ones too.
    let Some((_pin, device, offset)) = super::read::Pin::new(inner, lba, at.block) else {
        return Ok(mended);
    };
    for copy in 0..device.copies() {
        let read = device.read_copy(copy, offset, BLOCK_SIZE, Purpose::Repair).await;
        let right = read.is_ok_and(|bytes| block_checksum(lba, &bytes) == at.check);
        if !right && device.repair_copy(copy, offset, content.clone()).await.is_ok() {
            mended += 1;
            Counts::add(&inner.counts.repaired, 1);
        }
    }
    Ok(mended)
}

/// Rewrites the label where a copy of it is damaged or older; returns the number of such copies.
pub(super) async fn renew_labels(inner: &Inner) -> Result<u64, ChainError> {
    let _label = inner.label_lock.lock().await;
    let sequence = inner.state.lock().label.sequence;
    let mut bad = 0;
    for slot in 0..2 {
        for copy in 0..inner.map.copies() {
            let at = slot * LABEL_BYTES;
            let read = inner.map.read_copy(copy, at, LABEL_BYTES as usize, Purpose::Label).await;
            let label = read.ok().and_then(|bytes| Label::decode(&bytes).ok());
            bad += u64::from(label.is_none_or(|label| label.sequence != sequence));
        }
    }
    if bad > 0 && !inner.options.read_only {
        inner.change_label(|_| {}).await?;
    }
    Ok(bad)
}

async fn scrub_checkpoint(inner: &Arc<Inner>, report: &mut ScrubReport) -> Result<(), ChainError> {
    if !checkpoint::is_whole(inner).await {
        if !inner.options.read_only {
            checkpoint::write_base(inner).await?;
        }
        report.checkpoint_replaced = true;
    }
    Ok(())
}

/// Cleans segments whose map is damaged: the index knows their blocks.
async fn scrub_maps(inner: &Arc<Inner>, report: &mut ScrubReport) -> Result<(), ChainError> {
    let used = inner.state.lock().segments.ids(|segment| segment.state == SegmentState::Used);
    for id in used {
        let _cleaning = inner.cleaning_lock.lock().await;
        let seq = {
            let state = inner.state.lock();
            state.is_closed_for_good(id).then(|| state.segments.get(id).seq)
        };
        let Some(seq) = seq else { continue };
        if !map_is_whole(inner, id, seq).await {
            tracing::warn!(volume = %inner.volume, segment = id, "a segment's map is damaged");
            if !inner.options.read_only {
                clean_segment(inner, id, Speed::Full).await?;
            }
            report.maps_replaced += 1;
        }
    }
    Ok(())
}

async fn map_is_whole(inner: &Inner, id: u32, seq: u64) -> bool {
    let (at, len) = (inner.layout.map_of(id), inner.layout.segment_map());
    for copy in 0..inner.map.copies() {
        let Ok(bytes) = inner.map.read_copy(copy, at, len, Purpose::Repair).await else {
            return false;
        };
        let whole = bytes.chunks_exact(SECTOR).enumerate().all(|(index, sector)| {
            let sector = MapSector::ref_from_bytes(sector).ok();
            let head = sector.and_then(|sector| sector.verify(inner.tag, index as u16));
            head.is_some_and(|head| head.seq == seq && u32::from(head.count) == ENTRIES_PER_SECTOR)
        });
        if !whole {
            return false;
        }
    }
    true
}
