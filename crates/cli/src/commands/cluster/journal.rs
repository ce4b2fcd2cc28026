//! `thalweg cluster journal`: the journal of a client, which is not mounted.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use thalweg_cluster::client::inode_changes::Step;
use thalweg_cluster::client::journal::{self, JournalReport};
use thalweg_env::Env;
use thalweg_store::device::Access;

use crate::client_journal::{self, USUAL_SIZE};
use crate::commands::ask::ask;
use crate::failure::{Failure, Outcome, explain_journal};
use crate::request::{Answer, Request, unexpected_answer};
use crate::size::Size;
use crate::target::Target;

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
    /// A new file, or a device that is overwritten
    path: PathBuf,
    /// Bytes of a new file
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
}

/// Show what a journal has that the server may not have
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The journal
    path: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Write what a journal has into files of a new folder
///
/// For a journal that cannot be written back, since the server has given it up. Of each file there are the bytes that were
/// written, at their offsets; journal.json lists them. The journal stays as it is.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The journal
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
    /// The journal
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
    let device = client_journal::device(env, path, Access::Reading).await?;
    let found = journal::export(env, &device).await.map_err(|error| {
        explain_journal(&error).while_doing(format!("cannot read the journal {}", path.display()))
    })?;
    let shown = folder.display();
    let failed = |error: std::io::Error| {
        Failure::of(&error).while_doing(format!("cannot write what the journal has to {shown}"))
    };
    fs::create_dir(folder).map_err(failed)?;
    for inode in &found {
        if inode.is_file {
            let file = File::create_new(folder.join(inode.file_name())).map_err(failed)?;
            for step in &inode.steps {
                let done = match step {
                    Step::Write(offset, data) => file.write_all_at(data, *offset),
                    Step::Size(size) => file.set_len(*size),
                    Step::Grow(end) => {
                        file.metadata().and_then(|it| file.set_len(it.len().max(*end)))
                    }
                };
                done.map_err(failed)?;
            }
            file.sync_all().map_err(failed)?;
        }
    }
    let list = serde_json::to_vec_pretty(&found)?;
    fs::write(folder.join("journal.json"), list).map_err(failed)?;
    println!("{shown} has what {} changes: {} files and directories", path.display(), found.len());
    Ok(())
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
    let place = path.display();
    if path.exists() {
        if size.is_some() {
            return Err(Failure::new(format!("{place} is there already"))
                .help("leave --size out, or name a new file"));
        }
        if report(env, path, Access::Exclusive).await.is_ok_and(|it| it.changes > 0) {
            return Err(Failure::new(format!("{place} is a journal with changes"))
                .help(format!("thalweg cluster journal erase {place} gives them up")));
        }
    }
    let size = size.map_or(USUAL_SIZE, |size| size.0);
    client_journal::create(env, path, size).await?;
    println!("{place} is a journal: mount it with -o journal_dev={place}");
    Ok(())
}

async fn report(env: &Env, path: &Path, access: Access) -> Outcome<JournalReport> {
    let device = client_journal::device(env, path, access).await?;
    journal::inspect(env, &device).await.map_err(|error| {
        explain_journal(&error).while_doing(format!("cannot read the journal {}", path.display()))
    })
}

async fn show(env: &Env, Inspect { path, json }: &Inspect) -> Outcome<()> {
    let report = report(env, path, Access::Reading).await?;
    if *json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    let JournalReport { session, first, changes, taken_over, files, bytes, size } = report;
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
    println!("data         {}", Size(bytes));
    println!("journal      {}", Size(size));
    Ok(())
}

async fn erase(env: &Env, Erase { path, force }: &Erase) -> Outcome<()> {
    let place = path.display();
    let report = report(env, path, Access::Exclusive).await?;
    if report.changes > 0 && !force {
        return Err(Failure::new(format!(
            "{place} has {} changes, which would be lost",
            report.changes
        ))
        .help("mount it to have them written back; --force erases it all the same"));
    }
    client_journal::create(env, path, report.size).await?;
    println!("{place} is empty; {} changes were given up", report.changes);
    Ok(())
}
