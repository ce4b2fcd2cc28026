//! `thalweg mkfs`: a filesystem on a volume.

use std::path::Path;

use clap::Args;
use thalweg_store::env::Env;

use crate::ask::ask;
use crate::failure::{Failure, Outcome};
use crate::files::NewFilesystem;
use crate::opened;
use crate::progress;
use crate::request::{Answer, Request};
use crate::size::Size;
use crate::target::{CONFIG, Target};
use crate::volume::Create;

/// Make a filesystem on a volume
///
/// The filesystem takes the largest part of the volume that is free; key-value stores may lie beside
/// it. With --size a volume that is not there is made first, with what `thalweg volume create` takes
/// for granted.
#[derive(Debug, Args)]
pub(crate) struct Mkfs {
    /// The volume's folder
    volume: String,
    /// Make the volume first, as large as this
    size: Option<Size>,
    /// The same
    #[arg(long = "size", value_name = "SIZE", conflicts_with = "size")]
    volume_size: Option<Size>,
    /// Take away a filesystem that is there, and its files
    #[arg(short, short_alias = 'F', long)]
    force: bool,
    /// Owner and group of the root directory, by number
    #[arg(long, value_name = "UID:GID", default_value = "0:0", value_parser = owner)]
    root_owner: (u32, u32),
    /// Permissions of the root directory, in octal
    #[arg(long, value_name = "MODE", default_value = "755", value_parser = mode)]
    root_mode: u16,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
}

fn owner(text: &str) -> Result<(u32, u32), String> {
    let parsed =
        text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    parsed.ok_or_else(|| format!("{text:?} is not UID:GID, as in 1000:1000"))
}

fn mode(text: &str) -> Result<u16, String> {
    let mode = u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| format!("{text:?} is no mode, as in 755"))
}

pub(crate) async fn run(env: &Env, args: Mkfs) -> Outcome<()> {
    let folder = Path::new(&args.volume);
    if let Some(size) = args.volume_size.or(args.size) {
        if folder.join(CONFIG).exists() {
            return Err(Failure::new(format!("{} is a volume already", folder.display()))
                .help("leave the size out, or extend it: thalweg volume extend"));
        }
        let create = Create::plain(folder, size)?;
        opened::create(env, &create, &*progress::for_user(args.quiet)).await?;
    }
    let target = Target::volume(&args.volume)?;
    let (uid, gid) = args.root_owner;
    let new = NewFilesystem { uid, gid, mode: args.root_mode, force: args.force };
    match ask(env, &target, Request::MakeFilesystem(new), false).await? {
        Answer::Done if args.quiet => Ok(()),
        Answer::Done => {
            println!("made a filesystem on {}", target.folder.display());
            Ok(())
        }
        other => Err(Failure::new(format!("the server gave an answer out of place: {other:?}"))),
    }
}
