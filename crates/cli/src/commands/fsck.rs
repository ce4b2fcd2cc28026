//! `thalweg fsck`: checks the filesystem of a volume, and repairs it.

use clap::Args;
use thalweg_env::Env;
use thalweg_fs::check::{EmptyFile, How, LostRange, Report};

use super::ask::ask;
use crate::control::Client;
use crate::failure::{Failure, Outcome};
use crate::progress::{self, Silent};
use crate::request::{Answer, Request, unexpected_answer};
use crate::target::{JournalDev, Target};
use crate::volume::check::{self, Checked};
use crate::volume::opened::Opened;
use crate::volume::scrub::in_words;

/// Everything that was wrong is repaired.
const CORRECTED: u8 = 1;
/// Damage is left, or a file has lost some of its bytes.
const LEFT: u8 = 4;

/// Check the filesystem of a volume, and repair it
///
/// First the store below is scrubbed: everything on it is read and verified. The volume must not be mounted
/// or served, except read-only. A snapshot, FOLDER@SNAPSHOT, can be checked while its volume is in use; the
/// store below is then not scrubbed. Without -y or -a no byte changes: a journal or a log is replayed in
/// memory. With them, a journal that is damaged in the middle is replayed up to the damage.
///
/// Where the contents of files are objects of their own, they are compared with the files. Objects that belong to no file,
/// or lie behind the end of one, are what a server leaves that was killed; -y removes them. A file of which nothing is
/// stored is listed, and is no damage.
///
/// If blocks of a file cannot be found again, a repair records which bytes of it are lost. Reads of them
/// fail, and every check lists them, until they are written anew or the file is deleted.
///
/// Exit codes, as of e2fsck(8): 0 nothing is wrong; 1 everything was repaired; 4 damage is left, or files
/// have lost bytes; 8 the check could not be made; 16 the arguments are invalid. With -a, files that have
/// lost bytes make it 1, so that a system starts. With a link fsck.thalweg to this program in /sbin, fsck(8)
/// knows the type thalweg.
#[derive(Debug, Args)]
pub(crate) struct Fsck {
    /// The volume's folder, FOLDER@SNAPSHOT, or the device or image of one that is updated in place
    volume: String,
    /// Change nothing
    #[arg(short = 'n', long, conflicts_with_all = ["repair", "automatic"])]
    dry_run: bool,
    /// Repair what can be repaired
    #[arg(short = 'y', long)]
    repair: bool,
    /// Repair only where nothing readable is lost, and skip the scrub: fsck(8) asks for this when the system
    /// starts
    #[arg(short = 'a', short_alias = 'p', long, hide = true)]
    automatic: bool,
    /// Read the files' blocks too
    #[arg(short, long)]
    data: bool,
    #[command(flatten)]
    journal: JournalDev,
    /// Print the findings as a JSON object
    #[arg(long)]
    json: bool,
    /// For fsck(8): ignored, since every check is complete
    #[arg(short = 'f', hide = true)]
    force: bool,
    /// For fsck(8): ignored; where progress goes
    #[arg(short = 'C', hide = true)]
    progress: Option<i32>,
}

pub(crate) async fn run(env: &Env, args: Fsck) -> Outcome<u8> {
    let target = Target::find(&args.volume)?.with_journal(args.journal.journal_dev.as_deref());
    if let Some(name) = &target.snapshot {
        return run_on_snapshot(env, &args, &target, name).await;
    }
    let repair = args.repair || args.automatic;
    let server = match repair {
        true => Client::connect(&target.folder).await?,
        false => Client::connect_to_look(&target.folder).await?,
    };
    if let Some(server) = server
        && (repair || !is_read_only(server).await?)
    {
        return Err(Failure::new(format!("{} is mounted or served", target.name))
            .help("unmount it, or end its server, then check it"));
    }
    let mut how = How { repair, salvage: args.repair, data: args.data };
    let opened = match (repair, args.repair) {
        (_, true) => Opened::open_damaged(env, &target).await?,
        (true, _) => Opened::open_for_devices(env, &target).await?,
        (false, _) => Opened::open_read_only(env, &target).await?,
    };
    if opened.is_replica() {
        if args.repair {
            opened.close().await?;
            return Err(replica_is_not_repaired(&args.volume));
        }
        how.repair = false;
    }
    let checked = {
        let report = progress::for_user(args.json);
        check::check(env, &opened, !args.automatic, how, &*report).await
    };
    let closed = opened.close().await;
    let checked = checked?;
    closed?;
    match args.json {
        true => println!("{}", checked.as_json()),
        false => show(&checked, &target),
    }
    Ok(code_of(&checked, args.automatic))
}

/// The filesystem of a replica is that of its primary.
fn replica_is_not_repaired(volume: &str) -> Failure {
    Failure::new(format!("{volume} is a replica, and its filesystem is repaired at its primary")).help(format!(
        "leave out -y to check it; thalweg volume scrub {volume} repairs what its own drives have lost"
    ))
}

/// Checks a snapshot, through the volume's server if it has one.
async fn run_on_snapshot(env: &Env, args: &Fsck, target: &Target, name: &str) -> Outcome<u8> {
    if args.repair || args.automatic {
        return Err(Failure::new(format!("{} is a snapshot, which is read-only", args.volume))
            .help("leave out -y: the check shows what is wrong with it"));
    }
    let whole = Target { snapshot: None, ..target.clone() };
    let request = Request::CheckSnapshot { name: name.to_owned(), data: args.data };
    let Answer::Json(found) = ask(env, &whole, request, args.json).await? else {
        return Err(unexpected_answer());
    };
    match args.json {
        true => println!("{found}"),
        false => show_snapshot(&found, &target.export()),
    }
    Ok(if found["clean"] == true { 0 } else { LEFT })
}

fn show_snapshot(found: &serde_json::Value, name: &str) {
    if let Some(recovery) = found["recovery"].as_str() {
        println!("{name}: {recovery}");
    }
    for finding in found["findings"].as_array().into_iter().flatten() {
        println!("{}: left", finding["damage"].as_str().unwrap_or("damage"));
    }
    let [inodes, directories, names, blocks, extents] =
        ["inodes", "directories", "names", "blocks", "extents"].map(|field| &found[field]);
    println!(
        "{name}: {inodes} inodes, {directories} of them directories; {names} names; {blocks} blocks \
         in {extents} extents"
    );
}

/// Whether the volume's server has it open read-only.
async fn is_read_only(mut server: Client) -> Outcome<bool> {
    match server.ask(&Request::Status, &Silent).await? {
        Answer::Json(status) => Ok(status["read_only"] == true),
        _ => Ok(false),
    }
}

/// The exit code. At a system's start, files that have lost bytes do not stop it.
fn code_of(checked: &Checked, automatic: bool) -> u8 {
    match () {
        () if checked.is_clean() => 0,
        () if checked.is_damaged() => LEFT,
        () if !automatic && !checked.files.lost.is_empty() => LEFT,
        () => CORRECTED,
    }
}

fn show(checked: &Checked, target: &Target) {
    let Checked { repair, recovery, given_up, opening, degraded, store, files: report, unchecked } =
        checked;
    for what in degraded {
        eprintln!("warning: {} is degraded: {what}", target.name);
    }
    if let Some(recovery) = recovery {
        println!("{}: {recovery}", target.name);
    }
    opening.iter().for_each(|repaired| println!("{repaired}"));
    if *given_up > 0 {
        println!(
            "the journal was damaged in its middle: repaired; {given_up} transactions were given up"
        );
    }
    if let Some(store) = store {
        let lines = in_words(&store.report, store.is_repaired);
        println!("{}, the store: {}", target.name, lines.join("; "));
    }
    for finding in &report.findings {
        let at = match check::path(&finding.path) {
            Some(path) => format!("{path}: "),
            None => String::new(),
        };
        match check::outcome(finding) {
            (_, Some(lost)) => println!("{at}{}: repaired; lost: {lost}", finding.damage),
            (outcome, None) => println!("{at}{}: {outcome}", finding.damage),
        }
    }
    match unchecked {
        // The reason is listed with the damage that is left.
        Some(_) => println!("{}: the filesystem was not checked", target.name),
        None => show_files(report, target),
    }
    if checked.is_damaged() {
        println!("{}", if *repair { "Left to do:" } else { "Wrong (-y repairs what can be):" });
        checked.left().iter().for_each(|what| println!("  {what}"));
    }
}

/// Prints the counts of the filesystem, and the lost bytes of its files.
fn show_files(report: &Report, target: &Target) {
    for LostRange { ino, path, bytes } in &report.lost {
        println!(
            "{}: bytes {} to {} are lost (inode {ino})",
            check::path(path).as_deref().unwrap_or("a file without a name"),
            bytes.start,
            bytes.end
        );
    }
    println!(
        "{}: {} inodes, {} of them directories; {} names; {} blocks in {} extents",
        target.name, report.inodes, report.directories, report.names, report.blocks, report.extents
    );
    if let Some(contents) = &report.contents {
        println!("{}: the contents of files are {} objects", target.name, contents.objects);
        for EmptyFile { ino, path, size } in &contents.empty {
            println!(
                "{}: nothing is stored of its {size} bytes (inode {ino}), which read as zeros; that is no damage if they \
                 were never written",
                check::path(path).as_deref().unwrap_or("a file without a name"),
            );
        }
    }
    if !report.lost.is_empty() {
        println!(
            "Reads of what is lost fail. Write these files anew, from a backup, or delete them; until \
             then every check lists them."
        );
    }
}
