//! `thalweg volume create`: makes a chained volume.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, FromArgMatches, ValueEnum};
use thalweg_env::Env;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::chain::{Cleaning, Placement};
use thalweg_store::pool::{
    DeviceSpec, LinkSpec, NamedMedia, NewVolume, Preallocation, Progress, create_on,
};

use super::settings::SettingsArgs;
use crate::commands::status::{self, Shown};
use crate::devices;
use crate::failure::{Failure, Outcome};
use crate::progress::{self, Report, share_done};
use crate::request::devices::{DeviceArg, LinkArg};
use crate::size::Size;
use crate::target::Target;

/// Make a volume
///
/// Without --link it has two links: files in its folder that are together a quarter larger than the volume. A
/// missing file is made; without :SIZE it is as large as needed.
///
/// A device may be an image in a pool of a Ceph cluster, rados:POOL/IMAGE, which is made like a file; see `thalweg image`.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The folder; its name is the volume's
    folder: PathBuf,
    /// Size of the volume
    #[arg(long)]
    size: Size,
    #[command(flatten)]
    layout: Layout,
    /// Print the new volume's status as a JSON object
    #[arg(long)]
    json: bool,
}

/// The devices of a new volume, and how it uses them.
#[derive(Debug, Args)]
pub(crate) struct Layout {
    /// A link: PATH or PATH:SIZE of a device or file, rados:POOL/IMAGE or rados:POOL/IMAGE:SIZE, mirror:A,B, or
    /// stripe:A,B; given once for each link, in the order of the chain
    #[arg(long = "link", value_name = "LINK")]
    links: Vec<LinkArg>,
    /// PATH or PATH:SIZE of a device or file for the map, or mirror:A,B; preferably SSDs [default: a part of
    /// the first link]
    #[arg(long, value_name = "DEVICE")]
    map: Option<LinkArg>,
    /// PATH or PATH:SIZE of an SSD for the tail cache; SIZE is how much of it
    #[arg(long, value_name = "DEVICE")]
    cache: Option<DeviceArg>,
    /// PATH or PATH:SIZE of an SSD for a cache of the body
    #[arg(long, value_name = "DEVICE")]
    body_cache: Option<DeviceArg>,
    /// How new files for links and map are allocated
    ///
    /// With falloc the volume is made at once, but the first write of each block makes the filesystem below
    /// commit its own journal.
    #[arg(long, value_enum, default_value_t = PreallocationArg::Full)]
    preallocation: PreallocationArg,
    /// How segments are cleaned
    #[arg(long, value_enum, default_value_t = CleaningArg::CompactInBody)]
    cleaning: CleaningArg,
    /// Which link the log takes for its next segment
    #[arg(long, value_enum, default_value_t = PlacementArg::Chained)]
    placement: PlacementArg,
    /// Size of a segment
    #[arg(long, value_name = "SIZE")]
    segment: Option<Size>,
    /// How much larger the chain may become: the map has room for this many times its links
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    growth: f64,
    /// The devices' sector in bytes, 512 or 4096 [default: each device's own]
    ///
    /// With a sector smaller than the drive's physical one, a power cut may damage the neighbours of a write.
    #[arg(long, value_name = "BYTES")]
    sector: Option<u32>,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Overwrite devices that hold something else, or belong to another volume
    #[arg(long)]
    force: bool,
}

impl Create {
    /// Options for a volume in `folder` with defaults for all but the size.
    pub(crate) fn plain(folder: &Path, size: Size) -> Outcome<Create> {
        let command = Create::augment_args(clap::Command::new("create").no_binary_name(true));
        let words =
            ["--size".into(), size.0.to_string().into(), "--".into(), OsString::from(folder)];
        let matches = command.try_get_matches_from(words);
        let parsed = matches.and_then(|matches| Create::from_arg_matches(&matches));
        parsed.map_err(|error| Failure::of(&error))
    }
}

/// How segments are cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CleaningArg {
    /// Live blocks are written to the tail again
    MoveToTail,
    /// Live blocks are compacted within the body, so that cleaning does not write to the tail
    CompactInBody,
}

/// Which link the log takes for its next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlacementArg {
    /// The same one while it has room: its drive takes the writes, and the others only reads
    Chained,
    /// The links by turns: the versions of a block come to lie on different drives, which serve stale reads faster
    RoundRobin,
}

/// How a new file is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreallocationArg {
    /// Its space is reserved
    Falloc,
    /// Zeros are written to all of it
    Full,
}

impl From<PreallocationArg> for Preallocation {
    fn from(arg: PreallocationArg) -> Preallocation {
        match arg {
            PreallocationArg::Falloc => Preallocation::Falloc,
            PreallocationArg::Full => Preallocation::Full,
        }
    }
}

pub(crate) async fn run(env: &Env, args: Create) -> Outcome<()> {
    let json = args.json;
    let target = create(env, &args, &*progress::for_user(json)).await?;
    match json {
        true => status::show(env, &target, Shown::JSON).await.map(drop),
        false => {
            println!("{}", target.folder.display());
            Ok(())
        }
    }
}

/// Creates a volume; returns its place.
pub(crate) async fn create(env: &Env, args: &Create, report: &dyn Report) -> Outcome<Target> {
    let folder = std::path::absolute(&args.folder)?;
    let progress = share_done("making the volume", report);
    make(env, &folder, &new_volume(&folder, args.size, &args.layout)?, &progress).await?;
    Target::volume(&folder.display().to_string())
}

/// Makes a volume from its devices, which may be images.
pub(crate) async fn make(
    env: &Env,
    folder: &Path,
    new: &NewVolume,
    progress: Progress<'_>,
) -> Outcome<()> {
    let kinds = devices::known(env);
    let made = create_on(env, &NamedMedia(kinds.clone()), folder, new, progress).await;
    devices::close(&kinds, made.map_err(Failure::from)).await
}

/// A volume of this size in `folder`.
pub(crate) fn new_volume(folder: &Path, size: Size, args: &Layout) -> Outcome<NewVolume> {
    let name = folder.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::new("the folder has no name in UTF-8"))?;
    let mut links: Vec<LinkSpec> = args.links.iter().map(LinkArg::spec).collect();
    if links.is_empty() {
        let file = |name: &str| LinkSpec::plain(DeviceSpec::new(folder.join(name)).preallocated());
        links = vec![file("link0"), file("link1")];
    }
    let mut new = NewVolume::new(name, size.0, links);
    new.map = match &args.map {
        None => Vec::new(),
        Some(LinkArg::Device(device)) => vec![device.spec()],
        Some(LinkArg::Mirror(sides)) => sides.iter().map(DeviceArg::spec).collect(),
        Some(LinkArg::Stripe(_)) => {
            return Err(
                Failure::new("the map cannot be striped").help("name a device, or a mirror")
            );
        }
    };
    let devices = new.links.iter_mut().flat_map(|link| link.columns.iter_mut().flatten());
    devices.chain(&mut new.map).for_each(|device| device.preallocation = args.preallocation.into());
    new.cache = args.cache.as_ref().map(DeviceArg::cache);
    new.body_cache = args.body_cache.as_ref().map(DeviceArg::cache);
    new.cleaning = match args.cleaning {
        CleaningArg::MoveToTail => Cleaning::MoveToTail,
        CleaningArg::CompactInBody => Cleaning::CompactInBody,
    };
    new.placement = match args.placement {
        PlacementArg::Chained => Placement::Chained,
        PlacementArg::RoundRobin => Placement::RoundRobin,
    };
    let segment = args.segment.map(|size| size.0.div_ceil(BLOCK_SIZE as u64));
    new.segment_blocks = segment.map(|blocks| u32::try_from(blocks).unwrap_or(u32::MAX));
    new.growth = args.growth;
    new.sector = args.sector;
    new.settings = args.settings.into();
    new.force = args.force;
    Ok(new)
}
