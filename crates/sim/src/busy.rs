//! Busy time of a simulated drive.

use std::time::Duration;

use thalweg_store::device::Purpose;

const PURPOSES: usize = Purpose::ALL.len();

/// The direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// From the medium.
    Read,
    /// To the medium.
    Write,
}

/// Time that a drive spent on requests of one kind and purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ServiceTime {
    /// Moving the arm.
    pub seek: Duration,
    /// Waiting for the sector to pass under the head.
    pub rotation: Duration,
    /// Moving bytes.
    pub transfer: Duration,
}

impl ServiceTime {
    /// The sum of the three parts.
    pub fn total(&self) -> Duration {
        self.seek + self.rotation + self.transfer
    }
}

impl std::ops::AddAssign for ServiceTime {
    fn add_assign(&mut self, other: ServiceTime) {
        self.seek += other.seek;
        self.rotation += other.rotation;
        self.transfer += other.transfer;
    }
}

impl std::ops::Sub for ServiceTime {
    type Output = ServiceTime;

    fn sub(self, earlier: ServiceTime) -> ServiceTime {
        ServiceTime {
            seek: self.seek.saturating_sub(earlier.seek),
            rotation: self.rotation.saturating_sub(earlier.rotation),
            transfer: self.transfer.saturating_sub(earlier.transfer),
        }
    }
}

/// The busy time of a drive by kind and purpose.
///
/// The seek back to a stream of writes after a read counts as a seek of the next *write*. So a drive
/// whose writes spend no time on seeks and rotation served an undisturbed sequential stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyTimes {
    reads: [ServiceTime; PURPOSES],
    writes: [ServiceTime; PURPOSES],
}

impl BusyTimes {
    /// Adds the time of one request.
    pub fn add(&mut self, kind: Kind, purpose: Purpose, time: ServiceTime) {
        match kind {
            Kind::Read => self.reads[purpose as usize] += time,
            Kind::Write => self.writes[purpose as usize] += time,
        }
    }

    /// The time of one kind and purpose.
    pub fn of(&self, kind: Kind, purpose: Purpose) -> ServiceTime {
        self.by_purpose(kind)[purpose as usize]
    }

    /// The time of one kind over all purposes.
    pub fn sum(&self, kind: Kind) -> ServiceTime {
        let mut sum = ServiceTime::default();
        self.by_purpose(kind).iter().for_each(|time| sum += *time);
        sum
    }

    /// All busy time.
    pub fn total(&self) -> Duration {
        self.sum(Kind::Read).total() + self.sum(Kind::Write).total()
    }

    /// The difference between this and `earlier`.
    pub fn since(&self, earlier: &BusyTimes) -> BusyTimes {
        BusyTimes {
            reads: std::array::from_fn(|i| self.reads[i] - earlier.reads[i]),
            writes: std::array::from_fn(|i| self.writes[i] - earlier.writes[i]),
        }
    }

    fn by_purpose(&self, kind: Kind) -> &[ServiceTime; PURPOSES] {
        match kind {
            Kind::Read => &self.reads,
            Kind::Write => &self.writes,
        }
    }
}
