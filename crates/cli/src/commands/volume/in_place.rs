//! `thalweg volume create-in-place`: makes an in-place volume.

use std::path::{Path, PathBuf};

use clap::Args;
use thalweg_env::Env;
use thalweg_store::device::{Access, DeviceKinds, Purpose};
use thalweg_store::inplace::{self, InPlace, NewInPlace};
use thalweg_store::open::{Identity, in_place_parts};
use thalweg_store::pool::PoolError;

use crate::commands::status::{self, Shown};
use crate::control::Client;
use crate::devices;
use crate::failure::{Failure, Outcome};
use crate::size::Size;
use crate::target::{JournalDev, Target};

/// Bytes at the start of a device in which filesystems and partition tables have their magic numbers.
const LOOKED_AT: u64 = 128 << 10;

/// Make an in-place volume, with a journal
///
/// The volume is empty; thalweg mkfs makes such a volume and a filesystem in one step.
#[derive(Debug, Args)]
pub(crate) struct CreateInPlace {
    /// The device, a file, or an image in a pool of a Ceph cluster: rados:POOL/IMAGE
    device: PathBuf,
    /// Make the file or the image first, of this size
    #[arg(long)]
    size: Option<Size>,
    #[command(flatten)]
    new: New,
    /// Overwrite the device if it is not empty
    #[arg(long)]
    force: bool,
    /// Print the new volume's status as a JSON object
    #[arg(long)]
    json: bool,
}

/// Options for a new in-place volume on a device or in a file.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct New {
    #[command(flatten)]
    pub(crate) journal: JournalDev,
    /// Size of the journal in the volume [default: a sixteenth of it, at most 128M]
    #[arg(long, value_name = "SIZE", conflicts_with = "journal_dev")]
    pub(crate) journal_size: Option<Size>,
}

impl New {
    /// Whether the user gave any option for the journal.
    pub(crate) fn is_said(&self) -> bool {
        self.journal.journal_dev.is_some() || self.journal_size.is_some()
    }
}

/// Creates an in-place volume; with `file`, in a new file or image of that size.
pub(crate) async fn create(
    env: &Env,
    device: &Path,
    file: Option<Size>,
    new: &New,
    force: bool,
) -> Outcome<Target> {
    let kinds = devices::known(env);
    let created = create_with(env, &kinds, device, file, new, force).await;
    devices::close(&kinds, created).await
}

async fn create_with(
    env: &Env,
    kinds: &DeviceKinds,
    device: &Path,
    size: Option<Size>,
    new: &New,
    force: bool,
) -> Outcome<Target> {
    if let Some(size) = size {
        kinds.create(device, size.0).await.map_err(PoolError::from)?;
    }
    let journal = new.journal.journal_dev.as_deref();
    let target = Target::in_place(device)?.with_journal(journal);
    if Client::connect(&target.folder).await?.is_some() {
        return Err(Failure::new(format!("{} is mounted or served", device.display()))
            .help("unmount it first: thalweg umount DIRECTORY, or end its server"));
    }
    let parts = in_place_parts(env, kinds, device, journal, Access::Exclusive).await;
    let parts = parts.map_err(PoolError::from)?;
    for part in std::iter::once(&parts.data).chain(&parts.journal) {
        let len = part.geometry().size.min(LOOKED_AT) as usize;
        let start = part.read(0, len, Purpose::Label).await.map_err(PoolError::from)?;
        if !force {
            refuse_content(&part.name(), &start)?;
        }
    }
    let name = device.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut name = name.unwrap_or_default();
    while name.len() > inplace::format::NAME {
        name.pop();
    }
    let journal_size = new.journal_size.map(|size| size.0);
    InPlace::create(env, &parts, &NewInPlace { name, journal_size, size: None }).await?;
    Ok(target)
}

/// Refuses a device that is not empty, by what it begins with.
fn refuse_content(device: &str, start: &[u8]) -> Outcome<()> {
    let other = "name another device; thalweg dump DEVICE shows whose it is";
    let (what, help) = match Identity::of(start) {
        None if start.iter().all(|byte| *byte == 0) => return Ok(()),
        None => (String::new(), "--force writes over it"),
        Some(Identity::Foreign(what)) => (format!(": it holds {what}"), "--force writes over it"),
        // Below a label is what a volume's user has stored.
        Some(Identity::Member(_)) => (": it is a part of a chained volume".to_owned(), other),
        Some(Identity::InPlace) => (
            ": it holds a volume that is updated in place".to_owned(),
            "thalweg status DEVICE shows that volume, and thalweg mount mounts its filesystem",
        ),
        Some(Identity::Journal) => {
            (": it is the journal of a volume or of a mount".to_owned(), other)
        }
    };
    Err(Failure::new(format!("{device} is not empty{what}")).help(help))
}

pub(crate) async fn run(env: &Env, args: CreateInPlace) -> Outcome<()> {
    let CreateInPlace { device, size, new, force, json } = args;
    let target = create(env, &device, size, &new, force).await?;
    match json {
        true => status::show(env, &target, Shown::JSON).await.map(drop),
        false => {
            println!("{}", target.place().display());
            Ok(())
        }
    }
}
