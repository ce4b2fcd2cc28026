//! `thalweg volume`: make, look at, change and destroy volumes.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, FromArgMatches, Subcommand, ValueEnum};
use thalweg_env::Env;
use thalweg_store::chain;
use thalweg_store::pool::Preallocation;
use thalweg_store::pool::manifest::Settings;

use crate::ask::ask;
use crate::date;
use crate::failure::{Failure, Outcome};
use crate::in_place;
use crate::opened;
use crate::parts::{DeviceArg, LinkArg};
use crate::progress;
use crate::request::{Answer, Request};
use crate::resize::Room;
use crate::size::Size;
use crate::status::{self, Shown};
use crate::target::{JournalDev, Target, no_snapshots};

/// Make, look at, change and destroy volumes
///
/// A volume is a folder that lists its files and devices. If it is served or attached, its server carries out
/// the command.
#[derive(Debug, Subcommand)]
pub(crate) enum Volume {
    Create(Create),
    CreateInPlace(CreateInPlace),
    Status(Status),
    Extend(Extend),
    Shrink(Shrink),
    Replace(Replace),
    Rebuild(Rebuild),
    Set(Set),
    RebuildIndex(RebuildIndex),
    Scrub(Scrub),
    #[command(subcommand)]
    Snapshot(Snapshot),
    Destroy(Destroy),
}

/// Make a volume
///
/// Without --link it has two links: files in its folder that are together a quarter larger than the volume. A
/// missing file is made; without :SIZE it is as large as needed.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The folder; its name is the volume's
    pub(crate) folder: PathBuf,
    /// Size of the volume
    #[arg(long)]
    pub(crate) size: Size,
    /// A link: PATH or PATH:SIZE of a device or file, mirror:A,B, or stripe:A,B; given once
    /// for each link, in the order of the chain
    #[arg(long = "link", value_name = "LINK")]
    pub(crate) links: Vec<LinkArg>,
    /// PATH or PATH:SIZE of a device or file for the map, or mirror:A,B; preferably SSDs [default: a part of
    /// the first link]
    #[arg(long, value_name = "DEVICE")]
    pub(crate) map: Option<LinkArg>,
    /// PATH or PATH:SIZE of an SSD for the tail cache; SIZE is how much of it
    #[arg(long, value_name = "DEVICE")]
    pub(crate) cache: Option<DeviceArg>,
    /// PATH or PATH:SIZE of an SSD for a cache of the body
    #[arg(long, value_name = "DEVICE")]
    pub(crate) body_cache: Option<DeviceArg>,
    /// How new files for links and map are allocated
    ///
    /// With falloc the volume is made at once, but the first write of each block makes the filesystem below
    /// commit its own journal.
    #[arg(long, value_enum, default_value_t = PreallocationArg::Full)]
    pub(crate) preallocation: PreallocationArg,
    /// How segments are cleaned
    #[arg(long, value_enum, default_value_t = CleaningArg::CompactInBody)]
    pub(crate) cleaning: CleaningArg,
    /// Size of a segment
    #[arg(long, value_name = "SIZE")]
    pub(crate) segment: Option<Size>,
    /// How much larger the chain may become: the map has room for this many times its links
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    pub(crate) growth: f64,
    /// The devices' sector in bytes, 512 or 4096 [default: each device's own]
    ///
    /// With a sector smaller than the drive's physical one, a power cut may damage the neighbours of a write.
    #[arg(long, value_name = "BYTES")]
    pub(crate) sector: Option<u32>,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
    /// Overwrite devices that hold something else, or belong to another volume
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the new volume's status as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
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

/// Make an in-place volume, with a journal
///
/// The volume is empty; thalweg mkfs makes such a volume and a filesystem in one step.
#[derive(Debug, Args)]
pub(crate) struct CreateInPlace {
    /// The device, or a file
    device: PathBuf,
    /// Make the file first, of this size
    #[arg(long)]
    size: Option<Size>,
    #[command(flatten)]
    new: in_place::New,
    /// Overwrite the device if it is not empty
    #[arg(long)]
    force: bool,
    /// Print the new volume's status as a JSON object
    #[arg(long)]
    json: bool,
}

/// Settings that the volume keeps.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SettingsArgs {
    /// RAM of the tail cache, 1 MiB or more [default: 64M]
    #[arg(long, value_name = "SIZE")]
    ram_cache: Option<Size>,
    /// RAM of the body cache [default: none]
    #[arg(long, value_name = "SIZE")]
    body_ram_cache: Option<Size>,
    /// Whether the second sides of mirrored links spin down while they are not written
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    standby: Option<bool>,
    /// How many milliseconds a read that misses the caches may wait for others, so that they go together to
    /// the drive that the log writes; 100 suits rotational disks [default: 0]
    #[arg(long, value_name = "MILLIS")]
    tail_read_wait: Option<u32>,
    /// Seconds after which an idle transaction is aborted [default: 60]
    #[arg(long, value_name = "SECONDS")]
    transaction_idle: Option<u32>,
}

impl From<SettingsArgs> for Settings {
    fn from(args: SettingsArgs) -> Settings {
        Settings {
            standby: args.standby,
            ram_cache: args.ram_cache.map(|size| size.0),
            body_ram_cache: args.body_ram_cache.map(|size| size.0),
            tail_read_wait: args.tail_read_wait,
            transaction_idle: args.transaction_idle,
        }
    }
}

/// Change a volume's settings, from the next opening on
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true)
    .args(["ram_cache", "body_ram_cache", "standby", "tail_read_wait", "transaction_idle"]))]
pub(crate) struct Set {
    /// The volume's folder
    volume: String,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Print the status afterwards as a JSON object
    #[arg(long)]
    json: bool,
}

/// How segments are cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CleaningArg {
    /// Live blocks are written to the tail again
    MoveToTail,
    /// Live blocks are compacted within the body, so that cleaning does not write to the tail
    CompactInBody,
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

/// Show a volume's status
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The volume's folder, or the device of an in-place volume
    volume: String,
    #[command(flatten)]
    journal: JournalDev,
    /// Show it repeatedly
    #[arg(long)]
    watch: bool,
    /// Seconds between two updates
    #[arg(long, default_value = "1", value_parser = seconds, requires = "watch")]
    interval: Duration,
    /// Also show the durations of the stages of writes and flushes, and the slowest flushes
    ///
    /// Counted since the volume was opened. --json always includes them.
    #[arg(long)]
    latency: bool,
    /// Print a JSON object, one on each line with --watch
    #[arg(long)]
    json: bool,
}

/// Add a link to a volume, give it a larger size, or both
///
/// A filesystem on it keeps its size: thalweg resize grows both.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["link", "size"]))]
pub(crate) struct Extend {
    /// The volume's folder
    volume: String,
    /// The new link: PATH, PATH:SIZE, mirror:A,B, or stripe:A,B
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

/// Rebuild the index of a volume that does not open because a checkpoint is damaged
///
/// This reads the map of every segment. Where the map is damaged too, some blocks cannot be found again: they
/// show older content, or zeros. The report names the lost parts of the map, and counts the blocks that may
/// be affected.
#[derive(Debug, Args)]
pub(crate) struct RebuildIndex {
    /// The volume's folder
    volume: String,
    /// Go on although parts of the map are lost
    #[arg(long)]
    accept_loss: bool,
    /// Report what would be rebuilt and lost, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the report as a JSON object
    #[arg(long)]
    json: bool,
}

/// The exit code of a scrub that found blocks of which no copy is right.
const LOST: u8 = 4;

/// Read and verify everything that is stored, and repair bad copies
///
/// Ends with 0 if everything can be read now, with 4 if blocks are lost: no copy of them is right.
#[derive(Debug, Args)]
pub(crate) struct Scrub {
    /// The volume's folder, or the device of an in-place volume
    volume: String,
    #[command(flatten)]
    journal: JournalDev,
    /// Print the report as a JSON object
    #[arg(long)]
    json: bool,
}

/// A command on a whole volume.
#[derive(Debug, Args)]
pub(crate) struct OnVolume {
    /// The volume's folder
    volume: String,
    /// Print the result as a JSON object
    #[arg(long)]
    json: bool,
}

/// Create, list, delete snapshots, or roll back to one
#[derive(Debug, Subcommand)]
pub(crate) enum Snapshot {
    /// Create a snapshot of the volume's present state
    Create(OnSnapshot),
    /// List the snapshots
    ///
    /// SIZE is the volume's size when the snapshot was created. EXCLUSIVE is the space that deleting this
    /// snapshot alone frees.
    List(OnVolume),
    /// Delete a snapshot
    Delete(OnSnapshot),
    /// Roll the volume back to a snapshot; later writes are lost
    ///
    /// Asks for confirmation on a terminal; elsewhere it needs --yes.
    Rollback(Rollback),
}

#[derive(Debug, Args)]
pub(crate) struct OnSnapshot {
    /// The volume's folder
    volume: String,
    /// The snapshot's name
    name: String,
    /// Print the result as a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Rollback {
    #[command(flatten)]
    on: OnSnapshot,
    /// Confirm that all later writes are to be lost
    #[arg(long)]
    yes: bool,
}

/// Destroy a volume and everything on it
#[derive(Debug, Args)]
pub(crate) struct Destroy {
    /// The volume's folder
    volume: String,
    /// Confirm that everything on it is to be lost
    #[arg(long)]
    yes: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let seconds = seconds.filter(|span| *span >= Duration::from_millis(100));
    seconds.ok_or_else(|| format!("{text:?} is not a number of seconds, 0.1 or more"))
}

/// Carries out a command; its exit code.
pub(crate) async fn run(env: &Env, command: Volume) -> Outcome<u8> {
    match command {
        Volume::Scrub(args) => return scrub(env, &args).await,
        Volume::Create(args) => create(env, args).await,
        Volume::CreateInPlace(CreateInPlace { device, size, new, force, json }) => {
            let target = in_place::create(env, &device, size, &new, force).await?;
            match json {
                true => status::show(env, &target, Shown::JSON).await,
                false => {
                    println!("{}", target.place().display());
                    Ok(())
                }
            }
        }
        Volume::Status(args) => {
            let target = Target::volume(&args.volume)?;
            let target = target.with_journal(args.journal.journal_dev.as_deref());
            let interval = args.watch.then_some(args.interval);
            let shown = Shown { json: args.json, interval, latency: args.latency };
            status::show(env, &target, shown).await
        }
        Volume::Extend(args) => extend(env, args).await,
        Volume::Shrink(args) => {
            let link = args.link.map(std::path::absolute).transpose()?;
            let request = Request::Shrink { link, size: args.size.map(|size| size.0) };
            change(env, &args.volume, request, args.json).await
        }
        Volume::Replace(args) => {
            let (old, new) = (std::path::absolute(args.old)?, args.new.absolute()?);
            let request = Request::Replace { old, new, force: args.force };
            change(env, &args.volume, request, args.json).await
        }
        Volume::Rebuild(args) => {
            let device = args.device.map(std::path::absolute).transpose()?;
            change(env, &args.volume, Request::Rebuild { device }, args.json).await
        }
        Volume::Set(args) => {
            let settings = args.settings.into();
            change(env, &args.volume, Request::Set { settings }, args.json).await
        }
        Volume::RebuildIndex(args) => rebuild_index(env, &args).await,
        Volume::Snapshot(command) => snapshot(env, command).await,
        Volume::Destroy(args) => destroy(env, &args).await,
    }
    .map(|()| 0)
}

async fn create(env: &Env, args: Create) -> Outcome<()> {
    let json = args.json;
    let target = opened::create(env, &args, &*progress::for_user(json)).await?;
    match json {
        true => status::show(env, &target, Shown::JSON).await,
        false => {
            println!("{}", target.folder.display());
            Ok(())
        }
    }
}

/// Has a change made; with `json`, prints the volume's status afterwards.
async fn change(env: &Env, volume: &str, request: Request, json: bool) -> Outcome<()> {
    let target = Target::volume(volume)?;
    ask(env, &target, request, json).await?;
    match json {
        true => status::show(env, &target, Shown::JSON).await,
        false => Ok(()),
    }
}

async fn extend(env: &Env, args: Extend) -> Outcome<()> {
    let link = args.link.map(LinkArg::absolute).transpose()?;
    let size = args.size.map(|size| size.0);
    let request = Request::Extend { link, size, force: args.force };
    let target = Target::volume(&args.volume)?;
    let answer = ask(env, &target, request, args.json).await?;
    if args.json {
        return status::show(env, &target, Shown::JSON).await;
    }
    if let Answer::Json(room) = answer {
        let room: Room = serde_json::from_value(room)?;
        room.advice(&args.volume).into_iter().for_each(|advice| println!("{advice}"));
    }
    Ok(())
}

async fn rebuild_index(env: &Env, args: &RebuildIndex) -> Outcome<()> {
    let target = Target::volume(&args.volume)?.chained()?;
    let how = chain::Rebuild { accept_loss: args.accept_loss, dry_run: args.dry_run };
    let progress = progress::for_user(args.json);
    let report = opened::rebuild_index(env, &target, how, &*progress).await?;
    drop(progress);
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    let chain::RebuildReport { blocks, version, undecided, lost_blocks, .. } = report;
    let size = Size(blocks.saturating_mul(thalweg_store::block::BLOCK_SIZE as u64));
    println!("{size} stored in {blocks} blocks, version {version}");
    for chain::LostEntries { segment, first, blocks, newest } in &report.lost {
        let last = first + blocks.saturating_sub(1);
        let when =
            newest.map_or("at any time".to_owned(), |newest| format!("up to version {newest}"));
        println!("lost: the map of blocks {first} to {last} of segment {segment}, written {when}");
    }
    if lost_blocks > 0 {
        println!(
            "of {undecided} blocks last written up to then, at most {lost_blocks} show older content"
        );
    }
    if !report.written {
        println!("nothing was changed");
    }
    Ok(())
}

async fn scrub(env: &Env, args: &Scrub) -> Outcome<u8> {
    let target = Target::volume(&args.volume)?;
    let target = target.with_journal(args.journal.journal_dev.as_deref());
    let Answer::Json(report) = ask(env, &target, Request::Scrub, args.json).await? else {
        return Err(Failure::new("the volume's server gave no report"));
    };
    if args.json {
        println!("{report}");
    } else if let Some(fields) = report.as_object() {
        let fields = fields.iter().filter(|(name, _)| *name != "degraded");
        fields.for_each(|(name, value)| println!("{name:20} {value}"));
    }
    status::warn(&target.name, &report["degraded"]);
    let lost = opened::lost_blocks(&report);
    if lost == 0 {
        return Ok(0);
    }
    if !args.json {
        println!(
            "No copy of {lost} blocks is right. thalweg fsck -d VOLUME says which files they belong to; \
             a block that is written anew is whole again."
        );
    }
    Ok(LOST)
}

async fn snapshot(env: &Env, command: Snapshot) -> Outcome<()> {
    let (args, request) = match command {
        Snapshot::List(args) => return list(env, &args).await,
        Snapshot::Create(args) => {
            let name = args.name.clone();
            (args, Request::CreateSnapshot { name })
        }
        Snapshot::Delete(args) => {
            let name = args.name.clone();
            (args, Request::DeleteSnapshot { name })
        }
        Snapshot::Rollback(args) => {
            confirm_rollback(&args)?;
            let name = args.on.name.clone();
            (args.on, Request::Rollback { name })
        }
    };
    change(env, &args.volume, request, args.json).await
}

/// Asks the user to confirm a rollback.
fn confirm_rollback(args: &Rollback) -> Outcome<()> {
    if args.yes {
        return Ok(());
    }
    let OnSnapshot { volume, name, .. } = &args.on;
    let what = format!("this rolls {volume} back to {name}: later writes are lost");
    let (input, output) = (std::io::stdin(), std::io::stderr());
    if input.is_terminal() && output.is_terminal() {
        eprint!("{what}. Continue? [y/N] ");
        let mut answer = String::new();
        input.read_line(&mut answer)?;
        return match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(Failure::new("nothing was changed")),
        };
    }
    Err(Failure::new(what).help("to confirm, add --yes"))
}

async fn list(env: &Env, args: &OnVolume) -> Outcome<()> {
    let target = Target::volume(&args.volume)?;
    if let Some(device) = &target.device {
        return Err(no_snapshots(device.display()));
    }
    let Answer::Json(found) = ask(env, &target, Request::ListSnapshots, args.json).await? else {
        return Err(Failure::new("the volume's server gave no list")
            .help("it may be of another version; restart it"));
    };
    if args.json {
        println!("{found}");
        return Ok(());
    }
    let snapshots: Vec<status::Snapshot> = serde_json::from_value(found)?;
    if snapshots.is_empty() {
        return Ok(());
    }
    // A name has 64 bytes at most.
    let width = snapshots.iter().map(|it| it.name.chars().count()).max().unwrap_or(0).max(4);
    println!("{:width$}  {:25}  {:>9}  {:>9}", "NAME", "CREATED", "SIZE", "EXCLUSIVE");
    for status::Snapshot { name, created, blocks, exclusive_blocks, .. } in snapshots {
        let size = |blocks: u64| {
            Size(blocks.saturating_mul(thalweg_store::block::BLOCK_SIZE as u64)).to_string()
        };
        let (size, exclusive) = (size(blocks), size(exclusive_blocks));
        println!("{name:width$}  {:25}  {size:>9}  {exclusive:>9}", date::local(created));
    }
    Ok(())
}

async fn destroy(env: &Env, args: &Destroy) -> Outcome<()> {
    if !args.yes {
        return Err(Failure::new(format!("this destroys {} and everything on it", args.volume))
            .help("to confirm, add --yes"));
    }
    if Path::new(&args.volume).exists() && !Path::new(&args.volume).is_dir() {
        Target::volume(&args.volume)?.chained()?;
    }
    opened::destroy(env, Path::new(&args.volume)).await
}
