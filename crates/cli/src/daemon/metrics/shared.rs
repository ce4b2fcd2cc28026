//! Metrics of a filesystem that is served to clients on other machines.

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use thalweg_cluster::server::ServerStatus;
use thalweg_env::HashMap;

use super::record_durations;

pub(super) const CALLS: &str = "thalweg_cluster_call_duration_seconds";

/// The durations that the histograms have already, by the kinds of calls.
pub(super) type SeenCalls = HashMap<&'static str, Vec<u64>>;

pub(super) fn describe() {
    let counters = [
        ("thalweg_cluster_calls_total", Unit::Count, "Calls of clients answered"),
        ("thalweg_cluster_call_errors_total", Unit::Count, "Calls answered with an error"),
        ("thalweg_cluster_received_bytes_total", Unit::Bytes, "Bytes in the payloads of calls"),
        ("thalweg_cluster_sent_bytes_total", Unit::Bytes, "Bytes in the payloads of answers"),
        ("thalweg_cluster_invalidations_sent_total", Unit::Count, "Invalidations sent to clients"),
        ("thalweg_cluster_invalidations_answered_total", Unit::Count, "Invalidations answered"),
        (
            "thalweg_cluster_invalidations_timed_out_total",
            Unit::Count,
            "Invalidations not answered within the lease: their clients were evicted",
        ),
        ("thalweg_cluster_evictions_total", Unit::Count, "Sessions that the server has ended"),
        (
            "thalweg_cluster_refused_changes_total",
            Unit::Count,
            "Changes that clients had made by themselves and that were lost",
        ),
        (
            "thalweg_cluster_room_recalls_total",
            Unit::Count,
            "Recalls of room that clients were promised, because others needed it",
        ),
    ];
    for (name, unit, about) in counters {
        describe_counter!(name, unit, about);
    }
    let gauges = [
        ("thalweg_cluster_sessions", Unit::Count, "Sessions of clients"),
        ("thalweg_cluster_connections", Unit::Count, "Connections of clients"),
        ("thalweg_cluster_expected_clients", Unit::Count, "Clients expected after a restart"),
        (
            "thalweg_cluster_lapsed_journals",
            Unit::Count,
            "Journals whose clients were away for so long that others went on",
        ),
        ("thalweg_cluster_known_inodes", Unit::Count, "Inodes that the clients know"),
        ("thalweg_cluster_capabilities", Unit::Count, "Inodes of which clients cache something"),
        ("thalweg_cluster_open_files", Unit::Count, "Open files of clients"),
        ("thalweg_cluster_undurable", Unit::Count, "Inodes and names with undurable changes"),
        ("thalweg_cluster_invalidations_pending", Unit::Count, "Calls that wait for invalidations"),
        (
            "thalweg_cluster_invalidation_oldest_seconds",
            Unit::Seconds,
            "Time for which the first of these has waited",
        ),
    ];
    for (name, unit, about) in gauges {
        describe_gauge!(name, unit, about);
    }
    describe_histogram!(CALLS, Unit::Seconds, "Time from a client's call to its answer");
}

pub(super) fn record(status: &ServerStatus, seen: &mut SeenCalls) {
    let invalidations = &status.invalidations;
    let totals = [
        ("thalweg_cluster_received_bytes_total", status.received_bytes),
        ("thalweg_cluster_sent_bytes_total", status.sent_bytes),
        ("thalweg_cluster_invalidations_sent_total", invalidations.sent),
        ("thalweg_cluster_invalidations_answered_total", invalidations.answered),
        ("thalweg_cluster_invalidations_timed_out_total", invalidations.timed_out),
        ("thalweg_cluster_evictions_total", status.evictions),
        ("thalweg_cluster_refused_changes_total", status.refused_changes),
        ("thalweg_cluster_room_recalls_total", status.room_recalls),
    ];
    for (metric, value) in totals {
        counter!(metric).absolute(value);
    }
    let open: usize = status.clients.iter().map(|client| client.open).sum();
    let levels = [
        ("thalweg_cluster_sessions", status.clients.len() as f64),
        ("thalweg_cluster_connections", status.connections as f64),
        ("thalweg_cluster_expected_clients", status.expected as f64),
        ("thalweg_cluster_lapsed_journals", status.lapsed_journals as f64),
        ("thalweg_cluster_known_inodes", status.known as f64),
        ("thalweg_cluster_capabilities", status.cached as f64),
        ("thalweg_cluster_open_files", open as f64),
        ("thalweg_cluster_undurable", status.undurable as f64),
        ("thalweg_cluster_invalidations_pending", invalidations.pending as f64),
        (
            "thalweg_cluster_invalidation_oldest_seconds",
            invalidations.oldest_ms.unwrap_or_default() as f64 / 1e3,
        ),
    ];
    for (metric, value) in levels {
        gauge!(metric).set(value);
    }
    for counts in &status.calls {
        let call = counts.call;
        counter!("thalweg_cluster_calls_total", "call" => call).absolute(counts.latency.count);
        counter!("thalweg_cluster_call_errors_total", "call" => call).absolute(counts.failed);
        let durations = histogram!(CALLS, "call" => call);
        record_durations(&durations, &counts.cumulative, seen.entry(call).or_default());
    }
}
