//! Counts of calls, for an administrator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use thalweg_store::latency::{Histogram, Latency};

/// Counts of a server, since it started.
#[derive(Debug, Default)]
pub(super) struct Counters {
    kinds: RwLock<BTreeMap<&'static str, Arc<KindCounters>>>,
    /// Sessions that the server has ended.
    pub(super) evictions: AtomicU64,
    /// Changes that clients had made by themselves, and that were refused.
    pub(super) refused: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    /// Recalls that were sent to clients.
    pub(super) recalls_sent: AtomicU64,
    /// Clients' answers to these.
    pub(super) recalls_answered: AtomicU64,
    /// Clients that were evicted because they did not answer one.
    pub(super) recalls_timed_out: AtomicU64,
}

/// An open connection, until it is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection<'a>(&'a Counters);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct KindCounters {
    failed: AtomicU64,
    latency: Histogram,
}

/// Counts of one session: its calls, and the bytes of their payloads.
#[derive(Debug, Default)]
pub(super) struct SessionCounters {
    pub(super) calls: AtomicU64,
    /// Batches of mutations that were applied.
    pub(super) batches: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
}

/// The calls of one kind, since the server started.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct CallCounts {
    /// The kind.
    pub call: &'static str,
    /// How many were answered with an error.
    pub failed: u64,
    /// From their arrival to their answers; a wait for a lock or another client is part of that.
    #[serde(flatten)]
    pub latency: Latency,
    /// For each of [`Histogram::bounds`], how many took less.
    #[serde(skip)]
    pub cumulative: Vec<(u64, u64)>,
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

pub(super) fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Counters {
    pub(super) fn connected(&self) -> OpenConnection<'_> {
        add(&self.connections, 1);
        OpenConnection(self)
    }

    pub(super) fn answered(&self, kind: &'static str, took: Duration, failed: bool) {
        let counters = self.kind(kind);
        counters.latency.add(took);
        add(&counters.failed, u64::from(failed));
    }

    fn kind(&self, kind: &'static str) -> Arc<KindCounters> {
        if let Some(found) = self.kinds.read().get(kind) {
            return found.clone();
        }
        self.kinds.write().entry(kind).or_default().clone()
    }

    pub(super) fn calls(&self) -> Vec<CallCounts> {
        let kinds = self.kinds.read();
        let count = |(call, counters): (&&'static str, &Arc<KindCounters>)| CallCounts {
            call,
            failed: value(&counters.failed),
            latency: counters.latency.latency(),
            cumulative: counters.latency.cumulative(),
        };
        kinds.iter().map(count).collect()
    }
}
