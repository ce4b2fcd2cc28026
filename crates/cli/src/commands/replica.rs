//! `thalweg replica`: volumes that follow another one.

mod promote;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;
use thalweg_env::Env;
use thalweg_ipc::remote::Remote;
use thalweg_net::entry::Service;
use thalweg_net::keys::Home;
use thalweg_replica::{describe, protocol::Described};
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::pool::Follows;

use super::ask::ask;
use super::key;
use super::serve::{self, Options};
use super::status::{degraded_lines, exit_code};
use super::volume::create::{self, Layout, new_volume};
use super::wait;
use crate::failure::{Failure, Outcome};
use crate::progress::{self, share_done};
use crate::request::{Answer, Request, unexpected_answer};
use crate::size::Size;
use crate::target::Target;
use crate::volume::opened::Opened;

/// Make volumes that follow a volume on another machine, and run them
///
/// A replica gets every commit of its primary in order, and holds a state that the primary had, always. The primary is a
/// chained volume that a server with --listen serves; the machine of the replica needs a key that the server knows: see
/// `thalweg key`.
#[derive(Debug, Subcommand)]
pub(crate) enum ReplicaCommand {
    Create(Create),
    Run(Run),
    Status(Status),
    Promote(promote::Promote),
    Position(PrintPosition),
    Follow(Follow),
}

/// Make a replica of a volume
///
/// It has the size of the volume. Its devices are chosen as for `thalweg volume create`. It is empty until it runs.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The folder of the replica; its name is the replica's
    folder: PathBuf,
    /// The volume to follow: thalweg://HOST:PORT/NAME
    #[arg(long, value_name = "ADDRESS")]
    of: String,
    /// Folder with the keys [default: $THALWEG_KEYS; or /etc/thalweg for root, ~/.config/thalweg for others]
    #[arg(long, value_name = "FOLDER")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    layout: Layout,
}

/// Follow the primary, and serve the replica read-only
///
/// The options are those of `thalweg serve`. The server goes on while the primary cannot be reached.
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    options: Options,
    /// Folder with the keys [default: $THALWEG_KEYS; or /etc/thalweg for root, ~/.config/thalweg for others]
    #[arg(long, value_name = "FOLDER")]
    keys: Option<PathBuf>,
}

/// Print how far a replica is behind its primary, or which replicas follow a volume
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The folder of the volume
    volume: String,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Have a replica follow another primary of its volume, from the next run on: one that was promoted
///
/// The process that runs the replica must have ended.
#[derive(Debug, Args)]
pub(crate) struct Follow {
    /// The folder of the replica
    volume: String,
    /// The address of the primary: thalweg://HOST:PORT/NAME
    #[arg(long, value_name = "ADDRESS")]
    of: String,
}

/// Print the position of a volume: the name of its newest state, on every machine
///
/// `thalweg wait` waits until another volume has reached it.
#[derive(Debug, Args)]
pub(crate) struct PrintPosition {
    /// The folder of the volume, or thalweg://HOST:PORT/NAME
    volume: String,
}

/// Carries out a command; its exit code.
pub(crate) async fn run(env: &Env, command: ReplicaCommand) -> Outcome<u8> {
    match command {
        ReplicaCommand::Status(args) => return status(env, &args).await,
        ReplicaCommand::Create(args) => create(env, args).await,
        ReplicaCommand::Run(args) => serve::follow(env, args.options, args.keys).await,
        ReplicaCommand::Promote(args) => promote::run(env, &args).await,
        ReplicaCommand::Follow(args) => follow(env, &args).await,
        ReplicaCommand::Position(args) => wait::print_position(env, &args.volume).await,
    }
    .map(|()| 0)
}

/// Asks a primary what its volume is.
async fn ask_primary(env: &Env, primary: &Remote, home: &Home) -> Outcome<Described> {
    let stream = primary.enter(env, home, Service::Replica).await?;
    Ok(describe(env, stream, None).await?)
}

/// The volume that an argument names.
fn primary(of: &str) -> Outcome<Remote> {
    let invalid = || {
        Failure::new(format!("{of} is no address of a volume"))
            .help("it is thalweg://HOST:PORT/NAME, as the server prints it")
    };
    Ok(Remote::of(of).ok_or_else(invalid)??)
}

async fn follow(env: &Env, args: &Follow) -> Outcome<()> {
    let primary = primary(&args.of)?;
    let target = Target::volume(&args.volume)?.chained()?;
    let opened = Opened::open_to_follow(env, &target).await?;
    let pool = opened.chained().ok_or_else(|| opened.target.refused())?;
    let changed = pool.follow_from(&primary.to_string()).await;
    opened.close().await?;
    Ok(changed?)
}

async fn create(env: &Env, args: Create) -> Outcome<()> {
    let primary = primary(&args.of)?;
    let described = ask_primary(env, &primary, &key::home(args.keys.as_deref())).await?;
    let folder = std::path::absolute(&args.folder)?;
    let size = Size(described.blocks * BLOCK_SIZE as u64);
    let mut new = new_volume(&folder, size, &args.layout)?;
    new.follows = Some(Follows { volume: described.volume, address: primary.to_string() });
    let report = progress::for_user(false);
    let progress = share_done("making the replica", &*report);
    create::make(env, &folder, &new, &progress).await?;
    println!("{}", folder.display());
    Ok(())
}

async fn status(env: &Env, args: &Status) -> Outcome<u8> {
    let target = Target::volume(&args.volume)?.chained()?;
    let Answer::Json(status) = ask(env, &target, Request::Replicas, args.json).await? else {
        return Err(unexpected_answer());
    };
    match args.json {
        true => println!("{status}"),
        false => print(&status),
    }
    Ok(exit_code(&status))
}

fn print(status: &Value) {
    let degraded = status["degraded"].as_array().into_iter().flatten();
    let degraded: Vec<String> = degraded.filter_map(Value::as_str).map(str::to_owned).collect();
    print!("{}", degraded_lines(&degraded));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(position) = text(&status["position"]) {
        println!("position   {position}");
    }
    let fenced = &status["fenced"];
    if fenced.is_object() {
        let from = text(&fenced["from"]).unwrap_or_default();
        println!("fenced     by the primary of term {}, which went on from {from}", fenced["term"]);
    }
    if let Some(primary) = text(&status["follows"]) {
        println!("primary    {primary}");
    }
    let follower = &status["follower"];
    if follower.is_object() {
        let connected = follower["connected"].as_bool() == Some(true);
        println!("connected  {}", if connected { "yes" } else { "no" });
        println!("version    {}, durable up to {}", follower["version"], follower["durable"]);
        // What has happened at a primary that cannot be heard is not known.
        let least = if connected { "" } else { "at least " };
        println!("behind     {least}{}", behind(follower));
        if let Some(silent) = follower["silent_ms"].as_u64() {
            println!("heard      {:.1} s ago", silent as f64 / 1e3);
        }
        if let Some(until) = follower["copying_until"].as_u64() {
            println!("copying    until version {until}");
        }
        if let Some(trouble) = text(&follower["trouble"]) {
            println!("trouble    {trouble}");
        }
    } else if status["follows"].is_string() {
        println!("running    no");
    }
    if let (Some(needed), Some(connected)) =
        (status["ack"]["needed"].as_u64(), status["ack"]["connected"].as_u64())
    {
        let waiting = &status["ack"]["waiting"];
        println!("flushes    wait for {needed} replicas; {connected} connected, {waiting} waiting");
    }
    for replica in status["followers"].as_array().into_iter().flatten() {
        let name = text(&replica["name"]).unwrap_or_default();
        println!(
            "follower   {name}: sent up to {}, durable there up to {}; behind {}{}",
            replica["sent"],
            replica["durable"],
            behind(replica),
            copying(&replica["copy"])
        );
    }
}

/// How far a copy has come, if one is under way.
fn copying(copy: &Value) -> String {
    match (copy[0].as_u64(), copy[1].as_u64()) {
        (Some(sent), Some(all)) => format!("; a copy has {sent} of {all} blocks"),
        _ => String::new(),
    }
}

/// How far a replica is behind, in versions, bytes and seconds, as far as they are known.
fn behind(of: &Value) -> String {
    let versions = of["behind_versions"].as_u64();
    let versions = versions.map(|it| format!("{it} version{}", if it == 1 { "" } else { "s" }));
    let bytes = of["behind_bytes"].as_u64().map(|it| Size(it).to_string());
    let span = of["behind_ms"].as_u64().map(|it| format!("{:.1} s", it as f64 / 1e3));
    let known: Vec<String> = [versions, bytes, span].into_iter().flatten().collect();
    match known.is_empty() {
        true => "by an unknown number of versions".to_owned(),
        false => known.join(", "),
    }
}
