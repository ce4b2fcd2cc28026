//! `thalweg volume snapshot`: creates, lists and deletes snapshots, and rolls back to one.

use std::io::IsTerminal;

use clap::{Args, Subcommand};
use thalweg_env::Env;
use thalweg_store::block::BLOCK_SIZE;

use super::change::apply;
use crate::commands::ask::ask;
use crate::commands::status;
use crate::date;
use crate::failure::{Failure, Outcome};
use crate::request::{Answer, Change, Request, unexpected_answer};
use crate::size::Size;
use crate::target::{Target, no_snapshots};

/// A command on a whole volume.
#[derive(Debug, Args)]
pub(crate) struct OnVolume {
    /// The volume's folder
    volume: String,
    /// Print the result as a JSON object
    #[arg(long)]
    json: bool,
}

/// Create, list, delete snapshots, or roll back to one
#[derive(Debug, Subcommand)]
pub(crate) enum Snapshot {
    /// Create a snapshot of the volume's present state
    Create(OnSnapshot),
    /// List the snapshots
    ///
    /// SIZE is the volume's size when the snapshot was created. EXCLUSIVE is the space that deleting this
    /// snapshot alone frees.
    List(OnVolume),
    /// Delete a snapshot
    Delete(OnSnapshot),
    /// Roll the volume back to a snapshot; later writes are lost
    ///
    /// Asks for confirmation on a terminal; elsewhere it needs --yes.
    Rollback(Rollback),
}

#[derive(Debug, Args)]
pub(crate) struct OnSnapshot {
    /// The volume's folder
    volume: String,
    /// The snapshot's name
    name: String,
    /// Print the result as a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Rollback {
    #[command(flatten)]
    on: OnSnapshot,
    /// Confirm that all later writes are to be lost
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(env: &Env, command: Snapshot) -> Outcome<()> {
    let (args, change) = match command {
        Snapshot::List(args) => return list(env, &args).await,
        Snapshot::Create(args) => {
            let name = args.name.clone();
            (args, Change::CreateSnapshot { name })
        }
        Snapshot::Delete(args) => {
            let name = args.name.clone();
            (args, Change::DeleteSnapshot { name })
        }
        Snapshot::Rollback(args) => {
            confirm_rollback(&args)?;
            let name = args.on.name.clone();
            (args.on, Change::Rollback { name })
        }
    };
    apply(env, &args.volume, change, args.json).await
}

/// Asks the user to confirm a rollback.
fn confirm_rollback(args: &Rollback) -> Outcome<()> {
    if args.yes {
        return Ok(());
    }
    let OnSnapshot { volume, name, .. } = &args.on;
    let what = format!("this rolls {volume} back to {name}: later writes are lost");
    let (input, output) = (std::io::stdin(), std::io::stderr());
    if input.is_terminal() && output.is_terminal() {
        eprint!("{what}. Continue? [y/N] ");
        let mut answer = String::new();
        input.read_line(&mut answer)?;
        return match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(Failure::new("nothing was changed")),
        };
    }
    Err(Failure::new(what).help("to confirm, add --yes"))
}

async fn list(env: &Env, args: &OnVolume) -> Outcome<()> {
    let target = Target::volume(&args.volume)?;
    if target.is_in_place() {
        return Err(no_snapshots(target.place().display()));
    }
    let Answer::Json(found) = ask(env, &target, Request::ListSnapshots, args.json).await? else {
        return Err(unexpected_answer());
    };
    if args.json {
        println!("{found}");
        return Ok(());
    }
    let snapshots: Vec<status::Snapshot> = serde_json::from_value(found)?;
    if snapshots.is_empty() {
        return Ok(());
    }
    // A name has 64 bytes at most.
    let width = snapshots.iter().map(|it| it.name.chars().count()).max().unwrap_or(0).max(4);
    println!("{:width$}  {:25}  {:>9}  {:>9}", "NAME", "CREATED", "SIZE", "EXCLUSIVE");
    for status::Snapshot { name, created, blocks, exclusive_blocks, .. } in snapshots {
        let size = |blocks: u64| Size(blocks.saturating_mul(BLOCK_SIZE as u64)).to_string();
        let (size, exclusive) = (size(blocks), size(exclusive_blocks));
        println!("{name:width$}  {:25}  {size:>9}  {exclusive:>9}", date::local(created));
    }
    Ok(())
}
