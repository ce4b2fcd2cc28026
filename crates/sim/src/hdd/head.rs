//! The position of a hard disk's head: how long an access takes from there, and which request it should serve next.

use std::time::Duration;

use super::mechanics::{Mechanics, Positioning};
use super::{HardDiskSpec, Scheduling};
use crate::busy::{Kind, ServiceTime};

/// Resolution of the clock: an event within this time after the arm became idle came at once.
pub(super) const GRAIN: u64 = 1_000;

/// Bytes of a sequential stream after which the arm serves other requests.
pub(super) const BURST: u64 = 1 << 20;

/// A range to transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) kind: Kind,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// The timing of one access, in nanoseconds of the environment's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    start: u64,
    positioning: Positioning,
    transfer: u64,
    /// The address under the head at the end.
    reached: u64,
}

impl Plan {
    pub(super) fn moving(&self) -> u64 {
        self.start + self.positioning.seek + self.positioning.rotation
    }

    pub(super) fn done(&self) -> u64 {
        self.moving() + self.transfer
    }

    pub(super) fn service_time(&self) -> ServiceTime {
        ServiceTime {
            seek: Duration::from_nanos(self.positioning.seek),
            rotation: Duration::from_nanos(self.positioning.rotation),
            transfer: Duration::from_nanos(self.transfer),
        }
    }
}

/// An access that waits, and when it came to the disk's queue.
pub(super) type Waiting = (Access, Option<u64>);

/// Where the head is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// When the arm becomes idle.
    pub(super) free_at: u64,
    /// Kind of the last access.
    pub(super) last: Option<Kind>,
    /// The address after the last access.
    pub(super) head: u64,
    /// The address under the head at `free_at`; beyond `head` after reading ahead.
    reached: u64,
    /// Length in bytes of the sequential stream that ends at `head`.
    streamed: u64,
}

impl Head {
    /// At the outer edge.
    pub(super) fn new(now: u64) -> Head {
        Head { free_at: now, last: None, head: 0, reached: 0, streamed: 0 }
    }

    /// The timing of `access` when it starts at `now`.
    pub(super) fn plan(
        &self,
        (spec, mechanics): (&HardDiskSpec, &Mechanics),
        access: Access,
        now: u64,
    ) -> Plan {
        let Access { kind, offset, len } = access;
        let start = if now < self.free_at + GRAIN { self.free_at } else { now };
        let idle = start - self.free_at;
        let plan = |positioning, transfer, reached| Plan { start, positioning, transfer, reached };
        let streaming = self.last == Some(kind) && self.head == offset;
        let at_once = Positioning { seek: 0, rotation: 0 };
        match kind {
            Kind::Read if streaming => {
                let ahead = self.reached + mechanics.bytes_in(self.reached, idle);
                let most = (self.head + spec.read_ahead).min(spec.size);
                let ahead = ahead.min(most.max(self.reached));
                let left = (offset + len).saturating_sub(ahead);
                let transfer = mechanics.transfer(ahead, left).max(bus_time(spec, len));
                plan(at_once, transfer, ahead.max(offset + len))
            }
            Kind::Write if streaming && idle <= nanos(spec.streaming_gap) => {
                plan(at_once, mechanics.transfer(offset, len), offset + len)
            }
            _ => {
                let positioning = mechanics.position(self.reached, offset, kind, start);
                plan(positioning, mechanics.transfer(offset, len), offset + len)
            }
        }
    }

    /// Moves as planned.
    pub(super) fn follow(&mut self, plan: &Plan, access: Access) {
        self.free_at = plan.done();
        self.last = Some(access.kind);
        self.streamed = match access.offset == self.head {
            true => self.streamed + access.len,
            false => access.len,
        };
        self.head = access.offset + access.len;
        self.reached = plan.reached;
    }

    /// The waiting access to serve next, by index; the oldest comes first.
    pub(super) fn choose(
        &self,
        of: (&HardDiskSpec, &Mechanics),
        mut waiting: impl Iterator<Item = Waiting> + Clone,
        now: u64,
    ) -> Option<usize> {
        let all = waiting.clone();
        let (_, taken) = waiting.next()?;
        match of.0.scheduling {
            Scheduling::Fifo => Some(0),
            Scheduling::ShortestAccess { max_wait, .. }
                if now.saturating_sub(taken.unwrap_or(now)) > nanos(max_wait) =>
            {
                Some(0)
            }
            Scheduling::ShortestAccess { depth, .. } => {
                // A stream always has the shortest access: without a limit it would starve other requests.
                let near = 8 * BURST;
                let stream = self.head.saturating_sub(near)..self.head + near;
                let had_its_turn = |access: &Access| {
                    self.streamed >= BURST
                        && self.last == Some(access.kind)
                        && stream.contains(&access.offset)
                };
                let reach = |access: Access| self.plan(of, access, now).moving();
                let oldest = all.take(depth.max(1)).enumerate();
                let cost = |access: Access| (had_its_turn(&access), reach(access));
                oldest.min_by_key(|(_, (access, _))| cost(*access)).map(|(i, _)| i)
            }
            Scheduling::Elevator { depth } => {
                let oldest = all.take(depth.max(1)).enumerate();
                let ahead = |offset: u64| (offset < self.head, offset);
                oldest.min_by_key(|(_, (access, _))| ahead(access.offset)).map(|(i, _)| i)
            }
        }
    }

    /// When an access that comes now ends, after those that wait, if nothing else comes. Without the `angle` of the platter it
    /// waits half a turn.
    pub(super) fn forecast(
        mut self,
        of: (&HardDiskSpec, &Mechanics),
        mut waiting: Vec<Waiting>,
        (access, angle): (Access, bool),
        now: u64,
    ) -> u64 {
        waiting.push((access, Some(now)));
        let mut last = waiting.len() - 1;
        loop {
            let at = now.max(self.free_at);
            let Some(next) = self.choose(of, waiting.iter().copied(), at) else { return at };
            let (served, _) = waiting.remove(next);
            let plan = self.plan(of, served, at);
            self.follow(&plan, served);
            match next.cmp(&last) {
                std::cmp::Ordering::Equal if angle || plan.positioning.rotation == 0 => {
                    return self.free_at;
                }
                std::cmp::Ordering::Equal => {
                    return self.free_at - plan.positioning.rotation + of.1.revolution / 2;
                }
                std::cmp::Ordering::Less => last -= 1,
                std::cmp::Ordering::Greater => {}
            }
        }
    }
}

/// How long a transfer takes on the bus, in nanoseconds.
pub(super) fn bus_time(spec: &HardDiskSpec, len: u64) -> u64 {
    len.saturating_mul(1_000_000_000) / spec.bus_rate.max(1)
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
