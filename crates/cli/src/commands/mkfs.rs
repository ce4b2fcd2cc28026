//! `thalweg mkfs`: a filesystem on a volume.

use std::path::Path;

use clap::Args;
use thalweg_env::Env;
use thalweg_store::device::kinds::kind_of;
use thalweg_store::open::VolumePath;

use super::ask::ask;
use super::volume::create::{self, Create};
use super::volume::in_place;
use crate::failure::{Failure, Outcome};
use crate::progress;
use crate::request::{ContentsPlace, NewFilesystem, Request};
use crate::size::Size;
use crate::target::Target;
use crate::volume::files;

/// Make a filesystem on a volume
///
/// On a device, in a file or on an image in a pool of a Ceph cluster, this makes an in-place volume with a
/// journal, and the filesystem on it. A new file or image is made with --in-place and a size. With a link mkfs.thalweg to this program in /sbin, mkfs(8) knows
/// the type thalweg.
///
/// With --contents objects, the image has the names, sizes and times of files, and their bytes are objects of the same
/// pool. Transactions (thalweg tx) cannot change the bytes of such files, and fallocate sets no space aside.
///
/// On a chained volume, which is a folder, the filesystem takes the largest free range of the volume;
/// key-value stores may lie beside it. With --size, a missing volume is made first, with the defaults of
/// `thalweg volume create`.
#[derive(Debug, Args)]
pub(crate) struct Mkfs {
    /// The volume's folder, or a device, a file or an image rados:POOL/IMAGE
    volume: String,
    /// Make a file or an image with an in-place volume
    #[arg(long, requires = "sizes")]
    in_place: bool,
    #[command(flatten)]
    volume_in_place: in_place::New,
    /// Make the volume first, of this size
    #[arg(group = "sizes")]
    size: Option<Size>,
    /// The same as --volume-size
    #[arg(long = "size", value_name = "SIZE", group = "sizes")]
    volume_size: Option<Size>,
    /// Where to keep the contents of files: on the volume, or in objects of their own beside an image rados:POOL/IMAGE
    #[arg(long, value_name = "PLACE", default_value = "volume", hide_possible_values = true)]
    contents: ContentsPlace,
    /// Replace an existing filesystem; its files are lost
    #[arg(short, short_alias = 'F', long)]
    force: bool,
    /// Owner and group of the root directory, by number [default: the caller's]
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    root_owner: Option<(u32, u32)>,
    /// Permissions of the root directory, in octal
    #[arg(long, value_name = "MODE", default_value = "755", value_parser = mode)]
    root_mode: u16,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

fn owner(text: &str) -> Result<(u32, u32), String> {
    let parsed =
        text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    parsed.ok_or_else(|| format!("{text:?} is not UID:GID, for example 1000:1000"))
}

fn mode(text: &str) -> Result<u16, String> {
    let mode = u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| format!("{text:?} is not a mode, for example 755"))
}

pub(crate) async fn run(env: &Env, args: Mkfs) -> Outcome<()> {
    let place = Path::new(&args.volume);
    if args.contents == ContentsPlace::Objects && kind_of(place).is_none() {
        return Err(files::no_objects(place));
    }
    let is_device = matches!(VolumePath::find(place), Ok(VolumePath::Device(_)));
    let target = match args.in_place || is_device {
        true => in_place(env, place, &args).await?,
        false => chained(env, place, &args).await?,
    };
    // SAFETY: the calls only read the process's identity and cannot fail.
    let caller = || unsafe { (libc::geteuid(), libc::getegid()) };
    let (uid, gid) = args.root_owner.unwrap_or_else(caller);
    let (mode, force, contents) = (args.root_mode, args.force, args.contents);
    let new = NewFilesystem { uid, gid, mode, force, contents };
    ask(env, &target, Request::MakeFilesystem(new), false).await?;
    if !args.quiet {
        println!("made a filesystem on {}", target.place().display());
    }
    Ok(())
}

/// Makes an in-place volume.
async fn in_place(env: &Env, place: &Path, args: &Mkfs) -> Outcome<Target> {
    let file = args.volume_size.or(args.size);
    if file.is_some() && !args.in_place {
        return Err(Failure::new(format!("{} has a size of its own", place.display()))
            .help("leave the size out"));
    }
    in_place::create(env, place, file, &args.volume_in_place, args.force).await
}

/// A chained volume; makes it first if a size is given.
async fn chained(env: &Env, folder: &Path, args: &Mkfs) -> Outcome<Target> {
    if args.volume_in_place.is_said() {
        return Err(Failure::new("a chained volume needs no journal")
            .help("name a device or a file, or leave the journal out"));
    }
    if let Some(size) = args.volume_size.or(args.size) {
        if VolumePath::find(folder).is_ok() {
            return Err(Failure::new(format!("{} is a volume already", folder.display()))
                .help("leave the size out, or extend it: thalweg volume extend"));
        }
        let create = Create::plain(folder, size)?;
        create::create(env, &create, &*progress::for_user(args.quiet)).await?;
    }
    Target::volume(&args.volume)
}
