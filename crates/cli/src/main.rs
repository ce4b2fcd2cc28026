//! `thalweg`: volumes whose small writes are durable, atomic and steady under load.
//!
//! The layers, each of which uses those below it only:
//!
//! - `commands`: the command line; `helper` has the names under which mount(8) and its like call this program;
//! - `daemon`: the process that has volumes open and serves them;
//! - `volume`: one open volume, with its filesystem;
//! - `control`: the control socket, by which a command reaches the daemon;
//! - `attention`: what an administrator is told to look at;
//! - `request`: the requests on a volume, and their answers;
//! - `devices`: the kinds of devices that this program opens;
//! - `target`, `places`: names of volumes and of their files; `failure`, `progress`, `size` and the like.

/// The program allocates and frees hundreds of thousands of 4 KiB blocks a second.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// Its macros replace those of the standard library in every module below.
#[macro_use]
mod output;

mod attention;
mod client_journal;
mod commands;
mod control;
mod daemon;
mod date;
mod devices;
mod failure;
mod helper;
mod holder;
mod listen;
mod places;
mod progress;
mod request;
mod size;
mod target;
mod volume;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::commands::{Cli, Command, tx};

fn main() -> ExitCode {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let codes = helper::translate(&mut words);
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not failures. If printing fails, there is no place to report it.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(codes.usage)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    start_log(cli.verbose);
    if matches!(cli.command, Command::Attach(_) | Command::Serve(_) | Command::Mount(_))
        // Before the runtime starts its threads, which inherit it.
        && let Err(error) = thalweg_fuse::attach::become_io_flusher()
    {
        tracing::debug!(%error, "this process is no I/O flusher; it can attach nothing without root");
    }
    let failed = if matches!(cli.command, Command::Tx(_)) { tx::FAILED } else { codes.failed };
    match commands::run(cli.command).and_then(|code| output::finish().map(|()| code)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print();
            ExitCode::from(failed)
        }
    }
}

fn start_log(verbose: u8) {
    // Below errors, the FUSE library warns of requests that a mount does not need.
    let level =
        ["warn,fuser=error", "info,fuser=error", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = EnvFilter::try_from_env("THALWEG_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| EnvFilter::new(level)))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
