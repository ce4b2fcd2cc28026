//! `thalweg cluster`: a filesystem that many machines share.

mod caps;
mod conflict_sets;
mod conflicts;
mod journal;
mod keep;
pub(super) mod moving;
mod pending;
mod selftest;
mod status;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use thalweg_cluster::client::address::PORT;
use thalweg_env::{Env, Task, Tenure};
use thalweg_net::keys::{Access, Nobody, Squash};
use thalweg_store::device::kinds::kind_of;
use thalweg_store::open::VolumePath;
use thalweg_store::pool::PoolError;

use super::ask::ask;
use super::key::{self, KeysFolder, Span};
use super::volume::create::{self, Create as CreateVolume};
use super::volume::in_place;
use crate::daemon::network;
use crate::daemon::running::Running;
use crate::daemon::session::{Purpose, Session};
use crate::daemon::shared_files::SharedFiles;
use crate::daemon::standby::Standby;
use crate::devices::{self, Service};
use crate::failure::{Failure, Outcome};
use crate::listen::ListenAddress;
use crate::output;
use crate::progress;
use crate::request::{Answer, ContentsPlace, NewFilesystem, Request, unexpected_answer};
use crate::size::Size;
use crate::target::Target;
use crate::volume::{files, opened::Opened, served};

/// Share a filesystem with other machines
///
/// On the server: `thalweg cluster create FOLDER --size SIZE` (on a Ceph cluster, `thalweg cluster create rados:POOL/IMAGE`)
/// makes a filesystem, or prepares an existing one;
/// `thalweg cluster serve FOLDER` serves it; `thalweg cluster client add NAME --path PATH --rw` prints a token. On a client:
/// `thalweg mount SERVER:/PATH DIRECTORY --token TOKEN`, and from then on without the token.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    Create(Create),
    Serve(Serve),
    Status(status::Status),
    Caps(caps::Caps),
    Selftest(selftest::Selftest),
    #[command(hide = true)]
    SelftestAgent(selftest::Agent),
    #[command(subcommand)]
    Client(ClientCommand),
    Pending(pending::Pending),
    Drain(pending::Drain),
    #[command(subcommand)]
    Journal(journal::JournalCommand),
    #[command(subcommand)]
    Conflicts(conflicts::ConflictsCommand),
    Keep(keep::Keep),
    Copies(keep::Copies),
    Takeover(keep::Takeover),
    Move(moving::Move),
}

/// Make a filesystem to be shared, on a new volume or an existing one
///
/// A filesystem that is there stays as it is. The server's key is made if this user has none.
///
/// On a Ceph cluster, the filesystem lies on an image, which is made if it is missing: names, sizes and times of files.
/// The contents of files are objects beside it.
#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    keys: KeysFolder,
    /// The volume's folder, or an image rados:POOL/IMAGE
    folder: PathBuf,
    /// Make the volume first, of this size; its files take the space that is used [default for an image: 64G]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Where to keep the contents of files of a new filesystem: on the volume, or in objects of their own beside an image
    /// [default for an image: objects]
    #[arg(long, value_name = "PLACE", hide_possible_values = true)]
    contents: Option<ContentsPlace>,
}

/// The size of an image for names, where none is given. It takes the space that is used.
const IMAGE: Size = Size(64 << 30);

/// Serve a filesystem to clients on other machines
///
/// Clients need keys, see `thalweg cluster client`. Until the server ends, the filesystem cannot be mounted on this
/// machine by itself: mount it as a client, `thalweg mount localhost:/ DIRECTORY`. The first SIGINT or SIGTERM shuts the
/// server down cleanly, the second one at once.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    keys: KeysFolder,
    /// The volume's folder, or the device or file of one that is updated in place
    volume: String,
    /// Where to listen: on every address of the host
    #[arg(long, value_name = "HOST:PORT", default_value_t = usual_address(), hide_default_value = true)]
    listen: String,
    /// A client that is not heard for so many seconds loses what it caches
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease: u64,
    /// Wait so many seconds longer for a client with a journal that does not answer, before other clients get what its journal may
    /// have changes of: it may reboot meanwhile
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=86400))]
    hold: u64,
    /// Memory for what clients know of files, about 256 bytes for each file that a client knows. When it is full, the clients
    /// that know most are asked to forget files that they do not use
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = memory)]
    memory: Size,
    /// While another server has the filesystem, stand by, and go on in its place when it has ended
    #[arg(long)]
    standby: bool,
    /// Serve metrics for Prometheus over HTTP, on localhost:PORT for example
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<ListenAddress>,
    /// Print the addresses as one JSON object
    #[arg(long)]
    json: bool,
}

fn memory(text: &str) -> Result<Size, String> {
    match text.parse()? {
        Size(bytes) if bytes < 1 << 20 => Err("it takes at least 1 MiB".to_owned()),
        size => Ok(size),
    }
}

fn usual_address() -> String {
    format!("0.0.0.0:{PORT}")
}

/// Choose which clients may connect, and end their sessions
#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    Add(Add),
    List(key::List),
    Revoke(key::Revoke),
    Evict(Evict),
}

/// Print a token with which a client may connect for the first time
///
/// Root of the client acts as the user nobody, unless --squash says otherwise: it may do only what any user may. Other users act as
/// themselves, as the client's kernel tells them. The server checks what each user may do. A client whose root is to change
/// owners, make devices or read all files, such as one that restores backups, needs --squash none: then permissions are
/// checked by that client's kernel alone.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("access").required(true).args(["rw", "ro"]))]
pub(crate) struct Add {
    #[command(flatten)]
    keys: KeysFolder,
    /// Name of the client: letters, digits, and `.`, `_`, `-` or `@`
    name: String,
    /// The directory that it may use, with everything below it
    #[arg(long, value_name = "PATH")]
    path: String,
    /// Let it change files
    #[arg(long)]
    rw: bool,
    /// Let it read only
    #[arg(long)]
    ro: bool,
    /// Its users that act as the user nobody: root, all or none
    #[arg(long, value_name = "USERS", default_value = "root", value_parser = ["root", "all", "none"])]
    squash: String,
    /// The user nobody and its group, if not 65534:65534
    #[arg(long, value_name = "UID:GID")]
    nobody: Option<Nobody>,
    /// Time for which the token can be used, such as 30m, 24h or 7d
    #[arg(long, value_name = "TIME", default_value = "24h")]
    expires: Span,
}

/// End the sessions of a client now; it may connect again
///
/// Its open files become stale, and its locks are released.
#[derive(Debug, Args)]
pub(crate) struct Evict {
    /// The volume's folder, or its device
    volume: String,
    /// The client's name
    client: String,
}

/// Carries out a command; its exit code.
pub(crate) async fn run(env: &Env, command: ClusterCommand) -> Outcome<u8> {
    match command {
        ClusterCommand::Status(args) => return status::status(env, args).await,
        ClusterCommand::Create(args) => create(env, args).await,
        ClusterCommand::Serve(args) => serve(env, args).await,
        ClusterCommand::Caps(args) => caps::caps(env, args).await,
        ClusterCommand::Selftest(args) => selftest::selftest(env, &args).await,
        ClusterCommand::SelftestAgent(args) => selftest::serve(&args),
        ClusterCommand::Client(ClientCommand::Add(args)) => add(env, &args),
        ClusterCommand::Client(ClientCommand::List(args)) => key::list(&args),
        ClusterCommand::Client(ClientCommand::Revoke(args)) => {
            key::revoke(&args, "thalweg cluster client list")
        }
        ClusterCommand::Client(ClientCommand::Evict(args)) => evict(env, args).await,
        ClusterCommand::Pending(args) => pending::pending(&args).await,
        ClusterCommand::Drain(args) => pending::drain(env, &args).await,
        ClusterCommand::Journal(command) => journal::run(env, command).await,
        ClusterCommand::Conflicts(command) => conflicts::run(command),
        ClusterCommand::Keep(args) => keep::keep(env, args).await,
        ClusterCommand::Copies(args) => keep::copies(env, &args).await,
        ClusterCommand::Takeover(args) => keep::takeover(env, args).await,
        ClusterCommand::Move(args) => moving::move_mount(env, args).await,
    }
    .map(|()| 0)
}

async fn create(env: &Env, args: Create) -> Outcome<()> {
    let Create { keys, folder, size, contents } = args;
    let shown = folder.display().to_string();
    let is_image = kind_of(&folder).is_some();
    if contents == Some(ContentsPlace::Objects) && !is_image {
        return Err(files::no_objects(&folder));
    }
    let usual = if is_image { ContentsPlace::Objects } else { ContentsPlace::Volume };
    match (is_volume(env, &folder).await?, size) {
        (false, size) if is_image => {
            let new = in_place::New::default();
            in_place::create(env, &folder, Some(size.unwrap_or(IMAGE)), &new, false).await?;
        }
        (false, Some(size)) => {
            let plain = CreateVolume::plain(&folder, size)?;
            create::create(env, &plain, &*progress::for_user(false)).await?;
        }
        (false, None) => {
            return Err(Failure::new(format!("{shown} is not a volume yet"))
                .help("make one with the filesystem: --size 100G, for example"));
        }
        (true, Some(_)) => {
            return Err(Failure::new(format!("{shown} is a volume already"))
                .help("leave --size out, or extend it: thalweg volume extend"));
        }
        (true, None) => {}
    }
    let target = Target::volume(&shown)?;
    make_if_absent(env, &target, contents, usual).await?;
    let home = keys.home();
    home.own_key(env)?;
    println!("{shown} can be served: thalweg cluster serve {shown}");
    Ok(())
}

/// Whether there is a volume, or an image with one.
async fn is_volume(env: &Env, place: &Path) -> Outcome<bool> {
    let kinds = devices::known(env);
    let exists = async {
        match kinds.find(place).map_err(PoolError::from)? {
            Some((kind, name)) => Ok(kind.exists(name).await.map_err(PoolError::from)?),
            None => Ok(VolumePath::find(place).is_ok()),
        }
    };
    let exists = exists.await;
    devices::close(&kinds, exists).await
}

/// Makes a filesystem, unless there is one. That one has the contents of its files where they were asked for.
async fn make_if_absent(
    env: &Env,
    target: &Target,
    asked: Option<ContentsPlace>,
    usual: ContentsPlace,
) -> Outcome<()> {
    let volume = Opened::open(env, target).await?;
    let made = async {
        if let Some(has_objects) = files::has_objects(env, &volume).await? {
            let (found, place) = match has_objects {
                true => (ContentsPlace::Objects, "in objects"),
                false => (ContentsPlace::Volume, "on the volume"),
            };
            return match asked {
                Some(asked) if asked != found => Err(Failure::new(format!(
                    "{} has a filesystem already, which keeps the contents of its files {place}",
                    target.place().display()
                ))
                .help("leave --contents out to use it; thalweg mkfs --force replaces it, which loses its files")),
                _ => Ok(()),
            };
        }
        // SAFETY: the calls only read the process's identity and cannot fail.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let contents = asked.unwrap_or(usual);
        let new = NewFilesystem { uid, gid, mode: 0o755, force: false, contents };
        files::make(env, &volume, &new).await
    };
    let made = made.await;
    made.and(volume.close().await)
}

async fn serve(env: &Env, args: Serve) -> Outcome<()> {
    let target = Target::volume(&args.volume)?;
    let address: ListenAddress = args.listen.parse().map_err(Failure::new)?;
    let lease = Duration::from_secs(args.lease);
    let hold = Duration::from_secs(args.hold);
    let service = Service { lease, hold, tenure: Tenure::new(env), stands_by: args.standby };
    let opened = open(env, &target, &service).await?;
    let session = Arc::new(Session::new(env, vec![opened], Purpose::Serve));
    let running = Running::start(&session, args.metrics.as_ref())?;
    let served = async {
        let shared = SharedFiles::open(env, &session.volumes[0], &service, args.memory).await?;
        let _ = session.shared.set(shared);
        network::start(&session, &address, args.keys.home()).await
    };
    match served.await {
        // The network is there until the session has ended.
        Ok(network) => {
            let places: Vec<String> =
                network.addresses().iter().map(|place| format!("{place}:/")).collect();
            match args.json {
                true => println!("{}", serde_json::json!({ "addresses": places })),
                false => places.iter().for_each(|place| println!("{place}")),
            }
            output::flush();
            let _watching = end_with(env, &session, &service.tenure);
            running.until_stopped().await
        }
        Err(failure) => {
            running.close().await?;
            Err(failure)
        }
    }
}

/// Ends the session when another server has taken over.
fn end_with(env: &Env, session: &Arc<Session>, tenure: &Tenure) -> Task<()> {
    let (session, tenure) = (session.clone(), tenure.clone());
    env.spawn(async move {
        tenure.ended().await;
        if !session.lifetime.is_ending() {
            tracing::error!("another server has taken over; this one ends");
            session.lifetime.stop().send_replace(true);
        }
    })
}

/// Opens the volume, as a standby when no other server has it open. Until then this process is seen to stand by.
async fn open(env: &Env, target: &Target, service: &Service) -> Outcome<Opened> {
    let mut standby = None;
    let opened = served::open(env, target, service, |why| {
        eprintln!("standing by: {why}");
        match Standby::begin(target) {
            Ok(begun) => standby = Some(begun),
            Err(failure) => tracing::warn!(%failure, "cluster status does not show this standby"),
        }
    });
    let opened = opened.await;
    if standby.is_some() && opened.is_ok() {
        eprintln!("no longer standing by: serving {}", target.place().display());
    }
    opened
}

fn add(env: &Env, args: &Add) -> Outcome<()> {
    let home = args.keys.home();
    home.own_key(env)?;
    let access = if args.rw { Access::Write } else { Access::Read };
    if args.path.split('/').any(|part| part == "." || part == "..") {
        return Err(Failure::new(format!("{} has parts that lead elsewhere", args.path))
            .help("write the path from the root without . and .."));
    }
    if args.squash == "none" && args.nobody.is_some() {
        return Err(Failure::new("with --squash none no user acts as nobody")
            .help("leave --nobody out, or choose --squash root or --squash all"));
    }
    let squash = Squash::of(&args.squash, args.nobody.unwrap_or_default())?;
    let client = (&*args.name, &*args.path, access, squash);
    println!("{}", key::offer(env, &home, client, args.expires)?);
    output::flush();
    if let Some(hint) = squash_hint(&args.name, squash) {
        eprintln!("{hint}");
    }
    Ok(())
}

/// What an administrator should know of the users of a new client.
fn squash_hint(name: &str, squash: Squash) -> Option<String> {
    let nobody = squash.nobody()?;
    let who = match squash {
        Squash::All(_) => "all users",
        _ => "root",
    };
    Some(format!(
        "{who} of {name} will act as user and group {nobody} here; if its root is to be root, revoke it and add it with \
         --squash none"
    ))
}

async fn evict(env: &Env, args: Evict) -> Outcome<()> {
    let request = Request::Evict { client: args.client.clone() };
    match ask(env, &Target::volume(&args.volume)?, request, false).await? {
        Answer::Json(ended) => {
            println!("{} sessions of {} have ended", ended["ended"], args.client);
            Ok(())
        }
        _ => Err(unexpected_answer()),
    }
}
