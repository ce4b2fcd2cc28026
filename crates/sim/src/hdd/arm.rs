//! The arm of a hard disk: which request it serves next, and how long the request takes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{Env, Time};
use thalweg_store::device::{self, AlignedBuf, DeviceError, Power, Purpose, total_len};
use tokio::sync::{Notify, oneshot};

use super::HardDiskSpec;
use super::cache::WriteCache;
use super::head::{Access, BURST, GRAIN, Head, Plan, Waiting, bus_time};
use super::mechanics::Mechanics;
use crate::busy::{BusyTimes, Kind};
use crate::content::Content;

/// The operation of a request.
#[derive(Debug)]
pub(super) enum Operation {
    Read { len: usize },
    Write { data: Vec<Bytes> },
}

impl Operation {
    fn kind(&self) -> Kind {
        match self {
            Operation::Read { .. } => Kind::Read,
            Operation::Write { .. } => Kind::Write,
        }
    }

    fn len(&self) -> u64 {
        match self {
            Operation::Read { len } => *len as u64,
            Operation::Write { data } => total_len(data),
        }
    }
}

#[derive(Debug)]
struct Request {
    operation: Operation,
    offset: u64,
    purpose: Purpose,
    /// Time of arrival in the disk's queue; `None` while the request waits at the host.
    taken: Option<u64>,
    reply: oneshot::Sender<Result<Bytes, DeviceError>>,
}

/// The arm's next job: serve a queued request, or write back a cached run.
#[derive(Debug)]
enum Job {
    Serve(Request),
    Destage { offset: u64, data: Bytes, purpose: Purpose },
}

impl Job {
    /// The bytes that the job puts on the medium.
    fn written(&self) -> Option<(u64, &[Bytes])> {
        match self {
            Job::Serve(Request { operation: Operation::Write { data }, offset, .. }) => {
                Some((*offset, data))
            }
            Job::Serve(_) => None,
            Job::Destage { offset, data, .. } => Some((*offset, std::slice::from_ref(data))),
        }
    }

    fn access(&self) -> Access {
        match self {
            Job::Serve(request) => request.access(),
            Job::Destage { offset, data, .. } => {
                Access { kind: Kind::Write, offset: *offset, len: data.len() as u64 }
            }
        }
    }

    fn purpose(&self) -> Purpose {
        match self {
            Job::Serve(request) => request.purpose,
            Job::Destage { purpose, .. } => *purpose,
        }
    }
}

impl Request {
    fn access(&self) -> Access {
        Access { kind: self.operation.kind(), offset: self.offset, len: self.operation.len() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spindle {
    Spinning,
    /// Stops when no request is left.
    Stopping,
    Standby {
        since: Time,
    },
}

#[derive(Debug)]
struct State {
    content: Content,
    pending: VecDeque<Request>,
    cache: WriteCache,
    /// Flushes wait for the cached writes up to this number.
    flush_to: u64,
    head: Head,
    /// When the bus becomes idle.
    bus_free_at: u64,
    /// Bytes written back since the last request.
    destaged: u64,
    /// The job in progress.
    moving: Option<(Job, Plan)>,
    busy: BusyTimes,
    spindle: Spindle,
    standby: Duration,
    spin_ups: u64,
    powered: bool,
    /// Number of power cuts.
    epoch: u64,
}

/// State shared by the device and its arm.
#[derive(Debug)]
pub(super) struct Shared {
    env: Env,
    pub(super) name: String,
    pub(super) spec: HardDiskSpec,
    mechanics: Mechanics,
    state: Mutex<State>,
    /// Wakes the arm.
    work: Notify,
    /// Wakes callers that wait for space in the cache or for a flush.
    destaged: Notify,
}

/// Runs the arm until the device is dropped.
pub(super) async fn serve(shared: Arc<Shared>) {
    loop {
        match shared.begin() {
            Some((done, epoch)) => {
                shared.env.sleep_until(Time::from_nanos(done)).await;
                shared.end(epoch);
            }
            None => shared.work.notified().await,
        }
    }
}

impl State {
    /// Takes the next job: requests go before cached runs. While the cache is half full or a flush waits,
    /// runs are written in bursts between requests.
    fn take_job(&mut self, shared: &Shared, now: u64) -> Option<Job> {
        let pressing = self.cache.bytes() > shared.spec.write_cache / 2
            || self.cache.segments() > shared.spec.write_segments / 2
            || !self.cache.is_durable(self.flush_to);
        let run = self.cache.next_after(self.head.head).map(|(offset, run)| (offset, run.purpose));
        if let Some((offset, purpose)) = run {
            let in_burst =
                self.destaged == 0 || (self.destaged < BURST && offset == self.head.head);
            if self.pending.is_empty() || (pressing && in_burst) {
                let data = self.cache.begin(offset)?;
                self.destaged += data.len() as u64;
                return Some(Job::Destage { offset, data, purpose });
            }
        }
        let index = self.head.choose(shared.of(), self.waiting(), now)?;
        self.destaged = 0;
        let request = self.pending.remove(index)?;
        self.take_in(shared, now);
        Some(Job::Serve(request))
    }

    /// The queued requests.
    fn waiting(&self) -> impl Iterator<Item = Waiting> + Clone {
        self.pending.iter().map(|request| (request.access(), request.taken))
    }

    /// Moves requests from the host into the disk's queue. Requests at the host do not age: otherwise a
    /// long wait there would make the disk serve in order of arrival just when it has the most choice.
    fn take_in(&mut self, shared: &Shared, now: u64) {
        let depth = shared.spec.scheduling.depth();
        for request in self.pending.iter_mut().take(depth) {
            request.taken.get_or_insert(now);
        }
    }

    fn wake_spindle(&mut self, shared: &Shared, now: Time) {
        if let Spindle::Standby { since } = self.spindle {
            self.standby += now.since(since);
            self.spin_ups += 1;
            self.head.free_at = (now + shared.spec.spin_up).as_nanos();
            self.head.last = None;
        }
        self.spindle = Spindle::Spinning;
    }

    /// Applies a finished job to the medium, and answers its request.
    fn finish(&mut self, job: Job) {
        if let Some((offset, data)) = job.written() {
            self.content.write_all(offset, data);
        }
        match job {
            Job::Destage { .. } => self.cache.end(),
            Job::Serve(Request { operation, offset, reply, .. }) => {
                let data = match operation {
                    Operation::Read { len } => self.read(offset, len),
                    Operation::Write { data } => {
                        self.cache.remove(offset, total_len(&data));
                        Bytes::new()
                    }
                };
                // The requester may have been dropped.
                let _ = reply.send(Ok(data));
            }
        }
    }

    fn read(&self, offset: u64, len: usize) -> Bytes {
        let mut buffer = AlignedBuf::zeroed(len);
        self.content.read_into(offset, &mut buffer);
        self.cache.overlay(offset, &mut buffer);
        buffer.freeze()
    }
}

impl Shared {
    pub(super) fn new(env: &Env, name: &str, spec: HardDiskSpec, content: Content) -> Shared {
        let now = env.now().as_nanos();
        let state = State {
            content,
            pending: VecDeque::new(),
            cache: WriteCache::default(),
            flush_to: 0,
            head: Head::new(now),
            bus_free_at: now,
            destaged: 0,
            moving: None,
            busy: BusyTimes::default(),
            spindle: Spindle::Spinning,
            standby: Duration::ZERO,
            spin_ups: 0,
            powered: true,
            epoch: 0,
        };
        Shared {
            env: env.clone(),
            name: name.to_owned(),
            mechanics: Mechanics::new(&spec),
            spec,
            state: Mutex::new(state),
            work: Notify::new(),
            destaged: Notify::new(),
        }
    }

    fn of(&self) -> (&HardDiskSpec, &Mechanics) {
        (&self.spec, &self.mechanics)
    }

    /// When a read that comes now ends, if nothing comes after it; see [`super::head::Head::forecast`].
    pub(super) fn forecast(&self, offset: u64, len: u64, angle: bool) -> Time {
        let now = self.env.now().as_nanos();
        let state = self.state.lock();
        let access = Access { kind: Kind::Read, offset, len };
        let waiting = state.waiting().collect();
        Time::from_nanos(state.head.forecast(self.of(), waiting, (access, angle), now))
    }

    /// Starts the next job, and returns when it ends and the epoch in which it started.
    fn begin(&self) -> Option<(u64, u64)> {
        let now = self.env.now();
        let state = &mut *self.state.lock();
        if !state.powered {
            return None;
        }
        let Some(job) = state.take_job(self, now.as_nanos()) else {
            if state.spindle == Spindle::Stopping {
                state.spindle = Spindle::Standby { since: now };
            }
            return None;
        };
        state.wake_spindle(self, now);
        let access = job.access();
        let plan = state.head.plan(self.of(), access, now.as_nanos());
        state.busy.add(access.kind, job.purpose(), plan.service_time());
        state.head.follow(&plan, access);
        state.moving = Some((job, plan));
        Some((plan.done(), state.epoch))
    }

    fn end(&self, epoch: u64) {
        let state = &mut *self.state.lock();
        if state.epoch != epoch {
            return;
        }
        if let Some((job, _)) = state.moving.take() {
            state.finish(job);
            self.destaged.notify_waiters();
        }
    }

    /// Queues a request and waits for its answer.
    pub(super) async fn request(
        &self,
        operation: Operation,
        offset: u64,
        purpose: Purpose,
    ) -> Result<Bytes, DeviceError> {
        let name = match operation.kind() {
            Kind::Read => device::Operation::Read,
            Kind::Write => device::Operation::Write,
        };
        let (reply, answer) = oneshot::channel();
        {
            let mut state = self.state.lock();
            if !state.powered {
                return Err(self.no_power(name));
            }
            state.pending.push_back(Request { operation, offset, purpose, taken: None, reply });
            state.take_in(self, self.env.now().as_nanos());
        }
        self.work.notify_one();
        answer.await.unwrap_or_else(|_| Err(self.no_power(name)))
    }

    /// The range, when all of it is in the write cache.
    pub(super) async fn read_cached(
        &self,
        offset: u64,
        len: usize,
    ) -> Result<Option<Bytes>, DeviceError> {
        let (data, done) = {
            let mut state = self.state.lock();
            if !state.powered {
                return Err(self.no_power(device::Operation::Read));
            }
            if state.cache.is_empty() {
                return Ok(None);
            }
            let mut buffer = AlignedBuf::zeroed(len);
            if !state.cache.overlay(offset, &mut buffer) {
                return Ok(None);
            }
            (buffer.freeze(), self.use_bus(&mut state, len as u64))
        };
        self.env.sleep_until(done).await;
        Ok(Some(data))
    }

    /// Adds a write to the cache as soon as there is space, and returns after the bus transfer.
    pub(super) async fn write_cached(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        len: u64,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let done = loop {
            let destaged = self.destaged.notified();
            {
                let mut state = self.state.lock();
                if !state.powered {
                    return Err(self.no_power(device::Operation::Write));
                }
                if state.cache.bytes() + len <= self.spec.write_cache
                    && state.cache.has_segment(offset, len, self.spec.write_segments)
                {
                    state.cache.insert(offset, &data, purpose);
                    break self.use_bus(&mut state, len);
                }
            }
            destaged.await;
        };
        self.work.notify_one();
        self.env.sleep_until(done).await;
        Ok(())
    }

    /// Waits until everything cached so far is on the medium.
    pub(super) async fn flush(&self) -> Result<(), DeviceError> {
        let (target, epoch) = {
            let mut state = self.state.lock();
            let target = state.cache.newest();
            state.flush_to = state.flush_to.max(target);
            (target, state.epoch)
        };
        self.work.notify_one();
        loop {
            let destaged = self.destaged.notified();
            {
                let state = self.state.lock();
                if !state.powered || state.epoch != epoch {
                    return Err(self.no_power(device::Operation::Flush));
                }
                if state.cache.is_durable(target) {
                    return Ok(());
                }
            }
            destaged.await;
        }
    }

    pub(super) fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        if !state.powered {
            return Err(self.no_power(device::Operation::Discard));
        }
        state.cache.remove(offset, len);
        state.content.discard(offset, len);
        self.destaged.notify_waiters();
        Ok(())
    }

    pub(super) fn set_power(&self, power: Power) {
        let state = &mut *self.state.lock();
        match power {
            Power::Standby if state.spindle == Spindle::Spinning => {
                state.spindle = Spindle::Stopping;
            }
            Power::Standby => {}
            Power::Active => state.wake_spindle(self, self.env.now()),
        }
        self.work.notify_one();
    }

    pub(super) fn power_cut(&self) {
        let state = &mut *self.state.lock();
        let now = self.env.now().as_nanos();
        state.powered = false;
        state.epoch += 1;
        if let Some((job, plan)) = state.moving.take() {
            let passed =
                self.mechanics.bytes_in(job.access().offset, now.saturating_sub(plan.moving()));
            if let Some((offset, data)) = job.written() {
                write_part(&mut state.content, offset, data, passed, self.spec.sector);
            }
        }
        state.cache.clear();
        // Dropping a request fails it.
        state.pending.clear();
        self.destaged.notify_waiters();
    }

    pub(super) fn power_on(&self) {
        let state = &mut *self.state.lock();
        if !state.powered {
            state.powered = true;
            state.spindle = Spindle::Spinning;
            state.head.free_at = (self.env.now() + self.spec.spin_up).as_nanos();
            state.head.last = None;
            self.work.notify_one();
        }
    }

    pub(super) fn busy(&self) -> BusyTimes {
        self.state.lock().busy
    }

    pub(super) fn standby(&self) -> (Duration, u64) {
        let state = self.state.lock();
        let current = match state.spindle {
            Spindle::Standby { since } => self.env.now().since(since),
            _ => Duration::ZERO,
        };
        (state.standby + current, state.spin_ups)
    }

    pub(super) fn medium(&self) -> Content {
        self.state.lock().content.clone()
    }

    fn use_bus(&self, state: &mut State, len: u64) -> Time {
        let now = self.env.now().as_nanos();
        let start = if now < state.bus_free_at + GRAIN { state.bus_free_at } else { now };
        state.bus_free_at = start + bus_time(&self.spec, len);
        Time::from_nanos(state.bus_free_at)
    }

    fn no_power(&self, operation: device::Operation) -> DeviceError {
        DeviceError::io(&self.name, operation, std::io::Error::other("the power was cut"))
    }
}

/// Writes the whole sectors among the first `passed` bytes of `data`.
fn write_part(content: &mut Content, offset: u64, data: &[Bytes], passed: u64, sector: u32) {
    let mut left = passed - passed % u64::from(sector.max(1));
    let mut at = offset;
    for buffer in data {
        let take = left.min(buffer.len() as u64);
        content.write(at, &buffer[..take as usize]);
        at += take;
        left -= take;
    }
}
