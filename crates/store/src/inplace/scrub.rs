//! Scrub: reads and verifies everything that is in place.

use std::ops::Range;

use super::dirty::Which;
use super::format::Entry;
use super::map::Map;
use super::{InPlace, Inner};
use crate::block::{BLOCK_SIZE, StoreError};
use crate::device::Purpose;
use async_recursion::async_recursion;

/// Blocks of one read.
const RUN: u64 = 256;

/// Report of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ScrubReport {
    /// Blocks that are not holes.
    pub blocks: u64,
    /// Of those, blocks without a checksum: the scrub only read them.
    pub unsummed: u64,
    /// Blocks of which no copy matches.
    pub lost: Vec<u64>,
    /// Sectors of the map that are damaged or lost.
    pub map_sectors: u64,
    /// With [`Mend::Yes`], blocks of those sectors that are not zeros on the device. They read as
    /// the device has them from now on, without a checksum: the content may be older than the
    /// block's last write, and that of an empty block may be from before the volume was made.
    pub unverified: u64,
}

/// What a scrub does with damaged sectors of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mend {
    /// Replaces them: blocks that are zeros on the device become empty, and the others keep the
    /// content that the device has ([`ScrubReport::unverified`]). A filesystem has to be checked
    /// afterwards, including its free blocks: it takes them for empty.
    Yes,
    /// Counts them. Their blocks can be neither read nor written.
    No,
}

impl InPlace {
    /// Reads every block from the device, and repairs copies that do not match. `progress` gets the
    /// number of blocks done and of all blocks.
    ///
    /// # Errors
    /// The devices'; failures of single blocks are in the report.
    #[async_recursion]
    pub async fn scrub(
        &self,
        mend: Mend,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<ScrubReport, StoreError> {
        let inner = &self.inner;
        let mut report = ScrubReport::default();
        // Dirty blocks would hide their in-place content.
        inner.write_back(Which::All).await?;
        let mut at = 0;
        // The volume may grow meanwhile.
        while at < inner.medium.blocks() {
            let blocks = inner.medium.blocks();
            let page = Map::page_of(at);
            inner.medium.map_all(std::iter::once(at)).await?;
            // A page may take several rounds; the first one counts its sectors.
            if at == Map::blocks_of(page).start {
                let damaged = inner.medium.state.lock().map.damaged(page);
                report.map_sectors += damaged.len() as u64;
                if mend == Mend::Yes {
                    inner.replace_sectors(damaged, &mut report).await;
                }
            }
            let end = Map::blocks_of(page).end.min(at + RUN).min(blocks);
            inner.scrub_run(at..end, &mut report).await;
            at = end;
            progress(at, blocks);
        }
        if report.map_sectors > 0 && mend == Mend::Yes {
            inner.write_back(Which::All).await?;
        }
        let is_map_damaged = report.map_sectors > 0 && mend == Mend::No;
        inner.medium.damage.scrubbed(is_map_damaged || !report.lost.is_empty());
        inner.record_damage().await;
        Ok(report)
    }
}

impl Inner {
    /// Replaces damaged sectors of the map, each given by its blocks. No other request changes
    /// these blocks meanwhile: they can be neither read nor written.
    async fn replace_sectors(&self, damaged: Vec<Range<u64>>, report: &mut ScrubReport) {
        for Range { start, end } in damaged {
            let end = end.min(self.medium.blocks()).max(start);
            let mut entries = Vec::with_capacity((end - start) as usize);
            for lba in start..end {
                entries.push(self.found_at_home(lba).await);
            }
            let unverified = entries.iter().filter(|entry| **entry != Entry::Empty).count() as u64;
            report.unverified += unverified;
            tracing::error!(first = start, end, unverified, "gave up a damaged sector of the map");
            self.medium.state.lock().map.replace(start, &entries);
        }
    }

    /// The entry of a block whose old entry is lost. A block that cannot be read counts as present.
    async fn found_at_home(&self, lba: u64) -> Entry {
        let place = self.medium.place(lba);
        match self.medium.data.read(place, BLOCK_SIZE, Purpose::Repair).await {
            Ok(block) if block.iter().all(|byte| *byte == 0) => Entry::Empty,
            _ => Entry::Unsummed,
        }
    }

    async fn scrub_run(&self, range: Range<u64>, report: &mut ScrubReport) {
        let stored = self.in_place(range);
        for run in stored.chunk_by(|a, b| a.0 + 1 == b.0) {
            let Some((first, _)) = run.first() else { continue };
            let entries: Vec<Entry> = run.iter().map(|(_, entry)| *entry).collect();
            report.blocks += run.len() as u64;
            report.unsummed += entries.iter().filter(|e| **e == Entry::Unsummed).count() as u64;
            if self.read_home(*first, &entries).await.is_ok() {
                continue;
            }
            for (lba, entry) in run {
                if let Err(error) = self.read_home(*lba, &[*entry]).await
                    && self.in_place(*lba..lba + 1) == [(*lba, *entry)]
                {
                    tracing::warn!(lba, %error, "scrub");
                    report.lost.push(*lba);
                }
            }
        }
    }

    /// The blocks of a range that are in place, are not holes, and are not about to be written.
    fn in_place(&self, range: Range<u64>) -> Vec<(u64, Entry)> {
        let state = self.medium.state.lock();
        let found = range.filter_map(|lba| Some((lba, state.settled_entry(lba)?)));
        found.filter(|(_, entry)| *entry != Entry::Empty).collect()
    }
}
