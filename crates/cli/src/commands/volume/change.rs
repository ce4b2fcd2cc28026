//! `thalweg volume extend`, `shrink`, `replace`, `rebuild` and `set`: change a volume.

use std::path::PathBuf;

use clap::Args;
use thalweg_env::Env;
use thalweg_store::device::kinds::absolute;

use super::settings::SettingsArgs;
use crate::commands::ask::ask;
use crate::commands::status::{self, Shown};
use crate::failure::Outcome;
use crate::request::devices::{DeviceArg, LinkArg};
use crate::request::sizes::Room;
use crate::request::{Answer, Change, Request};
use crate::size::Size;
use crate::target::Target;

/// Add a link to a volume, give it a larger size, or both
///
/// A filesystem on it keeps its size: thalweg resize grows both.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["link", "size"]))]
pub(crate) struct Extend {
    /// The volume's folder
    volume: String,
    /// The new link: PATH, PATH:SIZE, mirror:A,B, or stripe:A,B; a path may be rados:POOL/IMAGE
    #[arg(long)]
    link: Option<LinkArg>,
    /// The volume's new size
    #[arg(long)]
    size: Option<Size>,
    /// Overwrite the device if it holds something else, or belongs to another volume
    #[arg(long)]
    force: bool,
    /// Print the status afterwards as a JSON object
    #[arg(long)]
    json: bool,
}

/// Remove a link from a volume, make the volume smaller, or both
///
/// The link's content is first moved to the other links. Beyond the new size nothing may be stored and no
/// partition may lie: filesystems do not become smaller.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["link", "size"]))]
pub(crate) struct Shrink {
    /// The volume's folder
    volume: String,
    /// The link, by the path of one of its devices
    #[arg(long, value_name = "PATH")]
    link: Option<PathBuf>,
    /// The volume's new size
    #[arg(long)]
    size: Option<Size>,
    /// Print the status afterwards as a JSON object
    #[arg(long)]
    json: bool,
}

/// Replace a device, and fill the new one
#[derive(Debug, Args)]
pub(crate) struct Replace {
    /// The volume's folder
    volume: String,
    /// Path of the old device, as status shows it
    old: PathBuf,
    /// The new one: PATH, or PATH:SIZE of a file to make
    new: DeviceArg,
    /// Overwrite the device if it holds something else, or belongs to another volume
    #[arg(long)]
    force: bool,
    /// Print the status afterwards as a JSON object
    #[arg(long)]
    json: bool,
}

/// Rebuild the sides of mirrors that missed writes
#[derive(Debug, Args)]
pub(crate) struct Rebuild {
    /// The volume's folder
    volume: String,
    /// The path of the side [default: all of them]
    device: Option<PathBuf>,
    /// Print the status afterwards as a JSON object
    #[arg(long)]
    json: bool,
}

/// Change a volume's settings, from the next opening on
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true)
    .args(["ram_cache", "body_ram_cache", "ram_cache_max", "standby", "tail_read_wait",
        "keep_versions", "keep_time", "keep_size", "transaction_idle"]))]
pub(crate) struct Set {
    /// The volume's folder
    volume: String,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Print the status afterwards as a JSON object
    #[arg(long)]
    json: bool,
}

/// Has a change made; with `json`, prints the volume's status afterwards.
pub(crate) async fn apply(env: &Env, volume: &str, change: Change, json: bool) -> Outcome<()> {
    let target = Target::volume(volume)?;
    ask(env, &target, Request::Change(change), json).await?;
    match json {
        true => status::show(env, &target, Shown::JSON).await.map(drop),
        false => Ok(()),
    }
}

pub(crate) async fn extend(env: &Env, args: Extend) -> Outcome<()> {
    let link = args.link.map(LinkArg::absolute).transpose()?;
    let size = args.size.map(|size| size.0);
    let request = Request::Change(Change::Extend { link, size, force: args.force });
    let target = Target::volume(&args.volume)?;
    let answer = ask(env, &target, request, args.json).await?;
    if args.json {
        return status::show(env, &target, Shown::JSON).await.map(drop);
    }
    if let Answer::Json(room) = answer {
        let room: Room = serde_json::from_value(room)?;
        room.advice(&args.volume).into_iter().for_each(|advice| println!("{advice}"));
    }
    Ok(())
}

pub(crate) async fn shrink(env: &Env, args: Shrink) -> Outcome<()> {
    let link = args.link.map(|link| absolute(&link)).transpose()?;
    let change = Change::Shrink { link, size: args.size.map(|size| size.0) };
    apply(env, &args.volume, change, args.json).await
}

pub(crate) async fn replace(env: &Env, args: Replace) -> Outcome<()> {
    let (old, new) = (absolute(&args.old)?, args.new.absolute()?);
    apply(env, &args.volume, Change::Replace { old, new, force: args.force }, args.json).await
}

pub(crate) async fn rebuild(env: &Env, args: Rebuild) -> Outcome<()> {
    let device = args.device.map(|device| absolute(&device)).transpose()?;
    apply(env, &args.volume, Change::Rebuild { device }, args.json).await
}

pub(crate) async fn set(env: &Env, args: Set) -> Outcome<()> {
    let settings = args.settings.into();
    apply(env, &args.volume, Change::Set { settings }, args.json).await
}
