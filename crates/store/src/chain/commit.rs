//! Rounds of group commit: data, then the map entries that tell of it.
//!
//! A round covers what was appended when it began. Callers of `sync` that come while one runs share
//! the next. A round is a future that its callers drive together, so a lone caller pays for no
//! change of task, and a caller that gives up leaves the round to the others; the commit timer
//! drives what everybody gave up.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, join_all, try_join, try_join_all};

use super::format::Position;
use super::stream::{BODY, Batch, MapWrite, USERS};
use super::write::{drain, write_batch};
use super::{Counts, Inner};
use crate::block::{StoreError, Version};
use crate::device::{DeviceRef, Purpose};

/// Blocks that a short round may leave for recovery to check: it reads as many.
pub(super) const SHORT_BLOCKS: u32 = 64;

type Round = Shared<BoxFuture<'static, Result<(), StoreError>>>;

/// The newest round, and the one that has not begun.
#[derive(Default)]
pub(super) struct Rounds {
    last: Option<Round>,
    waiting: Option<Round>,
}

/// Which logs a round covers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Users,
    Everything,
}

/// See [`crate::block::BlockStore::sync`].
pub(super) async fn sync(inner: &Arc<Inner>, version: Version) -> Result<(), StoreError> {
    let is_durable = || inner.committed.load(Ordering::Acquire) >= version.0;
    while !is_durable() {
        join_round(inner).await?;
        if !is_durable() && version > inner.state.lock().version {
            return Err(StoreError::Invalid(format!("version {version} does not exist yet")));
        }
    }
    Ok(())
}

/// Takes part in a round that begins after this call.
async fn join_round(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let round = {
        let mut rounds = inner.rounds.lock();
        match &rounds.waiting {
            Some(round) => round.clone(),
            None => {
                let before = rounds.last.take();
                let inner = inner.clone();
                let round = async move {
                    if let Some(before) = before {
                        before.await.ok();
                    }
                    // From here on, newcomers need a round of their own.
                    inner.rounds.lock().waiting = None;
                    run(&inner, Scope::Users).await
                };
                let round = round.boxed().shared();
                rounds.waiting = Some(round.clone());
                rounds.last = Some(round.clone());
                round
            }
        }
    };
    round.await
}

/// Makes everything durable, the log of compaction included.
pub(super) async fn everything(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let round = {
        let mut rounds = inner.rounds.lock();
        let before = rounds.last.take();
        let inner = inner.clone();
        let round = async move {
            if let Some(before) = before {
                before.await.ok();
            }
            run(&inner, Scope::Everything).await
        };
        let round = round.boxed().shared();
        rounds.last = Some(round.clone());
        round
    };
    round.await
}

/// One log's part in a round.
struct Part {
    log: usize,
    target: Position,
}

/// What a short round writes at once.
struct Short {
    batches: Vec<Batch>,
    maps: Vec<MapWrite>,
    in_flight: bool,
}

async fn run(inner: &Arc<Inner>, scope: Scope) -> Result<(), StoreError> {
    let Some(Begun { parts, version, held, short }) = begin(inner, scope)? else { return Ok(()) };
    Counts::add(&inner.counts.rounds, 1);
    match short {
        Some(short) => run_short(inner, &parts[0], short).await?,
        None => run_long(inner, &parts).await?,
    }
    let mut state = inner.state.lock();
    state.poison_check()?;
    for part in &parts {
        let stream = state.stream(part.log);
        stream.durable = stream.durable.max(part.target);
        stream.commit(part.target);
    }
    state.committed = state.committed.max(version);
    inner.committed.store(state.committed.0, Ordering::Release);
    state.keep_synced(held);
    inner.check_roles(&mut state);
    drop(state);
    inner.room.notify_waiters();
    Ok(())
}

/// What a round covers.
struct Begun {
    parts: Vec<Part>,
    /// What is durable after it, and whether that is held for readers.
    version: Version,
    held: Option<Version>,
    /// What it writes, if it is short.
    short: Option<Short>,
}

/// Fixes what a round covers, and takes it if it is short; `None` when the round before it has made
/// everything durable that it would.
fn begin(inner: &Inner, scope: Scope) -> Result<Option<Begun>, StoreError> {
    let mut state = inner.state.lock();
    state.poison_check()?;
    state.seal_mini(true)?;
    let idle = state.committed == state.version && state.users.is_committed();
    if scope == Scope::Users && idle {
        return Ok(None);
    }
    let (version, held) = (state.version, state.hold_round());
    state.reserve(USERS);
    let mut parts = vec![Part { log: USERS, target: state.users.tail() }];
    if scope == Scope::Everything && state.body.is_some() {
        state.reserve(BODY);
        parts.push(Part { log: BODY, target: state.stream(BODY).tail() });
    }
    let users = &mut state.users;
    if parts.len() > 1 || users.window() > SHORT_BLOCKS {
        return Ok(Some(Begun { parts, version, held, short: None }));
    }
    let target = parts[0].target;
    let mut batches = Vec::new();
    while let Some(batch) = users.take_batch(target, super::write::BATCH_BLOCKS) {
        batches.push(batch);
    }
    // Blocks that somebody else is writing come before those taken here.
    let in_flight = users.written() < batches.first().map_or(target, |batch| batch.start);
    let maps = users.map_writes(target, inner.map_unit, target);
    let short = Some(Short { batches, maps, in_flight });
    Ok(Some(Begun { parts, version, held, short }))
}

/// Data and map at once, then one flush for each device.
async fn run_short(inner: &Arc<Inner>, part: &Part, short: Short) -> Result<(), StoreError> {
    Counts::add(&inner.counts.short_rounds, 1);
    let data = join_all(short.batches.into_iter().map(|batch| write_batch(inner, batch)));
    let map = write_maps(inner, short.maps);
    let (data, map) = futures::join!(data, map);
    data.into_iter().collect::<Result<(), _>>()?;
    map?;
    if short.in_flight {
        wait_written(inner, part).await?;
    }
    let devices = take_unflushed(inner, std::slice::from_ref(part));
    let covered = devices.iter().any(|(_, covers_map)| *covers_map);
    let data = flush_links(inner, devices);
    match covered {
        true => data.await,
        false => try_join(data, flush_map(inner)).await.map(|_| ()),
    }
}

/// Data, flush, map, flush: recovery then has nothing to check.
async fn run_long(inner: &Arc<Inner>, parts: &[Part]) -> Result<(), StoreError> {
    try_join_all(parts.iter().map(|part| async move {
        drain(inner, part.log, part.target).await?;
        wait_written(inner, part).await
    }))
    .await?;
    flush_links(inner, take_unflushed(inner, parts)).await?;
    let maps = {
        let mut state = inner.state.lock();
        let mut maps = Vec::new();
        let users = state.users.committed;
        for part in parts {
            let stream = state.stream(part.log);
            stream.durable = stream.durable.max(part.target);
            maps.extend(stream.map_writes(part.target, inner.map_unit, users));
        }
        maps
    };
    write_maps(inner, maps).await?;
    flush_map(inner).await
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

/// The devices with writes that no flush has covered, and whether each holds the map too.
fn take_unflushed(inner: &Inner, parts: &[Part]) -> Vec<(DeviceRef, bool)> {
    let mut state = inner.state.lock();
    let mut links = std::collections::BTreeSet::new();
    for part in parts {
        links.append(&mut state.stream(part.log).unflushed);
    }
    let links = links.into_iter().filter_map(|link| state.segments.links.get(link));
    links.map(|link| (link.device.clone(), inner.map_link == Some(link.id))).collect()
}

async fn flush_links(inner: &Inner, devices: Vec<(DeviceRef, bool)>) -> Result<(), StoreError> {
    let flushes = devices.iter().map(|(device, _)| device.flush(Purpose::UserData));
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

/// Makes durable what nobody asks for.
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
