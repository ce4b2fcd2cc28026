//! Metrics of a mount of a filesystem that another machine shares.

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use thalweg_cluster::client::{ClientStatus, CopyState, PendingReport};

pub(super) fn describe() {
    describe_counter!(
        "thalweg_client_lost_changes_total",
        Unit::Count,
        "Changes that were acknowledged and did not come to the server"
    );
    let gauges = [
        ("thalweg_client_connected", Unit::Count, "1 while the server is connected"),
        ("thalweg_client_pending_changes", Unit::Count, "Changes that the server does not have"),
        ("thalweg_client_pending_bytes", Unit::Bytes, "Bytes of files in these"),
        ("thalweg_client_pending_files", Unit::Count, "Files and directories that these change"),
        ("thalweg_client_pending_oldest_seconds", Unit::Seconds, "Age of the oldest of these"),
        (
            "thalweg_client_refused",
            Unit::Count,
            "1 while the server does not take the oldest of these, which waits with all behind it",
        ),
        ("thalweg_client_journaled_changes", Unit::Count, "Those of them that are in the journal"),
        ("thalweg_client_journaled_bytes", Unit::Bytes, "Bytes of files in those"),
        (
            "thalweg_client_undurable_calls",
            Unit::Count,
            "Calls that the server has answered and not made durable",
        ),
        ("thalweg_client_journal_size_bytes", Unit::Bytes, "Size of the client's journal"),
        ("thalweg_client_journal_used_bytes", Unit::Bytes, "Bytes of it that are used"),
        (
            "thalweg_client_journal_failed",
            Unit::Count,
            "1 if the client's journal has failed, so that syncs wait for the server",
        ),
        ("thalweg_client_journal_copies", Unit::Count, "Keepers that are to have copies of it"),
        (
            "thalweg_client_journal_copies_missing",
            Unit::Count,
            "Those of them that lack some of it, so that syncs wait for the server",
        ),
        (
            "thalweg_client_journal_devices",
            Unit::Count,
            "Devices of a journal on two; 0 of one on one",
        ),
        (
            "thalweg_client_journal_devices_missing",
            Unit::Count,
            "Those of them that lack some of it",
        ),
    ];
    for (name, unit, about) in gauges {
        describe_gauge!(name, unit, about);
    }
}

pub(super) fn record(address: &str, status: &ClientStatus, pending: &PendingReport) {
    let address = || address.to_owned();
    counter!("thalweg_client_lost_changes_total", "address" => address()).absolute(status.lost);
    let journal = pending.journal.as_ref().map(|journal| journal.room);
    let copies = || pending.journal.iter().flat_map(|journal| &journal.copies);
    let missing = copies().filter(|copy| copy.state != CopyState::Current).count();
    let sides = || pending.journal.iter().flat_map(|journal| &journal.sides);
    let lacking = sides().filter(|side| !side.is_current).count();
    let levels = [
        ("thalweg_client_connected", f64::from(u8::from(status.connected))),
        ("thalweg_client_pending_changes", pending.unsent.changes as f64),
        ("thalweg_client_pending_bytes", pending.unsent.bytes as f64),
        ("thalweg_client_pending_files", pending.files as f64),
        (
            "thalweg_client_pending_oldest_seconds",
            pending.oldest_ms.unwrap_or_default() as f64 / 1e3,
        ),
        ("thalweg_client_refused", f64::from(u8::from(pending.refused.is_some()))),
        ("thalweg_client_journaled_changes", pending.in_journal.changes as f64),
        ("thalweg_client_journaled_bytes", pending.in_journal.bytes as f64),
        ("thalweg_client_undurable_calls", pending.undurable as f64),
        ("thalweg_client_journal_size_bytes", journal.map_or(0.0, |room| room.size as f64)),
        ("thalweg_client_journal_used_bytes", journal.map_or(0.0, |room| room.used as f64)),
        ("thalweg_client_journal_failed", f64::from(u8::from(pending.journal_failed))),
        ("thalweg_client_journal_copies", copies().count() as f64),
        ("thalweg_client_journal_copies_missing", missing as f64),
        ("thalweg_client_journal_devices", sides().count() as f64),
        ("thalweg_client_journal_devices_missing", lacking as f64),
    ];
    for (metric, value) in levels {
        gauge!(metric, "address" => address()).set(value);
    }
}
