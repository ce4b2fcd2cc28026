//! `thalweg cluster journal`: the journal of a client, which is not mounted.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use thalweg_cluster::client::inode_changes::Step;
use thalweg_cluster::client::journal::{
    self, Exported, ExportedInode, JournalDamage, JournalReport,
};
use thalweg_env::Env;
use thalweg_store::device::Access;

use crate::client_journal::{self, USUAL_SIZE};
use crate::commands::ask::ask;
use crate::failure::{Failure, Outcome, explain_journal};
use crate::request::journal_place::JournalPlace;
use crate::request::{Answer, Request, unexpected_answer};
use crate::size::Size;
use crate::target::Target;

/// Where an export has what lies behind damage.
const BEHIND: &str = "behind-damage";

/// Make, look at, export and erase the journal of a client, while it is not mounted
///
/// `thalweg mount SERVER:/PATH DIRECTORY -o journal_dev=PATH` keeps there what the client has made by itself.
#[derive(Debug, Subcommand)]
pub(crate) enum JournalCommand {
    Create(Create),
    Inspect(Inspect),
    Export(Export),
    Erase(Erase),
    Forget(Forget),
}

/// Make an empty journal
///
/// A mount makes a file that is absent by itself.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// A new file, or a device that is overwritten; PATH+PATH for a mirror
    path: PathBuf,
    /// Bytes of a new file
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
}

/// Show what a journal has that the server may not have
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The journal: PATH, or PATH+PATH of a mirror
    path: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Write what a journal has into files of a new folder
///
/// For a journal that cannot be written back, since the server has given it up, or it is damaged. Of each file there are the bytes that
/// were written, at their offsets; journal.json lists them. The journal stays as it is.
///
/// Of one that is damaged in its middle damage.json names the changes that cannot be read, and behind-damage has what can be read behind
/// them, which may rest on these.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The journal: PATH, or PATH+PATH of a mirror
    path: PathBuf,
    /// The folder, which must not exist
    folder: PathBuf,
}

/// Give up the journals of a client that are away, at the server
///
/// Other clients need wait for them no more, and what they have is refused when the client comes back: it can be exported
/// there.
#[derive(Debug, Args)]
pub(crate) struct Forget {
    /// The volume's folder, or its device
    volume: String,
    /// The client's name
    client: String,
}

/// Forget what a journal has; what the server does not have of it is lost
#[derive(Debug, Args)]
pub(crate) struct Erase {
    /// The journal: PATH, or PATH+PATH of a mirror
    path: PathBuf,
    /// Also if changes are lost
    #[arg(long)]
    force: bool,
}

pub(super) async fn run(env: &Env, command: JournalCommand) -> Outcome<()> {
    match command {
        JournalCommand::Create(args) => create(env, &args).await,
        JournalCommand::Inspect(args) => show(env, &args).await,
        JournalCommand::Export(args) => export(env, &args).await,
        JournalCommand::Erase(args) => erase(env, &args).await,
        JournalCommand::Forget(args) => forget(env, args).await,
    }
}

async fn export(env: &Env, Export { path, folder }: &Export) -> Outcome<()> {
    let place = JournalPlace::parse(path)?;
    let device = client_journal::device(env, &place, Access::Reading).await?;
    let found = journal::export(env, &device).await.map_err(|error| {
        explain_journal(&error).while_doing(format!("cannot read the journal {}", path.display()))
    })?;
    let shown = folder.display();
    let failed = |error: std::io::Error| {
        Failure::of(&error).while_doing(format!("cannot write what the journal has to {shown}"))
    };
    let Exported { inodes, damage, behind } = found;
    write_inodes(folder, &inodes).map_err(failed)?;
    let (place, count) = (path.display(), inodes.len());
    let Some(damage) = damage else {
        println!("{shown} has what {place} changes: {count} files and directories");
        return Ok(());
    };
    write_inodes(&folder.join(BEHIND), &behind).map_err(failed)?;
    let list = serde_json::to_vec_pretty(&damage)?;
    fs::write(folder.join("damage.json"), list).map_err(failed)?;
    println!("{shown} has what {place} changes before its damage: {count} files and directories");
    println!("{}", lost_changes(&damage));
    println!(
        "{shown}/{BEHIND} has what can be read behind that, and may rest on it: {} files and directories",
        behind.len()
    );
    Ok(())
}

/// Writes what a journal has of some inodes into a new folder.
fn write_inodes(folder: &Path, inodes: &[ExportedInode]) -> io::Result<()> {
    fs::create_dir(folder)?;
    for inode in inodes.iter().filter(|inode| inode.is_file) {
        let file = File::create_new(folder.join(inode.file_name()))?;
        for step in &inode.steps {
            match step {
                Step::Write(offset, data) => file.write_all_at(data, *offset)?,
                Step::Size(size) => file.set_len(*size)?,
                Step::Grow(end) => file.set_len(file.metadata()?.len().max(*end))?,
            }
        }
        file.sync_all()?;
    }
    fs::write(folder.join("journal.json"), serde_json::to_vec_pretty(inodes)?)
}

/// Which changes of a damaged journal cannot be read.
fn lost_changes(JournalDamage { lost, .. }: &JournalDamage) -> String {
    if lost.is_empty() {
        return "no change is missing".to_owned();
    }
    let ranges: Vec<String> = lost
        .iter()
        .map(|range| match range {
            (first, Some(last)) if first == last => first.to_string(),
            (first, Some(last)) => format!("{first} to {last}"),
            (first, None) => format!("{first} and all behind it"),
        })
        .collect();
    format!(
        "missing, since they cannot be read: the changes with the positions {}",
        ranges.join(", ")
    )
}

async fn forget(env: &Env, Forget { volume, client }: Forget) -> Outcome<()> {
    let request = Request::ForgetJournals { client: client.clone() };
    match ask(env, &Target::volume(&volume)?, request, false).await? {
        Answer::Json(ended) => {
            println!("{} journals of {client} were given up", ended["ended"]);
            Ok(())
        }
        _ => Err(unexpected_answer()),
    }
}

async fn create(env: &Env, Create { path, size }: &Create) -> Outcome<()> {
    let place = JournalPlace::parse(path)?;
    for path in place.paths().iter().filter(|path| path.exists()) {
        let shown = path.display();
        if size.is_some() {
            return Err(Failure::new(format!("{shown} is there already"))
                .help("leave --size out, or name a new file"));
        }
        let one = JournalPlace::One(path.clone());
        if report(env, &one, Access::Exclusive).await.is_ok_and(|it| has_changes(&it)) {
            return Err(Failure::new(format!("{shown} is a journal with changes"))
                .help(format!("thalweg cluster journal erase --force {place} gives them up")));
        }
    }
    let size = size.map_or(USUAL_SIZE, |size| size.0);
    client_journal::create(env, &place, size).await?;
    println!("{place} is a journal: mount it with -o journal_dev={place}");
    Ok(())
}

/// Whether a journal has changes, or had some that cannot be read.
fn has_changes(report: &JournalReport) -> bool {
    report.changes > 0 || report.damage.is_some()
}

async fn report(env: &Env, place: &JournalPlace, access: Access) -> Outcome<JournalReport> {
    let device = client_journal::device(env, place, access).await?;
    journal::inspect(env, &device).await.map_err(|error| {
        explain_journal(&error).while_doing(format!("cannot read the journal {place}"))
    })
}

async fn show(env: &Env, Inspect { path, json }: &Inspect) -> Outcome<()> {
    let report = report(env, &JournalPlace::parse(path)?, Access::Reading).await?;
    if *json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    let JournalReport { session, first, changes, taken_over, files, bytes, size, damage } = report;
    match session {
        Some(session) => println!("session      {session}"),
        None => println!("session      none: it is empty"),
    }
    if taken_over {
        println!("taken over   its client may not go on");
    }
    match changes {
        0 => println!("changes      none"),
        _ => println!(
            "changes      {changes} of {files} files and directories, from position {first} on"
        ),
    }
    if let Some(damage) = &damage {
        let JournalDamage { behind, behind_files, .. } = damage;
        println!("damaged      all of the above is before that; {}", lost_changes(damage));
        println!(
            "behind it    {behind} changes of {behind_files} files and directories, which may rest on those"
        );
    }
    println!("data         {}", Size(bytes));
    println!("journal      {}", Size(size));
    Ok(())
}

async fn erase(env: &Env, Erase { path, force }: &Erase) -> Outcome<()> {
    let place = JournalPlace::parse(path)?;
    let report = report(env, &place, Access::Exclusive).await?;
    if report.damage.is_some() && !force {
        return Err(Failure::new(format!(
            "{place} is damaged in its middle, and has {} changes before that, which would be lost",
            report.changes
        ))
        .help(format!(
            "thalweg cluster journal export {place} FOLDER writes what can be read into files; --force erases it all the same"
        )));
    }
    if report.changes > 0 && !force {
        return Err(Failure::new(format!(
            "{place} has {} changes, which would be lost",
            report.changes
        ))
        .help("mount it to have them written back; --force erases it all the same"));
    }
    client_journal::erase(env, &place).await?;
    println!("{place} is empty; {} changes were given up", report.changes);
    Ok(())
}
