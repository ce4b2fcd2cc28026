//! Metrics of what needs attention, and of replicas.

use metrics::{Unit, describe_gauge, gauge};
use thalweg_replica::ReplicaStatus;

use crate::attention::{Cause, Followers, Upstream};
use crate::volume::numbers::{Numbers, StoreNumbers};

pub(super) fn describe() {
    let gauges = [
        ("thalweg_degraded", Unit::Count, "1 when something needs attention, by its cause"),
        ("thalweg_replica_followers", Unit::Count, "Replicas that are connected to this primary"),
        (
            "thalweg_replica_followers_lost",
            Unit::Count,
            "Replicas that were connected to this primary, and are not now",
        ),
        (
            "thalweg_replica_follower_behind_versions",
            Unit::Count,
            "Versions that a replica has not made durable",
        ),
        (
            "thalweg_replica_follower_behind_bytes",
            Unit::Bytes,
            "Bytes that these versions change, NaN if not known",
        ),
        (
            "thalweg_replica_follower_behind_seconds",
            Unit::Seconds,
            "Age of a replica's durable state, NaN if not known",
        ),
        ("thalweg_replica_ack_needed", Unit::Count, "Replicas that each flush waits for"),
        ("thalweg_replica_ack_connected", Unit::Count, "Replicas that can acknowledge flushes"),
        ("thalweg_replica_flushes_waiting", Unit::Count, "Flushes that wait for replicas"),
        ("thalweg_replica_connected", Unit::Count, "1 when this replica follows its primary"),
        ("thalweg_replica_copying", Unit::Count, "1 while this replica gets a copy"),
        (
            "thalweg_replica_behind_versions",
            Unit::Count,
            "Versions that this replica lacks, NaN if not known",
        ),
        (
            "thalweg_replica_behind_bytes",
            Unit::Bytes,
            "Bytes that these versions change, NaN if not known",
        ),
        (
            "thalweg_replica_behind_seconds",
            Unit::Seconds,
            "Age of this replica's state, NaN if not known",
        ),
    ];
    for (name, unit, about) in gauges {
        describe_gauge!(name, unit, about);
    }
}

pub(super) fn record(numbers: &Numbers) {
    let name = &numbers.name;
    for cause in Cause::ALL {
        let is_so = numbers.attention.iter().any(|it| it.cause == cause);
        let labels = [("volume", name.clone()), ("cause", cause.name().to_owned())];
        gauge!("thalweg_degraded", &labels).set(f64::from(u8::from(is_so)));
    }
    // Only chained volumes have replicas, and each may get one.
    if let StoreNumbers::Chain(_) = numbers.store {
        let none = Followers::default();
        record_followers(name, numbers.followers.as_ref().unwrap_or(&none));
    }
    if let Some(upstream) = &numbers.upstream {
        record_upstream(name, upstream);
    }
}

fn record_followers(name: &str, followers: &Followers) {
    let ack = followers.ack;
    let levels = [
        ("thalweg_replica_followers", followers.connected.len()),
        ("thalweg_replica_followers_lost", followers.lost.len()),
        ("thalweg_replica_ack_needed", ack.map_or(0, |ack| ack.needed)),
        ("thalweg_replica_ack_connected", ack.map_or(0, |ack| ack.connected)),
        ("thalweg_replica_flushes_waiting", ack.map_or(0, |ack| ack.waiting)),
    ];
    for (metric, value) in levels {
        gauge!(metric, "volume" => name.to_owned()).set(value as f64);
    }
    for ReplicaStatus { name: follower, behind_versions, behind_bytes, behind_ms, .. } in
        &followers.connected
    {
        let labels = [("volume", name.to_owned()), ("follower", follower.clone())];
        let behind = [
            ("thalweg_replica_follower_behind_versions", Some(*behind_versions as f64)),
            ("thalweg_replica_follower_behind_bytes", behind_bytes.map(|bytes| bytes as f64)),
            ("thalweg_replica_follower_behind_seconds", behind_ms.map(seconds)),
        ];
        for (metric, value) in behind {
            gauge!(metric, &labels).set(value.unwrap_or(f64::NAN));
        }
    }
}

fn record_upstream(name: &str, upstream: &Upstream) {
    let follower = upstream.follower.as_ref();
    let is = |so: bool| f64::from(u8::from(so));
    let levels = [
        ("thalweg_replica_connected", Some(is(follower.is_some_and(|it| it.connected)))),
        (
            "thalweg_replica_copying",
            Some(is(follower.is_some_and(|it| it.copying_until.is_some()))),
        ),
        (
            "thalweg_replica_behind_versions",
            follower.and_then(|it| it.behind_versions).map(|versions| versions as f64),
        ),
        (
            "thalweg_replica_behind_bytes",
            follower.and_then(|it| it.behind_bytes).map(|bytes| bytes as f64),
        ),
        ("thalweg_replica_behind_seconds", follower.and_then(|it| it.behind_ms).map(seconds)),
    ];
    for (metric, value) in levels {
        gauge!(metric, "volume" => name.to_owned()).set(value.unwrap_or(f64::NAN));
    }
}

fn seconds(millis: u64) -> f64 {
    millis as f64 / 1e3
}
