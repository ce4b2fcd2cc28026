//! Where the logs end, as a rebuild finds it.

use std::collections::BTreeSet;

use super::super::ChainError;
use super::super::format::{ENTRIES_PER_SECTOR, Entry, MapEntry, NO_SEGMENT, Position};
use super::super::log::{Log, LogCounts, LogSegment, whole_entries, written_entries};
use super::super::state::State;
use super::super::stream::{BODY, USERS};
use super::survey::{Gap, Life, Maps, Reach, follow};
use super::{Scan, entries_of};

impl Scan {
    /// The lives of a log that count, ascending.
    fn of_log(&self, log: usize) -> Vec<&Life> {
        let lives = self.lives.iter();
        lives
            .filter(|life| usize::from(life.log) == log && !self.unused.contains(&life.id))
            .collect()
    }

    /// Finds the ends of the logs, and returns the logs that can continue: users and compaction.
    pub(super) async fn end_logs(
        &mut self,
        maps: &Maps<'_>,
        state: &State,
    ) -> Result<[Option<Log>; 2], ChainError> {
        let mut logs = [None, None];
        for number in [USERS, BODY] {
            let lives = self.of_log(number);
            if lives.is_empty() {
                continue;
            }
            let mut gaps = Vec::new();
            let ruined = |id: u32, seq: u64| {
                let headless = |life: &Life| life.id == id && life.seq < seq && life.headless;
                self.ruins.contains(&id) || self.lives.iter().any(headless)
            };
            // The users' position in the sectors of compaction.
            let told = self.of_log(BODY).into_iter().map(|life| life.durable);
            let known = told.filter(|_| number == USERS).max().unwrap_or_default();
            let log = number as u8;
            let mut reach = follow(log, &lives, &state.label, known, ruined, &mut gaps);
            let tops = lives.iter().map(|life| Position::new(life.seq, life.top));
            let top = tops.max().unwrap_or_default();
            let torn: Vec<Gap> = lives
                .iter()
                .filter(|life| life.seq >= reach.committed.seq())
                .flat_map(|life| life.missing(state.label.segment_blocks))
                .flat_map(|gap| gap.without(&gaps))
                .collect();
            logs[number] = self.settle(maps, state, number, &mut reach, &gaps).await?;
            if number == BODY && top != reach.end {
                // Its sectors are true of every block behind a gap as well.
                logs[number] = None;
                reach.end = Position(u64::MAX);
                reach.reserved = NO_SEGMENT;
            }
            if logs[number].is_none() {
                self.give_up(number, &reach, torn, state.label.segment_blocks);
            }
            self.gaps.extend(gaps);
            self.reach[number] = Some(reach);
        }
        let reserved = self.reach.iter().flatten().map(|reach| (reach.reserved, reach.end.seq()));
        for (id, seq) in reserved.collect::<Vec<_>>() {
            if self.lives.iter().any(|life| life.id == id && life.seq < seq) {
                self.unused.insert(id);
            }
        }
        let beyond = |life: &&Life| {
            let reach = self.reach.get(usize::from(life.log)).and_then(Option::as_ref);
            reach.is_none_or(|reach| life.seq > reach.end.seq())
        };
        let beyond: Vec<u32> = self.lives.iter().filter(beyond).map(|life| life.id).collect();
        self.unused.extend(beyond);
        let hollow = self.gaps.iter().filter(|gap| gap.seq == 0).map(|gap| gap.segment);
        self.unused.extend(hollow.collect::<Vec<_>>());
        self.lose_ruins(state);
        Ok(logs)
    }

    /// Gives up a log that cannot continue where it ended: the rest of its last segment is void.
    fn give_up(&mut self, number: usize, reach: &Reach, torn: Vec<Gap>, per: u32) {
        match number {
            BODY => self.torn.extend(torn),
            _ => {
                let life = self.lives.iter().find(|life| life.seq == reach.end.seq());
                let (seq, first) = (reach.end.seq(), reach.end.slot());
                let life = life.filter(|_| first < per);
                self.rest = life.map(|life| Gap { segment: life.id, seq, first, end: per });
            }
        }
    }

    /// Counts segments with damaged sectors alone as lost: they may have held anything.
    fn lose_ruins(&mut self, state: &State) {
        let known: BTreeSet<u32> = self.gaps.iter().map(|gap| gap.segment).collect();
        let end = state.label.segment_blocks;
        let ruins = self.ruins.iter().filter(|id| !known.contains(id));
        let gaps: Vec<Gap> = ruins.map(|id| Gap { segment: *id, seq: 0, first: 0, end }).collect();
        self.gaps.extend(gaps);
        let unused = &self.unused;
        self.gaps.retain(|gap| gap.seq == 0 || !unused.contains(&gap.segment));
    }

    /// Ends a log, as recovery does, at the first block that was never written and then at the last whole
    /// transaction. Returns it so that it can continue, unless its last segment has gaps.
    async fn settle(
        &mut self,
        maps: &Maps<'_>,
        state: &State,
        number: usize,
        reach: &mut Reach,
        gaps: &[Gap],
    ) -> Result<Option<Log>, ChainError> {
        let mut entries: Vec<(Position, u32, MapEntry)> = Vec::new();
        let mut last = None;
        let lives: Vec<Life> = self.of_log(number).into_iter().cloned().collect();
        let tail = lives
            .iter()
            .filter(|life| life.seq >= reach.committed.seq() && life.seq <= reach.end.seq());
        for life in tail {
            let sectors = maps.read(life.id).await;
            let slots = entries_of(life, &sectors);
            for (slot, entry) in &slots {
                let at = Position::new(life.seq, *slot);
                if let Some(entry) = entry.decode().filter(|_| at < reach.end) {
                    entries.push((at, life.id * state.label.segment_blocks + slot, entry));
                }
            }
            last = Some((life.clone(), slots));
        }
        let all = entries.len();
        let before = |end: Position| entries.partition_point(|(at, _, _)| *at < end);
        let committed = before(reach.committed);
        let doubtful = match number {
            USERS => before(reach.committed.max(reach.durable)),
            _ => all,
        };
        let checked = &mut self.report.checked_bytes;
        let written = written_entries(state, &entries, doubtful, checked).await?;
        let whole = whole_entries(&entries, committed, written);
        if whole < all {
            // Not before the committed position, which may lie behind the last entry below it.
            let end = entries[..whole].last().map(|(at, _, _)| Position(at.0 + 1));
            reach.end = end.unwrap_or_default().max(reach.committed);
            // Too little of it was then written to have reserved another segment.
            if entries.get(whole).is_some_and(|(at, _, _)| at.seq() > reach.end.seq()) {
                reach.reserved = NO_SEGMENT;
            }
        }
        self.report.dropped += (all - whole) as u64;
        Ok(self.log_to_resume(number, reach, gaps, last))
    }

    /// The log as recovery would read it, if its last segment is whole up to the end.
    fn log_to_resume(
        &self,
        number: usize,
        reach: &Reach,
        gaps: &[Gap],
        last: Option<(Life, Vec<(u32, Entry)>)>,
    ) -> Option<Log> {
        let (life, slots) = last.filter(|(life, _)| life.seq == reach.end.seq())?;
        let end = reach.end.slot();
        let entries: Vec<Entry> =
            slots.iter().take_while(|(slot, _)| *slot < end).map(|(_, entry)| *entry).collect();
        let holed = gaps.iter().any(|gap| gap.seq == life.seq);
        if entries.len() != end as usize || end == 0 || holed {
            return None;
        }
        let sectors = slots.iter().map(|(slot, _)| (slot / ENTRIES_PER_SECTOR) as u16);
        let mut stale: BTreeSet<u16> = sectors.chain(life.damaged.iter().copied()).collect();
        stale.retain(|index| u32::from(*index) >= end.div_ceil(ENTRIES_PER_SECTOR));
        let segment = LogSegment { id: life.id, seq: life.seq, next: NO_SEGMENT, entries };
        Some(Log {
            number,
            segments: vec![segment],
            entries: Vec::new(),
            end: reach.end,
            stale: stale.into_iter().map(|index| (life.id, index)).collect(),
            top: self.top,
            durable: if number == USERS { reach.durable } else { reach.end },
            counts: LogCounts::default(),
        })
    }
}
