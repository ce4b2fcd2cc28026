//! When cleaning works, and how fast.
//!
//! Cleaning later means that more blocks have died in each segment, so it begins when few segments are free.
//! From then on it follows the writers: each block that they append makes a *debt* of as many blocks to move
//! as freeing one takes, by the live share of the cleaned segments. So free space stays level and the device
//! is shared evenly, without bursts. As free segments get fewer, the debt that writers may run up shrinks,
//! until they wait for each group of blocks that cleaning moves: there is no abrupt stop at the last free
//! segment.

use std::time::Duration;

use super::super::State;
use super::super::segments::SegmentState;

/// Free segments that a users' write leaves to the cleaner, on each link.
pub(in super::super) const KEEP_PER_LINK: usize = 1;
/// Blocks that are moved under one lock.
pub(super) const GROUP: usize = 32;
/// Cleaning keeps one part in this many of the space beyond live blocks free, besides its own reserve. Free
/// segments hold no garbage: the more of them, the more live blocks are in each of the others.
const SPARE_PART: usize = 16;
/// Maximum bytes of that part: each checkpoint makes about as many writable.
const MARGIN_BYTES: usize = 16 << 20;
/// Segments that users fill while a checkpoint is written.
const WHILE_FREEING: usize = 2;
/// The share of all segments that is free when cleaning begins, where the body has drives of its own.
const BODY_SHARE: f64 = 0.15;
/// The weight of the newest victim in the mean.
const NEWEST: f64 = 1.0 / 8.0;
/// Live shares above this count as this: debts stay finite.
const FULLEST: f64 = 0.99;
/// Without writers, cleaning that has begun moves a group as often as this.
pub(super) const IDLE: Duration = Duration::from_millis(20);

/// Free segments at which cleaning changes its pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Marks {
    /// From here down, victims are chosen by fewest live blocks.
    low: usize,
    /// From here down, a checkpoint frees emptied segments before users find no room.
    freeing: usize,
    /// From here down, writers wait for each group of blocks that cleaning moves.
    level: usize,
    /// Cleaning begins and ends.
    high: usize,
}

/// How far cleaning is behind writers.
#[derive(Debug, Default)]
pub(in super::super) struct Pace {
    /// The cleaner has a segment to clean.
    works: bool,
    /// Blocks that it is behind.
    debt: f64,
    /// The mean live share of its last victims.
    live_share: f64,
    /// Writers that wait for free segments.
    pub(in super::super) waiting: usize,
    /// What had been gained when cleaning found nothing more to gain.
    in_vain: Option<u64>,
    /// What had been gained when cleaning found that it has to wait for a checkpoint.
    until_checkpoint: Option<u64>,
}

impl Pace {
    /// Records the live share of the next victim.
    pub(super) fn begin(&mut self, live: u32, per: u32) {
        let share = (f64::from(live) / f64::from(per)).min(FULLEST);
        self.live_share = match self.works {
            true => self.live_share + (share - self.live_share) * NEWEST,
            false => share,
        };
        self.works = true;
    }

    /// Ends cleaning, with nothing left to clean or no need; returns whether writers may have waited for it.
    pub(super) fn end(&mut self) -> bool {
        self.debt = 0.0;
        std::mem::take(&mut self.works)
    }

    /// Adds the debt of `blocks` that writers appended while `free` segments were free.
    fn charge(&mut self, blocks: u32, free: f64, marks: Marks) {
        let each = self.live_share / (1.0 - self.live_share);
        self.debt += f64::from(blocks) * each * marks.weight(free);
    }

    /// Subtracts blocks that cleaning moves from the debt.
    fn repay(&mut self, blocks: usize) {
        self.debt = (self.debt - blocks as f64).max(-(GROUP as f64));
    }
}

impl Marks {
    /// The factor on a block's debt, relative to what keeps free space level: nothing where cleaning need not
    /// have begun, and twice as much where segments are few.
    fn weight(self, free: f64) -> f64 {
        let (level, high) = (self.level as f64, self.high as f64);
        ((high - free) / (high - level).max(1.0)).clamp(0.0, 2.0)
    }

    /// How urgent a checkpoint is while the users' log could continue for `left` segments.
    fn freeing_urgency(self, left: f64) -> f64 {
        (self.high as f64 - left) / (self.high - self.freeing).max(1) as f64
    }

    /// Maximum debt before writers wait.
    fn allowed(self, free: f64, per: u32) -> f64 {
        let (level, high) = (self.level as f64, self.high as f64);
        match free >= high {
            true => f64::INFINITY,
            false => {
                let part = ((free - level) / (high - level).max(1.0)).max(0.0);
                (f64::from(per) * part).max(2.0 * GROUP as f64)
            }
        }
    }
}

impl State {
    /// Segments that are free, or will be after the next checkpoint, plus the rest of the open ones: so the
    /// value does not jump when a log takes its next segment.
    fn free_segments(&self) -> f64 {
        let whole = self.segments.free_count() + self.segments.emptied_count();
        let open = self.users.room() + self.body.as_ref().map_or(0, |body| body.room());
        whole as f64 + f64::from(open) / f64::from(self.segments.per())
    }

    /// The marks for the present number of live blocks.
    pub(in super::super) fn clean_marks(&self) -> Marks {
        let links = self.segments.links.iter().filter(|link| !link.leaving).count();
        let spare = self.segments.spare() as usize;
        let bytes = self.segments.per() as usize * crate::block::BLOCK_SIZE;
        let margin = MARGIN_BYTES.div_ceil(bytes).min(spare / SPARE_PART);
        // Perfect cleaning would free all spare segments; half of them are always within reach.
        let most = (spare / 2).max(links + 2);
        // The rest of compaction's open segment counts as free, though users cannot take it.
        let open = usize::from(self.body.is_some());
        let level = (links + open + margin).min(most);
        let low = level.min(links).saturating_sub(1);
        let mut high = level + 1 + margin;
        if self.segments.has_body(self.tail_link()) {
            // The more segments are free on the next drive, the longer the tail stays there.
            high = high.max((f64::from(self.segments.total()) * BODY_SHARE) as usize);
        }
        let freeing = (links * KEEP_PER_LINK + WHILE_FREEING).min(level);
        Marks { low, freeing, level, high: high.min(most).max(level) }
    }

    /// Whether free segments have become few, or too few for a writer.
    pub(in super::super) fn wants_cleaning(&self) -> bool {
        self.free_segments() < self.clean_marks().high as f64 || self.cleaning.waiting > 0
    }

    /// Whether cleaning may gain something after a checkpoint: that frees emptied segments, settles slots, and makes the maps
    /// of segments durable.
    pub(super) fn gains_later(&self) -> bool {
        let is_to_come = |id: u32| {
            let segment = self.segments.get(id);
            let is_used = segment.state == SegmentState::Used && !segment.damaged;
            is_used && !self.is_closed_for_good(id)
        };
        self.segments.emptied_count() > 0
            || !self.slots.is_empty()
            || (0..self.segments.len()).any(is_to_come)
    }

    /// Notes that cleaning can gain nothing before a checkpoint. Writers that wait for it would wake it for nothing, and it
    /// them.
    pub(super) fn await_checkpoint(&mut self) {
        self.cleaning.until_checkpoint = Some(self.segments.gains());
    }

    /// Whether cleaning waits for a checkpoint, and nothing else has changed what it may gain.
    pub(super) fn awaits_checkpoint(&self) -> bool {
        self.cleaning.until_checkpoint == Some(self.segments.gains())
    }

    /// A checkpoint has ended: no task waits for it any more.
    pub(in super::super) fn has_checkpoint(&mut self) {
        self.checkpoint_hurry = false;
        self.cleaning.until_checkpoint = None;
    }

    /// Notes that cleaning found nothing to gain: every segment is full of live blocks or damaged, or has more live blocks
    /// than there is room for.
    pub(super) fn note_in_vain(&mut self) {
        self.cleaning.in_vain = Some(self.segments.gains());
    }

    /// Whether cleaning found nothing to gain, and since then no block has died, no segment has become free, and nothing was
    /// repaired.
    pub(in super::super) fn is_cleaned_in_vain(&self) -> bool {
        self.cleaning.in_vain == Some(self.segments.gains()) && !self.gains_later()
    }

    /// Whether so few segments are free that victims are chosen by fewest live blocks.
    pub(super) fn is_short_of_segments(&self) -> bool {
        self.free_segments() < self.clean_marks().low as f64
    }

    /// How urgent a checkpoint is that makes emptied segments writable: from 1 on, at once.
    pub(in super::super) fn freeing_urgency(&self) -> f64 {
        if self.segments.emptied_count() == 0 {
            return 0.0;
        }
        // Blocks without a place of their own will take one before the checkpoint.
        let left = self.appendable().saturating_sub(self.owed());
        self.clean_marks().freeing_urgency(left as f64 / f64::from(self.segments.per()))
    }

    /// Whether writers may append although cleaning is behind.
    pub(in super::super) fn keeps_pace(&self) -> bool {
        let pace = &self.cleaning;
        if !pace.works || pace.debt <= 0.0 {
            return true;
        }
        let allowed = self.clean_marks().allowed(self.free_segments(), self.segments.per());
        pace.debt <= allowed
    }

    /// Charges writers for `blocks` appended; returns whether the cleaner may proceed.
    pub(in super::super) fn charge_cleaning(&mut self, blocks: u32) -> bool {
        if !self.cleaning.works {
            return false;
        }
        let (free, marks) = (self.free_segments(), self.clean_marks());
        self.cleaning.charge(blocks, free, marks);
        self.cleaning.debt > 0.0
    }

    /// Repays the debt of a group of `blocks`; false while the debt is too small for the cleaner to proceed.
    pub(super) fn take_turn(&mut self, blocks: usize) -> bool {
        let is_urgent = self.cleaning.waiting > 0 || self.is_short_of_segments();
        let has_turn = is_urgent || self.cleaning.debt > 0.0;
        if has_turn {
            self.cleaning.repay(blocks);
        }
        has_turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Marks = Marks { low: 4, freeing: 6, level: 8, high: 12 };

    #[test]
    fn a_block_makes_the_debt_that_frees_one() {
        let mut pace = Pace::default();
        pace.begin(75, 100);
        pace.charge(10, 8.0, MARKS);
        assert_eq!(pace.debt, 30.0);
        pace.charge(10, 12.0, MARKS);
        assert_eq!(pace.debt, 30.0, "where cleaning begins, blocks make no debt");
        pace.charge(10, 4.0, MARKS);
        assert_eq!(pace.debt, 90.0, "where segments are few, twice as much");
        pace.repay(GROUP);
        assert_eq!(pace.debt, 58.0);
    }

    #[test]
    fn an_idle_cleaner_works_off_no_debt_in_advance() {
        let mut pace = Pace::default();
        pace.begin(1, 100);
        (0..10).for_each(|_| pace.repay(GROUP));
        assert_eq!(pace.debt, -(GROUP as f64));
    }

    #[test]
    fn a_checkpoint_is_due_before_users_find_no_room() {
        assert_eq!(MARKS.freeing_urgency(12.0), 0.0);
        assert_eq!(MARKS.freeing_urgency(9.0), 0.5);
        assert_eq!(MARKS.freeing_urgency(6.0), 1.0);
        assert!(MARKS.freeing_urgency(4.0) > 1.0);
    }

    #[test]
    fn writers_run_up_less_debt_while_segments_get_fewer() {
        let allowed = |free: f64| MARKS.allowed(free, 1000);
        assert_eq!(allowed(12.0), f64::INFINITY);
        assert_eq!(allowed(10.0), 500.0);
        assert_eq!(allowed(8.0), 2.0 * GROUP as f64);
        assert_eq!(allowed(0.0), 2.0 * GROUP as f64);
    }
}
