//! Contents of files in memory, as a store of objects keeps them: durable as soon as a change has ended.
//!
//! Changes are recorded in the order of a [`Recorder`]'s events, so that a crash of its devices finds the contents as
//! they were then: changes that had ended are there, and of those under way any part.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_fs::contents::{Contents, Space, Stored};
use thalweg_fs::{Action, Failure, FsError, Ino};

use crate::recording::Recorder;

/// Bytes of an object.
pub const STRIPE: u64 = 16 << 10;

/// An object: a file and a number.
type Key = (Ino, u64);

/// A change of one object.
#[derive(Clone, Debug)]
enum ObjectChange {
    /// In their order, each a place and bytes.
    Writes(Vec<(usize, Bytes)>),
    Zero(Range<usize>),
    Cut(usize),
    Remove,
}

#[derive(Clone, Debug)]
struct Logged {
    key: Key,
    change: ObjectChange,
    /// The events before it began, and before it ended.
    begun: usize,
    ended: Option<usize>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<Key, Vec<u8>>,
    log: Vec<Logged>,
    changes: u64,
    is_broken: bool,
}

/// Why a call failed that was made to fail.
#[derive(Debug, thiserror::Error)]
#[error("the contents cannot be reached")]
struct Unreachable;

/// Contents in memory.
pub struct SimContents {
    env: Env,
    recorder: Option<Recorder>,
    latency: Duration,
    rng: Mutex<Rng>,
    state: Mutex<State>,
}

impl std::fmt::Debug for SimContents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimContents").finish_non_exhaustive()
    }
}

fn apply(objects: &mut BTreeMap<Key, Vec<u8>>, key: Key, change: &ObjectChange) {
    match change {
        ObjectChange::Writes(writes) => {
            let object = objects.entry(key).or_default();
            for (at, data) in writes {
                object.resize(object.len().max(at + data.len()), 0);
                object[*at..at + data.len()].copy_from_slice(data);
            }
        }
        ObjectChange::Zero(range) => {
            if let Some(object) = objects.get_mut(&key) {
                let end = range.end.min(object.len());
                object[range.start.min(end)..end].fill(0);
            }
        }
        ObjectChange::Cut(size) => {
            if let Some(object) = objects.get_mut(&key) {
                object.truncate(*size);
            }
        }
        ObjectChange::Remove => drop(objects.remove(&key)),
    }
}

/// The parts of a range on objects: the number, and the range in it.
fn parts(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let first = range.start / STRIPE;
    (first..range.end.div_ceil(STRIPE)).map(move |number| {
        let base = number * STRIPE;
        let inside = range.start.max(base) - base..range.end.min(base + STRIPE) - base;
        (number, inside.start as usize..inside.end as usize)
    })
}

impl SimContents {
    /// Without contents. Changes take no time.
    pub fn new(env: &Env) -> Arc<SimContents> {
        SimContents::with(env, None, Duration::ZERO, BTreeMap::new())
    }

    /// Without contents, recorded among the events of `recorder`. Changes take at most `latency`.
    pub fn recorded(env: &Env, recorder: &Recorder, latency: Duration) -> Arc<SimContents> {
        SimContents::with(env, Some(recorder.clone()), latency, BTreeMap::new())
    }

    fn with(
        env: &Env,
        recorder: Option<Recorder>,
        latency: Duration,
        objects: BTreeMap<Key, Vec<u8>>,
    ) -> Arc<SimContents> {
        let state = Mutex::new(State { objects, ..State::default() });
        let rng = Mutex::new(env.rng());
        Arc::new(SimContents { env: env.clone(), recorder, latency, rng, state })
    }

    /// The contents as a crash after `point` events leaves them.
    pub fn after_crash(&self, point: usize, rng: &mut Rng) -> Arc<SimContents> {
        let mut objects = BTreeMap::new();
        for logged in &self.state.lock().log {
            let is_there = match logged.ended {
                _ if logged.begun > point => false,
                Some(ended) if ended <= point => true,
                _ => rng.random(),
            };
            if is_there {
                apply(&mut objects, logged.key, &logged.change);
            }
        }
        SimContents::with(&self.env, None, Duration::ZERO, objects)
    }

    /// A copy, recorded among the events of `recorder` from now on.
    pub fn recorded_copy(&self, recorder: &Recorder, latency: Duration) -> Arc<SimContents> {
        let objects = self.state.lock().objects.clone();
        let copy = SimContents::with(&self.env, Some(recorder.clone()), latency, BTreeMap::new());
        {
            let mut state = copy.state.lock();
            for (key, data) in &objects {
                let change = ObjectChange::Writes(vec![(0, data.clone().into())]);
                state.log.push(Logged { key: *key, change, begun: 0, ended: Some(0) });
            }
            state.objects = objects;
        }
        copy
    }

    /// How many objects were changed so far.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// Has all calls fail from now on, or no longer.
    pub fn set_broken(&self, is_broken: bool) {
        self.state.lock().is_broken = is_broken;
    }

    /// The stored bytes of a file, up to its last object.
    pub fn bytes_of(&self, ino: Ino) -> Vec<u8> {
        let state = self.state.lock();
        let mut bytes = Vec::new();
        for ((_, number), object) in state.objects.range((ino, 0)..=(ino, u64::MAX)) {
            bytes.resize((number * STRIPE) as usize, 0);
            bytes.extend_from_slice(object);
        }
        bytes
    }

    fn check(&self) -> Result<(), FsError> {
        match self.state.lock().is_broken {
            true => Err(FsError::Store(Failure::new(Action::Reconnect, Unreachable))),
            false => Ok(()),
        }
    }

    fn position(&self) -> usize {
        self.recorder.as_ref().map_or(0, Recorder::position)
    }

    async fn change(&self, key: Key, change: ObjectChange) -> Result<(), FsError> {
        self.check()?;
        let begun = self.position();
        let at = {
            let mut state = self.state.lock();
            state.changes += 1;
            if self.recorder.is_some() {
                state.log.push(Logged { key, change: change.clone(), begun, ended: None });
            }
            state.log.len()
        };
        if !self.latency.is_zero() {
            let span = self.latency.mul_f64(self.rng.lock().random());
            self.env.sleep(span).await;
        }
        let ended = self.position();
        let mut state = self.state.lock();
        apply(&mut state.objects, key, &change);
        if let Some(logged) = at.checked_sub(1).and_then(|at| state.log.get_mut(at)) {
            logged.ended = Some(ended);
        }
        Ok(())
    }
}

#[async_trait]
impl Contents for SimContents {
    fn name(&self) -> String {
        "contents in memory".to_owned()
    }

    fn unit(&self) -> u64 {
        STRIPE
    }

    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Bytes, FsError> {
        self.check()?;
        let mut bytes = vec![0; len];
        let state = self.state.lock();
        for (number, range) in parts(offset..offset + len as u64) {
            let Some(object) = state.objects.get(&(ino, number)) else { continue };
            let start = (number * STRIPE + range.start as u64 - offset) as usize;
            let end = range.end.min(object.len());
            if range.start < end {
                let some = &object[range.start..end];
                bytes[start..start + some.len()].copy_from_slice(some);
            }
        }
        Ok(bytes.into())
    }

    async fn write(&self, ino: Ino, offset: u64, data: &[Bytes]) -> Result<(), FsError> {
        let mut data = Bytes::from(data.concat());
        for (number, range) in parts(offset..offset + data.len() as u64) {
            let change = ObjectChange::Writes(vec![(range.start, data.split_to(range.len()))]);
            self.change((ino, number), change).await?;
        }
        Ok(())
    }

    async fn write_all(
        &self,
        ino: Ino,
        writes: &[(u64, Vec<Bytes>)],
        _absent_from: u64,
    ) -> Result<(), FsError> {
        let mut objects = BTreeMap::<u64, Vec<(usize, Bytes)>>::new();
        for (offset, data) in writes {
            let mut data = Bytes::from(data.concat());
            for (number, range) in parts(*offset..offset + data.len() as u64) {
                let write = (range.start, data.split_to(range.len()));
                objects.entry(number).or_default().push(write);
            }
        }
        let changes = objects
            .into_iter()
            .map(|(number, writes)| self.change((ino, number), ObjectChange::Writes(writes)));
        try_join_all(changes).await.map(drop)
    }

    async fn zero(&self, ino: Ino, range: Range<u64>) -> Result<(), FsError> {
        for (number, range) in parts(range) {
            let change = match range.len() as u64 == STRIPE {
                true => ObjectChange::Remove,
                false => ObjectChange::Zero(range),
            };
            self.change((ino, number), change).await?;
        }
        Ok(())
    }

    async fn truncate(&self, ino: Ino, end: u64, size: u64) -> Result<(), FsError> {
        for (number, range) in parts(size..end.max(size)) {
            let change = match range.start {
                0 => ObjectChange::Remove,
                size => ObjectChange::Cut(size),
            };
            self.change((ino, number), change).await?;
        }
        Ok(())
    }

    async fn list(&self) -> Result<BTreeMap<Ino, Stored>, FsError> {
        self.check()?;
        let mut files = BTreeMap::<Ino, Stored>::new();
        for (ino, number) in self.state.lock().objects.keys() {
            let stored = files.entry(*ino).or_default();
            stored.objects += 1;
            (stored.last, stored.end) = (number * STRIPE, (number + 1) * STRIPE);
        }
        Ok(files)
    }

    async fn settle(&self) -> Result<(), FsError> {
        self.check()
    }

    async fn space(&self) -> Result<Option<Space>, FsError> {
        Ok(Some(Space { size: 1 << 40, free: 1 << 39 }))
    }

    fn location(&self) -> Option<Bytes> {
        Some(Bytes::from_static(b"memory"))
    }

    async fn address(&self) -> Result<String, FsError> {
        Ok("the server".to_owned())
    }

    async fn shut_out(&self, _address: &str) -> Result<(), FsError> {
        Ok(())
    }
}
