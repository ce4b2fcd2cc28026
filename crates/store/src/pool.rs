//! Volumes put together from files and raw devices.
//!
//! A label on each device (`format`) says to which volume the device belongs, and its place there. The
//! *manifest*, `volume.toml` in the volume's folder, says where the devices are. The labels decide: a
//! manifest that names the wrong device leads to an error, never to wrong bytes.
//!
//! A link is a grid of devices: a stripe over columns, each a mirror of sides. One column of one side is a
//! plain device. The map area has sides too, or lies on the first link. A link's devices belong to one volume
//! alone; the devices of map and caches may be shared by several volumes, each of which locks its own extents
//! only.

mod assemble;
mod change;
mod create;
mod destroy;
mod error;
pub mod format;
mod label;
pub mod manifest;
mod media;
mod pair;
mod prepare;
mod probe;
mod reassemble;
mod refusal;
mod settings;
mod sizing;
mod spec;
mod status;
mod sync;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_recursion::async_recursion;
use parking_lot::Mutex;
use thalweg_env::Env;
use uuid::Uuid;

pub use assemble::PoolMirror;
use assemble::{Seat, put_together, refuse_newer, take_all};
pub use change::{ExtendRequest, ShrinkRequest};
pub use create::create_on;
pub use destroy::destroy_on;
pub use error::PoolError;
use manifest::{Manifest, Settings, Stage};
pub use media::{FileMedia, Found, Media, NamedMedia, Opened};
pub use pair::{DevicePair, NamedSide, PairError, SideReport, lone_side};
pub use prepare::{DAMAGED_LABEL, Progress};
pub(crate) use probe::foreign_content;
pub use reassemble::{Reassembled, Reassembly, reassemble_on};
pub use settings::OpenOptions;
pub use spec::{CacheSpec, DeviceSpec, Follows, LinkSpec, NewVolume, Preallocation};
pub use status::{MemberState, MemberStatus, PoolStatus};

use crate::block::{BlockStore, Blocks, Frozen, Hold, Retained, StoreError, Versions};
use crate::chain::{
    Chain, ChainError, Followed, Growth, Position, Rebuild, RebuildReport, Recovered,
};
use crate::stale::{Upstream, Versioned};
use crate::tree::catalogue;
use crate::txn::{Fenced, TransactionManager};
use crate::volume::{StoreVolume, Volume, VolumeRef};

/// Makes the volume `new` from files and block devices, with its manifest in `folder`. `progress` counts each
/// device twice: when it is found or made, and when it is labelled.
///
/// # Errors
/// A [`PoolError`] with the next step; all changes are undone.
pub async fn create(
    env: &Env,
    folder: &Path,
    new: &NewVolume,
    progress: Progress<'_>,
) -> Result<(), PoolError> {
    create_on(env, &FileMedia, folder, new, progress).await
}

/// Wipes the labels of the volume in `folder`, and removes its manifest. Files stay where they are.
///
/// # Errors
/// [`crate::device::DeviceError::Locked`] while the volume is open.
pub async fn destroy(env: &Env, folder: &Path) -> Result<(), PoolError> {
    destroy_on(env, &FileMedia, folder).await
}

/// A device of an open volume.
#[derive(Debug)]
struct Member {
    place: manifest::Place,
    path: PathBuf,
    slot: Option<label::Slot>,
}

/// An open volume. Its devices stay locked until it, its chain and its volumes are dropped.
pub struct Pool {
    env: Env,
    media: Arc<dyn Media>,
    folder: PathBuf,
    manifest: tokio::sync::Mutex<Manifest>,
    name: String,
    id: Uuid,
    sector: Option<u32>,
    standby: bool,
    settings: Mutex<Settings>,
    chain: Arc<Chain>,
    transactions: TransactionManager,
    /// Keeps old versions readable.
    retained: Option<Arc<Retained>>,
    upstream: Arc<Upstream>,
    volume: Arc<StoreVolume<Fenced>>,
    members: Mutex<Vec<Member>>,
    mirrors: Mutex<Vec<PoolMirror>>,
    warnings: Vec<String>,
    recovered: Recovered,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Pool {
    /// Opens the volume whose manifest is in `folder`, and recovers it if it was not closed (with a read-only
    /// opening, in memory). A mirror that lacks a side is opened without it, with a warning.
    ///
    /// # Errors
    /// A [`PoolError`] that says what is missing and what to do.
    pub async fn open(env: &Env, folder: &Path, options: &OpenOptions) -> Result<Pool, PoolError> {
        Pool::open_on(env, Arc::new(FileMedia), folder, options).await
    }

    /// As [`Pool::open`], with the devices that `media` finds.
    ///
    /// # Errors
    /// As [`Pool::open`].
    #[async_recursion]
    pub async fn open_on(
        env: &Env,
        media: Arc<dyn Media>,
        folder: &Path,
        options: &OpenOptions,
    ) -> Result<Pool, PoolError> {
        let is_ready = |manifest: &Manifest| match manifest.stage {
            Stage::Ready => Ok(()),
            Stage::Unfinished => Err(PoolError::Unfinished { folder: folder.to_owned() }),
        };
        let media = media::for_access(media, options.read_only);
        // Before the check of its devices, which may be gone.
        is_ready(&Manifest::read(&*media, folder).await?)?;
        let (manifest, seats) = take_all(env, &*media, folder).await?;
        is_ready(&manifest)?;
        refuse_newer(&seats)?;
        let mut options = options.clone();
        if !env.is_simulated() {
            options.chain.growth.get_or_insert_with(Growth::of_machine);
        }
        let mut options = manifest.settings.over(&options);
        options.chain.read_only = options.read_only;
        let (put, absent) = put_together(env, &seats, options.standby).await?;
        let opened = Chain::open(env, put.parts, options.chain.clone()).await;
        let (chain, recovered) = opened.map_err(|error| name_missing(error, absent))?;
        let chain = Arc::new(chain);
        options.chain.follow = !options.read_only && chain.label().follows;
        put.warnings.iter().for_each(|warning| tracing::warn!(volume = manifest.name, "{warning}"));
        let store: Arc<dyn BlockStore> = match options.read_only {
            true => Arc::new(Frozen::newest(chain.clone()).map_err(ChainError::from)?),
            false if options.chain.follow => Arc::new(Followed::new(chain.clone())),
            false => chain.clone(),
        };
        let (versions, retained, upstream) = old_versions(env, store, &options);
        // Every change of the volume is a transaction, or visible to the transactions that run.
        let transactions = TransactionManager::of(env, versions, options.transactions.clone());
        catalogue::fence(&transactions).await;
        let pool = Pool {
            env: env.clone(),
            media,
            folder: folder.to_owned(),
            name: manifest.name.clone(),
            id: manifest.volume,
            sector: manifest.sector,
            standby: options.standby,
            settings: Mutex::new(manifest.settings),
            manifest: tokio::sync::Mutex::new(manifest),
            volume: Arc::new(StoreVolume::live(Arc::new(transactions.fenced()))),
            transactions,
            retained,
            upstream,
            chain,
            members: Mutex::new(seats.into_iter().map(Member::from).collect()),
            mirrors: Mutex::new(put.mirrors),
            warnings: put.warnings,
            recovered,
        };
        if !options.read_only {
            pool.free_leftovers().await;
        }
        Ok(pool)
    }

    /// Rebuilds the index of the volume in `folder` from its map, for a volume whose damaged checkpoint keeps
    /// it from opening: see [`Chain::rebuild`].
    ///
    /// # Errors
    /// As [`Pool::open`], and [`ChainError::Loss`].
    pub async fn rebuild_index(
        env: &Env,
        media: Arc<dyn Media>,
        folder: &Path,
        how: Rebuild,
        progress: Progress<'_>,
    ) -> Result<RebuildReport, PoolError> {
        let media = media::for_access(media, how.dry_run);
        let (manifest, seats) = take_all(env, &*media, folder).await?;
        if manifest.stage != Stage::Ready {
            return Err(PoolError::Unfinished { folder: folder.to_owned() });
        }
        refuse_newer(&seats)?;
        let (put, absent) = put_together(env, &seats, false).await?;
        let rebuilt = Chain::rebuild(env, put.parts, how, progress).await;
        rebuilt.map_err(|error| name_missing(error, absent))
    }

    /// The address of the volume that it follows, if it follows one.
    pub async fn follows(&self) -> Option<String> {
        self.manifest.lock().await.follows.clone()
    }

    /// Follows another primary of the same volume from the next opening on.
    ///
    /// # Errors
    /// [`ChainError::Invalid`] for a volume that follows none; an error from writing the manifest.
    pub async fn follow_from(&self, address: &str) -> Result<(), PoolError> {
        if !self.chain.label().follows {
            let why = "the volume follows no other one".to_owned();
            return Err(ChainError::Invalid(why).into());
        }
        let mut manifest = self.manifest.lock().await;
        let changed = Manifest { follows: Some(address.to_owned()), ..manifest.clone() };
        changed.write(&*self.media, &self.folder).await?;
        *manifest = changed;
        Ok(())
    }

    /// The address of the primary that this volume has replaced, while that one has not been told.
    pub async fn replaces(&self) -> Option<String> {
        self.manifest.lock().await.replaces.clone()
    }

    /// Notes that the primary that this volume has replaced knows it.
    ///
    /// # Errors
    /// An error from writing the manifest.
    pub async fn forget_replaced(&self) -> Result<(), PoolError> {
        let mut manifest = self.manifest.lock().await;
        let changed = Manifest { replaces: None, ..manifest.clone() };
        changed.write(&*self.media, &self.folder).await?;
        *manifest = changed;
        Ok(())
    }

    /// Ends following: see [`Chain::promote`]. Returns the state from which the volume goes on alone.
    ///
    /// # Errors
    /// As [`Chain::promote`], and an error from writing the manifest.
    pub async fn promote(&self, term: u32) -> Result<Position, PoolError> {
        let position = self.chain.promote(term).await?;
        let mut manifest = self.manifest.lock().await;
        let replaces = manifest.follows.clone();
        let changed = Manifest { follows: None, replaces, ..manifest.clone() };
        changed.write(&*self.media, &self.folder).await?;
        *manifest = changed;
        Ok(position)
    }

    /// The volume's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The volume's identity.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// The chain that the volume is on.
    pub fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// The volume for clients without transactions: read-only while it has partitions.
    pub fn volume(&self) -> VolumeRef {
        self.volume.clone()
    }

    /// The volume's transactions.
    pub fn transactions(&self) -> &TransactionManager {
        &self.transactions
    }

    /// Whether it is open read-only.
    pub fn is_read_only(&self) -> bool {
        self.transactions.is_read_only()
    }

    /// Refuses changes of a volume that is open read-only.
    fn refuse_if_read_only(&self) -> Result<(), PoolError> {
        match self.is_read_only() {
            true => Err(ChainError::from(StoreError::ReadOnly).into()),
            false => Ok(()),
        }
    }

    /// Rolls the volume back to a snapshot. Running transactions are aborted.
    ///
    /// # Errors
    /// As [`Chain::rollback`].
    pub async fn roll_back(&self, name: &str) -> Result<(), PoolError> {
        self.refuse_if_read_only()?;
        let rolled = self.transactions.exclusively(async || {
            // The versions since the snapshot go.
            let _paused = self.retained.as_deref().map(Retained::pause);
            self.chain.rollback(name).await
        });
        let rolled = rolled.await;
        catalogue::fence(&self.transactions).await;
        Ok(rolled?)
    }

    /// What its readers know of the volume that it follows.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// The report of the opening's recovery.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// Warnings from the opening: missing or stale sides, a missing cache.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    /// The volume as it was when a snapshot was made, read-only.
    ///
    /// # Errors
    /// [`PoolError::NoSnapshot`].
    pub fn snapshot_volume(&self, name: &str) -> Result<VolumeRef, PoolError> {
        let (hold, blocks) = self.hold_snapshot(name)?;
        Ok(Arc::new(StoreVolume::snapshot(self.chain.clone(), hold, blocks)))
    }

    /// Read-only transactions on a snapshot.
    ///
    /// # Errors
    /// [`PoolError::NoSnapshot`].
    pub fn snapshot_transactions(
        &self,
        env: &Env,
        name: &str,
    ) -> Result<TransactionManager, PoolError> {
        let (hold, blocks) = self.hold_snapshot(name)?;
        let frozen = Arc::new(Frozen::new(self.chain.clone(), hold, blocks));
        Ok(TransactionManager::new(env, frozen, crate::txn::Options::default()))
    }

    /// Read-only transactions on the state that a follower has now, for readers that keep in memory what they have read;
    /// `None` for a volume that follows no other one.
    ///
    /// # Errors
    /// As [`Followed::hold_whole`].
    pub fn present_transactions(&self, env: &Env) -> Result<Option<TransactionManager>, PoolError> {
        if !self.chain.label().follows {
            return Ok(None);
        }
        let hold = Followed::new(self.chain.clone()).hold_whole().map_err(ChainError::from)?;
        let frozen = Arc::new(Frozen::new(self.chain.clone(), hold, self.chain.blocks()));
        Ok(Some(TransactionManager::new(env, frozen, crate::txn::Options::default())))
    }

    /// Keeps the version of a snapshot; returns the hold and the snapshot's blocks.
    fn hold_snapshot(&self, name: &str) -> Result<(Hold, u64), PoolError> {
        let none = || PoolError::NoSnapshot(name.to_owned());
        let snapshot = self.chain.snapshot(name).ok_or_else(none)?;
        let hold = self.chain.hold(snapshot.version).ok_or_else(none)?;
        Ok((hold, snapshot.blocks))
    }

    /// Changes the settings for later openings: those that are `Some` in `settings`.
    ///
    /// # Errors
    /// [`PoolError::Invalid`], or an error from writing the manifest.
    pub async fn set(&self, settings: Settings) -> Result<(), PoolError> {
        self.refuse_if_read_only()?;
        settings.check()?;
        let mut manifest = self.manifest.lock().await;
        let settings = manifest.settings.changed_by(settings);
        let changed = Manifest { settings, ..manifest.clone() };
        changed.write(&*self.media, &self.folder).await?;
        *manifest = changed;
        *self.settings.lock() = settings;
        Ok(())
    }

    /// The mirrors among the volume's devices.
    pub fn mirrors(&self) -> Vec<PoolMirror> {
        self.mirrors.lock().clone()
    }

    /// The volume's status.
    pub fn status(&self) -> PoolStatus {
        let mirrors = self.mirrors.lock();
        let members = self.members.lock();
        PoolStatus {
            name: self.name.clone(),
            volume: self.id,
            size: self.volume.size(),
            settings: *self.settings.lock(),
            chain: self.chain.status(),
            members: members.iter().map(|member| member.status(&mirrors)).collect(),
            warnings: self.warnings(),
        }
    }

    /// Makes everything durable and stops the volume; writes are refused from then on.
    ///
    /// # Errors
    /// A device's error; flushed writes are safe all the same.
    #[async_recursion]
    pub async fn close(&self) -> Result<(), PoolError> {
        Ok(self.chain.close().await?)
    }
}

impl From<Seat> for Member {
    fn from(seat: Seat) -> Member {
        Member { place: seat.place, path: seat.path, slot: seat.found.ok() }
    }
}

impl From<Member> for Seat {
    fn from(member: Member) -> Seat {
        let device = member.path.display().to_string();
        let found = member.slot.ok_or(PoolError::Blank { device });
        Seat { place: member.place, path: member.path, found }
    }
}

impl Member {
    fn status(&self, mirrors: &[PoolMirror]) -> MemberStatus {
        let place = &self.place;
        let mirror = mirrors.iter().find(|mirror| mirror.holds(place));
        let side = mirror.and_then(|mirror| {
            mirror.mirror.states().borrow().get(usize::from(place.side)).copied()
        });
        let alone = if self.slot.is_some() { MemberState::Online } else { MemberState::Missing };
        MemberStatus {
            path: self.path.clone(),
            role: place.role,
            group: place.group,
            column: place.column,
            side: place.side,
            state: side.map_or(alone, MemberState::from),
            bytes: self.slot.as_ref().map_or(0, |slot| slot.member.length),
        }
    }
}

/// The chain's error names the missing link; the manifest adds its path.
fn name_missing(error: ChainError, absent: Vec<(Uuid, PoolError)>) -> PoolError {
    if let ChainError::MissingLink { id, .. } = &error
        && let Some((_, why)) = absent.into_iter().find(|(group, _)| group == id)
    {
        return why;
    }
    error.into()
}

/// The versions of a store that stay readable, and what its readers know of the volume that it follows.
fn old_versions(
    env: &Env,
    store: Arc<dyn BlockStore>,
    options: &OpenOptions,
) -> (Versioned, Option<Arc<Retained>>, Arc<Upstream>) {
    let keep = options.keep.filter(|_| !options.read_only);
    let retained = keep.map(|keep| Arc::new(Retained::new(env, store.clone(), keep)));
    let versions = match &retained {
        Some(retained) => Versioned::of(env, retained.clone()),
        None => Versioned::new(env, store),
    };
    let upstream = Arc::new(Upstream::default());
    let versions = match options.chain.follow {
        true => versions.following(upstream.clone()),
        false => versions,
    };
    (versions, retained, upstream)
}
