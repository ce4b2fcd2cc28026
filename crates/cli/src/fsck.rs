//! `thalweg fsck`: checks the filesystem of a volume, and repairs it.

use clap::Args;
use thalweg_fs::check::{self, Finding, Report};
use thalweg_store::env::Env;

use crate::control::Client;
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::opened::Opened;
use crate::target::Target;

/// Everything that was wrong is repaired.
const CORRECTED: u8 = 1;
/// Something is wrong still.
const LEFT: u8 = 4;

/// Check the filesystem of a volume, and repair it
///
/// The volume must not be mounted or served. Without -y or -a nothing is changed. Ends with 0 when
/// nothing is wrong, 1 when everything was repaired, 4 when something is left, 8 when the check could
/// not be made, 16 when the arguments make no sense. With a link fsck.thalweg to this program in /sbin,
/// fsck(8) knows the type thalweg.
#[derive(Debug, Args)]
pub(crate) struct Fsck {
    /// The volume's folder, or the device of one that is updated in place
    volume: String,
    /// Change nothing
    #[arg(short = 'n', long, conflicts_with_all = ["repair", "automatic"])]
    dry_run: bool,
    /// Repair what can be repaired
    #[arg(short = 'y', long)]
    repair: bool,
    /// As -y, for fsck(8)
    #[arg(short = 'a', short_alias = 'p', long, hide = true)]
    automatic: bool,
    /// Read the files' blocks too
    #[arg(short, long)]
    data: bool,
    /// The device of the journal, where that is outside of the volume
    #[arg(long, value_name = "PATH")]
    journal_dev: Option<std::path::PathBuf>,
    /// Print what was found as a JSON object
    #[arg(long)]
    json: bool,
    /// For fsck(8): every check is a whole one
    #[arg(short = 'f', hide = true)]
    force: bool,
    /// For fsck(8): where progress goes
    #[arg(short = 'C', hide = true)]
    progress: Option<i32>,
}

pub(crate) async fn run(env: &Env, args: Fsck) -> Outcome<u8> {
    let target = Target::with_files(&args.volume)?;
    if Client::connect(&target.folder).await?.is_some() {
        return Err(Failure::new(format!("{} is mounted or served", target.name))
            .help("unmount it, or end its server, then check it"));
    }
    let opened = Opened::open_with(env, &target, args.journal_dev.as_deref()).await?;
    let how = check::How { repair: args.repair || args.automatic, data: args.data };
    let report = files::check(env, &opened, how).await;
    let closed = opened.close().await;
    let report = report?;
    closed?;
    match args.json {
        true => println!("{}", as_json(&report)),
        false => show(&report, &target, how.repair),
    }
    Ok(match () {
        () if report.is_clean() => 0,
        () if report.is_damaged() => LEFT,
        () => CORRECTED,
    })
}

fn outcome(finding: &Finding) -> (&'static str, Option<&str>) {
    match &finding.outcome {
        check::Outcome::Left => ("left", None),
        check::Outcome::Repaired => ("repaired", None),
        check::Outcome::Lost(what) => ("lost", Some(what)),
    }
}

fn show(report: &Report, target: &Target, repair: bool) {
    for finding in &report.findings {
        match outcome(finding) {
            (_, Some(lost)) => println!("{}: repaired; {lost}", finding.damage),
            (outcome, None) => println!("{}: {outcome}", finding.damage),
        }
    }
    println!(
        "{}: {} inodes, {} of them directories; {} names; {} blocks in {} extents",
        target.name, report.inodes, report.directories, report.names, report.blocks, report.extents
    );
    if report.is_damaged() {
        println!(
            "{}",
            if repair { "Something is wrong still." } else { "-y repairs what can be." }
        );
    }
}

fn as_json(report: &Report) -> serde_json::Value {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|finding| {
            let (outcome, lost) = outcome(finding);
            let damage = finding.damage.to_string();
            serde_json::json!({ "damage": damage, "outcome": outcome, "lost": lost })
        })
        .collect();
    serde_json::json!({
        "clean": report.is_clean(),
        "findings": findings,
        "inodes": report.inodes,
        "directories": report.directories,
        "names": report.names,
        "extents": report.extents,
        "blocks": report.blocks,
        "unfinished": report.unfinished,
    })
}
