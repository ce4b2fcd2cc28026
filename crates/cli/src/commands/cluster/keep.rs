//! `thalweg cluster keep` and `takeover`: second copies of the journals of clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use thalweg_cluster::client::address::{Address, KEEPER_PORT};
use thalweg_cluster::client::{self, ConflictScope, OnConflict, Options, TakenOver, journal};
use thalweg_cluster::keeper::{Keeper, KeptCopy, Shelf, is_of};
use thalweg_env::{Env, watch};
use thalweg_store::device::Access;

use crate::client_journal;
use crate::commands::key::KeysFolder;
use crate::commands::mount_shared::host_name;
use crate::control::Client;
use crate::daemon::control::{self, Owned};
use crate::daemon::entrance::Entrance;
use crate::daemon::kept_copies::{Folder, Keeping};
use crate::daemon::signals;
use crate::failure::{Failure, Outcome, explain_journal};
use crate::listen::ListenAddress;
use crate::output;
use crate::progress::Silent;
use crate::request::{Answer, Request, unexpected_answer};
use crate::size::Size;

/// Keep second copies of the journals of clients on other machines
///
/// A client that is mounted with -o journal_dev=PATH,replicate=HOST sends the changes in its journal to this program on HOST, so
/// that they survive the loss of its machine: thalweg cluster takeover writes them back. Clients need a key: thalweg key authorize NAME
/// --token on this machine prints a token, with which thalweg key enrol HOST:7701 TOKEN makes the client's key known. The first
/// SIGINT or SIGTERM ends the keeper in order, and writes what it has in memory to the folder.
#[derive(Debug, Args)]
pub(crate) struct Keep {
    #[command(flatten)]
    keys: KeysFolder,
    /// The folder for the copies, which is made if it is absent
    folder: PathBuf,
    /// Where to listen
    #[arg(long, value_name = "HOST:PORT", default_value_t = usual_address())]
    listen: String,
    /// Memory for the copies of clients that ask for some in memory; when it is full, their fsync waits for the server
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    memory: Size,
    /// Print the addresses as one JSON object
    #[arg(long)]
    json: bool,
}

fn usual_address() -> String {
    format!("0.0.0.0:{KEEPER_PORT}")
}

/// List the copies that a keeper has
#[derive(Debug, Args)]
pub(crate) struct Copies {
    /// The keeper's folder
    folder: PathBuf,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Write back what a keeper has of the journal of a client whose machine is lost
///
/// Run it on the keeper, with a copy of the client's key. Then the server has every change that the client had synced, and its session has
/// ended: if the client is not lost, and comes back, the keeper and the server refuse it. The command may be repeated. Changes
/// that other clients have made impossible meanwhile become conflict copies, see thalweg cluster conflicts.
#[derive(Debug, Args)]
pub(crate) struct Takeover {
    #[command(flatten)]
    keys: KeysFolder,
    /// The keeper's folder
    folder: PathBuf,
    /// The client's name at the keeper
    client: String,
    /// The directory that the client had mounted, SERVER:/PATH
    address: String,
    /// What becomes of changes that other clients have made impossible: copy, discard or refuse
    #[arg(long, value_name = "WHAT", default_value = "copy")]
    on_conflict: OnConflict,
    /// Which changes these are: the first one of them with all behind it (prefix), or with what depends on it (file)
    #[arg(long, value_name = "SCOPE", default_value = "prefix")]
    conflict: ConflictScope,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub(super) async fn keep(env: &Env, args: Keep) -> Outcome<()> {
    let address: ListenAddress = args.listen.parse().map_err(Failure::new)?;
    let folder = Folder::new(env, &args.folder);
    let _lock = folder.lock()?;
    let home = args.keys.home();
    home.own_key(env)?;
    let keeper = Keeper::new(env, Box::new(folder), args.memory.0);
    let (stop, mut stopped) = watch::channel(false);
    let _signals = signals::watch(env, stop)?;
    let handler = Arc::new(Keeping { keeper: keeper.clone() });
    let control = control::listen(env, &args.folder, Owned::No, handler)?;
    let network = Entrance::open(env, &address, home, Keeping { keeper: keeper.clone() }).await?;
    let places: Vec<String> = network.addresses().iter().map(ToString::to_string).collect();
    match args.json {
        true => println!("{}", serde_json::json!({ "addresses": places })),
        false => places.iter().for_each(|place| println!("{place}")),
    }
    output::flush();
    // The sender stays until the second signal.
    let _ = stopped.wait_for(|stopped| *stopped).await;
    drop((network, control));
    let shown = args.folder.display();
    let closed = keeper.close().await;
    closed.map_err(|error| {
        Failure::of(&error).while_doing(format!("not all copies in memory were written to {shown}"))
    })
}

/// A line about a copy.
#[derive(Debug, Serialize)]
struct Line {
    copy: String,
    /// Changes that the server has not made durable, as far as the client has said.
    changes: u64,
    state: &'static str,
}

pub(super) async fn copies(env: &Env, Copies { folder, json }: &Copies) -> Outcome<()> {
    let shelf = Folder::new(env, folder);
    let mut lines = Vec::new();
    for name in names(&shelf, folder).await? {
        let device = client_journal::open_one(env, &shelf.file(&name), Access::Reading).await?;
        let found =
            journal::inspect(env, &device).await.map_err(|error| explain_journal(&error))?;
        let state = if found.taken_over { "taken over" } else { "on the drive" };
        lines.push(Line { copy: name, changes: found.changes as u64, state });
    }
    if let Some(mut keeper) = Client::connect(folder).await? {
        let Answer::Json(mut status) = keeper.ask(&Request::Status, &Silent).await? else {
            return Err(unexpected_answer());
        };
        let open: Vec<KeptCopy> = serde_json::from_value(status["copies"].take())?;
        for KeptCopy { name, changes, .. } in open.into_iter().filter(|it| !it.is_durable) {
            // Its file is one of an earlier end.
            lines.retain(|line| line.copy != name);
            lines.push(Line { copy: name, changes, state: "in memory" });
        }
    }
    lines.sort_by(|one, other| one.copy.cmp(&other.copy));
    if *json {
        println!("{}", serde_json::to_string(&lines)?);
        return Ok(());
    }
    for Line { copy, changes, state } in lines {
        println!("{copy}  {changes} changes  {state}");
    }
    Ok(())
}

async fn names(shelf: &Folder, folder: &Path) -> Outcome<Vec<String>> {
    shelf.names().await.map_err(|error| {
        Failure::of(&error).while_doing(format!("cannot read {}", folder.display()))
    })
}

/// The names of a client's copies, of which none is in use any more.
async fn sealed(folder: &Path, shelf: &Folder, client: &str) -> Outcome<Vec<String>> {
    if let Some(mut keeper) = Client::connect(folder).await? {
        let request = Request::SealCopies { client: client.to_owned() };
        let Answer::Json(names) = keeper.ask(&request, &Silent).await? else {
            return Err(unexpected_answer());
        };
        return Ok(serde_json::from_value(names)?);
    }
    let names = names(shelf, folder).await?;
    let mut names: Vec<String> = names.into_iter().filter(|name| is_of(name, client)).collect();
    names.sort_unstable();
    Ok(names)
}

pub(super) async fn takeover(env: &Env, args: Takeover) -> Outcome<()> {
    let Takeover { keys, folder, client, address, on_conflict, conflict, json } = args;
    let address = Address::of(&address)
        .unwrap_or_else(|| Err(thalweg_ipc::remote::RemoteError::Address(address.clone())))?;
    let shelf = Folder::new(env, &folder);
    let names = sealed(&folder, &shelf, &client).await?;
    if names.is_empty() {
        let why = format!("{} has no copies of journals of {client}", folder.display());
        return Err(Failure::new(why).help("the files there are named for their clients"));
    }
    let mut taken = Vec::new();
    for name in names {
        let path = shelf.file(&name);
        let journal = Some(client_journal::open_one(env, &path, Access::Exclusive).await?);
        let host = host_name().unwrap_or_else(|| Options::default().host);
        let options = Options { journal, on_conflict, conflict, host, ..Options::default() };
        let connector = address.connector(env, keys.home());
        let done = client::take_over(env, connector, options).await.map_err(|error| {
            Failure::from(error).while_doing(format!("cannot take over {}", path.display()))
        })?;
        if !json {
            tell(&path, &address, &done);
        }
        taken.push((path, done));
    }
    if json {
        let all: Vec<_> = taken
            .iter()
            .map(|(path, done)| serde_json::json!({ "copy": path, "taken": done }))
            .collect();
        println!("{}", serde_json::json!(all));
    }
    if taken.iter().all(|(_, done)| done.stale > 0) {
        return Err(Failure::new(format!("{address} has no session of {client} for these copies"))
            .help(
                "if the address is the directory that the client had mounted, the client has ended in order, another keeper \
                 has taken over, or the journal was given up; thalweg cluster journal export takes out what a copy has",
            ));
    }
    Ok(())
}

fn tell(path: &Path, address: &Address, done: &TakenOver) {
    let place = path.display();
    let TakenOver { written, set_aside, stale, .. } = *done;
    match (written, stale) {
        (_, 1..) => println!("{place}: its session has ended; {stale} changes stay there"),
        (0, 0) => println!("{place}: {address} has everything"),
        (_, 0) => println!("{place}: {written} changes were written back to {address}"),
    }
    if set_aside > 0 {
        println!(
            "{place}: {set_aside} changes were made impossible by other clients: thalweg cluster conflicts list shows them in a mount"
        );
    }
}
