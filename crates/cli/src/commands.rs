//! The commands: each file has the arguments of one and carries it out.
//!
//! A command on a volume goes to the volume's server, or, when the volume is idle, to a session in this process
//! (`ask`); `mounted` finds our mounts and their servers.

pub(crate) mod ask;
pub(crate) mod attach;
pub(crate) mod bench;
pub(crate) mod cluster;
#[cfg(test)]
mod documented;
pub(crate) mod dump;
pub(crate) mod fsck;
mod fstab;
pub(crate) mod image;
pub(crate) mod key;
pub(crate) mod kv;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod mount_shared;
mod mount_status;
pub(crate) mod mounted;
mod receive;
pub(crate) mod replica;
pub(crate) mod resize;
pub(crate) mod serve;
pub(crate) mod shell;
pub(crate) mod status;
pub(crate) mod tx;
pub(crate) mod umount;
pub(crate) mod volume;
pub(crate) mod wait;

use clap::{CommandFactory, Parser, Subcommand};
use thalweg_env::{Env, server_threads};

use crate::failure::{Failure, Outcome};

/// Volumes whose small writes are durable, atomic and steady under load
#[derive(Debug, Parser)]
#[command(name = "thalweg", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print more messages on standard error; twice for all
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(subcommand)]
    Volume(volume::Volume),
    Status(status::Status),
    Scrub(volume::scrub::Scrub),
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
    #[command(subcommand)]
    Image(image::ImageCommand),
    #[command(subcommand)]
    Key(key::KeyCommand),
    #[command(subcommand)]
    Replica(replica::ReplicaCommand),
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    Wait(wait::Wait),
    Dump(dump::DumpArgs),
    Bench(bench::Bench),
    Completions(shell::Completions),
    Man(shell::Man),
}

/// Runs a command; its exit code.
pub(crate) fn run(command: Command) -> Outcome<u8> {
    match command {
        Command::Bench(args) => bench::run(&args),
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
            Command::Status(args) => return status::run(&env, args).await,
            Command::Scrub(args) => return volume::scrub::run(&env, &args).await,
            Command::Kv(args) => kv::run(&env, args).await,
            Command::Image(command) => image::run(&env, command).await,
            Command::Key(command) => key::run(&env, command).await,
            Command::Replica(command) => return replica::run(&env, command).await,
            Command::Cluster(command) => return cluster::run(&env, command).await,
            Command::Wait(args) => return wait::run(&env, &args).await,
            Command::Serve(args) => serve::run(&env, args).await,
            Command::Attach(args) => attach::attach(&env, args).await,
            Command::Detach(args) => attach::detach(&env, args).await,
            Command::Mkfs(args) => mkfs::run(&env, args).await,
            Command::Mount(args) => mount::mount(&env, args).await,
            Command::Umount(args) => umount::umount(&env, args).await,
            Command::Fsck(args) => return fsck::run(&env, args).await,
            Command::Dump(args) => dump::run(&env, args).await,
            Command::Tx(args) => return tx::run(args).await,
            Command::Resize(args) => resize::run(&env, args).await,
            _ => Err(Failure::new("this command needs no volume")),
        }
        .map(|()| 0)
    })
}
