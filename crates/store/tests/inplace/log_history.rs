//! A log that is opened with its records kept, again and again, with a crash between.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::RngExt;
use rand::seq::{IndexedRandom, IteratorRandom};
use thalweg_env::{Env, Rng};
use thalweg_sim::campaign;
use thalweg_sim::crash::{CrashImage, Policy};
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::device::DeviceRef;
use thalweg_store::journal::format::RING;
use thalweg_store::journal::log::{Log, LogRecord, RecordPlace};
use thalweg_store::journal::{End, JournalError};

use crate::journal_support::{bytes, scribble_at};
use crate::log_keep::{GEOMETRY, created, is_same, open};

/// What is known of a log at some moment.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// Records before it are durable.
    durable: u64,
    /// Records before it were forgotten for good.
    forgotten: u64,
    /// Records before it may be gone.
    released: u64,
    /// Records before it were kept by the last opening.
    kept: u64,
}

/// A log with its history, as its user knows it.
struct History {
    recorder: Recorder,
    records: BTreeMap<u64, LogRecord>,
    places: BTreeMap<u64, RecordPlace>,
    moments: Vec<Moment>,
    stamp: u64,
}

impl History {
    fn now(&self) -> Moment {
        *self.moments.last().unwrap()
    }

    /// What holds from here on, for crashes that come later.
    fn note(&mut self, moment: Moment) {
        self.moments.push(moment);
        self.recorder.mark(self.moments.len() as u64 - 1);
    }

    fn record(&mut self, rng: &mut Rng) -> LogRecord {
        self.stamp += 1;
        let len = *[100, 400, 400, 400, 3000, 30_000].choose(rng).unwrap();
        let header = self.stamp.to_le_bytes().to_vec();
        LogRecord { stamp: self.stamp, header, body: vec![bytes(rng, len)], blocks: Vec::new() }
    }

    /// Opens the log for appends.
    async fn open(&mut self, env: &Env, device: &DeviceRef, rng: &mut Rng) -> Log {
        let (opened, scanned) = open(env, device).await;
        self.places = scanned.records.iter().map(|it| (it.sequence, it.place())).collect();
        if rng.random_bool(0.8) {
            let log = opened.keep(2).await.unwrap();
            self.note(Moment { kept: log.next_sequence(), ..self.now() });
            return log;
        }
        let next = opened.note().first;
        self.note(Moment { released: next, ..self.now() });
        let log = opened.begin(2).await.unwrap();
        self.note(Moment { forgotten: next, kept: next, ..self.now() });
        log
    }

    /// Appends two records at once.
    async fn append(&mut self, log: &Log, rng: &mut Rng) {
        let records = [self.record(rng), self.record(rng)];
        let [one, two] = &records;
        let (one, two) = futures::future::join(log.append(one), log.append(two)).await;
        let mut is_full = false;
        for (appended, record) in [one, two].into_iter().zip(records) {
            match appended {
                Ok(appended) => {
                    let place = appended.place;
                    assert_eq!(place.sequence, appended.sequence);
                    self.records.insert(appended.sequence, record);
                    self.places.insert(appended.sequence, place);
                }
                Err(JournalError::Full { .. }) => is_full = true,
                Err(error) => panic!("{error}"),
            }
        }
        self.note(Moment { durable: log.next_sequence(), ..self.now() });
        if is_full {
            let half = u64::midpoint(self.now().released, log.next_sequence());
            self.release(log, half + 1);
        }
    }

    fn release(&mut self, log: &Log, before: u64) {
        let released = before.min(log.next_sequence()).max(self.now().released);
        self.note(Moment { released, ..self.now() });
        log.release(released);
    }

    async fn step(&mut self, log: &Log, rng: &mut Rng) {
        let next = log.next_sequence();
        match rng.random_range(0..20) {
            0..12 => self.append(log, rng).await,
            12..14 => {
                let before = rng.random_range(self.now().released..=next);
                self.release(log, before);
            }
            14 => {
                log.forget().await.unwrap();
                self.note(Moment { forgotten: self.now().released, ..self.now() });
            }
            15 => {
                self.note(Moment { released: next, ..self.now() });
                log.clear().await.unwrap();
                self.note(Moment { forgotten: next, kept: next, ..self.now() });
            }
            _ => {
                let Some((sequence, place)) = self.places.iter().choose(rng) else { return };
                match log.read(*place).await {
                    Ok(found) => assert!(is_same(&found, &self.records[sequence])),
                    Err(JournalError::Released { .. }) => {
                        assert!(*sequence < self.now().released);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    /// Checks what a crash has left, with and without damage; returns the records that are there.
    async fn check(&self, env: &Env, image: &CrashImage, rng: &mut Rng) -> Vec<u64> {
        let device = &image.devices[0];
        let moment = self.moments[image.acknowledged().next().unwrap_or(0) as usize];
        let (opened, scanned) = open(env, device).await;
        let what = format!("{moment:?}, {:?}: {}", scanned.end, image.describe());
        assert!(!matches!(scanned.end, End::Rotten { .. }), "{what}");
        let next = opened.note().first;
        let first = next - scanned.records.len() as u64;
        assert!(next >= moment.durable, "up to {next} of {what}");
        assert!(first >= moment.forgotten, "from {first} of {what}");
        // One that was released while the crash came is behind the moment's.
        let released = self.moments.iter().map(|it| it.released).max().unwrap();
        assert!(first <= released.max(moment.released), "from {first} of {what}");
        for (sequence, found) in (first..).zip(&scanned.records) {
            assert_eq!(found.sequence, sequence);
            assert!(is_same(found, &self.records[&sequence]), "record {sequence} of {what}");
            assert!(is_same(&opened.read(found.place()).await.unwrap(), &self.records[&sequence]));
        }
        if let Some(victim) = scanned.records.iter().choose(rng) {
            let ring = (GEOMETRY.size - RING) / 512 * 512;
            let at = RING + victim.offset % ring + 44;
            scribble_at(device, at, 4).await;
            let error = opened.read(victim.place()).await.unwrap_err();
            assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
            let (damaged, found) = open(env, device).await;
            assert_eq!(found.records.len() as u64, victim.sequence - first, "{what}");
            if victim.sequence < moment.kept {
                let is_said = matches!(found.end, End::Rotten { sequence, .. } if sequence == victim.sequence);
                assert!(is_said, "record {}: {:?} of {what}", victim.sequence, found.end);
                assert!(matches!(damaged.keep(2).await, Err(JournalError::Rotten { .. })));
            }
            scribble_at(device, at, 4).await;
        }
        (first..next).collect()
    }
}

/// Several openings after crashes, each of which goes on from what one crash has left.
fn history(seed: u64) {
    run(seed, |env| async move {
        let mut rng = env.rng();
        let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
        let mut device = recorder.device("log", GEOMETRY);
        drop(created(&env, &device, 2).await);
        let start = Moment { durable: 1, forgotten: 1, released: 1, kept: 1 };
        let (records, places) = Default::default();
        let mut history = History { recorder, records, places, moments: vec![start], stamp: 0 };
        for _ in 0..8 {
            let begun = history.recorder.position();
            let log = history.open(&env, &device, &mut rng).await;
            for _ in 0..rng.random_range(0..14) {
                history.step(&log, &mut rng).await;
            }
            drop(log);
            let mut images = history.recorder.images(&mut rng, &Policy::sampled(8));
            let mut left = Vec::new();
            for image in images.by_ref().filter(|image| image.point() >= begun) {
                let sequences = history.check(&env, &image, &mut rng).await;
                left.push((image, sequences));
            }
            let Some((image, sequences)) = left.into_iter().choose(&mut rng) else { continue };
            let (next, first) = (sequences.last().map(|it| it + 1), sequences.first().copied());
            let next = match next {
                Some(next) => next,
                None => open(&env, &image.devices[0]).await.0.note().first,
            };
            let first = first.unwrap_or(next);
            history.records.retain(|sequence, _| sequences.contains(sequence));
            let latency = Duration::from_micros(300);
            let (recorder, devices) = Recorder::from_image(&env, latency, &image);
            history.recorder = recorder;
            device = devices[0].clone();
            history.moments =
                vec![Moment { durable: next, forgotten: first, released: first, kept: 1 }];
        }
    });
}

#[test]
fn crashes_between_openings_that_keep_leave_what_was_appended() {
    for seed in campaign::seeds(40) {
        history(seed);
    }
}
