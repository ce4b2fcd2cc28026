//! `thalweg volume rebuild-index`: rebuilds the index of a chained volume from its map.

use std::sync::Arc;

use clap::Args;
use thalweg_env::Env;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::chain::{LostEntries, Rebuild, RebuildReport};
use thalweg_store::pool::{NamedMedia, Pool};

use crate::control::Client;
use crate::devices;
use crate::failure::{Failure, Outcome};
use crate::progress::{self, Report, share_done};
use crate::size::Size;
use crate::target::Target;

/// Rebuild the index of a volume that does not open because a checkpoint is damaged
///
/// This reads the map of every segment. Where the map is damaged too, some blocks cannot be found again: they
/// show older content, or zeros. The report names the lost parts of the map, and counts the blocks that may
/// be affected.
#[derive(Debug, Args)]
pub(crate) struct RebuildIndex {
    /// The volume's folder
    volume: String,
    /// Go on although parts of the map are lost
    #[arg(long)]
    accept_loss: bool,
    /// Report what would be rebuilt and lost, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the report as a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(env: &Env, args: &RebuildIndex) -> Outcome<()> {
    let target = Target::volume(&args.volume)?.chained()?;
    let how = Rebuild { accept_loss: args.accept_loss, dry_run: args.dry_run };
    let progress = progress::for_user(args.json);
    let report = rebuild_index(env, &target, how, &*progress).await?;
    drop(progress);
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    let RebuildReport { blocks, version, undecided, lost_blocks, .. } = report;
    let size = Size(blocks.saturating_mul(BLOCK_SIZE as u64));
    println!("{size} stored in {blocks} blocks, version {version}");
    for LostEntries { segment, first, blocks, newest } in &report.lost {
        let last = first + blocks.saturating_sub(1);
        let when =
            newest.map_or("at any time".to_owned(), |newest| format!("up to version {newest}"));
        println!("lost: the map of blocks {first} to {last} of segment {segment}, written {when}");
    }
    if lost_blocks > 0 {
        println!(
            "of {undecided} blocks last written up to then, at most {lost_blocks} show older content"
        );
    }
    if !report.written {
        println!("nothing was changed");
    }
    Ok(())
}

/// Rebuilds the index of a volume that no process has open.
async fn rebuild_index(
    env: &Env,
    target: &Target,
    how: Rebuild,
    report: &dyn Report,
) -> Outcome<RebuildReport> {
    if Client::connect(&target.folder).await?.is_some() {
        return Err(Failure::new(format!("{} is being served or attached", target.name))
            .help("its index is whole, then; to check all of it: thalweg volume scrub"));
    }
    let progress = share_done("reading the map", report);
    let kinds = devices::known(env);
    let media = Arc::new(NamedMedia(kinds.clone()));
    let rebuilt = Pool::rebuild_index(env, media, &target.folder, how, &progress).await;
    devices::close(&kinds, rebuilt.map_err(Failure::from)).await
}
