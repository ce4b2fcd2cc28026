//! `thalweg mount`: mounts a volume's filesystem.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use thalweg_cluster::client::address::Address;
use thalweg_env::Env;
use thalweg_fuse::mounts;
use thalweg_net::keys::Token;
use thalweg_store::device::Access;

use super::fstab;
use super::mount_shared::Remote;
use super::mounted::{canonical, is_dead, mount_on, no_server, server_folder, take_away};
use super::status;
use crate::client_journal;
use crate::control::Client;
use crate::daemon::background;
use crate::daemon::mount_flags::change_flags;
use crate::daemon::running::Running;
use crate::daemon::session::{Purpose, Session};
use crate::failure::{Failure, Outcome};
use crate::listen::ListenAddress;
use crate::places::{MOUNT_KIND, MOUNT_LOG};
use crate::progress::Silent;
use crate::request::away_options::AwayOptions;
use crate::request::journal_options::JournalOptions;
use crate::request::journal_place::JournalPlace;
use crate::request::mount_options::{MountOptions, Unknown};
use crate::request::{Answer, MountRequest, Request, unexpected_answer};
use crate::target::{Target, export};
use crate::volume::opened::Opened;

/// A server may be about to end: how often it is asked again, and the pause in between.
const ENDING_TRIES: u32 = 200;
const ENDING_PAUSE: Duration = Duration::from_millis(20);

/// Mount the filesystem of a volume, or one that another machine shares
///
/// Returns when the filesystem is mounted. A background process serves it until it is unmounted; if the
/// volume is served already, its server does that. SERVER:/PATH or SERVER:PORT:/PATH is a directory of a
/// filesystem that another machine shares, see `thalweg cluster`. With a link mount.thalweg to this program in /sbin,
/// mount(8) and /etc/fstab know the type thalweg.
#[derive(Debug, Args)]
#[command(after_long_help = OPTIONS)]
pub(crate) struct Mount {
    /// The volume's folder, FOLDER@SNAPSHOT, the device, file or image (rados:POOL/IMAGE) of one that is updated in
    /// place, or SERVER:/PATH
    volume: Option<String>,
    /// The directory to mount on
    directory: Option<PathBuf>,
    /// Options, with commas between them
    #[arg(short = 'o', value_name = "OPTION,…")]
    options: Vec<String>,
    /// Serve the mount in this process
    #[arg(long)]
    foreground: bool,
    /// Ignore unknown options
    #[arg(short, long)]
    sloppy: bool,
    /// Do everything but mount
    #[arg(short, long)]
    fake: bool,
    /// For mount(8): ignored, there is no /etc/mtab to write
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
    /// For mount(8): the type, which is thalweg
    #[arg(short = 't', hide = true)]
    kind: Option<String>,
    /// Serve metrics for Prometheus over HTTP, on localhost:PORT for example
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<ListenAddress>,
    /// For SERVER:/PATH: the token of `thalweg cluster client add`, the first time
    #[arg(long, value_name = "TOKEN")]
    token: Option<Token>,
    /// For SERVER:/PATH: folder with the keys [default: $THALWEG_KEYS; or /etc/thalweg for root, ~/.config/thalweg for others]
    #[arg(long, value_name = "FOLDER")]
    keys: Option<PathBuf>,
    /// With --tell: report at once, and mount when the server is there
    #[arg(long, hide = true, requires = "tell")]
    later: bool,
    /// Report the result to the parent process, as one line of JSON
    #[arg(long, hide = true, requires = "foreground")]
    tell: bool,
}

const OPTIONS: &str = "\
Options behind -o:
  ro, rw, sync, async, dirsync, suid, nosuid, dev, nodev, exec, noexec
  relatime, strictatime, noatime  when a read updates the access time (relatime)
  allow_other       all users may use the mount, subject to permissions; default for root's mounts
  writeback_cache   the kernel collects writes, page by page, until it or fsync writes them
  threads=N         threads that serve the kernel's requests (2)
  spin=MICROSECONDS how long a thread that has answered looks for the next request before it sleeps (50)
  read_ahead=SIZE   bytes that the kernel reads ahead (1M; 4M of a shared filesystem), if root mounts it
  remount           change a mount: thalweg mount -o remount,OPTION,… DIRECTORY
Of a shared filesystem, for changes that the client has made by itself:
  writeback=SECONDS, expire=SECONDS  how often it looks for old ones (0.25), and how old they become (1)
  journal_dev=PATH[+PATH]  keep a journal of them there, a file or a device of this machine: fsync needs no message then.
                    A new file is made. Two are a mirror: fsync returns when both have a change, and one may fail.
                    PATH+missing goes on with one if the other is lost for good; an empty file or device of the same
                    size in its place is filled while it is mounted. writeback and expire are 60 with a journal
  journal_size=SIZE of a new journal (2G)
  data=wasteless|data|selective  which bytes of files are in the journal: those that were written (wasteless, the
                    default), the pages of 4 KiB that writes touch, or those of writes below threshold=SIZE (4096); with
                    selective larger writes go to the server, and an fsync behind one needs it
  commit=SECONDS    how old changes become that are not in the journal yet (1)
  conflict=prefix|file  which changes in the journal conflict when others have used what one of them changes while this
                    machine was away: that one and all behind it (prefix), or that one and those that depend on it (file)
  on_conflict=copy|discard|refuse  what becomes of them: conflict copies, which thalweg cluster conflicts lists; they are
                    dropped, and counted in the log; or the mount fails (copy)
  recall=SECONDS    how long another client may have to wait for what this one has not sent (30)
  memory=SIZE       of what waits to be sent, so much is in memory as well (64M); the rest is in the journal alone
  background=SIZE   begin to send when so much is in memory, unless most of it is replaced before long; without it, what
                    waits is bounded by the journal and recall= alone
  sync=journal|server  where changes are when fsync returns: in the journal, or also durable at the server (journal)
  replicate=HOST[:PORT][+HOST…][:memory|disk]  keep copies of the journal there, at thalweg cluster keep: fsync returns
                    when they have its changes, on their drives (disk) or in their memory
  receive[=HOST:PORT|PORT]  wait for a mount that thalweg cluster move brings here from another machine (7702); the
                    journal is empty until then
  recover=clean|no  what follows when the server has ended the session: a new one, with stale open files (clean),
                    or errors until it is mounted again
Of a shared filesystem whose server is away, as in nfs(5):
  hard              calls wait until it is back; a program that waits can be killed (default)
  soft, softerr     calls fail with EIO, or with ETIMEDOUT, when the server was away for timeo × (retrans + 1);
                    what a failed call has changed, if anything, is not known
  disconnected=wait|error  the same as hard, or calls fail with EIO as soon as the lease is over (wait)
  timeo=N           tenths of a second (600)
  retrans=N         so many further times (2)
  retry=MINUTES     how long the mount itself is tried again (0; with bg 10000)
  bg, fg            the mount goes on in the background if the server is away, or fails (fg)
Of a shared filesystem with contents in objects of a Ceph cluster:
  contents=direct|server  this machine reaches them itself if it is configured for that cluster (direct)
On a volume that is updated in place also:
  data=writeback|ordered|data|wasteless|selective, journal_dev=PATH, threshold=SIZE,
  commit=SECONDS, barrier=0|1, writeback=SECONDS, expire=SECONDS, gap=SIZE|auto,
  rotational=0|1|auto, discard, nodiscard
  All but journal_dev can change at remount.";

pub(crate) async fn mount(env: &Env, mut args: Mount) -> Outcome<()> {
    let unknown = if args.sloppy { Unknown::Ignore } else { Unknown::Refuse };
    let options = MountOptions::parse(&args.options, unknown)?;
    if options.remount {
        // mount(8) passes the volume too, a user the directory alone.
        let at = args.directory.take().or(args.volume.take().map(PathBuf::from));
        let at = at.ok_or_else(|| Failure::new("a remount needs a directory"))?;
        return if args.fake { Ok(()) } else { remount(&at, &options).await };
    }
    let (Some(volume), Some(directory)) = (&args.volume, &args.directory) else {
        return Err(Failure::new("a mount needs a volume and a directory")
            .help("thalweg mount VOLUME DIRECTORY"));
    };
    if let Some(address) = Address::of(volume) {
        return shared(env, &args, address?, directory, options).await;
    }
    if args.token.is_some() || args.keys.is_some() {
        return Err(Failure::new("--token and --keys are for shared filesystems: SERVER:/PATH"));
    }
    refuse_shared(&options)?;
    let target = Target::find(volume)?.with_journal(options.journal.journal_dev.as_deref());
    let options = match (&target.snapshot, options.read_only) {
        (Some(_), Some(false)) => {
            return Err(Failure::new(format!("{volume} is a snapshot, which is read-only"))
                .help("mount it with -o ro"));
        }
        (Some(_), _) => MountOptions { read_only: Some(true), ..options },
        (None, _) => options,
    };
    let directory = usable(directory)?;
    if args.fake {
        return Ok(());
    }
    let request = MountRequest { snapshot: target.snapshot.clone(), directory, options };
    match args.foreground {
        true => foreground(env, &args, target, request).await,
        false => {
            if !through_server(env, &target, &request).await? {
                in_background(&args, &target, &request)?;
            }
            warn_if_degraded(&target).await;
            Ok(())
        }
    }
}

/// A filesystem that is not shared has no options of shared ones.
fn refuse_shared(options: &MountOptions) -> Outcome<()> {
    if options.contents.is_some() {
        return Err(Failure::new("contents= is an option of shared filesystems: SERVER:/PATH"));
    }
    if options.journal.journal_size.is_some() {
        return Err(Failure::new("journal_size= is for shared filesystems: SERVER:/PATH")
            .help("thalweg volume create --journal-size makes a volume with another one"));
    }
    if options.recover.is_some() {
        return Err(Failure::new("recover= is for shared filesystems: SERVER:/PATH"));
    }
    if options.away != AwayOptions::default() {
        return Err(Failure::new(
            "hard, soft, softerr, disconnected=, timeo=, retrans=, retry=, bg and fg are for shared filesystems: SERVER:/PATH",
        ));
    }
    let JournalOptions { journal_size, on_conflict, conflict, replicate, receive, .. } =
        &options.journal;
    let JournalOptions { recall, memory, background, sync, .. } = options.journal;
    let is_of_memory = memory.is_some() || background.is_some();
    let is_of_conflicts = on_conflict.is_some() || conflict.is_some();
    let is_elsewhere = replicate.is_some() || receive.is_some();
    if journal_size.is_some()
        || is_of_conflicts
        || is_elsewhere
        || recall.is_some()
        || is_of_memory
        || sync.is_some()
    {
        return Err(Failure::new(
            "journal_size=, conflict=, on_conflict=, recall=, memory=, background=, sync=, replicate= and receive are for shared filesystems: SERVER:/PATH",
        ));
    }
    Ok(())
}

/// Mounts a filesystem that another machine shares.
async fn shared(
    env: &Env,
    args: &Mount,
    address: Address,
    directory: &Path,
    options: MountOptions,
) -> Outcome<()> {
    let JournalOptions { writeback, expire, commit, journal_size, on_conflict, conflict, .. } =
        options.journal;
    let JournalOptions { data, threshold, recall, memory, background, sync, .. } = options.journal;
    let JournalOptions { journal_dev, replicate, receive, .. } = options.journal.clone();
    let has_journal = journal_dev.is_some();
    let ours = JournalOptions {
        writeback,
        expire,
        commit,
        journal_dev,
        journal_size,
        data,
        threshold,
        on_conflict,
        conflict,
        recall,
        memory,
        background,
        sync,
        replicate: replicate.clone(),
        receive: receive.clone(),
        ..Default::default()
    };
    if options.journal != ours || options.writeback_cache {
        return Err(Failure::new(format!(
            "{address} is a shared filesystem, without these options"
        ))
        .help(
            "leave out writeback_cache, and the options of volumes that are updated in place but writeback, expire, commit, \
             journal_dev, data and threshold",
        ));
    }
    if options.journal.journal_dev.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
        return Err(Failure::new("journal_dev= names no file").help("write journal_dev=PATH"));
    }
    options.journal.journal_dev.as_deref().map(JournalPlace::parse).transpose()?;
    if !has_journal {
        client_journal::refuse_options(&options.journal)?;
    }
    client_journal::data_of(&options.journal)?;
    let directory = usable(directory)?;
    if let Some(found) = mounts::at(&directory)?.filter(|it| it.source == address.to_string()) {
        let place = found.mountpoint.display();
        return Err(Failure::new(format!("{address} is mounted already, on {place}"))
            .help("unmount it first, or name another directory"));
    }
    fstab::warn_if_local(&address, &directory);
    if args.fake {
        return Ok(());
    }
    let remote = Remote {
        address,
        keys: args.keys.clone(),
        token: args.token.clone(),
        request: MountRequest { snapshot: None, directory, options },
        metrics: args.metrics.clone(),
    };
    match args.foreground {
        true if args.later => remote.later(env).await,
        true => remote.in_foreground(env, args.tell).await,
        false => remote.in_background(env, &args.options).await,
    }
}

/// Warns if the mounted volume is degraded. A failure of this check does not undo the mount.
async fn warn_if_degraded(target: &Target) {
    let Ok(Some(mut client)) = Client::connect(&target.folder).await else { return };
    if let Ok(Answer::Json(found)) = client.ask(&Request::Status, &Silent).await {
        status::warn(&target.name, &found["degraded"]);
    }
}

/// The canonical path of the directory, after removing a dead server's mount on it.
fn usable(directory: &Path) -> Outcome<PathBuf> {
    let directory = canonical(directory)?;
    if let Some(found) = mounts::at(&directory)?.filter(|found| found.kind == MOUNT_KIND)
        && is_dead(&directory)
    {
        tracing::warn!(volume = found.source, "the server of an earlier mount has died");
        take_away(&found, libc::MNT_DETACH)?;
    }
    match std::fs::metadata(&directory) {
        Ok(found) if found.is_dir() => Ok(directory),
        Ok(_) => Err(Failure::new(format!("{} is no directory", directory.display()))),
        Err(error) => {
            Err(Failure::of(&error).while_doing(format!("cannot use {}", directory.display())))
        }
    }
}

/// Asks the volume's server to mount it, if it has one that is not about to end.
async fn through_server(env: &Env, target: &Target, request: &MountRequest) -> Outcome<bool> {
    let request = Request::Mount(request.clone());
    for _ in 0..ENDING_TRIES {
        let Some(mut client) = Client::connect(&target.folder).await? else { return Ok(false) };
        match client.try_ask(&request, &Silent).await? {
            Ok(Answer::Mounted { .. }) => return Ok(true),
            Ok(Answer::Ending) => client.closed(env).await,
            Ok(_) => return Err(unexpected_answer()),
            // The server was about to end.
            Err(error) => tracing::debug!(%error, "the volume's server went away"),
        }
        env.sleep(ENDING_PAUSE).await;
    }
    Err(Failure::new(format!("the process that serves {} does not answer", target.name)))
}

async fn foreground(env: &Env, args: &Mount, target: Target, request: MountRequest) -> Outcome<()> {
    let started = start(env, args, target, request).await;
    if args.tell {
        let told = started.as_ref().map(|(_, recovery)| recovery.clone()).map_err(Failure::clone);
        background::tell(&told)?;
    }
    started?.0.until_stopped().await
}

/// Opens and mounts the volume. Also returns how the volume was recovered in memory, if it was.
async fn start(
    env: &Env,
    args: &Mount,
    target: Target,
    request: MountRequest,
) -> Outcome<(Running, Option<String>)> {
    let access = match request.options.read_only {
        Some(true) => Access::ReadOnly,
        _ => Access::Exclusive,
    };
    let target = Target { snapshot: None, ..target };
    let opened = Opened::open_for(env, &target, &request.options.journal, access).await?;
    let recovery = opened.recovery();
    if let Some(recovery) = &recovery {
        tracing::warn!(volume = target.name, "{recovery}");
    }
    let session = Arc::new(Session::new(env, vec![opened], Purpose::Attach));
    // The session has just begun: nothing is attached.
    let permitted = std::future::ready(Ok(()));
    let mounted = session.mounts.mount(&session.volumes[0], &request, permitted).await;
    let running = match &mounted {
        Ok(_) => Running::start(&session, args.metrics.as_ref()),
        Err(failure) => Err(failure.clone()),
    };
    if running.is_err() {
        session.close().await?;
    }
    Ok((running?, recovery))
}

/// Starts this program again as a daemon, and waits until it serves the mount.
fn in_background(args: &Mount, target: &Target, request: &MountRequest) -> Outcome<()> {
    let mut command: Vec<OsString> = ["mount", "--foreground", "--tell"].map(Into::into).into();
    for list in &args.options {
        command.extend(["-o".into(), list.into()]);
    }
    if args.sloppy {
        command.push("--sloppy".into());
    }
    if let Some(address) = &args.metrics {
        command.extend(["--metrics".into(), address.to_string().into()]);
    }
    let place = match &target.snapshot {
        None => target.place().into(),
        Some(_) => export(&target.place().display().to_string(), target.snapshot.as_deref()).into(),
    };
    command.extend(["--".into(), place, request.directory.clone().into()]);
    target.make_folder()?;
    let recovery = background::start::<Option<String>>(&command, &target.folder, MOUNT_LOG)?;
    if let Some(recovery) = recovery {
        eprintln!("{}: {recovery}", target.name);
    }
    Ok(())
}

async fn remount(directory: &Path, options: &MountOptions) -> Outcome<()> {
    let found = mount_on(&canonical(directory)?)?;
    let folder = server_folder(&found).await?.ok_or_else(|| no_server(&found))?;
    let mut client = Client::connect(&folder).await?.ok_or_else(|| no_server(&found))?;
    let request = Request::Remount { device: found.device, options: options.clone() };
    match client.ask(&request, &Silent).await? {
        Answer::Done => match change_flags(&found.mountpoint, options) {
            // An ordinary user may not change the mount's flags; the atime mode then is the server's alone.
            Err(error) if is_not_permitted(&error) && !options.changes_flags() => Ok(()),
            Err(error) => {
                let place = found.mountpoint.display();
                let failure = Failure::of(&error);
                Err(failure.while_doing(format!("cannot change the mount on {place}")))
            }
            Ok(()) => Ok(()),
        },
        _ => Err(unexpected_answer()),
    }
}

fn is_not_permitted(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}
