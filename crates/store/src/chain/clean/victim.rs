//! The choice of the next segment to clean.
//!
//! *Cost-benefit* (Rosenblum and Ousterhout, 1992) weighs a segment's yield, its dead blocks, and its age
//! against the cost of cleaning it, its live blocks. The live blocks of an old segment will mostly stay live;
//! those of a fresh one die soon if left alone. Where all blocks are equally likely to be overwritten, ages
//! cancel out and the fewest live blocks decide.
//!
//! Cleaning keeps off the drive of the tail (Gecko 3.1), which is possible only where another link has a
//! drive of its own. There the tail moves to another link when most dead blocks lie on its own drive. Where it cannot move and
//! the others' live blocks find no room, its own drive is cleaned all the same, before writes are refused.

use std::cmp::Reverse;

use super::super::segments::SegmentState;
use super::super::{Counts, Inner, State};

/// One part in this many of a segment must be dead before the body is worth cleaning, as long as more is dead
/// on the tail's drive.
const WORTH: u32 = 8;

/// The criterion for victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The best yield for the cost, weighed by age.
    CostBenefit,
    /// The fewest live blocks: the fastest way to a free segment.
    FewestLive,
}

/// A segment to be cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Victim {
    pub(super) id: u32,
    pub(super) live: u32,
}

/// The segment to clean next; `None` when cleaning would gain nothing.
pub(super) fn choose(inner: &Inner, order: Order) -> Option<Victim> {
    let mut state = inner.state.lock();
    let tail = state.tail_link();
    let kept = state.segments.kept_for_tail(tail);
    let in_body = best(&state, order, |link| !kept[link]);
    let per = state.segments.per();
    let is_worth_it = |victim: &Victim| (per - victim.live) * WORTH >= per;
    if kept[tail] && !in_body.as_ref().is_some_and(is_worth_it) {
        let dead = in_body.map_or(0, |victim| per - victim.live);
        let at_tail = best(&state, Order::FewestLive, |link| kept[link]);
        let yields_more = at_tail.is_some_and(|victim| per - victim.live > 2 * dead);
        if yields_more && gains_elsewhere(&state, &kept) && state.move_tail().is_ok() {
            Counts::add(&inner.counts.tail_switches, 1);
            let tail = state.tail_link();
            let kept = state.segments.kept_for_tail(tail);
            return best(&state, order, |link| !kept[link]);
        }
    }
    let fits = |victim: &Victim| state.cleaning_room() >= u64::from(victim.live);
    if !kept[tail] || in_body.as_ref().is_some_and(fits) || state.segments.can_free() {
        return in_body;
    }
    best(&state, Order::FewestLive, |link| kept[link]).filter(fits).or(in_body)
}

/// The best segment of those links.
fn best(state: &State, order: Order, links: impl Fn(usize) -> bool) -> Option<Victim> {
    let per = state.segments.per();
    let ids = (0..state.segments.len()).filter(|id| {
        let segment = state.segments.get(*id);
        segment.state == SegmentState::Used
            && segment.live < per
            && links(usize::from(segment.link))
            && state.is_closed_for_good(*id)
    });
    let rank = |id: &u32| {
        let segment = state.segments.get(*id);
        let age = state.next_seq.saturating_sub(segment.seq);
        let value = match order {
            Order::FewestLive => u128::from(per - segment.live),
            // In units of 2^-32: the quotient of two counts of blocks, times an age in segments.
            Order::CostBenefit => {
                ((u128::from(per - segment.live) * u128::from(age)) << 32)
                    / u128::from(segment.live.max(1))
            }
        };
        (value, Reverse(segment.seq))
    };
    let id = ids.max_by_key(rank)?;
    Some(Victim { id, live: state.segments.get(id).live })
}

/// Whether cleaning the tail's drive would free more than moving the tail costs: the rest of the open
/// segments is lost. Without this rule the tail could go to and fro for ever.
fn gains_elsewhere(state: &State, kept: &[bool]) -> bool {
    let per = state.segments.per();
    let worth = state.segments.ids(|segment| {
        let used = segment.state == SegmentState::Used && !segment.damaged;
        used && kept[usize::from(segment.link)]
    });
    let dead: u32 = worth.iter().map(|id| per - state.segments.get(*id).live).sum();
    let lost = state.users.room() + state.body.as_ref().map_or(0, |body| body.room());
    dead > lost + per
}
