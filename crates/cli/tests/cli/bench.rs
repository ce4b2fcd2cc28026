//! `thalweg bench` runs another program, which may be absent.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::run::{bad, good};

/// The program alone in a folder, without a `PATH`.
fn alone(folder: &Path) -> Command {
    let copy = folder.join("thalweg");
    if !copy.exists() {
        let program = env!("CARGO_BIN_EXE_thalweg");
        let linked = std::fs::hard_link(program, &copy);
        linked.or_else(|_| std::fs::copy(program, &copy).map(drop)).unwrap();
    }
    let mut command = Command::new(copy);
    command.env("NO_COLOR", "1").env("PATH", "").arg("bench");
    command
}

#[test]
fn without_the_benchmarks_it_says_how_to_get_them() {
    let folder = tempfile::tempdir().unwrap();
    let said = bad(alone(folder.path()).args(["chain-gc", "--json"]), 1);
    assert!(said.contains("thalweg-bench") && said.contains("make build"), "{said}");
}

#[test]
fn all_arguments_and_the_exit_code_are_those_of_the_program_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("thalweg-bench");
    std::fs::write(&program, "#!/bin/sh\necho \"got: $*\"\n[ \"$1\" != fail ] || exit 3\n")
        .unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    for args in [&["chain-gc", "--json", "--seed", "2"][..], &["--list"], &["--help"], &[]] {
        let said = good(alone(folder.path()).args(args));
        assert_eq!(said.trim_end(), format!("got: {}", args.join(" ")).trim_end());
    }
    assert!(bad(alone(folder.path()).args(["fail", "-x"]), 3).contains("got: fail -x"));
}
