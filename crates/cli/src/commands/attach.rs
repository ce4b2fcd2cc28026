//! `thalweg attach` and `thalweg detach`: a volume as a block device of the kernel.

use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use thalweg_env::Env;
use thalweg_fuse::stale::recover_stale;
use thalweg_fuse::{disk, mounts};

use crate::control::Client;
use crate::daemon::background;
use crate::daemon::running::Running;
use crate::daemon::session::{Purpose, Session};
use crate::failure::{Failure, Outcome};
use crate::listen::ListenAddress;
use crate::places::ATTACH_LOG;
use crate::progress::{self, Silent};
use crate::request::{Answer, AttachRequest, MadeDevice, Request, unexpected_answer};
use crate::target::{JournalDev, Target};
use crate::volume::opened::Opened;

/// Make a block device of a volume
///
/// Prints the device. A volume with partitions (filesystems or stores), and a replica, is attached read-only. A background
/// process serves the device until it is detached; if the volume is served already, its server does that.
/// Needs root.
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// The volume's folder, FOLDER@SNAPSHOT, or the device or image of a volume that is updated in
    /// place
    volume: String,
    #[command(flatten)]
    journal: JournalDev,
    /// Serve the device in this process
    #[arg(long)]
    foreground: bool,
    /// The device's logical block in bytes, 512 to 4096 [default: the volume's]
    #[arg(long, value_name = "BYTES")]
    block_size: Option<u32>,
    /// Make devices of the partitions found
    #[arg(long)]
    partition_scan: bool,
    /// Allow writes although the volume has partitions, for example to restore an image
    #[arg(long)]
    writable: bool,
    /// Serve metrics for Prometheus over HTTP, on localhost:PORT for example
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<ListenAddress>,
    /// Print the device as a JSON object
    #[arg(long)]
    json: bool,
    /// Report the result to the parent process, as one line of JSON
    #[arg(long, hide = true, requires = "foreground")]
    tell: bool,
}

/// Detach a volume's block device
///
/// Writes back the kernel's dirty pages, flushes the volume, and waits for both.
#[derive(Debug, Args)]
pub(crate) struct Detach {
    /// The volume's folder, FOLDER@SNAPSHOT, or the device
    #[arg(value_name = "VOLUME|DEVICE")]
    what: String,
    /// Detach a device that is in use, after writing back as much as possible
    #[arg(long)]
    force: bool,
    /// Print the device as a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn attach(env: &Env, args: Attach) -> Outcome<()> {
    let target = Target::find(&args.volume)?;
    let target = target.with_journal(args.journal.journal_dev.as_deref());
    if let Some(mut client) = Client::connect(&target.folder).await? {
        if let Some(address) = &args.metrics {
            return Err(Failure::new(format!(
                "{} is served already, and only its server can serve metrics on {address}",
                target.name
            ))
            .help("start that server with --metrics, and attach without it"));
        }
        let request = Request::Attach(how(&args, &target));
        return match client.ask(&request, &*progress::for_user(args.json)).await? {
            Answer::Attached(made) => {
                show_attached(&made, args.json);
                Ok(())
            }
            _ => Err(unexpected_answer()),
        };
    }
    match args.foreground {
        true => foreground(env, &args, target).await,
        false => in_background(&args, &target),
    }
}

fn how(args: &Attach, target: &Target) -> AttachRequest {
    AttachRequest {
        snapshot: target.snapshot.clone(),
        block_size: args.block_size,
        partition_scan: args.partition_scan,
        writable: args.writable,
    }
}

fn show(device: &Path, json: bool) {
    match json {
        true => println!("{}", serde_json::json!({ "device": device })),
        false => println!("{}", device.display()),
    }
}

/// Prints a device, and why it is read-only unless the user asked for that.
fn show_attached(made: &MadeDevice, json: bool) {
    match json {
        true => println!("{}", serde_json::json!(made)),
        false => println!("{}", made.device.display()),
    }
    if let Some(why) = &made.read_only {
        eprintln!("{} is read-only: {why}", made.device.display());
    }
}

async fn foreground(env: &Env, args: &Attach, target: Target) -> Outcome<()> {
    let started = start(env, args, target).await;
    if args.tell {
        let told = started.as_ref().map(|(_, made)| made.clone()).map_err(Failure::clone);
        background::tell(&told)?;
    } else if let Ok((_, made)) = &started {
        show_attached(made, args.json);
    }
    started?.0.until_stopped().await
}

async fn start(env: &Env, args: &Attach, target: Target) -> Outcome<(Running, MadeDevice)> {
    let how = how(args, &target);
    let whole = Target { snapshot: None, ..target };
    let opened = Opened::open(env, &whole).await?;
    let session = Arc::new(Session::new(env, vec![opened], Purpose::Attach));
    let attached = session.attachments.attach(&session.volumes[0], &how, &session.mounts).await;
    let running = match &attached {
        Ok(_) => Running::start(&session, args.metrics.as_ref()),
        Err(failure) => Err(failure.clone()),
    };
    match (running, attached) {
        (Ok(running), Ok(made)) => Ok((running, made)),
        (Err(failure), _) | (_, Err(failure)) => {
            session.close().await?;
            Err(failure)
        }
    }
}

/// Starts this program again as a daemon, and waits until it serves the device.
fn in_background(args: &Attach, target: &Target) -> Outcome<()> {
    let mut command: Vec<OsString> =
        ["attach", "--foreground", "--tell"].map(OsString::from).into();
    if let Some(bytes) = args.block_size {
        command.extend(["--block-size".into(), bytes.to_string().into()]);
    }
    let switches = [(args.partition_scan, "--partition-scan"), (args.writable, "--writable")];
    command.extend(switches.iter().filter(|(is_on, _)| *is_on).map(|(_, name)| name.into()));
    if let Some(address) = &args.metrics {
        command.extend(["--metrics".into(), address.to_string().into()]);
    }
    if let Some(journal) = &target.journal {
        command.extend(["--journal-dev".into(), journal.into()]);
    }
    let place = target.place().display().to_string();
    let export = crate::target::export(&place, target.snapshot.as_deref());
    command.extend(["--".into(), export.into()]);
    target.make_folder()?;
    let made: MadeDevice = background::start(&command, &target.folder, ATTACH_LOG)?;
    show_attached(&made, args.json);
    Ok(())
}

pub(crate) async fn detach(env: &Env, args: Detach) -> Outcome<()> {
    let target = target_of(&args.what)?;
    let Some(mut client) = Client::connect(&target.folder).await? else {
        return clear(env, &target, args.json).await;
    };
    let request = Request::Detach { snapshot: target.snapshot.clone(), force: args.force };
    match client.ask(&request, &Silent).await? {
        Answer::Detached { device, ends } => {
            if ends {
                client.closed(env).await;
            }
            show(&device, args.json);
            Ok(())
        }
        _ => Err(unexpected_answer()),
    }
}

/// Removes the block device that a dead process left.
async fn clear(env: &Env, target: &Target, json: bool) -> Outcome<()> {
    let found = recover_stale(env, &target.mountpoint()?).await?;
    if let Some((device, mounts)) = found.in_use.first() {
        let place = mounts.first().map_or(String::new(), |at| format!(" on {}", at.display()));
        return Err(Failure::new(format!(
            "{} is in use{place}, and its server is dead",
            device.display()
        ))
        .help("unmount it; the kernel then removes the device"));
    }
    if !found.unmounted {
        return Err(Failure::new(format!("{} is not attached", target.export()))
            .help("attach it: thalweg attach VOLUME"));
    }
    found.detached.iter().for_each(|device| show(device, json));
    Ok(())
}

/// The volume of a folder or of a block device.
fn target_of(what: &str) -> Outcome<Target> {
    let path = Path::new(what);
    let is_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    if !is_device {
        return Target::find(what);
    }
    let name = path.canonicalize()?;
    let sys = Path::new("/sys/block").join(name.file_name().unwrap_or_default());
    if !sys.join("loop/backing_file").exists() {
        return Target::find(what);
    }
    let unknown = || {
        Failure::new(format!("{what} is no block device of a volume")).help(
            "name the volume's folder instead; losetup --list shows what loop devices are made of",
        )
    };
    let file = std::fs::read_to_string(sys.join("loop/backing_file")).map_err(|_| unknown())?;
    let folder = Path::new(file.trim_end_matches('\n')).parent().ok_or_else(unknown)?;
    let mount = mounts::at(folder)?.ok_or_else(unknown)?;
    Target::find(mount.source.strip_prefix(disk::SOURCE).ok_or_else(unknown)?)
}
