//! Standard output whose reader closes the pipe, or on a full device.

use std::fs::OpenOptions;
use std::process::{Command, Output, Stdio};

use crate::run::{Home, thalweg};

/// Runs a command whose output is not read.
fn unread(mut command: Command) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer).stderr(Stdio::piped()).output().unwrap()
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let home = Home::with_volume("64M", &[]);
    let mut dump = thalweg(["dump"]);
    dump.arg(home.volume().join("link0"));
    let watch = home.on_volume(&["status"], &["--watch"]);
    for command in [thalweg(["completions", "bash"]), thalweg(["completions", "zsh"]), dump, watch]
    {
        let shown = format!("{command:?}");
        let output = unread(command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{shown}: {said}");
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = thalweg(["completions", "zsh"]).stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left on device") && !said.contains("panicked"), "{said}");
}

#[test]
fn an_error_that_cannot_be_printed_keeps_its_exit_code() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let dump = || thalweg(["dump", "/missing"]);
    let printed = dump().output().unwrap();
    assert_eq!(printed.status.code(), Some(1), "{printed:?}");
    let unprinted = dump().stderr(full).output().unwrap();
    assert_eq!(unprinted.status, printed.status);
}
