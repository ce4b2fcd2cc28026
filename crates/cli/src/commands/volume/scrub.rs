//! `thalweg volume scrub`: verifies a volume, and repairs it.

use clap::Args;
use thalweg_env::Env;

use crate::commands::ask::ask;
use crate::commands::status;
use crate::failure::Outcome;
use crate::request::{Answer, Request, unexpected_answer};
use crate::target::{JournalDev, Target};
use crate::volume::scrub::{in_words, lost_blocks};

/// The exit code of a scrub that found blocks of which no copy is right.
const LOST: u8 = 4;

/// Read and verify everything that is stored, and repair bad copies
///
/// Ends with 0 if everything can be read now, with 4 if blocks are lost: no copy of them is right.
#[derive(Debug, Args)]
pub(crate) struct Scrub {
    /// The volume's folder, or the device of an in-place volume
    volume: String,
    #[command(flatten)]
    journal: JournalDev,
    /// Print the report as a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(env: &Env, args: &Scrub) -> Outcome<u8> {
    let target = Target::volume(&args.volume)?;
    let target = target.with_journal(args.journal.journal_dev.as_deref());
    let Answer::Json(report) = ask(env, &target, Request::Scrub, args.json).await? else {
        return Err(unexpected_answer());
    };
    if args.json {
        println!("{report}");
    } else {
        // A volume that is read-only is not scrubbed.
        in_words(&report, true).iter().for_each(|line| println!("{line}"));
    }
    status::warn(&target.name, &report["degraded"]);
    let lost = lost_blocks(&report);
    if lost == 0 {
        return Ok(0);
    }
    if !args.json {
        println!(
            "No copy of {lost} blocks is right. thalweg fsck -d VOLUME says which files they belong to; {}",
            match report["replica"] == true {
                true =>
                    "while `thalweg replica run` reaches the primary, a scrub fetches them from there.",
                false => "a block that is written anew is whole again.",
            }
        );
    }
    Ok(LOST)
}
