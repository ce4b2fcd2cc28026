//! `thalweg cluster caps`: the holders of a file.

use clap::Args;
use thalweg_cluster::server::{HolderReport, InodeReport, InvalidationReport, LockReport};
use thalweg_env::Env;
use thalweg_fs::{Kind, LockKind, LockMode};

use crate::commands::ask::ask;
use crate::date::span;
use crate::failure::Outcome;
use crate::request::{Answer, Request, unexpected_answer};
use crate::target::Target;

/// Show which clients hold what of a file or directory of a served filesystem
///
/// For each client that knows it: what the client caches (attributes, names of a directory, pages of a file) and for how
/// long, how often it has the file open, and its locks with the calls that wait for some. And the invalidations under way:
/// for how long which call of which client waits, and for which clients.
#[derive(Debug, Args)]
pub(crate) struct Caps {
    /// The volume's folder, or its device
    volume: String,
    /// The path from the root of the served filesystem; a symbolic link is not followed
    path: String,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn caps(env: &Env, args: Caps) -> Outcome<()> {
    let request = Request::Capabilities { path: args.path.clone() };
    let found = ask(env, &Target::volume(&args.volume)?, request, args.json).await?;
    let Answer::Json(found) = found else { return Err(unexpected_answer()) };
    match args.json {
        true => println!("{found}"),
        false => show(&args.path, &serde_json::from_value(found)?),
    }
    Ok(())
}

fn show(path: &str, report: &InodeReport) {
    println!("{path}: {}, inode {}", kind_name(report.kind), report.ino);
    match report.holders.is_empty() {
        true => println!("no client knows it"),
        false => println!(
            "{:20} {:28} {:>8} {:>8} {:>8} {:>8}",
            "CLIENT", "CACHES", "FOR", "READING", "WRITING", "OPEN FOR"
        ),
    }
    report.holders.iter().for_each(show_holder);
    report.invalidations.iter().for_each(show_invalidation);
}

fn show_holder(holder: &HolderReport) {
    let held = [
        (holder.exclusive, "exclusive"),
        (holder.attributes, "attributes"),
        (holder.names, "names"),
        (holder.content, "pages"),
    ];
    let held: Vec<&str> = held.iter().filter(|(is_held, _)| *is_held).map(|it| it.1).collect();
    let held = if held.is_empty() { "nothing".to_owned() } else { held.join(", ") };
    let state = match (holder.ended, holder.connected) {
        (true, _) => "  session ended, its lease runs on",
        (false, false) => "  not connected",
        (false, true) => "",
    };
    let client = &holder.client;
    let (cached, open) = (span_or_dash(holder.cached_ms), span_or_dash(holder.open_ms));
    let (reading, writing) = (holder.reading, holder.writing);
    println!("{client:20} {held:28} {cached:>8} {reading:>8} {writing:>8} {open:>8}{state}");
    holder.locks.iter().for_each(|lock| println!("  has    {}", lock_text(lock)));
    holder.waits.iter().for_each(|lock| println!("  waits  {}", lock_text(lock)));
}

fn show_invalidation(it: &InvalidationReport) {
    let InvalidationReport { age_ms, client, call, names, unanswered } = it;
    let names = match names.is_empty() {
        true => String::new(),
        false => format!(" of {}", names.join(", ")),
    };
    let unanswered = unanswered.join(", ");
    println!(
        "invalidation for {}: {call}{names} by {client} waits for {unanswered}",
        span(*age_ms)
    );
}

fn lock_text(lock: &LockReport) -> String {
    let LockReport { kind, mode, first, last, pid, since_ms } = lock;
    let mode = match mode {
        LockMode::Shared => "shared",
        LockMode::Exclusive => "exclusive",
    };
    let range = match (kind, first, last) {
        (LockKind::Bsd, ..) | (LockKind::Posix, 0, None) => "of the whole file".to_owned(),
        (LockKind::Posix, first, None) => format!("from byte {first} on"),
        (LockKind::Posix, first, Some(last)) => format!("of bytes {first} to {last}"),
    };
    format!("{mode} lock {range}, process {pid}, for {}", span_or_dash(*since_ms))
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symbolic link",
        Kind::Fifo => "FIFO",
        Kind::Socket => "socket",
        Kind::CharDevice => "character device",
        Kind::BlockDevice => "block device",
    }
}

fn span_or_dash(millis: Option<u64>) -> String {
    millis.map_or_else(|| "-".to_owned(), span)
}
