//! `thalweg image`: images in a pool of a Ceph cluster.

use clap::{Args, Subcommand};
use thalweg_env::Env;
use thalweg_store::device::{DeviceError, DeviceKind, DeviceKinds};
use thalweg_store::pool::PoolError;

use crate::devices;
use crate::failure::{Failure, Outcome};

/// Images in a pool of a Ceph cluster, which are devices of volumes
///
/// A command that makes a volume makes its images too. An image is locked while a process has its volume open. The lock of
/// a process that has died on this machine is taken over when the volume is opened next; the cluster then refuses what the
/// dead process may have sent last.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    BreakLock(BreakLock),
    Destroy(Destroy),
}

/// Stop the process that has an image open, so that another one can open it
///
/// The cluster refuses all requests of that process from then on, for a year, whether it runs or not. This is for a machine
/// that has died, or cannot be reached; end a process that runs by a signal.
#[derive(Debug, Args)]
pub(crate) struct BreakLock {
    /// The image: rados:POOL/IMAGE
    image: String,
    /// Confirm that the process is to be stopped
    #[arg(long)]
    yes: bool,
}

/// Destroy an image and everything on it
#[derive(Debug, Args)]
pub(crate) struct Destroy {
    /// The image: rados:POOL/IMAGE
    image: String,
    /// Confirm that everything on it is to be lost
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(env: &Env, command: ImageCommand) -> Outcome<()> {
    let kinds = devices::known(env);
    let outcome = match &command {
        ImageCommand::BreakLock(args) => break_lock(&kinds, args).await,
        ImageCommand::Destroy(args) => destroy(&kinds, args).await,
    };
    devices::close(&kinds, outcome).await
}

fn find<'a>(kinds: &'a DeviceKinds, image: &'a str) -> Outcome<(&'a dyn DeviceKind, &'a str)> {
    let found = kinds.find(devices::image(image)?).map_err(PoolError::from)?;
    found.ok_or_else(|| Failure::new(format!("{image} is no image")))
}

fn confirmed(yes: bool, what: String) -> Outcome<()> {
    match yes {
        true => Ok(()),
        false => Err(Failure::new(what).help("to confirm, add --yes")),
    }
}

async fn break_lock(kinds: &DeviceKinds, args: &BreakLock) -> Outcome<()> {
    let BreakLock { image, yes } = args;
    let (kind, name) = find(kinds, image)?;
    confirmed(*yes, format!("this stops the process that has {image} open, if it runs"))?;
    let stopped = kind.break_lock(name).await.map_err(PoolError::from)?;
    match stopped.is_empty() {
        true => println!("{image} is not open"),
        false => stopped.iter().for_each(|holder| println!("stopped: {holder}")),
    }
    Ok(())
}

async fn destroy(kinds: &DeviceKinds, args: &Destroy) -> Outcome<()> {
    let Destroy { image, yes } = args;
    let (kind, name) = find(kinds, image)?;
    confirmed(*yes, format!("this destroys {image} and everything on it"))?;
    if !kind.exists(name).await.map_err(PoolError::from)? {
        return Err(Failure::new(format!("there is no image {image}")));
    }
    kind.remove(name).await.map_err(|error: DeviceError| PoolError::from(error).into())
}
