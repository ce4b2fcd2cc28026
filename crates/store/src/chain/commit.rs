//! Rounds of group commit: data, then the map entries that describe it.
//!
//! A round covers everything appended when it began. It begins when the previous round has written its data
//! and map entries, and writes while that one flushes; a third round waits until the first has ended. Rounds
//! end in order. Callers of `sync` that arrive meanwhile share the next round. A round is a future that its
//! callers drive together: a lone caller pays for no task switch, and a caller that gives up leaves the round
//! to the others. The commit timer drives rounds that every caller gave up.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, join_all, try_join, try_join_all};
use thalweg_env::Time;
use tokio::sync::oneshot;

use super::format::Position;
use super::queue::{BATCH_BLOCKS, drain, write_batch};
use super::stages::Stage;
use super::stream::{BODY, Batch, MapWrite, Sealed, USERS};
use super::{Counts, Inner};
use crate::block::{StoreError, Version};
use crate::device::{DeviceRef, Purpose};

/// Maximum blocks in a short round: recovery reads and checks that many.
pub(super) const SHORT_BLOCKS: u32 = 256;

/// A future that several callers wait for, and drive.
type Together<T> = Shared<BoxFuture<'static, Result<T, StoreError>>>;

/// A round: its end, and the point from which the next one may write.
#[derive(Clone)]
struct Round {
    ended: Together<RoundTimes>,
    written: Shared<oneshot::Receiver<()>>,
}

/// The previous round, unless this is the first.
struct Before(Option<Round>);

impl Before {
    async fn written(&self) {
        if let Some(round) = &self.0 {
            // A round that ends without writing drops its sender.
            round.written.clone().await.ok();
        }
    }

    async fn ended(&self) {
        if let Some(round) = &self.0 {
            round.ended.clone().await.ok();
        }
    }
}

/// When the stages of a round ended. A stage that it skipped ends with the stage before.
#[derive(Clone, Copy, Debug, Default)]
struct RoundTimes {
    asked: Time,
    begun: Time,
    data: Time,
    flushed: Time,
    map: Time,
    map_flushed: Time,
}

impl RoundTimes {
    /// The stages of a flush requested at `since`, in microseconds.
    fn stages(&self, since: Time) -> Vec<(&'static str, u64)> {
        let ends = [
            ("earlier_rounds", self.asked),
            (Stage::SyncQueue.name(), self.begun),
            (Stage::RoundData.name(), self.data),
            (Stage::RoundFlush.name(), self.flushed),
            (Stage::RoundMap.name(), self.map),
            (Stage::RoundMapFlush.name(), self.map_flushed),
        ];
        let mut before = since;
        let span = |(name, end): (&'static str, Time)| {
            let micros = end.since(before).as_micros() as u64;
            before = before.max(end);
            (name, micros)
        };
        ends.into_iter().map(span).filter(|(_, micros)| *micros > 0).collect()
    }
}

/// The newest round, and the one that has not begun.
#[derive(Default)]
pub(super) struct Rounds {
    last: Option<Round>,
    waiting: Option<Round>,
    /// For each log, the newest work beside the rounds.
    apart: [Option<Together<()>>; 2],
}

/// See [`crate::block::Blocks::sync`].
pub(super) async fn sync(inner: &Arc<Inner>, version: Version) -> Result<(), StoreError> {
    let is_durable = || inner.committed.load(Ordering::Acquire) >= version.0;
    let since = inner.env.now();
    let mut last = None;
    while !is_durable() {
        last = Some(join_round(inner).await?);
        if !is_durable() && version > inner.state.lock().version {
            return Err(StoreError::Invalid(format!("version {version} does not exist yet")));
        }
    }
    if let Some(round) = last {
        inner.synced(since, || round.stages(since));
    }
    Ok(())
}

/// Joins a round that begins after this call.
async fn join_round(inner: &Arc<Inner>) -> Result<RoundTimes, StoreError> {
    let round = {
        let mut rounds = inner.rounds.lock();
        match &rounds.waiting {
            Some(round) => round.clone(),
            None => {
                let (done, written) = oneshot::channel();
                let before = Before(rounds.last.take());
                let ended = round(inner.clone(), before, done).boxed().shared();
                let round = Round { ended, written: written.shared() };
                rounds.waiting = Some(round.clone());
                rounds.last = Some(round.clone());
                round
            }
        }
    };
    round.ended.await
}

/// Runs a round; signals `done` when the next one may begin.
async fn round(
    inner: Arc<Inner>,
    before: Before,
    done: oneshot::Sender<()>,
) -> Result<RoundTimes, StoreError> {
    let asked = inner.env.now();
    let own = async {
        before.written().await;
        // From here on, new callers need another round.
        inner.rounds.lock().waiting = None;
        let begun = inner.stage(Stage::SyncQueue, asked);
        let mut times = RoundTimes { asked, begun, ..RoundTimes::default() };
        let covered = run(&inner, &before, done, &mut times).await?;
        Ok::<_, StoreError>((covered, times))
    };
    // Every caller of the previous round may have given up: then this round drives it.
    let ((), own) = futures::join!(before.ended(), own);
    let (covered, times) = own?;
    match covered {
        Some(covered) => end(&inner, covered).map(|()| times),
        None => inner.poison_check().map(|()| times),
    }
}

/// Makes the users' log durable for a checkpoint, including blocks without a version. On a volume with a log
/// of compaction, flushes its data first, so that the round's sectors say that it is durable.
pub(super) async fn users(inner: &Arc<Inner>) -> Result<(), StoreError> {
    apart(inner, USERS, flush_ahead(inner.clone())).await?;
    join_round(inner).await.map(drop)
}

/// Makes the log of compaction durable. No user's flush waits for it, because its entries have no order
/// relative to those of the users' log.
pub(super) async fn body(inner: &Arc<Inner>) -> Result<(), StoreError> {
    apart(inner, BODY, commit_body(inner.clone())).await
}

/// Writes the queued blocks of the users' log below `until`.
pub(super) async fn write_out(inner: &Arc<Inner>, until: Position) -> Result<(), StoreError> {
    let writer = inner.clone();
    apart(inner, USERS, async move { drain(&writer, USERS, until).await }).await
}

/// Runs work on a log beside the rounds, in a task of its own that goes on when the caller gives up.
async fn apart(
    inner: &Arc<Inner>,
    log: usize,
    work: impl Future<Output = Result<(), StoreError>> + Send + 'static,
) -> Result<(), StoreError> {
    let work = {
        let mut rounds = inner.rounds.lock();
        let before = rounds.apart[log].take();
        let task = inner.env.spawn(async move {
            if let Some(before) = before {
                before.await.ok();
            }
            work.await
        });
        let closed = || Err(StoreError::Poisoned("the volume was closed".into()));
        let work = task.map(move |ended| ended.unwrap_or_else(closed)).boxed().shared();
        rounds.apart[log] = Some(work.clone());
        work
    };
    work.await
}

/// Makes the data of the users' log durable while rounds go on. The next round then has little left to do, so
/// users' flushes do not wait for everything that a checkpoint appended.
async fn flush_ahead(inner: Arc<Inner>) -> Result<(), StoreError> {
    let part = {
        let mut state = inner.state.lock();
        state.poison_check()?;
        if state.body.is_none() {
            return Ok(());
        }
        state.seal_mini(true)?;
        Part { log: USERS, target: state.users.tail() }
    };
    write_data(&inner, &part).await?;
    // A round may have taken the marks of these writes without having flushed yet. So this flushes every
    // device, and leaves the marks to the round.
    let devices: Vec<DeviceRef> = {
        let state = inner.state.lock();
        let links = state.users.links_of_uncommitted(&state.segments);
        links.into_iter().map(|link| state.segments.links[link].device.clone()).collect()
    };
    flush_links(&inner, devices).await?;
    let users = &mut inner.state.lock().users;
    users.durable = users.durable.max(part.target);
    Ok(())
}

async fn commit_body(inner: Arc<Inner>) -> Result<(), StoreError> {
    let part = {
        let mut state = inner.state.lock();
        state.poison_check()?;
        if state.body.is_none() {
            return Ok(());
        }
        state.reserve(BODY);
        let body = state.stream(BODY);
        if body.is_committed() && !body.is_writing() {
            return Ok(());
        }
        Part { log: BODY, target: body.tail() }
    };
    let since = inner.env.now();
    write_data(&inner, &part).await?;
    let mut times = RoundTimes { data: inner.stage(Stage::RoundData, since), ..Default::default() };
    let sealed = write_entries(&inner, &part, &mut times).await?;
    flush_maps(&inner, &mut times).await?;
    let mut state = inner.state.lock();
    state.poison_check()?;
    state.stream(BODY).commit(&sealed);
    inner.check_roles(&mut state);
    drop(state);
    inner.room.notify_waiters();
    Ok(())
}

/// One log's part in a round.
struct Part {
    log: usize,
    target: Position,
}

/// What a short round writes at once.
struct Short {
    batches: Vec<Batch>,
    sealed: Sealed,
    in_flight: bool,
}

/// What is durable after a round.
struct Covered {
    sealed: Sealed,
    version: Version,
    /// Whether that version is held for readers.
    held: Option<Version>,
}

/// Makes what a round covers durable, provided that the rounds before it succeed; `None` when it has nothing
/// to write and only waited for them.
async fn run(
    inner: &Arc<Inner>,
    before: &Before,
    done: oneshot::Sender<()>,
    times: &mut RoundTimes,
) -> Result<Option<Covered>, StoreError> {
    let Some(Begun { part, version, held, short }) = begin(inner)? else { return Ok(None) };
    Counts::add(&inner.counts.rounds, 1);
    let is_short = short.is_some();
    let sealed = match short {
        Some(short) => write_short(inner, &part, short, times).await?,
        None => {
            let since = inner.env.now();
            write_data(inner, &part).await?;
            // The entries will say that all data before them is durable, including the previous round's.
            before.ended().await;
            times.data = inner.stage(Stage::RoundData, since);
            write_entries(inner, &part, times).await?
        }
    };
    let release = async {
        before.ended().await;
        done.send(()).ok();
        Ok::<_, StoreError>(())
    };
    match is_short {
        true => try_join(flush_short(inner, &part, times), release).await?,
        false => try_join(flush_maps(inner, times), release).await?,
    };
    Ok(Some(Covered { sealed, version, held }))
}

/// Records that everything a round covers is durable.
fn end(inner: &Inner, covered: Covered) -> Result<(), StoreError> {
    let mut state = inner.state.lock();
    state.poison_check()?;
    let users = &mut state.users;
    users.durable = users.durable.max(covered.sealed.until);
    users.commit(&covered.sealed);
    state.committed = state.committed.max(covered.version);
    inner.committed.store(state.committed.0, Ordering::Release);
    if let Some(tap) = &state.tap {
        tap.durable(state.committed);
    }
    state.keep_synced(covered.held);
    inner.check_roles(&mut state);
    drop(state);
    inner.room.notify_waiters();
    Ok(())
}

/// What a round covers, fixed when it begins.
struct Begun {
    part: Part,
    version: Version,
    held: Option<Version>,
    /// The writes of a short round.
    short: Option<Short>,
}

/// Fixes what a round covers, and takes its blocks if it is short; `None` when earlier rounds have taken
/// everything.
fn begin(inner: &Inner) -> Result<Option<Begun>, StoreError> {
    let mut state = inner.state.lock();
    state.poison_check()?;
    state.seal_mini(true)?;
    if state.users.is_sealed() {
        return Ok(None);
    }
    let (version, held) = (state.version, state.hold_round());
    state.reserve(USERS);
    let users = &mut state.users;
    let part = Part { log: USERS, target: users.tail() };
    if users.window() > SHORT_BLOCKS {
        return Ok(Some(Begun { part, version, held, short: None }));
    }
    let mut batches = Vec::new();
    while let Some(batch) = users.take_batch(part.target, BATCH_BLOCKS) {
        batches.push(batch);
    }
    // Whether blocks before these are still being written by another task.
    let in_flight = users.written() < batches.first().map_or(part.target, |batch| batch.start);
    let sealed = users.seal(part.target, inner.map_unit, part.target);
    let short = Some(Short { batches, sealed, in_flight });
    Ok(Some(Begun { part, version, held, short }))
}

/// Writes data and map at once.
async fn write_short(
    inner: &Arc<Inner>,
    part: &Part,
    mut short: Short,
    times: &mut RoundTimes,
) -> Result<Sealed, StoreError> {
    Counts::add(&inner.counts.short_rounds, 1);
    let since = inner.env.now();
    let data = join_all(short.batches.into_iter().map(|batch| write_batch(inner, batch)));
    let map = write_maps(inner, std::mem::take(&mut short.sealed.writes));
    let (data, map) = futures::join!(data, map);
    data.into_iter().collect::<Result<(), _>>()?;
    map?;
    if short.in_flight {
        wait_written(inner, part).await?;
    }
    times.data = inner.stage(Stage::RoundData, since);
    Ok(short.sealed)
}

/// One flush for each device covers both data and map entries.
async fn flush_short(inner: &Inner, part: &Part, times: &mut RoundTimes) -> Result<(), StoreError> {
    let devices = take_unflushed(inner, part);
    let covered = devices.iter().any(|(_, covers_map)| *covers_map);
    let data = flush_links(inner, devices.into_iter().map(|(device, _)| device));
    match covered {
        true => data.await?,
        false => try_join(data, flush_map(inner)).await.map(drop)?,
    }
    times.flushed = inner.stage(Stage::RoundFlush, times.data);
    Ok(())
}

/// Writes the data of a long round.
async fn write_data(inner: &Arc<Inner>, part: &Part) -> Result<(), StoreError> {
    drain(inner, part.log, part.target).await?;
    wait_written(inner, part).await
}

/// Flushes the data of a long round and writes its map entries; the final flush is the caller's. Recovery then
/// has no blocks to check.
async fn write_entries(
    inner: &Inner,
    part: &Part,
    times: &mut RoundTimes,
) -> Result<Sealed, StoreError> {
    let devices = take_unflushed(inner, part).into_iter();
    flush_links(inner, devices.map(|(device, _)| device)).await?;
    times.flushed = inner.stage(Stage::RoundFlush, times.data);
    let mut sealed = {
        let mut state = inner.state.lock();
        let users = state.users.committed;
        let stream = state.stream(part.log);
        stream.durable = stream.durable.max(part.target);
        stream.seal(part.target, inner.map_unit, users)
    };
    write_maps(inner, std::mem::take(&mut sealed.writes)).await?;
    times.map = inner.stage(Stage::RoundMap, times.flushed);
    Ok(sealed)
}

/// The flush that ends a long round.
async fn flush_maps(inner: &Inner, times: &mut RoundTimes) -> Result<(), StoreError> {
    flush_map(inner).await?;
    times.map_flushed = inner.stage(Stage::RoundMapFlush, times.map);
    Ok(())
}

/// Waits until every block below the part's target has reached its device.
async fn wait_written(inner: &Inner, part: &Part) -> Result<(), StoreError> {
    loop {
        let written = inner.written.notified();
        {
            let mut state = inner.state.lock();
            state.poison_check()?;
            if state.stream(part.log).written() >= part.target {
                return Ok(());
            }
        }
        written.await;
    }
}

/// Takes the devices with writes that no flush has covered, and whether each holds the map too.
fn take_unflushed(inner: &Inner, part: &Part) -> Vec<(DeviceRef, bool)> {
    let mut state = inner.state.lock();
    let links = std::mem::take(&mut state.stream(part.log).unflushed);
    let links = links.into_iter().filter_map(|link| state.segments.links.get(link));
    links.map(|link| (link.device.clone(), inner.map_link == Some(link.id))).collect()
}

async fn flush_links(
    inner: &Inner,
    devices: impl IntoIterator<Item = DeviceRef>,
) -> Result<(), StoreError> {
    let devices: Vec<DeviceRef> = devices.into_iter().collect();
    let flushes = devices.iter().map(|device| device.flush(Purpose::UserData));
    try_join_all(flushes).await.map_err(|error| inner.fail(error))?;
    Ok(())
}

async fn flush_map(inner: &Inner) -> Result<(), StoreError> {
    inner.map.flush(Purpose::Map).await.map_err(|error| inner.fail(error))
}

async fn write_maps(inner: &Inner, maps: Vec<MapWrite>) -> Result<(), StoreError> {
    let writes = maps.into_iter().map(|map| {
        let offset = inner.layout.map_of(map.segment) + map.offset;
        inner.map.write(offset, vec![map.bytes], Purpose::Map)
    });
    try_join_all(writes).await.map_err(|error| inner.fail(error))?;
    Ok(())
}

/// Makes writes durable that no caller syncs.
pub(super) async fn run_timer(inner: Arc<Inner>) {
    loop {
        inner.env.sleep(inner.options.commit_interval).await;
        let version = inner.state.lock().version;
        if let Err(error) = sync(&inner, version).await {
            tracing::warn!(volume = %inner.volume, %error, "the commit timer stops");
            return;
        }
    }
}
