//! `thalweg fsck`: checks the filesystem of a volume, and repairs it.

use bytes::Bytes;
use clap::Args;
use thalweg_env::Env;
use thalweg_fs::check::{self, Damage, Finding, LostRange, Report};
use thalweg_store::inplace::Mend;

use crate::ask::ask;
use crate::control::Client;
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::opened::{Opened, Scrubbed};
use crate::progress::{self, Silent};
use crate::request::{Answer, Request};
use crate::target::{JournalDev, Target};

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
/// If blocks of a file cannot be found again, a repair records which bytes of it are lost. Reads of them
/// fail, and every check lists them, until they are written anew or the file is deleted.
///
/// Exit codes, as of e2fsck(8): 0 nothing is wrong; 1 everything was repaired; 4 damage is left, or files
/// have lost bytes; 8 the check could not be made; 16 the arguments are invalid. With -a, files that have
/// lost bytes make it 1, so that a system starts. With a link fsck.thalweg to this program in /sbin, fsck(8)
/// knows the type thalweg.
#[derive(Debug, Args)]
pub(crate) struct Fsck {
    /// The volume's folder, FOLDER@SNAPSHOT, or the device of one that is updated in place
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
    let how = check::How { repair, salvage: args.repair, data: args.data };
    let opened = match (repair, args.repair) {
        (_, true) => Opened::open_damaged(env, &target).await?,
        (true, _) => Opened::open(env, &target).await?,
        (false, _) => Opened::open_read_only(env, &target).await?,
    };
    let checked = check(env, &opened, &args, how).await;
    let closed = opened.close().await;
    let checked = checked?;
    closed?;
    match args.json {
        true => println!("{}", as_json(&checked, how.repair)),
        false => show(&checked, &target, how.repair),
    }
    Ok(checked.code(args.automatic))
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
        return Err(Failure::new("the volume's server gave no report")
            .help("it may be of another version; restart it"));
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

/// Checks the filesystem as a snapshot shows it; the report as JSON.
pub(crate) async fn check_snapshot(
    env: &Env,
    volume: &Opened,
    name: &str,
    data: bool,
) -> Outcome<serde_json::Value> {
    let how = check::How { data, ..check::How::default() };
    let files = files::check_snapshot(env, volume, name, how).await?;
    let checked = Checked {
        recovery: volume.recovery(),
        given_up: 0,
        opening: Vec::new(),
        degraded: Vec::new(),
        store: None,
        files,
        unchecked: None,
    };
    Ok(as_json(&checked, false))
}

/// Whether the volume's server has it open read-only.
async fn is_read_only(mut server: Client) -> Outcome<bool> {
    match server.ask(&Request::Status, &Silent).await? {
        Answer::Json(status) => Ok(status["read_only"] == true),
        _ => Ok(false),
    }
}

/// The findings, from the store upwards.
struct Checked {
    /// How the volume was recovered in memory, without a write.
    recovery: Option<String>,
    /// Transactions of the journal that were given up.
    given_up: u64,
    /// Repairs that the opening needed.
    opening: Vec<String>,
    /// Missing redundancy and the like, as [`Opened::degraded`] reports it.
    degraded: Vec<String>,
    store: Option<Scrubbed>,
    files: Report,
    /// Why the filesystem could not be checked: the store below is damaged.
    unchecked: Option<String>,
}

impl Checked {
    fn is_damaged(&self) -> bool {
        self.unchecked.is_some()
            || self.files.is_damaged()
            || self.store.as_ref().is_some_and(|store| store.is_damaged)
    }

    fn is_clean(&self) -> bool {
        let is_whole = |store: &Scrubbed| !store.is_damaged && !store.is_repaired;
        self.given_up == 0
            && self.opening.is_empty()
            && self.unchecked.is_none()
            && self.store.as_ref().is_none_or(is_whole)
            && self.files.is_clean()
    }

    /// The exit code. At a system's start, files that have lost bytes do not stop it.
    fn code(&self, automatic: bool) -> u8 {
        match () {
            () if self.is_clean() => 0,
            () if self.is_damaged() => LEFT,
            () if !automatic && !self.files.lost.is_empty() => LEFT,
            () => CORRECTED,
        }
    }
}

async fn check(env: &Env, opened: &Opened, args: &Fsck, mut how: check::How) -> Outcome<Checked> {
    let store = match args.automatic {
        true => None,
        false => {
            let mend = if how.repair { Mend::Yes } else { Mend::No };
            Some(opened.scrub(mend, how.repair, &*progress::for_user(args.json)).await?)
        }
    };
    // Free blocks must be empty, and after a map sector was given up some may not be. And the check must find
    // the files of the blocks that the scrub found lost.
    how.data |= store.as_ref().is_some_and(|store| store.gave_up || store.lost > 0);
    let is_damaged = store.as_ref().is_some_and(|store| store.is_damaged);
    let (files, unchecked) = match files::check(env, opened, how).await {
        Err(failure) if is_damaged => (Report::default(), Some(failure.to_string())),
        files => (files?, None),
    };
    let (given_up, opening) = (opened.given_up(), opened.repaired());
    let (recovery, degraded) = (opened.recovery(), opened.degraded());
    Ok(Checked { recovery, given_up, opening, degraded, store, files, unchecked })
}

/// The next step for damage that a check has left.
fn next_step(damage: &Damage, repair: bool) -> &'static str {
    match damage {
        Damage::Unreadable { .. } => {
            "write these bytes anew, from a backup, or delete the file, if the device does not give \
             them later"
        }
        _ if !repair => "thalweg fsck -y repairs it, if it can be repaired",
        Damage::Tree(_) => {
            "thalweg fsck -y gives up what of it cannot be read; after that, restore from a backup"
        }
        _ => "make room (delete files, or extend the volume), then run thalweg fsck -y again",
    }
}

/// The damage that is left, each with the next step.
fn left(checked: &Checked, repair: bool) -> Vec<String> {
    let mut left = Vec::new();
    if let Some(store) = checked.store.as_ref().filter(|store| store.is_damaged) {
        left.push(match store.lost {
            0 => "the store has lost metadata (its map, or its catalogue): thalweg fsck -y repairs it, \
                  or gives up what it said"
                .to_owned(),
            lost => format!(
                "the store has {lost} blocks of which no copy is right: files that have them are \
                 listed above; a block that is written anew is whole again"
            ),
        });
    }
    if let Some(why) = &checked.unchecked {
        left.push(format!("the filesystem was not checked: {why}"));
    }
    let findings = checked.files.findings.iter();
    for finding in findings.filter(|finding| finding.outcome == check::Outcome::Left) {
        let at = path(&finding.path).map(|path| format!("{path}: ")).unwrap_or_default();
        left.push(format!("{at}{}: {}", finding.damage, next_step(&finding.damage, repair)));
    }
    left
}

fn outcome(finding: &Finding) -> (&'static str, Option<&str>) {
    match &finding.outcome {
        check::Outcome::Left => ("left", None),
        check::Outcome::Repaired => ("repaired", None),
        check::Outcome::Lost(what) => ("lost", Some(what)),
    }
}

fn show(checked: &Checked, target: &Target, repair: bool) {
    let Checked { recovery, given_up, opening, degraded, store, files: report, unchecked } =
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
    if let Some(fields) = store.as_ref().and_then(|store| store.report.as_object()) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name} {value}")).collect();
        println!("{}, the store: {}", target.name, fields.join(", "));
    }
    for finding in &report.findings {
        let at = match path(&finding.path) {
            Some(path) => format!("{path}: "),
            None => String::new(),
        };
        match outcome(finding) {
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
        println!("{}", if repair { "Left to do:" } else { "Wrong (-y repairs what can be):" });
        left(checked, repair).iter().for_each(|what| println!("  {what}"));
    }
}

/// Prints the counts of the filesystem, and the lost bytes of its files.
fn show_files(report: &Report, target: &Target) {
    for LostRange { ino, path, bytes } in &report.lost {
        println!(
            "{}: bytes {} to {} are lost (inode {ino})",
            self::path(path).as_deref().unwrap_or("a file without a name"),
            bytes.start,
            bytes.end
        );
    }
    println!(
        "{}: {} inodes, {} of them directories; {} names; {} blocks in {} extents",
        target.name, report.inodes, report.directories, report.names, report.blocks, report.extents
    );
    if !report.lost.is_empty() {
        println!(
            "Reads of what is lost fail. Write these files anew, from a backup, or delete them; until \
             then every check lists them."
        );
    }
}

/// A path with control characters escaped.
fn path(path: &Option<Bytes>) -> Option<String> {
    let path = String::from_utf8_lossy(path.as_ref()?);
    Some(
        path.chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
            .collect(),
    )
}

fn as_json(checked: &Checked, repair: bool) -> serde_json::Value {
    let report = &checked.files;
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|finding| {
            let (outcome, lost) = outcome(finding);
            let damage = finding.damage.to_string();
            let path = path(&finding.path);
            serde_json::json!({ "damage": damage, "path": path, "outcome": outcome, "lost": lost })
        })
        .collect();
    let lost: Vec<_> = report
        .lost
        .iter()
        .map(|LostRange { ino, path, bytes }| {
            let path = self::path(path);
            serde_json::json!({ "path": path, "inode": ino, "from": bytes.start, "to": bytes.end })
        })
        .collect();
    serde_json::json!({
        "clean": checked.is_clean(),
        "recovery": checked.recovery,
        "given_up": checked.given_up,
        "opening": checked.opening,
        "unchecked": checked.unchecked,
        "store": checked.store.as_ref().map(|store| &store.report),
        "findings": findings,
        "lost": lost,
        "degraded": checked.degraded,
        "left": left(checked, repair),
        "inodes": report.inodes,
        "directories": report.directories,
        "names": report.names,
        "extents": report.extents,
        "blocks": report.blocks,
        "unfinished": report.unfinished,
    })
}
