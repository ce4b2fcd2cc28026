//! In-place volumes: create, open, status.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use thalweg_env::Env;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::device::{Access, FileDevice, FileOptions, Purpose, Tallies};
use thalweg_store::inplace::{
    self, InPlace, InPlaceError, InPlaceStatus, NewInPlace, Parts, Recovered,
};
use thalweg_store::journal::JournalError;
use thalweg_store::open;
use thalweg_store::pool::PoolError;
use thalweg_store::txn::{self, TransactionManager};
use thalweg_store::volume::VolumeRef;

use crate::control::Client;
use crate::failure::{Failure, Outcome};
use crate::size::Size;
use crate::target::{JournalDev, Target};

/// Bytes at the start of a device in which filesystems and partition tables have their magic numbers.
const LOOKED_AT: u64 = 128 << 10;

impl From<InPlaceError> for Failure {
    fn from(error: InPlaceError) -> Failure {
        match error {
            InPlaceError::Device(error) => PoolError::from(error).into(),
            InPlaceError::JournalElsewhere { .. } => {
                Failure::of(&error).help("-o journal_dev=PATH, or --journal-dev PATH")
            }
            InPlaceError::NoStore { .. } => {
                Failure::of(&error).help("make one, and a filesystem on it: thalweg mkfs DEVICE")
            }
            InPlaceError::NoSuperblock { .. } => Failure::of(&error).help(
                "thalweg fsck -y DEVICE, if nothing else was put on the device since; nothing was \
                 changed",
            ),
            InPlaceError::Journal(
                JournalError::Rotten { .. } | JournalError::NoSuperblock { .. },
            ) => Failure::of(&error).help("thalweg fsck -y DEVICE; nothing was changed"),
            InPlaceError::Journal(JournalError::NoJournal { .. }) => Failure::of(&error).help(
                "name the journal's device; if this is it, its superblocks are damaged: \
                 thalweg fsck -y --journal-dev PATH DEVICE",
            ),
            InPlaceError::Unreadable { .. } => {
                Failure::of(&error).help("thalweg fsck -y DEVICE gives it up, if it stays so")
            }
            error => Failure::of(&error),
        }
    }
}

/// An open in-place volume.
#[derive(Debug)]
pub(crate) struct InPlaceVolume {
    pub(crate) store: Arc<InPlace>,
    pub(crate) transactions: TransactionManager,
    /// The journal's device, if the journal is outside of the volume.
    pub(crate) journal: Option<PathBuf>,
    /// The report of the opening's recovery.
    pub(crate) recovered: Recovered,
    volume: VolumeRef,
}

/// Counters of one of its devices.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) path: String,
    pub(crate) role: &'static str,
    pub(crate) io: Tallies,
}

impl InPlaceVolume {
    /// Opens the volume on a device. `options` hold from the start, since changing some of them later waits
    /// until the journal has released older transactions. With [`Access::ReadOnly`] the journal is replayed
    /// in memory, and changes are refused.
    pub(crate) async fn open(
        env: &Env,
        device: &Path,
        target: &Target,
        options: inplace::Options,
        access: Access,
    ) -> Outcome<InPlaceVolume> {
        let parts = parts(env, device, target.journal.as_deref(), access).await?;
        let opened = InPlace::open(env, parts, options).await?;
        InPlaceVolume::of(env, opened, target, access).await
    }

    /// Opens a volume whose journal may be damaged in the middle: transactions before the damage are
    /// replayed, later ones are given up.
    pub(crate) async fn open_damaged(
        env: &Env,
        device: &Path,
        target: &Target,
    ) -> Outcome<InPlaceVolume> {
        let access = Access::Exclusive;
        let parts = parts(env, device, target.journal.as_deref(), access).await?;
        let opened = InPlace::open_damaged(env, parts, inplace::Options::default()).await?;
        InPlaceVolume::of(env, opened, target, access).await
    }

    async fn of(
        env: &Env,
        opened: (InPlace, Recovered),
        target: &Target,
        access: Access,
    ) -> Outcome<InPlaceVolume> {
        tracing::info!(volume = target.name, recovered = ?opened.1, "opened");
        let options = txn::Options::default();
        let started = open::InPlaceVolume::start(env, opened, access, options).await?;
        let open::InPlaceVolume { store, transactions, recovered, volume } = started;
        let journal = target.journal.clone();
        Ok(InPlaceVolume { store, transactions, journal, recovered, volume })
    }

    /// The volume for clients without transactions.
    pub(crate) fn volume(&self) -> VolumeRef {
        self.volume.clone()
    }

    /// Each device with its counters.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let roles = ["data", "journal"];
        let parts = self.store.devices().into_iter().zip(roles);
        parts.map(|(it, role)| Part { path: it.name(), role, io: it.tallies() }).collect()
    }

    /// The volume's status as JSON.
    pub(crate) fn status(&self, name: &str) -> Outcome<Value> {
        let status: InPlaceStatus = self.store.status();
        let parts = self.parts().into_iter().map(|part| {
            let io = serde_json::to_value(part.io)?;
            Ok(json!({ "path": part.path, "role": part.role, "io": io }))
        });
        Ok(json!({
            "name": name,
            "volume": self.store.id(),
            "size": status.blocks * BLOCK_SIZE as u64,
            "in_place": status,
            "recovered": self.recovered,
            "devices": parts.collect::<Outcome<Vec<Value>>>()?,
        }))
    }
}

async fn parts(env: &Env, data: &Path, journal: Option<&Path>, access: Access) -> Outcome<Parts> {
    Ok(open::in_place_parts(env, data, journal, access).await.map_err(PoolError::from)?)
}

/// Options for a new in-place volume on a device or in a file.
#[derive(Clone, Debug, Args)]
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

/// Creates an in-place volume; with `file`, in a new file of that size.
pub(crate) async fn create(
    env: &Env,
    device: &Path,
    file: Option<Size>,
    new: &New,
    force: bool,
) -> Outcome<Target> {
    if let Some(size) = file {
        let made = FileDevice::create(device, size.0, &FileOptions::default()).await;
        drop(made.map_err(PoolError::from)?);
    }
    let journal = new.journal.journal_dev.as_deref();
    let target = Target::in_place(device)?.with_journal(journal);
    if Client::connect(&target.folder).await?.is_some() {
        return Err(Failure::new(format!("{} is mounted or served", device.display()))
            .help("unmount it first: thalweg umount DIRECTORY, or end its server"));
    }
    let parts = parts(env, device, journal, Access::Exclusive).await?;
    for part in std::iter::once(&parts.data).chain(&parts.journal) {
        let len = part.geometry().size.min(LOOKED_AT) as usize;
        let start = part.read(0, len, Purpose::Label).await.map_err(PoolError::from)?;
        if !force && start.iter().any(|byte| *byte != 0) {
            return Err(Failure::new(format!("{} is not empty", part.name()))
                .help("--force writes over it"));
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
