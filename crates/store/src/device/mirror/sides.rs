//! The state of a mirror's sides, and all decisions on it, without I/O.

use std::collections::VecDeque;

use super::{Side, SideState};
use crate::device::{DeviceError, DeviceRef, QueueDepth};

/// How many ends of reads are kept for each side: the streams that it can tell apart.
const STREAMS: usize = 64;
/// How many requests a read waits behind rather than leave the side of its stream: that drive serves it along
/// with the one before, another side would have to seek.
const WORTH: usize = 8;

/// The sides of a mirror and their states.
#[derive(Debug)]
pub(super) struct Sides {
    members: Vec<Member>,
    /// Grows with every failure. A failure is recorded when a record that began later is durable.
    failures: u64,
}

#[derive(Debug)]
struct Member {
    device: Option<DeviceRef>,
    state: SideState,
    /// The ends of its latest reads, newest first.
    ends: VecDeque<u64>,
}

/// A side that a request went to, and the result.
pub(super) type Outcome = (usize, Result<(), DeviceError>);

impl Sides {
    pub(super) fn new(sides: Vec<Side>) -> Sides {
        let members = sides.into_iter().map(|side| match side {
            Side::InSync(device) => Member::new(Some(device), SideState::InSync),
            Side::Stale(device) => Member::new(Some(device), SideState::Stale),
            Side::Missing => Member::new(None, SideState::Missing),
        });
        Sides { members: members.collect(), failures: 0 }
    }

    pub(super) fn states(&self) -> Vec<SideState> {
        self.members.iter().map(|member| member.state).collect()
    }

    pub(super) fn state(&self, side: usize) -> Option<SideState> {
        self.members.get(side).map(|member| member.state)
    }

    pub(super) fn in_sync(&self) -> Vec<bool> {
        self.members.iter().map(Member::is_in_sync).collect()
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures
    }

    /// Every present device, in the order of the sides.
    pub(super) fn devices(&self) -> Vec<DeviceRef> {
        self.members.iter().filter_map(|member| member.device.clone()).collect()
    }

    pub(super) fn device(&self, side: usize) -> Option<DeviceRef> {
        self.members.get(side)?.device.clone()
    }

    /// The side, and its own copy, that are the mirror's copy number `copy`; `None` if that is not in sync.
    pub(super) fn locate(&self, copy: usize) -> Option<(usize, usize, DeviceRef)> {
        let mut first = 0;
        for (side, member) in self.members.iter().enumerate() {
            let count = member.device.as_ref().map_or(1, |device| device.copies());
            if copy < first + count {
                let device = member.device.clone().filter(|_| member.is_in_sync());
                return device.map(|device| (side, copy - first, device));
            }
            first += count;
        }
        None
    }

    /// The sides that a write at `offset` goes to. A side that is being rebuilt gets it below the line; above
    /// it, the copier will copy that range later. The caller holds the write's range, so the line does not
    /// enter it meanwhile.
    pub(super) fn writable(&self, offset: u64) -> Vec<(usize, DeviceRef)> {
        self.select(|member| match member.state {
            SideState::InSync => true,
            SideState::Rebuilding { done, .. } => offset < done,
            _ => false,
        })
    }

    /// The sides that a flush goes to, including one that is being rebuilt: its last flush may come before
    /// writes that this flush covers.
    pub(super) fn flushable(&self) -> Vec<(usize, DeviceRef)> {
        self.select(|member| {
            matches!(member.state, SideState::InSync | SideState::Rebuilding { .. })
        })
    }

    /// The sides that may be read, except those in `except`.
    pub(super) fn readable(&self, except: &[usize]) -> Vec<(usize, DeviceRef)> {
        let mut sides = self.select(Member::is_in_sync);
        sides.retain(|(side, _)| !except.contains(side));
        sides
    }

    /// The side that stays awake while the others are at rest.
    pub(super) fn first_readable(&self) -> Option<usize> {
        self.members.iter().position(|member| member.is_in_sync() && member.device.is_some())
    }

    /// The side to read `[offset, offset + len)` from: the first one while the others are at rest, otherwise
    /// the one with the shortest queue, where the side whose stream the read continues counts as shorter;
    /// among equal ones, the one whose last read ended nearest.
    pub(super) fn choose(
        &mut self,
        offset: u64,
        len: usize,
        resting: bool,
        except: &[usize],
    ) -> Option<(usize, DeviceRef)> {
        let sides = self.readable(except);
        let cost = |(side, device): &(usize, DeviceRef)| {
            let QueueDepth { reads, writes } = device.queue_depth();
            self.members[*side].cost(reads + writes, offset)
        };
        let chosen = match resting {
            true => sides.into_iter().next(),
            false => sides.into_iter().min_by_key(cost),
        };
        if let Some((side, _)) = &chosen {
            self.members[*side].note_read(offset, offset + len as u64);
        }
        chosen
    }

    /// Applies the results of a write or flush. It succeeds if a side that is still in sync has done it; then
    /// the sides that have not are out. If no such side is left it fails, and no side is taken out: the last
    /// copy is kept, however bad.
    ///
    /// # Errors
    /// The request's own error.
    pub(super) fn settle(&mut self, outcomes: Vec<Outcome>) -> Result<(), DeviceError> {
        let stands = outcomes
            .iter()
            .any(|(side, outcome)| outcome.is_ok() && self.members[*side].is_in_sync());
        let mut last = None;
        for (side, outcome) in outcomes {
            let Err(error) = outcome else { continue };
            let is_source = self.members[side].is_in_sync();
            if stands || !is_source {
                self.fail(side, &error);
            }
            last = Some(error);
        }
        match last {
            Some(error) if !stands => Err(error),
            None if !stands => Err(DeviceError::Closed { device: "mirror".to_owned() }),
            _ => Ok(()),
        }
    }

    /// Takes a side out after an error, unless it is the last one in sync.
    pub(super) fn fail(&mut self, side: usize, error: &DeviceError) -> bool {
        let others = (0..self.members.len()).any(|i| i != side && self.members[i].is_in_sync());
        let member = &mut self.members[side];
        let in_use = matches!(member.state, SideState::InSync | SideState::Rebuilding { .. });
        if !in_use || (member.is_in_sync() && !others) {
            return false;
        }
        tracing::error!(side, %error, "a mirror lost a side");
        member.state = SideState::Failed;
        self.failures += 1;
        true
    }

    /// Replaces a side that is out by `device`.
    pub(super) fn replace(&mut self, side: usize, device: DeviceRef) {
        self.members[side] = Member::new(Some(device), SideState::Stale);
    }

    /// Starts a rebuild from the first byte.
    pub(super) fn begin(&mut self, side: usize, total: u64) {
        self.members[side].state = SideState::Rebuilding { done: 0, total };
    }

    /// Moves the line of a rebuild of `device` from `from` to `to`. The caller holds that range and has
    /// copied it.
    pub(super) fn advance(&mut self, side: usize, device: &DeviceRef, from: u64, to: u64) -> bool {
        let member = &mut self.members[side];
        let same = member.device.as_ref().is_some_and(|now| std::sync::Arc::ptr_eq(now, device));
        match &mut member.state {
            SideState::Rebuilding { done, .. } if same && *done == from => {
                *done = to;
                true
            }
            _ => false,
        }
    }

    /// Ends a rebuild: the side may be read if it is `complete`, otherwise it is stale again. Does nothing to
    /// a side that failed meanwhile.
    pub(super) fn end(&mut self, side: usize, complete: bool) -> bool {
        let member = &mut self.members[side];
        let rebuilding = matches!(member.state, SideState::Rebuilding { .. });
        if rebuilding {
            member.state = if complete { SideState::InSync } else { SideState::Stale };
        }
        rebuilding
    }

    fn select(&self, wanted: impl Fn(&Member) -> bool) -> Vec<(usize, DeviceRef)> {
        let numbered = self.members.iter().enumerate().filter(|(_, member)| wanted(member));
        numbered.filter_map(|(side, member)| Some((side, member.device.clone()?))).collect()
    }
}

impl Member {
    fn new(device: Option<DeviceRef>, state: SideState) -> Member {
        Member { device, state, ends: VecDeque::new() }
    }

    /// The cost of a read at `offset` from this side, with `queue` requests before it: the smallest is best.
    fn cost(&self, queue: usize, offset: u64) -> (usize, bool, u64) {
        let elsewhere = !self.ends.contains(&offset);
        let last = self.ends.front().copied().unwrap_or(0);
        (queue + if elsewhere { WORTH } else { 0 }, elsewhere, last.abs_diff(offset))
    }

    /// Notes where a read ended, replacing the end that it continued from.
    fn note_read(&mut self, from: u64, to: u64) {
        match self.ends.iter().position(|end| *end == from) {
            Some(at) => drop(self.ends.remove(at)),
            None => self.ends.truncate(STREAMS - 1),
        }
        self.ends.push_front(to);
    }

    fn is_in_sync(&self) -> bool {
        self.state == SideState::InSync
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::MemoryDevice;

    fn three() -> Sides {
        Sides::new((0..3).map(|_| Side::InSync(Arc::new(MemoryDevice::new(4096)))).collect())
    }

    fn error() -> Result<(), DeviceError> {
        Err(DeviceError::Closed { device: "x".to_owned() })
    }

    #[test]
    fn a_write_stands_only_where_a_side_in_sync_has_it() {
        let mut sides = three();
        sides.settle(vec![(0, Ok(())), (1, error()), (2, Ok(()))]).unwrap();
        assert_eq!(sides.in_sync(), [true, false, true]);
        // The write began before side 1 went out, and only side 1 has done it.
        assert!(sides.settle(vec![(0, error()), (1, Ok(())), (2, error())]).is_err());
        assert_eq!(sides.in_sync(), [true, false, true]);
        assert_eq!(sides.failures(), 1);
    }

    #[test]
    fn writes_reach_a_rebuilt_side_below_the_line_alone() {
        let mut sides = three();
        sides.settle(vec![(0, Ok(())), (1, error()), (2, Ok(()))]).unwrap();
        sides.begin(1, 4096);
        let device = sides.device(1).unwrap();
        assert!(sides.advance(1, &device, 0, 1024));
        let takes = |sides: &Sides, at| sides.writable(at).iter().any(|(side, _)| *side == 1);
        assert!(takes(&sides, 512));
        assert!(!takes(&sides, 1024));
        assert!(sides.readable(&[]).iter().all(|(side, _)| *side != 1));
        assert!(sides.flushable().iter().any(|(side, _)| *side == 1));
        assert!(!sides.advance(1, &device, 0, 2048));
    }

    #[test]
    fn reads_follow_a_stream_when_queues_are_equal() {
        let mut sides = three();
        sides.choose(1 << 20, 4096, false, &[1, 2]);
        sides.choose(1 << 30, 4096, false, &[0, 2]);
        assert_eq!(sides.choose((1 << 20) + 4096, 4096, false, &[]).unwrap().0, 0);
        assert_eq!(sides.choose((1 << 30) + 4096, 4096, false, &[]).unwrap().0, 1);
        assert_eq!(sides.choose(1 << 30, 4096, true, &[]).unwrap().0, 0);
    }

    #[test]
    fn reads_stay_with_their_stream_though_others_come_between() {
        let mut sides = three();
        let streams = STREAMS as u64 - 2;
        let start = |stream: u64| stream << 24;
        let homes: Vec<usize> = (0..streams)
            .map(|stream| {
                let elsewhere = [(stream as usize + 1) % 3, (stream as usize + 2) % 3];
                sides.choose(start(stream), 4096, false, &elsewhere).unwrap().0
            })
            .collect();
        for step in 1..4 {
            for (stream, home) in (0..streams).zip(&homes) {
                let next = start(stream) + step * 4096;
                assert_eq!(sides.choose(next, 4096, false, &[]).unwrap().0, *home);
            }
        }
    }

    #[test]
    fn a_long_queue_parts_a_read_from_its_stream() {
        let mut sides = three();
        sides.choose(0, 512, false, &[1, 2]);
        let [home, other, _] = &sides.members[..] else { panic!("three sides") };
        assert!(home.cost(WORTH, 512) < other.cost(0, 512));
        assert!(home.cost(WORTH + 1, 512) > other.cost(0, 512));
        assert!(home.cost(1, 1024) > other.cost(0, 1024), "it continues nothing");
    }
}
