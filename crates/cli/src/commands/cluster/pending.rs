//! `thalweg cluster pending` and `drain`: what of a mount's changes is not durable at the server yet.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use thalweg_env::Env;

use crate::commands::mount_status::{ask_mount, mount_status, mount_text};
use crate::commands::wait::duration;
use crate::failure::{Failure, Outcome};
use crate::progress::Patient;
use crate::request::Request;

/// Show what of a mount's changes is not durable at the server yet
///
/// The changes that the server does not have, which only this client sees, with the bytes of files among them and the age of the
/// oldest; how many of them are in the journal, so that they survive a crash of this machine; the calls that the server has
/// answered and not made durable, which would be made again after a crash of it; and how full the journal is.
#[derive(Debug, Args)]
pub(crate) struct Pending {
    /// The directory where it is mounted
    directory: PathBuf,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Have a mount send everything to the server, and wait until it is durable there
///
/// Changes that programs make meanwhile may be sent or not. While the server is away, the command waits. When the command ends, other
/// clients see everything that was made before, and the journal of the mount has room again.
#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// The directory where it is mounted
    directory: PathBuf,
    /// Fail after this time, a number with ms, s, m or h; the mount goes on sending
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
}

pub(super) async fn pending(Pending { directory, json }: &Pending) -> Outcome<()> {
    let status = mount_status(directory).await?;
    match json {
        true => println!("{status}"),
        false => print!("{}", mount_text(status)?),
    }
    Ok(())
}

pub(super) async fn drain(env: &Env, Drain { directory, timeout }: &Drain) -> Outcome<()> {
    let report = Patient::new(env);
    let draining = ask_mount(directory, &Request::Drain, &report);
    match timeout {
        None => drop(draining.await?),
        Some(timeout) => match env.timeout(*timeout, draining).await {
            Some(drained) => drop(drained?),
            None => {
                let (place, seconds) = (directory.display(), timeout.as_secs_f64());
                return Err(Failure::new(format!("{place} is not drained within {seconds} s"))
                    .help(format!(
                        "it goes on; thalweg cluster pending {place} shows how far it is"
                    )));
            }
        },
    }
    Ok(())
}
