//! The program `thalweg-bench`: its arguments and its output.

#![allow(clippy::unwrap_used)]

use std::fs::OpenOptions;
use std::process::{Command, Output, Stdio};

fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg-bench"));
    command.args(args).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn benchmarks_are_listed() {
    let output = bench(&["--list", "--json"]).output().unwrap();
    let names: Vec<String> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && names.contains(&"chain-cache".to_owned()), "{names:?}");
    let described = text(&bench(&["--list"]).output().unwrap());
    assert_eq!(described.lines().count(), names.len());
}

#[test]
fn usage_errors_exit_with_2_and_failures_with_1() {
    let unnamed = bench(&[]).output().unwrap();
    assert_eq!(unnamed.status.code(), Some(2), "{}", text(&unnamed));
    assert!(text(&unnamed).contains("Usage: thalweg bench"), "{}", text(&unnamed));
    let unknown = bench(&["no-such-bench"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(1), "{}", text(&unknown));
    assert!(text(&unknown).contains("no-such-bench"), "{}", text(&unknown));
}

#[test]
fn a_closed_pipe_is_no_failure_and_a_full_device_is_one() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = bench(&["--list"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output));
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = bench(&["--list"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("No space left on device"), "{}", text(&output));
}

/// The figures of a benchmark.
fn figures(name: &str, scale: &str) -> impl Fn(&str) -> f64 + use<> {
    let output = bench(&[name, "--scale", scale, "--json"]).output().unwrap();
    assert!(output.status.success(), "{name}: {}", text(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    move |name: &str| report["figures"][name].as_f64().unwrap_or(f64::NAN)
}

/// The benchmarks of a client's journal, at a small scale: they end, and count what they miss.
#[test]
fn benchmarks_of_a_journal_measure_what_they_say() {
    let figures = |name: &str, scale: &str| {
        let figure = figures(name, scale);
        assert!(figure("below_aim") >= 0.0, "{name}");
        figure
    };
    let recall = figures("arion-recall", "0.02");
    assert_eq!(recall("evictions"), 0.0);
    assert!(recall("behind_mb") > 16.0 && recall("read_behind_1g_over_link") >= 1.0);
    let recovery = figures("arion-recovery", "0.1");
    assert_eq!(recovery("lost_bytes"), 0.0);
    // Three writes in three seconds, and thirty.
    assert_eq!((recovery("replayed_1"), recovery("replayed_10")), (3.0 * 4096.0, 30.0 * 4096.0));
    let vulnerable = figures("arion-vulnerable", "0.01");
    // The same load on both.
    let rounds = vulnerable("loops_per_second") / vulnerable("ceph_loops_per_second");
    assert!((0.75..1.33).contains(&rounds) && vulnerable("ceph_vulnerable_mb") > 5.0, "{rounds}");
    let zipf = figures("arion-zipf", "0.005");
    assert!((50.0..80.0).contains(&zipf("overwritten_percent")));
    assert!(zipf("ceph_received_mb") > 0.0 && zipf("overwrites_over_write_through") > 0.0);
    let made = figures("arion-createfiles", "0.01");
    // A file's bytes come to three object servers, unless they are still the client's.
    assert!(made("ceph_sync_received_kb_per_op") > 16.0);
    assert!(made("drained_received_kb_per_op") > 16.0);
}

/// A journal loses where it has to, and the benchmark has no aims.
#[test]
fn the_loads_that_suit_a_journal_least_lose() {
    let losing = figures("arion-losing", "0.005");
    assert!(losing("below_aim").is_nan());
    // A call sends what waits in the journal before it, and an unmount all of that.
    assert!(losing("shared_names_over_unjournaled") > 1.5 && losing("shared_in_turns_ms") > 1.0);
    assert!(losing("umount_full_over_unjournaled") > 2.0 && losing("umount_full_mb") > 3.0);
    // On average half a revolution of 8.3 ms.
    assert!((2.0..12.0).contains(&losing("slow_journal_ms")));
    // A read waits for a disk of the servers.
    assert!(losing("reads_ms") > 1.0 && losing("reads_over_unjournaled") > 0.9);
    assert!(losing("osds_48_over_ceph") > 0.0 && losing("asynchronous_drained_over_ceph") > 0.0);
}

#[test]
fn logs_are_appended_at_the_times_of_a_trace() {
    let logs = figures("arion-logs", "0.02");
    assert!(logs("below_aim") >= 0.0);
    // An fsync waits for a disk, and without one for a processor alone.
    assert!(logs("exchange_p99_ms_1") > 0.5 && logs("ceph_exchange_p99_ms_2") > 2.0);
    assert!(logs("nosync_p99_ms") < 0.1 && logs("cached_exchange_p99_ms_1") < 1.0);
    // Twice as many accesses take longer.
    assert!(logs("ceph_imovie_seconds") > logs("ceph_itunes_m_seconds"));
    assert!(logs("itunes_m_over_ceph") > 0.0 && logs("itunes_s_over_ceph") > 0.0);
}

#[test]
fn many_clients_are_measured_in_each_cell() {
    let scale = figures("arion-scale", "0.001");
    assert!(scale("below_aim") >= 0.0 && scale("slower_than_ceph") >= 0.0);
    for cell in ["12_1", "12_16", "24_32", "48_32", "48_64"] {
        // As many bytes in a second are as many bytes.
        let of = |figure: &str| scale(&format!("fio_{figure}_over_ceph_{cell}"));
        assert!((of("throughput") * of("duration") - 1.0).abs() < 0.1, "{cell}");
    }
    // An update waits for a drive, and for nothing else on an idle one.
    assert!(scale("oltp_p99_ms_hdd_1") > 8.0 && scale("oltp_p99_ms_ssd_1") < 8.0);
    // Databases with journals of their own do not disturb each other.
    assert!(scale("oltp_per_s_ssd_8") > 6.0 * scale("oltp_per_s_ssd_1"));
    assert!(scale("ceph_oltp_journal_busy_hdd_48") > scale("ceph_oltp_journal_busy_hdd_1"));
}
