//! `thalweg bench`: runs the program `thalweg-bench`, which is no part of an installation.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;

use crate::failure::{Failure, Outcome};

const PROGRAM: &str = "thalweg-bench";

/// Run a benchmark: thalweg bench --list names them all
///
/// All arguments go to the program thalweg-bench, which lies beside this one or on the PATH. It is built from
/// the source: make build.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Bench {
    /// The arguments; --help shows them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Replaces this process by `thalweg-bench`; returns only if that fails.
pub(crate) fn run(args: &Bench) -> Outcome<()> {
    let beside = std::env::current_exe()?.with_file_name(PROGRAM);
    let program = if beside.is_file() { beside } else { PROGRAM.into() };
    let error = Command::new(&program).args(&args.arguments).exec();
    match error.kind() {
        ErrorKind::NotFound => Err(Failure::new(format!("there is no program {PROGRAM}")).help(
            "build it from the source: make build, or cargo build --release -p thalweg-bench",
        )),
        _ => Err(Failure::of(&error).while_doing(format!("cannot run {}", program.display()))),
    }
}
