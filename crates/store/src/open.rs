//! Opens volumes of either kind by path: the folder of a chained volume, or the device or file of an in-place
//! volume.

pub mod identity;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion;
use thalweg_env::Env;

use self::identity::members_in;
pub use self::identity::{Identity, Owner};
use crate::block::{BlockStore, Frozen};
use crate::chain;
use crate::device::{Access, DeviceError, DeviceKinds, DeviceRef, Overlay, Purpose, kinds};
use crate::inplace::{self, InPlace, InPlaceError, Parts, Recovered};
use crate::pool::format::DATA_START;
use crate::pool::{self, NamedMedia, Pool, PoolError, manifest};
use crate::tree::catalogue;
use crate::txn::{self, TransactionManager};
use crate::volume::{StoreVolume, VolumeRef};

/// How long a device may stay locked by a process that is about to end, and the pause between attempts.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// Why a volume cannot be found or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no file, or a folder without a volume's manifest.
    #[error("there is no volume {}: name a volume's folder, or its device or file", path.display())]
    NoVolume {
        /// The path.
        path: PathBuf,
    },
    /// A folder without a manifest has the devices of a chained volume.
    #[error(
        "{} has devices of the volume {name}, and no {}; thalweg volume assemble makes it again from their labels: \
         thalweg volume assemble {}", folder.display(), manifest::FILE, listed(devices)
    )]
    LostManifest {
        /// The folder.
        folder: PathBuf,
        /// The volume's name.
        name: String,
        /// The devices in the folder.
        devices: Vec<PathBuf>,
    },
    /// A device was named that is a part of a chained volume.
    #[error("{} is {}", device.display(), part_of(owners, folder.as_deref()))]
    Part {
        /// The device.
        device: PathBuf,
        /// The volumes that it is a part of; none if the labels are damaged.
        owners: Vec<Owner>,
        /// The folder of the volume, if it is beside the device.
        folder: Option<PathBuf>,
    },
    /// A device was named that holds a journal alone.
    #[error(
        "{} is a journal, and no volume: name the volume, and this device with --journal-dev or journal_dev=",
        device.display()
    )]
    Journal {
        /// The device.
        device: PathBuf,
    },
    /// A device was named that holds something else.
    #[error("{} holds {what}, and no volume", device.display())]
    Foreign {
        /// The device.
        device: PathBuf,
        /// What was found.
        what: &'static str,
    },
    /// A journal device was named for a chained volume.
    #[error("{} is a chained volume, which has no journal; name no device for it", path.display())]
    NoJournal {
        /// The path.
        path: PathBuf,
    },
    /// A chained volume cannot be opened.
    #[error(transparent)]
    Chained(#[from] PoolError),
    /// An in-place volume cannot be opened.
    #[error(transparent)]
    InPlace(#[from] InPlaceError),
}

/// Paths as words of a command.
fn listed(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(" ")
}

/// Which part of which volume a device is, and how that one is named.
fn part_of(owners: &[Owner], folder: Option<&Path>) -> String {
    let volumes: Vec<String> = owners
        .iter()
        .map(|Owner { role, name, volume }| {
            format!("the {} of the volume {name} ({volume})", role.name())
        })
        .collect();
    let part = match volumes.is_empty() {
        true => "a part of a chained volume, with damaged labels".to_owned(),
        false => volumes.join(", and "),
    };
    match folder {
        Some(folder) => format!("{part}: name the volume's folder, {}", folder.display()),
        None => format!(
            "{part}: name the volume's folder. If that has no {}: thalweg volume assemble, with all \
             devices of the volume, makes it again",
            manifest::FILE
        ),
    }
}

impl OpenError {
    /// The error for a device that holds no volume that is updated in place, by what it holds instead.
    async fn instead(error: InPlaceError, data: &DeviceRef, device: &Path) -> OpenError {
        if !matches!(error, InPlaceError::NoStore { .. } | InPlaceError::NoSuperblock { .. }) {
            return error.into();
        }
        let len = data.geometry().size.min(DATA_START) as usize;
        let Ok(start) = data.read(0, len, Purpose::Label).await else { return error.into() };
        let device = device.to_owned();
        match Identity::of(&start) {
            Some(Identity::Member(owners)) => {
                let beside = device.parent().filter(|folder| folder.join(manifest::FILE).exists());
                OpenError::Part { folder: beside.map(Path::to_owned), device, owners }
            }
            Some(Identity::Journal) => OpenError::Journal { device },
            Some(Identity::Foreign(what)) => OpenError::Foreign { device, what },
            Some(Identity::InPlace) | None => error.into(),
        }
    }

    /// Whether another process has the volume open: later it may be free.
    pub fn is_locked(&self) -> bool {
        matches!(
            self,
            OpenError::Chained(PoolError::Device(DeviceError::Locked { .. }))
                | OpenError::InPlace(InPlaceError::Device(DeviceError::Locked { .. }))
        )
    }
}

impl From<DeviceError> for OpenError {
    fn from(error: DeviceError) -> OpenError {
        OpenError::InPlace(error.into())
    }
}

/// The place of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumePath {
    /// A chained volume, by its folder.
    Folder(PathBuf),
    /// An in-place volume, by its device or file, or by the name of a device with a kind.
    Device(PathBuf),
}

impl VolumePath {
    /// The path: of the folder, or of the device or file.
    pub fn path(&self) -> &Path {
        match self {
            VolumePath::Folder(path) | VolumePath::Device(path) => path,
        }
    }

    /// Finds out which kind of volume is at a path. A name with a kind is a device's, whether there is one or not.
    ///
    /// # Errors
    /// [`OpenError::NoVolume`], [`OpenError::LostManifest`].
    pub fn find(path: &Path) -> Result<VolumePath, OpenError> {
        if kinds::kind_of(path).is_some() {
            return Ok(VolumePath::Device(path.to_owned()));
        }
        let none = || OpenError::NoVolume { path: path.to_owned() };
        let canonical = path.canonicalize().map_err(|_| none())?;
        if canonical.join(manifest::FILE).exists() {
            return Ok(VolumePath::Folder(canonical));
        }
        match std::fs::metadata(&canonical) {
            Ok(it) if it.is_file() || it.file_type().is_block_device() => {
                Ok(VolumePath::Device(canonical))
            }
            _ => Err(match members_in(&canonical) {
                Some((owner, devices)) => {
                    OpenError::LostManifest { folder: canonical, name: owner.name, devices }
                }
                None => none(),
            }),
        }
    }

    /// The folders that may have the sockets of the volume's server: the volume's own, or for an in-place
    /// volume folders of this user's. They need not exist.
    pub fn sockets(&self) -> Vec<PathBuf> {
        match self {
            VolumePath::Folder(folder) => vec![folder.clone()],
            VolumePath::Device(device) => {
                let name = sockets_name(device);
                user_folders().into_iter().map(|folder| folder.join(&name)).collect()
            }
        }
    }
}

/// The name of the folder with an in-place volume's sockets, from the canonical path of its device.
pub fn sockets_name(device: &Path) -> String {
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    format!("in-place-{}", unique(&name, device))
}

/// The name with a suffix that differs from place to place.
pub fn unique(name: &str, place: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    place.hash(&mut hasher);
    format!("{name}-{:08x}", hasher.finish() as u32)
}

/// The folders that may have a user's sockets, in order of preference. They need not exist.
pub fn runtime_folders(user: u32) -> Vec<PathBuf> {
    if user == 0 {
        return vec![PathBuf::from("/run/thalweg")];
    }
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = [session, Some(PathBuf::from(format!("/run/user/{user}")))];
    let owned = |path: &PathBuf| {
        let found = std::fs::symlink_metadata(path);
        path.is_absolute() && found.is_ok_and(|it| it.is_dir() && it.uid() == user)
    };
    let mut folders: Vec<_> =
        runtime.into_iter().flatten().filter(owned).map(|path| path.join("thalweg")).collect();
    folders.dedup();
    folders.push(PathBuf::from(format!("/tmp/thalweg-{user}")));
    folders
}

/// The folders that may have this user's sockets; servers may have been started in another session.
fn user_folders() -> Vec<PathBuf> {
    // SAFETY: the call only reads the process's identity and cannot fail.
    let user = unsafe { libc::geteuid() };
    let mut folders = runtime_folders(user);
    folders.push(PathBuf::from("/run/thalweg"));
    folders.dedup();
    // Folders of other users are left out: the sockets there belong to those users.
    folders
        .retain(|it| std::fs::symlink_metadata(it).is_ok_and(|it| it.is_dir() && it.uid() == user));
    folders
}

/// Options for opening a volume of either kind.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether to open it read-only: no byte of it changes. If it needs recovery, it is recovered in memory.
    /// Other processes may read it at the same time.
    pub read_only: bool,
    /// Whether to open an in-place volume whose journal may be damaged in the middle: transactions before
    /// the damage are replayed, later ones are given up. Chained volumes open as without this.
    pub repair: bool,
    /// Whether to open a volume that follows another one, to take that one's changes.
    pub follow: bool,
    /// Whether to open a volume to change its devices, and nothing that is stored on them: it may follow another one or not.
    pub for_devices: bool,
    /// The limits of its transactions. A chained volume's own settings override them.
    pub transactions: txn::Options,
    /// The run-time options of an in-place volume.
    pub in_place: inplace::Options,
    /// The journal's device, if the journal is outside of an in-place volume.
    pub journal: Option<PathBuf>,
    /// What opens devices that are no files and no block devices.
    pub kinds: DeviceKinds,
}

impl Options {
    fn access(&self) -> Access {
        match self.read_only {
            true => Access::ReadOnly,
            false => Access::Exclusive,
        }
    }
}

/// An open volume of either kind.
#[derive(Debug)]
pub enum AnyVolume {
    /// A chained volume.
    Chained(Box<Pool>),
    /// An in-place volume.
    InPlace(Box<InPlaceVolume>),
}

impl AnyVolume {
    /// Opens a volume in this process, recovering it if it was not closed.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(
        env: &Env,
        place: &VolumePath,
        options: &Options,
    ) -> Result<AnyVolume, OpenError> {
        match place {
            VolumePath::Folder(path) if options.journal.is_some() => {
                Err(OpenError::NoJournal { path: path.clone() })
            }
            VolumePath::Folder(folder) => {
                let kinds = options.kinds.clone();
                let (follow, as_labelled) = (options.follow, options.for_devices);
                let chain = chain::Options { follow, as_labelled, ..chain::Options::default() };
                let options = pool::OpenOptions {
                    chain,
                    read_only: options.read_only,
                    transactions: options.transactions.clone(),
                    ..pool::OpenOptions::default()
                };
                let media = Arc::new(NamedMedia(kinds));
                let pool = Pool::open_on(env, media, folder, &options).await?;
                Ok(AnyVolume::Chained(Box::new(pool)))
            }
            VolumePath::Device(device) => {
                let volume = InPlaceVolume::open(env, device, options).await?;
                Ok(AnyVolume::InPlace(Box::new(volume)))
            }
        }
    }

    /// Its transactions.
    pub fn transactions(&self) -> &TransactionManager {
        match self {
            AnyVolume::Chained(pool) => pool.transactions(),
            AnyVolume::InPlace(it) => &it.transactions,
        }
    }

    /// The volume for clients without transactions: read-only while it has partitions.
    pub fn volume(&self) -> VolumeRef {
        match self {
            AnyVolume::Chained(pool) => pool.volume(),
            AnyVolume::InPlace(it) => it.volume.clone(),
        }
    }

    /// Makes everything durable and stops the volume; writes are refused from then on.
    ///
    /// # Errors
    /// A device's error; flushed writes are safe all the same.
    #[async_recursion]
    pub async fn close(&self) -> Result<(), OpenError> {
        match self {
            AnyVolume::Chained(pool) => Ok(pool.close().await?),
            AnyVolume::InPlace(it) => Ok(it.store.close().await.map_err(InPlaceError::from)?),
        }
    }
}

/// An open in-place volume.
#[derive(Debug)]
pub struct InPlaceVolume {
    /// Its blocks.
    pub store: Arc<InPlace>,
    /// Its transactions.
    pub transactions: TransactionManager,
    /// The report of the opening's recovery.
    pub recovered: Recovered,
    /// The volume for clients without transactions.
    pub volume: VolumeRef,
}

impl InPlaceVolume {
    async fn open(env: &Env, device: &Path, options: &Options) -> Result<InPlaceVolume, OpenError> {
        let access = options.access();
        let journal = options.journal.as_deref();
        let parts = in_place_parts(env, &options.kinds, device, journal, access).await?;
        let data = parts.data.clone();
        let opened = match options.repair {
            true => InPlace::open_damaged(env, parts, options.in_place).await,
            false => InPlace::open(env, parts, options.in_place).await,
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => return Err(OpenError::instead(error, &data, device).await),
        };
        let transactions = options.transactions.clone();
        Ok(InPlaceVolume::start(env, opened, access, transactions).await?)
    }

    /// Runs transactions over a store that was opened. With [`Access::ReadOnly`] changes are refused.
    async fn start(
        env: &Env,
        (store, recovered): (InPlace, Recovered),
        access: Access,
        options: txn::Options,
    ) -> Result<InPlaceVolume, InPlaceError> {
        let store = Arc::new(store);
        let shown: Arc<dyn BlockStore> = match access.only_reads() {
            true => Arc::new(Frozen::newest(store.clone())?),
            false => store.clone(),
        };
        // Every change of the volume is a transaction, or visible to the transactions that run.
        let transactions = TransactionManager::new(env, shown, options);
        catalogue::fence(&transactions).await;
        let volume = Arc::new(StoreVolume::live(Arc::new(transactions.fenced())));
        Ok(InPlaceVolume { store, transactions, recovered, volume })
    }
}

/// The devices of an in-place volume. With [`Access::ReadOnly`] writes to them stay in memory. A server that
/// has released a volume has its devices locked until its process has ended, so this waits a while.
///
/// # Errors
/// A device's.
pub async fn in_place_parts(
    env: &Env,
    kinds: &DeviceKinds,
    data: &Path,
    journal: Option<&Path>,
    access: Access,
) -> Result<Parts, DeviceError> {
    let journal = match journal {
        Some(path) => Some(open_device(env, kinds, path, access).await?),
        None => None,
    };
    Ok(Parts { data: open_device(env, kinds, data, access).await?, journal })
}

async fn open_device(
    env: &Env,
    kinds: &DeviceKinds,
    path: &Path,
    access: Access,
) -> Result<DeviceRef, DeviceError> {
    let deadline = env.now() + PATIENCE;
    let device = loop {
        match kinds.open(path, access).await {
            Err(DeviceError::Locked { .. }) if env.now() < deadline => env.sleep(PAUSE).await,
            opened => break opened?,
        }
    };
    match access.only_reads() {
        true => Ok(Arc::new(Overlay::new(device))),
        false => Ok(device),
    }
}
