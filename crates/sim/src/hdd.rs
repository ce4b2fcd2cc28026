//! A hard disk in virtual time.
//!
//! One arm serves a queue: it seeks along a fitted curve, waits for the sector to pass, and transfers
//! bytes at the rate of their zone. Time is kept in nanoseconds, and a request is answered at the
//! next whole microsecond, so that rounding errors do not accumulate.
//!
//! - A request that continues where the last one of its kind ended needs neither seek nor rotation
//!   when it is queued or arrives within [`HardDiskSpec::streaming_gap`]. A read may arrive later,
//!   because the disk reads ahead.
//! - With a write cache, a write is acknowledged after the bus transfer. It is written back when no
//!   request is queued, when a flush waits for it, or when the cache is half full. A power cut loses
//!   the cache, and tears the write under the head between two sectors.

mod arm;
mod cache;
mod head;
mod mechanics;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::{Env, Task, Time};
use thalweg_store::device::{
    Counters, Device, DeviceError, Geometry, Power, Purpose, QueueDepth, Tallies, total_len,
};

use crate::busy::BusyTimes;
use crate::content::Content;
use arm::{Operation, Shared};
pub use mechanics::SeekTimes;

/// The order in which queued requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// First in, first out.
    Fifo,
    /// Native command queueing: the request that the head reaches first, among the oldest `depth`. A
    /// request that has waited in the queue for `max_wait` is served next. A sequential stream yields
    /// to other requests after 1 MiB.
    ShortestAccess {
        /// Length of the disk's queue.
        depth: usize,
        /// The longest that a request is passed over.
        max_wait: Duration,
    },
    /// The next higher address, among the oldest `depth`; after the highest, the lowest.
    Elevator {
        /// Length of the disk's queue.
        depth: usize,
    },
}

impl Scheduling {
    /// Length of the disk's queue; further requests wait at the host.
    fn depth(self) -> usize {
        match self {
            Scheduling::Fifo => 1,
            Scheduling::ShortestAccess { depth, .. } | Scheduling::Elevator { depth } => {
                depth.max(1)
            }
        }
    }
}

/// The parameters of a hard disk.
#[derive(Clone, Debug)]
pub struct HardDiskSpec {
    /// Size in bytes.
    pub size: u64,
    /// Bytes in a sector.
    pub sector: u32,
    /// Revolutions per minute.
    pub rpm: u32,
    /// Seeks before reads.
    pub read_seek: SeekTimes,
    /// Seeks before writes, which take longer to settle.
    pub write_seek: SeekTimes,
    /// Sustained bytes per second at the outer edge, where address 0 is.
    pub outer_rate: u64,
    /// Sustained bytes per second at the inner edge; the same as `outer_rate` for a flat rate.
    pub inner_rate: u64,
    /// Bytes per second between host and disk.
    pub bus_rate: u64,
    /// Maximum delay of a sequential write after the one before it that loses no revolution.
    pub streaming_gap: Duration,
    /// Bytes that the disk reads ahead of a sequential reader while it is idle.
    pub read_ahead: u64,
    /// Bytes of volatile write cache; 0 turns it off.
    pub write_cache: u64,
    /// Maximum number of separate ranges of the disk in the write cache.
    pub write_segments: usize,
    /// The order of service.
    pub scheduling: Scheduling,
    /// From stand-by to ready.
    pub spin_up: Duration,
}

/// Native command queueing with the parameters of common drives.
const QUEUED: Scheduling =
    Scheduling::ShortestAccess { depth: 32, max_wait: Duration::from_millis(250) };

const MB: u64 = 1_000_000;

/// Seek times from microseconds.
const fn seeks(track_to_track: u64, average: u64, full_stroke: u64) -> SeekTimes {
    SeekTimes {
        track_to_track: Duration::from_micros(track_to_track),
        average: Duration::from_micros(average),
        full_stroke: Duration::from_micros(full_stroke),
    }
}

impl HardDiskSpec {
    /// A SAS drive of 15,000 rpm: 3.4 ms and 3.9 ms average seeks, 122 to 204 MB/s, write cache off.
    pub fn sas_15k(size: u64) -> HardDiskSpec {
        HardDiskSpec {
            size,
            sector: 512,
            rpm: 15_000,
            read_seek: seeks(200, 3_400, 6_600),
            write_seek: seeks(440, 3_900, 7_400),
            outer_rate: 204 * MB,
            inner_rate: 122 * MB,
            bus_rate: 600 * MB,
            streaming_gap: Duration::from_micros(50),
            read_ahead: 1 << 20,
            write_cache: 0,
            write_segments: usize::MAX,
            scheduling: QUEUED,
            spin_up: Duration::from_secs(15),
        }
    }

    /// A SAS drive of 10,000 rpm: 3.8 ms and 4.4 ms average seeks, a flat 120 MB/s, write cache off.
    pub fn sas_10k(size: u64) -> HardDiskSpec {
        HardDiskSpec {
            rpm: 10_000,
            read_seek: seeks(200, 3_800, 7_500),
            write_seek: seeks(400, 4_400, 8_200),
            outer_rate: 120 * MB,
            inner_rate: 120 * MB,
            ..HardDiskSpec::sas_15k(size)
        }
    }

    /// A SATA drive of 7200 rpm: 8.5 ms and 9.5 ms average seeks, 75 to 150 MB/s, 32 MiB of write
    /// cache.
    pub fn sata_7200(size: u64) -> HardDiskSpec {
        HardDiskSpec {
            rpm: 7_200,
            read_seek: seeks(800, 8_500, 18_000),
            write_seek: seeks(1_000, 9_500, 20_000),
            outer_rate: 150 * MB,
            inner_rate: 75 * MB,
            bus_rate: 300 * MB,
            write_cache: 32 << 20,
            spin_up: Duration::from_secs(10),
            ..HardDiskSpec::sas_15k(size)
        }
    }
}

/// A simulated hard disk. Dropping it stops its arm.
#[derive(Debug)]
pub struct HardDisk {
    shared: Arc<Shared>,
    counters: Counters,
    _arm: Task<()>,
}

impl HardDisk {
    /// An empty disk, powered on, with its head at the outer edge.
    pub fn new(env: &Env, name: &str, spec: HardDiskSpec) -> HardDisk {
        HardDisk::with_content(env, name, spec, Content::new())
    }

    /// A disk that already holds `content`.
    pub fn with_content(env: &Env, name: &str, spec: HardDiskSpec, content: Content) -> HardDisk {
        let shared = Arc::new(Shared::new(env, name, spec, content));
        let arm = env.spawn(arm::serve(Arc::clone(&shared)));
        HardDisk { shared, counters: Counters::default(), _arm: arm }
    }

    /// The disk's parameters.
    pub fn spec(&self) -> &HardDiskSpec {
        &self.shared.spec
    }

    /// When a read of `len` bytes that came now would end, if nothing came after it: the disk knows where its head is and
    /// what waits. Without what is in the write cache.
    pub fn forecast(&self, offset: u64, len: u64) -> Time {
        self.shared.forecast(offset, len, true)
    }

    /// The same for one that does not know the angle of the platter: it takes half a turn for the wait for it.
    pub fn expect(&self, offset: u64, len: u64) -> Time {
        self.shared.forecast(offset, len, false)
    }

    /// The disk's busy time.
    pub fn busy(&self) -> BusyTimes {
        self.shared.busy()
    }

    /// Time in stand-by, and number of spin-ups from it.
    pub fn standby(&self) -> (Duration, u64) {
        self.shared.standby()
    }

    /// The content of the medium, without the write cache.
    pub fn medium(&self) -> Content {
        self.shared.medium()
    }

    /// Cuts the power: the write cache is lost, the write under the head is torn between two sectors.
    /// Queued requests fail, and so does every new one until [`HardDisk::power_on`].
    pub fn power_cut(&self) {
        self.shared.power_cut();
    }

    /// Spins the disk up after a power cut.
    pub fn power_on(&self) {
        self.shared.power_on();
    }
}

#[async_trait]
impl Device for HardDisk {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.shared.spec.size, sector: self.shared.spec.sector }
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.geometry().check(offset, len as u64)?;
        let _queued = self.counters.read(purpose, len as u64);
        if let Some(data) = self.shared.read_cached(offset, len).await? {
            return Ok(data);
        }
        self.shared.request(Operation::Read { len }, offset, purpose).await
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        self.geometry().check(offset, len)?;
        let _queued = self.counters.write(purpose, len);
        if len > 0 && len <= self.shared.spec.write_cache {
            return self.shared.write_cached(offset, data, len, purpose).await;
        }
        self.shared.request(Operation::Write { data }, offset, purpose).await.map(drop)
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        let _queued = self.counters.flush(purpose);
        self.shared.flush().await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry().check(offset, len)?;
        self.shared.discard(offset, len)
    }

    fn queue_depth(&self) -> QueueDepth {
        self.counters.queue_depth()
    }

    fn tallies(&self) -> Tallies {
        self.counters.tallies()
    }

    fn is_rotational(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.shared.name.clone()
    }

    async fn set_power(&self, power: Power) {
        self.shared.set_power(power);
    }
}
