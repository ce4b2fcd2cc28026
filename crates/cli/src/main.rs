//! `thalweg`: volumes whose small writes are durable, atomic and steady under load.
//!
//! One file for each group of commands (`volume`, `kv`, `serve`, `attach`, `mkfs`, `mount`, `umount`, `fsck`,
//! `tx`, `resize`, `dump`, `bench`, `shell`); `helper` has the names under which mount(8) and its like call
//! this program. A volume that is in use is administered through the process that has it open:
//!
//! - `request`: the requests on a volume;
//! - `ask`: has a request answered, by the volume's server (`control`) or in this process;
//! - `session`: the volumes that this process has open, and their clients;
//! - `opened`: one open volume, chained or `in_place`; `files`: its filesystem; `mounts`: its mounts.

/// The program allocates and frees hundreds of thousands of 4 KiB blocks a second.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// Its macros replace those of the standard library in every module below.
#[macro_use]
mod output;

mod ask;
mod attach;
mod background;
mod bench;
mod control;
mod date;
mod dump;
mod failure;
mod files;
mod fsck;
mod helper;
mod holder;
mod in_place;
mod kv;
mod leftover;
mod listen;
mod metrics;
mod mkfs;
mod mount;
mod mount_options;
mod mounts;
mod opened;
mod parts;
mod progress;
mod request;
mod resize;
mod serve;
mod session;
mod shell;
mod signals;
mod size;
mod status;
mod target;
mod tx;
mod umount;
mod volume;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use thalweg_env::{Env, server_threads};
use tracing_subscriber::EnvFilter;

use crate::failure::{Failure, Outcome};

/// Volumes whose small writes are durable, atomic and steady under load
#[derive(Debug, Parser)]
#[command(name = "thalweg", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print more messages on standard error; twice for all
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(subcommand)]
    Volume(volume::Volume),
    Status(volume::Status),
    Scrub(volume::Scrub),
    Serve(serve::Serve),
    Attach(attach::Attach),
    Detach(attach::Detach),
    Mkfs(mkfs::Mkfs),
    Mount(mount::Mount),
    Umount(umount::Umount),
    Fsck(fsck::Fsck),
    Tx(tx::Tx),
    Resize(resize::Resize),
    Kv(kv::Kv),
    Dump(dump::DumpArgs),
    Bench(bench::Bench),
    Completions(shell::Completions),
    Man(shell::Man),
}

/// The program's own name.
pub(crate) const NAME: &str = "thalweg";

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
    match run(cli.command).and_then(|code| output::finish().map(|()| code)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("{:?}", miette::Report::new(failure));
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

/// Runs a command; its exit code.
fn run(command: Command) -> Outcome<u8> {
    match command {
        Command::Bench(args) => bench::run(args),
        Command::Completions(args) => shell::completions(&args, Cli::command()),
        Command::Man(args) => shell::man(&args, Cli::command()),
        command => return serve_or_ask(command),
    }
    .map(|()| 0)
}

/// Runs a command that needs volumes or devices, and so the runtime.
fn serve_or_ask(command: Command) -> Outcome<u8> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(server_threads()).enable_all().build()?;
    runtime.block_on(async {
        let env = Env::real();
        match command {
            Command::Volume(command) => return volume::run(&env, command).await,
            Command::Status(args) => return volume::run(&env, volume::Volume::Status(args)).await,
            Command::Scrub(args) => return volume::run(&env, volume::Volume::Scrub(args)).await,
            Command::Kv(args) => kv::run(&env, args).await,
            Command::Serve(args) => serve::run(&env, args).await,
            Command::Attach(args) => attach::attach(&env, args).await,
            Command::Detach(args) => attach::detach(&env, args).await,
            Command::Mkfs(args) => mkfs::run(&env, args).await,
            Command::Mount(args) => mount::mount(&env, args).await,
            Command::Umount(args) => umount::umount(args).await,
            Command::Fsck(args) => return fsck::run(&env, args).await,
            Command::Dump(args) => dump::run(args).await,
            Command::Tx(args) => return tx::run(args).await,
            Command::Resize(args) => resize::run(&env, args).await,
            _ => Err(Failure::new("this command needs no volume")),
        }
        .map(|()| 0)
    })
}
