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
