//! One volume that this process has open.

use std::sync::Arc;

use serde_json::{Value, json};
use thalweg_env::Env;
use thalweg_fs::Contents;
use thalweg_store::block::{BLOCK_SIZE, Blocks};
use thalweg_store::chain::ChainError;
use thalweg_store::device::Access;
use thalweg_store::device::kinds::kind_of;
use thalweg_store::inplace::{self, InPlaceError};
use thalweg_store::open::{AnyVolume, InPlaceVolume, OpenError, Options};
use thalweg_store::pool::{ExtendRequest, Pool, PoolError, ShrinkRequest};
use thalweg_store::txn::{Transact, TransactionManager};
use thalweg_store::volume::{StoreVolume, VolumeRef};

use super::numbers::{Numbers, Part, StoreNumbers};
use crate::attention::{self, Attention};
use crate::devices::{self, Kinds};
use crate::failure::{Failure, Outcome};
use crate::progress::{Report, share_done};
use crate::request::Change;
use crate::request::devices::LinkArg;
use crate::request::journal_options::JournalOptions;
use crate::target::{Target, no_snapshots};

/// One volume that this process has open.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The whole volume, no snapshot.
    pub(crate) target: Target,
    pub(super) store: AnyVolume,
    /// What opened its devices.
    kinds: Kinds,
    /// Held during changes of the volume's devices, size and snapshots.
    changes: tokio::sync::Mutex<()>,
}

impl Opened {
    /// Opens a volume.
    pub(crate) async fn open(env: &Env, target: &Target) -> Outcome<Opened> {
        Opened::open_for(env, target, &JournalOptions::default(), Access::Exclusive).await
    }

    /// Opens a volume read-only: no byte of it changes. If it needs recovery, it is recovered in memory; see
    /// [`Opened::recovery`].
    pub(crate) async fn open_read_only(env: &Env, target: &Target) -> Outcome<Opened> {
        Opened::open_for(env, target, &JournalOptions::default(), Access::ReadOnly).await
    }

    /// Opens a volume with a mount's journal options.
    pub(crate) async fn open_for(
        env: &Env,
        target: &Target,
        journal: &JournalOptions,
        access: Access,
    ) -> Outcome<Opened> {
        let options = Options {
            read_only: access.only_reads(),
            in_place: journal.over(inplace::Options::default()),
            journal: target.journal.clone(),
            ..Options::default()
        };
        Opened::with(env, target, &options).await
    }

    /// Opens a volume that follows another one, to take that one's changes.
    pub(crate) async fn open_to_follow(env: &Env, target: &Target) -> Outcome<Opened> {
        Opened::with(env, target, &Options { follow: true, ..Options::default() }).await
    }

    /// Opens a volume, which may follow another one, to change its devices and nothing that is stored on them.
    pub(crate) async fn open_for_devices(env: &Env, target: &Target) -> Outcome<Opened> {
        let journal = target.journal.clone();
        let options = Options { for_devices: true, journal, ..Options::default() };
        Opened::with(env, target, &options).await
    }

    /// Opens a volume for a repair. If the journal is damaged in the middle, the transactions before the damage
    /// are replayed. One that follows another volume is opened, too, and takes no changes.
    pub(crate) async fn open_damaged(env: &Env, target: &Target) -> Outcome<Opened> {
        let journal = target.journal.clone();
        let options = Options { repair: true, for_devices: true, journal, ..Options::default() };
        Opened::with(env, target, &options).await
    }

    async fn with(env: &Env, target: &Target, options: &Options) -> Outcome<Opened> {
        let kinds = devices::all(env);
        let options = Options { kinds: kinds.devices.clone(), ..options.clone() };
        let opened = AnyVolume::open(env, &target.place, &options).await;
        Opened::finish(target, kinds, opened).await
    }

    pub(super) async fn finish(
        target: &Target,
        kinds: Kinds,
        opened: Result<AnyVolume, OpenError>,
    ) -> Outcome<Opened> {
        let opened = opened.map_err(|error| match &error {
            OpenError::Chained(PoolError::Chain(ChainError::Damaged(_))) => Failure::of(&error)
                .help(format!(
                    "nothing was changed; thalweg volume rebuild-index {} finds the blocks again",
                    target.place().display()
                )),
            _ => error.into(),
        });
        let store = match opened {
            Ok(store) => store,
            failed => devices::close(&kinds.devices, failed).await?,
        };
        match &store {
            AnyVolume::Chained(pool) => {
                let found = pool.recovered();
                tracing::info!(
                    volume = target.name,
                    version = found.version,
                    epoch = found.epoch,
                    entries_replayed = found.replayed,
                    entries_dropped = found.dropped,
                    "opened"
                );
            }
            AnyVolume::InPlace(it) => {
                let found = &it.recovered;
                tracing::info!(
                    volume = target.name,
                    version = found.version,
                    epoch = found.epoch,
                    transactions_replayed = found.transactions,
                    transactions_given_up = found.given_up,
                    blocks_unverified = found.unverified,
                    blocks_unreadable = found.unreadable,
                    "opened"
                );
            }
        }
        let changes = tokio::sync::Mutex::default();
        Ok(Opened { target: target.clone(), store, kinds, changes })
    }

    /// The contents of the files of a filesystem beside the volume's device; `None` where there can be none.
    pub(crate) async fn contents(&self, filesystem: &str) -> Outcome<Option<Arc<dyn Contents>>> {
        self.kinds.contents(self.target.place(), filesystem).await
    }

    /// Whether it is open read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.transactions().is_read_only()
    }

    /// How a read-only opening recovered the volume in memory; `None` if it needed no recovery.
    pub(crate) fn recovery(&self) -> Option<String> {
        let found = match &self.store {
            _ if !self.is_read_only() => return None,
            AnyVolume::Chained(pool) => match pool.recovered().replayed {
                0 => return None,
                entries => format!("the log holds {entries} entries after its last checkpoint"),
            },
            AnyVolume::InPlace(it) => match it.recovered.transactions {
                0 => return None,
                1 => "the journal holds 1 transaction".to_owned(),
                count => format!("the journal holds {count} transactions"),
            },
        };
        Some(format!("{found}; they are recovered in memory, and nothing is written"))
    }

    /// Whether it follows another volume.
    pub(crate) fn is_replica(&self) -> bool {
        self.chained().is_some_and(|pool| pool.chain().label().follows)
    }

    /// Whether its devices may be changed, though it may be read-only because it follows another volume.
    pub(crate) fn takes_changes_of_devices(&self) -> bool {
        self.chained().is_some_and(|pool| !pool.chain().is_only_looked_at())
    }

    /// Refuses changes of a volume that is open read-only.
    pub(crate) fn refuse_if_read_only(&self) -> Outcome<()> {
        match self.is_read_only() {
            true => Err(Failure::new(format!("{} is open read-only", self.target.name)).help(
                "first end the process that has it open read-only, for example a mount with -o ro",
            )),
            false => Ok(()),
        }
    }

    /// Transactions of the journal that opening had to give up.
    pub(crate) fn given_up(&self) -> u64 {
        match &self.store {
            AnyVolume::Chained(_) => 0,
            AnyVolume::InPlace(it) => it.recovered.given_up,
        }
    }

    /// The repairs that opening for a repair made.
    pub(crate) fn repaired(&self) -> Vec<String> {
        let AnyVolume::InPlace(it) = &self.store else { return Vec::new() };
        let found = &it.recovered;
        let mut repaired = Vec::new();
        if found.superblock_restored {
            repaired.push("both superblocks were damaged: restored from a backup".to_owned());
        }
        if found.journal_rebuilt {
            repaired.push(format!(
                "both superblocks of the journal were damaged: repaired; {} transactions were found \
                 without them",
                found.transactions
            ));
        }
        if found.journal_missing > 0 {
            repaired.push(format!(
                "{} older transactions are missing from the journal; unless more of it is damaged, \
                 their changes had been written back",
                found.journal_missing
            ));
        }
        repaired
    }

    /// The chained volume; most requests need one.
    fn pool(&self) -> Outcome<&Pool> {
        match &self.store {
            AnyVolume::Chained(pool) => Ok(pool),
            AnyVolume::InPlace(_) => Err(self.target.refused()),
        }
    }

    /// The chained volume, if it is one.
    pub(crate) fn chained(&self) -> Option<&Pool> {
        self.pool().ok()
    }

    /// The volume for clients without transactions.
    pub(crate) fn volume(&self) -> VolumeRef {
        self.store.volume()
    }

    /// The same, but writable even over partitions.
    pub(crate) fn unfenced(&self) -> VolumeRef {
        Arc::new(StoreVolume::live(Arc::new(self.transactions().clone())))
    }

    /// Its transactions.
    pub(crate) fn transactions(&self) -> &TransactionManager {
        self.store.transactions()
    }

    /// Applies a mount's journal options.
    pub(crate) fn keep_journal(&self, options: &JournalOptions) -> Outcome<()> {
        let words = options.words();
        match &self.store {
            AnyVolume::Chained(_) if words.iter().any(|word| word != "discard") => {
                Err(Failure::new(format!(
                    "{} is for volumes that are updated in place",
                    words.join(", ")
                ))
                .help("leave it out: this volume is chained, and needs no journal"))
            }
            AnyVolume::Chained(_) => Ok(()),
            AnyVolume::InPlace(_)
                if options.journal_dev.is_some() && options.journal_dev != self.target.journal =>
            {
                Err(Failure::new("the journal cannot move while the volume is open"))
            }
            AnyVolume::InPlace(it) => {
                it.store.set_options(options.over(it.store.options()));
                Ok(())
            }
        }
    }

    /// A snapshot for clients, read-only.
    pub(crate) fn snapshot(&self, name: &str) -> Outcome<VolumeRef> {
        match &self.store {
            AnyVolume::Chained(pool) => Ok(pool.snapshot_volume(name)?),
            AnyVolume::InPlace(_) => Err(no_snapshots(self.target.place().display())),
        }
    }

    /// Read-only transactions on a snapshot.
    pub(crate) fn snapshot_transactions(
        &self,
        env: &Env,
        name: &str,
    ) -> Outcome<TransactionManager> {
        match &self.store {
            AnyVolume::Chained(pool) => Ok(pool.snapshot_transactions(env, name)?),
            AnyVolume::InPlace(_) => Err(no_snapshots(self.target.place().display())),
        }
    }

    /// The snapshots and the space that each takes, as JSON.
    pub(crate) fn list_snapshots(&self) -> Outcome<Value> {
        match &self.store {
            AnyVolume::Chained(pool) => Ok(serde_json::to_value(pool.chain().snapshots())?),
            AnyVolume::InPlace(_) => Err(no_snapshots(self.target.place().display())),
        }
    }

    /// The names of all snapshots.
    pub(crate) fn snapshots(&self) -> Vec<String> {
        match &self.store {
            AnyVolume::InPlace(_) => Vec::new(),
            AnyVolume::Chained(pool) => {
                let snapshots = pool.chain().label().snapshots;
                snapshots.into_iter().map(|snapshot| snapshot.name).collect()
            }
        }
    }

    /// The volume's numbers, without those of its clients.
    pub(crate) fn numbers(&self) -> Numbers {
        let store = match &self.store {
            AnyVolume::Chained(pool) => StoreNumbers::Chain(Box::new(pool.chain().status())),
            AnyVolume::InPlace(it) => {
                StoreNumbers::InPlace { status: Box::new(it.store.status()), parts: parts_of(it) }
            }
        };
        let transactions = self.transactions().status();
        let name = self.target.name.clone();
        Numbers {
            name,
            store,
            transactions,
            files: None,
            mount_stages: Vec::new(),
            attention: Vec::new(),
            followers: None,
            upstream: None,
        }
    }

    /// What needs attention of its store and its devices.
    pub(crate) fn attention(&self) -> Vec<Attention> {
        let place = self.target.place().display().to_string();
        match &self.store {
            AnyVolume::Chained(pool) => {
                let fence = pool.chain().fence().map(|fence| attention::of_fence(fence, &place));
                fence.into_iter().chain(attention::of_chain(&pool.status(), &place)).collect()
            }
            AnyVolume::InPlace(it) => attention::of_in_place(&it.store.status(), &place),
        }
    }

    /// The volume's status as JSON: its numbers and its devices.
    pub(crate) fn status_json(&self) -> Outcome<Value> {
        let mut status = match &self.store {
            AnyVolume::Chained(pool) => serde_json::to_value(pool.status())?,
            AnyVolume::InPlace(it) => in_place_status(it, &self.target.name)?,
        };
        status["transactions"] = serde_json::to_value(self.transactions().status())?;
        status["sockets"] = self.target.folder.display().to_string().into();
        status["folder"] = self.target.place().display().to_string().into();
        status["read_only"] = self.is_read_only().into();
        status["recovery"] = self.recovery().into();
        Ok(status)
    }

    /// Makes everything durable, stops the volume, and releases its images.
    pub(crate) async fn close(&self) -> Outcome<()> {
        let closed = self.store.close().await.map_err(Failure::from);
        devices::close(&self.kinds.devices, closed).await
    }

    /// The volume's size in bytes.
    pub(crate) fn size(&self) -> u64 {
        Transact::blocks(self.transactions()) * BLOCK_SIZE as u64
    }

    /// Makes the volume larger: an in-place volume as large as its device or file (after extending a file to
    /// `size`), a chained one as large as `size`.
    pub(crate) async fn grow(&self, size: Option<u64>) -> Outcome<()> {
        let _one_at_a_time = self.begin_change()?;
        match &self.store {
            AnyVolume::Chained(pool) => match size {
                None => Ok(()),
                Some(size) => {
                    self.refuse_smaller(size, self.size())?;
                    Ok(pool
                        .extend(&ExtendRequest { size: Some(size), ..ExtendRequest::default() })
                        .await?)
                }
            },
            AnyVolume::InPlace(it) => {
                if let Some(size) = size {
                    let device = it.store.devices().swap_remove(0);
                    let place = self.target.place().display();
                    let place_of_store = self.target.place();
                    if !place_of_store.is_file() && kind_of(place_of_store).is_none() {
                        return Err(Failure::new(format!("{place} has a size of its own"))
                            .help("make the device larger, and leave the size out"));
                    }
                    self.refuse_smaller(size, device.geometry().size)?;
                    device.grow_to(Some(size)).await.map_err(InPlaceError::from)?;
                }
                it.store.grow(None).await?;
                Ok(())
            }
        }
    }

    fn refuse_smaller(&self, size: u64, now: u64) -> Outcome<()> {
        if size >= now {
            return Ok(());
        }
        let place = self.target.place().display();
        let failure = Failure::new(format!(
            "{place} has {now} bytes; neither it nor its filesystem becomes smaller than that"
        ));
        Err(match self.store {
            AnyVolume::Chained(_) => failure.help(format!(
                "thalweg volume shrink {place} --size SIZE gives up the end behind the last partition"
            )),
            AnyVolume::InPlace(_) => failure.help("copy the files to a smaller volume"),
        })
    }

    pub(super) fn begin_change(&self) -> Outcome<tokio::sync::MutexGuard<'_, ()>> {
        self.changes.try_lock().map_err(|_| {
            Failure::new(format!("{} is being changed already", self.target.name))
                .help("wait until that change ends; thalweg volume status --watch shows it")
        })
    }

    /// Changes the volume; none of its clients is concerned.
    pub(crate) async fn change(&self, change: &Change, report: &dyn Report) -> Outcome<()> {
        let _one_at_a_time = self.begin_change()?;
        let pool = self.pool()?;
        let chain = pool.chain();
        match change {
            Change::CreateSnapshot { name } => drop(chain.create_snapshot(name).await?),
            Change::DeleteSnapshot { name } => chain.delete_snapshot(name).await?,
            Change::Rollback { name } => pool.roll_back(name).await?,
            Change::Extend { link, size, force } => {
                let link = link.as_ref().map(LinkArg::spec);
                pool.extend(&ExtendRequest { size: *size, link, force: *force }).await?;
            }
            Change::Shrink { link, size } => {
                // The size first: then no more is stored on the link than before.
                let wanted = size.map(ShrinkRequest::Size);
                for wanted in wanted.into_iter().chain(link.clone().map(ShrinkRequest::Link)) {
                    pool.shrink(&wanted, &share_done("emptying", report)).await?;
                }
            }
            Change::Replace { old, new, force } => {
                let progress = share_done("filling the new device", report);
                pool.replace(old, &new.spec(), *force, &progress).await?;
            }
            Change::Rebuild { device } => {
                pool.rebuild(device.as_deref(), &share_done("rebuilding", report)).await?;
            }
            Change::Set { settings } => pool.set(*settings).await?,
        }
        Ok(())
    }
}

/// The devices of an in-place volume with their counters.
fn parts_of(volume: &InPlaceVolume) -> Vec<Part> {
    let roles = ["data", "journal"];
    let parts = volume.store.devices().into_iter().zip(roles);
    parts.map(|(it, role)| Part { path: it.name(), role, io: it.tallies() }).collect()
}

/// The status of an in-place volume as JSON.
fn in_place_status(volume: &InPlaceVolume, name: &str) -> Outcome<Value> {
    let status = volume.store.status();
    let parts = parts_of(volume).into_iter().map(|part| {
        let io = serde_json::to_value(part.io)?;
        Ok(json!({ "path": part.path, "role": part.role, "io": io }))
    });
    Ok(json!({
        "name": name,
        "volume": volume.store.id(),
        "size": status.blocks * BLOCK_SIZE as u64,
        "in_place": status,
        "recovered": volume.recovered,
        "devices": parts.collect::<Outcome<Vec<Value>>>()?,
    }))
}
