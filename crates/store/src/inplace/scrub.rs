//! Reading everything, to find what is wrong before somebody needs it.

use super::format::Entry;
use super::map::Map;
use super::state::State;
use super::waiting::Which;
use super::{InPlace, Inner};
use crate::block::StoreError;

/// Blocks that are read at a time.
const RUN: u64 = 256;

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ScrubReport {
    /// Blocks that hold something.
    pub blocks: u64,
    /// Of those, blocks that nobody has a checksum of: they could be read.
    pub unsummed: u64,
    /// Blocks of which no copy is right.
    pub lost: Vec<u64>,
    /// Sectors of the map that made no sense. With [`Mend::Yes`] what was known of their blocks is
    /// given up: they count as holding what is there.
    pub map_sectors: u64,
}

/// What a scrub does about sectors of the map that make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mend {
    /// It gives up what they said. Blocks that were empty may show what lies on the device then.
    Yes,
    /// It counts them. Blocks that they are about cannot be read.
    No,
}

impl InPlace {
    /// Reads everything that the store holds at home, and mends what another copy has right.
    /// `progress` is told of blocks done and in all.
    ///
    /// # Errors
    /// The devices', unless they are about single blocks.
    pub async fn scrub(
        &self,
        mend: Mend,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<ScrubReport, StoreError> {
        let inner = &self.inner;
        let mut report = ScrubReport::default();
        // What waits in memory would hide what is at home.
        inner.write_back(Which::All).await?;
        let blocks = inner.superblock.blocks;
        let mut at = 0;
        while at < blocks {
            let page = Map::page_of(at);
            inner.map_all(std::iter::once(at)).await?;
            // A page may take several turns, and counts in the first.
            if at == Map::blocks_of(page).start {
                let map = &mut inner.state.lock().map;
                let damaged = match mend {
                    Mend::Yes => map.give_up(page),
                    Mend::No => map.damaged(page),
                };
                report.map_sectors += u64::from(damaged);
            }
            let end = Map::blocks_of(page).end.min(at + RUN).min(blocks);
            inner.scrub_run(at..end, &mut report).await;
            at = end;
            progress(at, blocks);
        }
        if report.map_sectors > 0 && mend == Mend::Yes {
            inner.write_back(Which::All).await?;
        }
        Ok(report)
    }
}

impl Inner {
    async fn scrub_run(&self, range: std::ops::Range<u64>, report: &mut ScrubReport) {
        let stored = self.state.lock().at_home(range);
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
                    && self.state.lock().at_home(*lba..lba + 1) == [(*lba, *entry)]
                {
                    tracing::warn!(lba, %error, "scrub");
                    report.lost.push(*lba);
                }
            }
        }
    }
}

impl State {
    /// The blocks of a range that hold something at home and are not about to be written there.
    fn at_home(&self, range: std::ops::Range<u64>) -> Vec<(u64, Entry)> {
        let entry = |lba| match self.pages.get(&lba) {
            Some(page) if page.is_dirty() => None,
            Some(page) => Some(page.home),
            None => self.map.entry(lba).ok().flatten(),
        };
        let found = range.filter_map(|lba| Some((lba, entry(lba)?)));
        found.filter(|(_, entry)| *entry != Entry::Empty).collect()
    }
}
