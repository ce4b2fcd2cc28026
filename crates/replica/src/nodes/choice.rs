//! The choice among nodes: what a read takes at each, and which of them are believed to serve it. It reads nothing.

use std::collections::VecDeque;
use std::time::Duration;

use thalweg_env::Time;
use thalweg_store::block::Version;
use thalweg_store::stale::{Needs, Standing};

/// Time after which half of what is known of a node's drives is forgotten while nothing is read there: a node that was
/// busy is tried again.
const HALF_LIFE: Duration = Duration::from_secs(5);
/// The part of an average that the newest measurement has.
const SHARE: f64 = 0.25;
/// Maximum versions with a known time.
const MAX_VERSIONS: usize = 1024;

/// What a read takes at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Expense {
    /// The round trip in seconds; `None` before the first.
    trip: Option<f64>,
    /// What a read of a block takes beyond that, in seconds, at the time of the last one.
    block: f64,
    last: Time,
}

impl Expense {
    /// Notes a round trip without a device.
    pub(super) fn trip(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        self.trip = Some(self.trip.map_or(took, |trip| trip + SHARE * (took - trip)));
    }

    /// Notes a read of blocks.
    pub(super) fn read(&mut self, now: Time, took: Duration) {
        let beyond = (took.as_secs_f64() - self.trip.unwrap_or_default()).max(0.0);
        let known = self.beyond(now);
        (self.block, self.last) = (known + SHARE * (beyond - known), now);
    }

    fn beyond(&self, now: Time) -> f64 {
        let idle = now.since(self.last).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.block * (-idle * std::f64::consts::LN_2).exp()
    }

    /// The seconds that a read is expected to take: a view is opened, and a block is read.
    pub(super) fn of_read(&self, now: Time) -> f64 {
        2.0 * self.trip.unwrap_or_default() + self.beyond(now)
    }
}

/// When the primary was first known to have which versions.
#[derive(Debug, Default)]
pub(super) struct Progress(VecDeque<(Version, Time)>);

impl Progress {
    /// Notes that the primary has `version` at `now`.
    pub(super) fn note(&mut self, version: Version, now: Time) {
        if self.0.back().is_some_and(|(newest, _)| *newest >= version) {
            return;
        }
        if self.0.len() >= MAX_VERSIONS {
            self.0.pop_front();
        }
        self.0.push_back((version, now));
    }

    /// A time by which the primary had `version`; `None` for one that is not known.
    fn since(&self, version: Version) -> Option<Time> {
        let first = self.0.partition_point(|(newest, _)| *newest < version);
        self.0.get(first).map(|(_, time)| *time)
    }
}

/// What is known of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) expense: Expense,
    /// What it said last, if anything.
    pub(super) standing: Option<Standing>,
    /// Until when it is not expected to have come further than it said: it was asked in vain.
    pub(super) behind_until: Time,
}

impl Candidate {
    /// Whether the node is believed to serve a read.
    fn serves(
        &self,
        needs: &Needs,
        first: Version,
        term: u32,
        progress: &Progress,
        now: Time,
    ) -> bool {
        let Some(standing) = &self.standing else { return false };
        let is_primary = standing.is_primary && standing.term == term;
        if is_primary {
            return true;
        }
        if needs.is_newest || needs.max_updates.is_some() {
            return false;
        }
        let low = needs.at.unwrap_or(needs.low).max(first);
        let is_young = needs.max_age.is_none_or(|most| standing.age.is_some_and(|age| age <= most));
        is_young && (standing.newest >= low || self.has_come_to(low, standing, progress, now))
    }

    /// Whether a version is so old that the node has it, if it follows as closely as it did.
    fn has_come_to(
        &self,
        version: Version,
        standing: &Standing,
        progress: &Progress,
        now: Time,
    ) -> bool {
        let (Some(since), Some(lag)) = (progress.since(version), standing.age) else {
            return false;
        };
        now >= self.behind_until && now.since(since) > lag
    }
}

/// The nodes in the order in which a read asks them: first those that are believed to serve it, the cheapest first; of
/// several that cost the same, a replica before the primary, which leaves that one to writers.
pub(super) fn order(
    candidates: &[Candidate],
    needs: &Needs,
    first: Version,
    progress: &Progress,
    now: Time,
) -> Vec<usize> {
    let term = candidates.iter().filter_map(|it| it.standing).map(|it| it.term).max();
    let key = |nth: &usize| {
        let candidate = &candidates[*nth];
        let serves = candidate.serves(needs, first, term.unwrap_or_default(), progress, now);
        let is_primary = candidate.standing.is_some_and(|standing| standing.is_primary);
        // In nanoseconds: times of one run in virtual time are equal or clearly different.
        let nanos = (candidate.expense.of_read(now) * 1e9) as u64;
        (!serves, nanos, is_primary, *nth)
    };
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_cached_key(key);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::default() + Duration::from_millis(millis)
    }

    fn node(trip: u64, newest: u64, is_primary: bool) -> Candidate {
        let mut expense = Expense::default();
        expense.trip(Duration::from_millis(trip));
        let standing = Standing {
            newest: Version(newest),
            position: None,
            durable: Version(newest),
            term: 0,
            is_primary,
            age: Some(Duration::from_millis(if is_primary { 0 } else { 300 })),
        };
        Candidate { expense, standing: Some(standing), behind_until: Time::default() }
    }

    fn ordered(candidates: &[Candidate], needs: Needs, now: Time) -> Vec<usize> {
        let mut progress = Progress::default();
        progress.note(Version(50), at(1000));
        progress.note(Version(100), at(2000));
        order(candidates, &needs, Version(0), &progress, now)
    }

    #[test]
    fn the_nearest_that_serves_comes_first() {
        let all = [node(100, 100, true), node(1, 40, false), node(10, 90, false)];
        let order = |needs| ordered(&all, needs, at(2100));
        assert_eq!(order(Needs::default()), [1, 2, 0]);
        assert_eq!(order(Needs { is_newest: true, ..Needs::default() }), [0, 1, 2]);
        let low = |low| Needs { low: Version(low), ..Needs::default() };
        assert_eq!(order(low(90)), [2, 0, 1]);
        // Version 50 is 1.1 s old, and the nearest follows within 0.3 s.
        assert_eq!(order(low(50)), [1, 2, 0]);
        assert_eq!(order(low(95)), [0, 1, 2]);
        let aged =
            |millis| Needs { max_age: Some(Duration::from_millis(millis)), ..Needs::default() };
        assert_eq!(order(aged(300)), [1, 2, 0]);
        assert_eq!(order(aged(299)), [0, 1, 2]);
        assert_eq!(order(Needs { at: Some(Version(60)), ..Needs::default() }), [2, 0, 1]);
        assert_eq!(order(Needs { max_updates: Some((5, None)), ..Needs::default() }), [0, 1, 2]);
    }

    #[test]
    fn a_node_that_was_asked_in_vain_comes_later() {
        let behind = Candidate { behind_until: at(3000), ..node(1, 40, false) };
        let all = [node(100, 100, true), behind];
        let needs = Needs { low: Version(50), ..Needs::default() };
        assert_eq!(ordered(&all, needs, at(2100)), [0, 1]);
        assert_eq!(ordered(&all, needs, at(3100)), [1, 0]);
    }

    #[test]
    fn a_busy_node_is_left_and_tried_again() {
        let mut busy = node(1, 100, false);
        for _ in 0..20 {
            busy.expense.read(at(1000), Duration::from_millis(500));
        }
        let all = [node(100, 100, true), busy];
        assert_eq!(ordered(&all, Needs::default(), at(1000)), [0, 1]);
        assert_eq!(ordered(&all, Needs::default(), at(20_000)), [1, 0]);
    }

    #[test]
    fn a_primary_of_an_old_term_serves_no_newest_state() {
        let mut new = node(100, 90, true);
        if let Some(standing) = &mut new.standing {
            standing.term = 1;
        }
        let all = [node(1, 100, true), new];
        assert_eq!(ordered(&all, Needs { is_newest: true, ..Needs::default() }, at(0)), [1, 0]);
    }
}
