//! One volume that this process has open.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use thalweg_env::Env;
use thalweg_fs::Statistics;
use thalweg_store::block::{BLOCK_SIZE, BlockStore};
use thalweg_store::chain::{ChainError, Cleaning, Rebuild, RebuildReport, Status};
use thalweg_store::device::{Access, DeviceError};
use thalweg_store::inplace::{self, InPlaceError, InPlaceStatus, Mend};
use thalweg_store::latency::StageStatus;
use thalweg_store::pool::{
    self, CacheSpec, DeviceSpec, ExtendRequest, LinkSpec, MemberState, NewVolume, OpenOptions,
    Pool, PoolError, ShrinkRequest,
};
use thalweg_store::tree::{TreeError, catalogue};
use thalweg_store::txn::{Transact, TransactionManager, TxnStatus};
use thalweg_store::volume::{StoreVolume, VolumeRef};

use crate::control::Client;
use crate::failure::{Failure, Outcome};
use crate::holder;
use crate::in_place::{InPlaceVolume, Part};
use crate::mount_options::JournalOptions;
use crate::parts::{DeviceArg, LinkArg};
use crate::progress::{Report, Step};
use crate::request::{Answer, Request};
use crate::target::{Target, no_snapshots};
use crate::volume::{CleaningArg, Create};

/// One volume that this process has open.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The whole volume, no snapshot.
    pub(crate) target: Target,
    store: Store,
    /// Held during changes of the volume's devices, size and snapshots.
    changes: tokio::sync::Mutex<()>,
}

/// The numbers of an open volume.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub(crate) name: String,
    pub(crate) store: StoreNumbers,
    pub(crate) transactions: TxnStatus,
    /// Those of its filesystem, if mounted.
    pub(crate) files: Option<Statistics>,
    /// How long the kernel's requests to it took.
    pub(crate) mount_stages: Vec<StageStatus>,
}

/// The numbers of the two kinds of stores.
#[derive(Debug)]
pub(crate) enum StoreNumbers {
    Chain(Box<Status>),
    InPlace { status: Box<InPlaceStatus>, parts: Vec<Part> },
}

/// The two kinds of stores.
#[derive(Debug)]
enum Store {
    Chain(Box<Pool>),
    InPlace(Box<InPlaceVolume>),
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Failure {
        let help = match &error {
            PoolError::Device(DeviceError::Locked { device }) => {
                let failure = Failure::of(&error);
                return match holder::of(Path::new(device)) {
                    Some(holder) => failure.help(format!("{holder} has it open")),
                    None => failure.help("another process has it open"),
                };
            }
            PoolError::Missing { .. } => Some("thalweg dump DEVICE shows whose a device is"),
            PoolError::Unfinished { .. } => Some("thalweg volume destroy FOLDER --yes"),
            PoolError::Chain(ChainError::Loss(_)) => {
                Some("--dry-run shows them; --accept-loss goes on without them")
            }
            PoolError::OtherVolume { .. } | PoolError::Foreign { .. } => {
                Some("--force writes over it")
            }
            _ => None,
        };
        let failure = Failure::of(&error);
        match help {
            Some(help) => failure.help(help),
            None => failure,
        }
    }
}

impl From<ChainError> for Failure {
    fn from(error: ChainError) -> Failure {
        PoolError::from(error).into()
    }
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
        let store = match &target.device {
            None => Store::Chain(Box::new(open_pool(env, target, access).await?)),
            Some(device) => {
                let options = journal.over(inplace::Options::default());
                let opened = InPlaceVolume::open(env, device, target, options, access).await?;
                Store::InPlace(Box::new(opened))
            }
        };
        Ok(Opened::of(target, store))
    }

    /// Opens a volume for a repair. If the journal is damaged in the middle, the transactions before the
    /// damage are replayed.
    pub(crate) async fn open_damaged(env: &Env, target: &Target) -> Outcome<Opened> {
        let Some(device) = &target.device else { return Opened::open(env, target).await };
        let volume = InPlaceVolume::open_damaged(env, device, target).await?;
        Ok(Opened::of(target, Store::InPlace(Box::new(volume))))
    }

    fn of(target: &Target, store: Store) -> Opened {
        Opened { target: target.clone(), store, changes: tokio::sync::Mutex::default() }
    }

    /// Whether it is open read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.transactions().is_read_only()
    }

    /// How a read-only opening recovered the volume in memory; `None` if it needed no recovery.
    pub(crate) fn recovery(&self) -> Option<String> {
        let found = match &self.store {
            _ if !self.is_read_only() => return None,
            Store::Chain(pool) => match pool.recovered().replayed {
                0 => return None,
                entries => format!("the log holds {entries} entries after its last checkpoint"),
            },
            Store::InPlace(it) => match it.recovered.transactions {
                0 => return None,
                1 => "the journal holds 1 transaction".to_owned(),
                count => format!("the journal holds {count} transactions"),
            },
        };
        Some(format!("{found}; they are recovered in memory, and nothing is written"))
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
            Store::Chain(_) => 0,
            Store::InPlace(it) => it.recovered.given_up,
        }
    }

    /// The repairs that opening for a repair made.
    pub(crate) fn repaired(&self) -> Vec<String> {
        let Store::InPlace(it) = &self.store else { return Vec::new() };
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
            Store::Chain(pool) => Ok(pool),
            Store::InPlace(_) => Err(self.target.refused()),
        }
    }

    /// The volume for clients without transactions.
    pub(crate) fn volume(&self) -> VolumeRef {
        match &self.store {
            Store::Chain(pool) => pool.volume(),
            Store::InPlace(it) => it.volume(),
        }
    }

    /// The same, but writable even over partitions.
    pub(crate) fn unfenced(&self) -> VolumeRef {
        Arc::new(StoreVolume::live(Arc::new(self.transactions().clone())))
    }

    /// Its transactions.
    pub(crate) fn transactions(&self) -> &TransactionManager {
        match &self.store {
            Store::Chain(pool) => pool.transactions(),
            Store::InPlace(it) => &it.transactions,
        }
    }

    /// Applies a mount's journal options.
    pub(crate) fn keep_journal(&self, options: &JournalOptions) -> Outcome<()> {
        let words = options.words();
        match &self.store {
            Store::Chain(_) if words.iter().any(|word| word != "discard") => Err(Failure::new(
                format!("{} is for volumes that are updated in place", words.join(", ")),
            )
            .help("leave it out: this volume is chained, and needs no journal")),
            Store::Chain(_) => Ok(()),
            Store::InPlace(it)
                if options.journal_dev.is_some() && options.journal_dev != it.journal =>
            {
                Err(Failure::new("the journal cannot move while the volume is open"))
            }
            Store::InPlace(it) => {
                it.store.set_options(options.over(it.store.options()));
                Ok(())
            }
        }
    }

    /// A snapshot for clients, read-only.
    pub(crate) fn snapshot(&self, name: &str) -> Outcome<VolumeRef> {
        match &self.store {
            Store::Chain(pool) => Ok(pool.snapshot_volume(name)?),
            Store::InPlace(_) => Err(no_snapshots(self.target.place().display())),
        }
    }

    /// Read-only transactions on a snapshot.
    pub(crate) fn snapshot_transactions(
        &self,
        env: &Env,
        name: &str,
    ) -> Outcome<TransactionManager> {
        match &self.store {
            Store::Chain(pool) => Ok(pool.snapshot_transactions(env, name)?),
            Store::InPlace(_) => Err(no_snapshots(self.target.place().display())),
        }
    }

    /// The snapshots and the space that each takes, as JSON.
    pub(crate) fn list_snapshots(&self) -> Outcome<Value> {
        match &self.store {
            Store::Chain(pool) => Ok(serde_json::to_value(pool.chain().snapshots())?),
            Store::InPlace(_) => Err(no_snapshots(self.target.place().display())),
        }
    }

    /// The names of all snapshots.
    pub(crate) fn snapshots(&self) -> Vec<String> {
        match &self.store {
            Store::InPlace(_) => Vec::new(),
            Store::Chain(pool) => {
                let snapshots = pool.chain().label().snapshots;
                snapshots.into_iter().map(|snapshot| snapshot.name).collect()
            }
        }
    }

    /// The volume's numbers, without those of its filesystem.
    pub(crate) fn numbers(&self) -> Numbers {
        let store = match &self.store {
            Store::Chain(pool) => StoreNumbers::Chain(Box::new(pool.chain().status())),
            Store::InPlace(it) => {
                StoreNumbers::InPlace { status: Box::new(it.store.status()), parts: it.parts() }
            }
        };
        let transactions = self.transactions().status();
        let name = self.target.name.clone();
        Numbers { name, store, transactions, files: None, mount_stages: Vec::new() }
    }

    /// Why the volume is degraded, each with the next step: devices that are missing or missed writes, blocks
    /// of which no copy is right, a store that refuses writes.
    pub(crate) fn degraded(&self) -> Vec<String> {
        let place = self.target.place().display();
        let refused = |why: &String| format!("it refuses writes until it is opened again: {why}");
        let pool = match &self.store {
            Store::Chain(pool) => pool.status(),
            Store::InPlace(it) => return it.store.status().poisoned.iter().map(refused).collect(),
        };
        let mut found: Vec<String> = pool.chain.poisoned.iter().map(refused).collect();
        for member in &pool.members {
            let path = member.path.display();
            found.extend(match member.state {
                MemberState::Online => None,
                MemberState::Rebuilding { done, total } => {
                    Some(format!("{path} is being rebuilt, {done} of {total} bytes are done"))
                }
                MemberState::Stale => Some(format!(
                    "{path} has missed writes: thalweg volume rebuild {place} {path}"
                )),
                MemberState::Failed => Some(format!(
                    "requests failed on {path}: thalweg volume replace {place} {path} NEW, or rebuild it"
                )),
                MemberState::Missing => Some(format!(
                    "{path} is missing: attach it, or thalweg volume replace {place} {path} NEW"
                )),
            });
        }
        if pool.chain.counts.damaged > 0 {
            found.push(format!(
                "{} reads found blocks of which no copy is right: thalweg scrub {place} lists them",
                pool.chain.counts.damaged
            ));
        }
        found
    }

    /// The volume's status as JSON: its numbers and its devices.
    pub(crate) fn status_json(&self) -> Outcome<Value> {
        let mut status = match &self.store {
            Store::Chain(pool) => serde_json::to_value(pool.status())?,
            Store::InPlace(it) => it.status(&self.target.name)?,
        };
        status["degraded"] = self.degraded().into();
        status["transactions"] = serde_json::to_value(self.transactions().status())?;
        status["sockets"] = self.target.folder.display().to_string().into();
        status["folder"] = self.target.place().display().to_string().into();
        status["read_only"] = self.is_read_only().into();
        status["recovery"] = self.recovery().into();
        Ok(status)
    }

    /// Makes everything durable and stops the volume.
    pub(crate) async fn close(&self) -> Outcome<()> {
        match &self.store {
            Store::Chain(pool) => Ok(pool.close().await?),
            Store::InPlace(it) => {
                it.store.close().await.map_err(|error| InPlaceError::from(error).into())
            }
        }
    }

    /// Reads and verifies everything that is stored, and repairs bad copies from good ones (those of the
    /// catalogue if `repair`); with `mend`, gives up blocks without a good copy. On a read-only volume
    /// nothing is repaired, and a bad copy counts as damage.
    pub(crate) async fn scrub(
        &self,
        mend: Mend,
        repair: bool,
        report: &dyn Report,
    ) -> Outcome<Scrubbed> {
        // Before the scrub, so that it finds these blocks whole; and again after it, if they could not be
        // read before.
        let mut damaged = self.catalogue_damage(repair).await;
        let mut scrubbed = self.scrub_store(mend, report).await?;
        if damaged.is_err() && scrubbed.gave_up {
            damaged = self.catalogue_damage(repair).await;
        }
        match damaged {
            Ok(blocks) => {
                let is_damaged = !blocks.is_empty();
                scrubbed.is_damaged |= is_damaged && !repair;
                scrubbed.is_repaired |= is_damaged && repair;
                let what = if repair { "catalogue_repaired" } else { "catalogue_damaged" };
                scrubbed.report[what] = blocks.into();
            }
            Err(error) => {
                scrubbed.is_damaged = true;
                scrubbed.report["catalogue_error"] = error.to_string().into();
            }
        }
        Ok(scrubbed)
    }

    /// The catalogue's damaged blocks that have a good copy; with `repair`, repaired.
    async fn catalogue_damage(&self, repair: bool) -> Result<Vec<u64>, TreeError> {
        match repair {
            true => catalogue::repair(self.transactions()).await,
            false => catalogue::damaged_blocks(self.transactions()).await,
        }
    }

    async fn scrub_store(&self, mend: Mend, report: &dyn Report) -> Outcome<Scrubbed> {
        let progress = share_done("scrubbing", report);
        let mut scrubbed = match &self.store {
            Store::Chain(pool) => {
                let found = pool.chain().scrub(&progress).await?;
                let replaced = found.repaired + found.maps_replaced + found.labels_replaced;
                let is_repaired = replaced > 0 || found.checkpoint_replaced;
                let is_left = is_repaired && self.is_read_only();
                Scrubbed {
                    report: serde_json::to_value(&found)?,
                    is_damaged: found.damaged > 0 || is_left,
                    is_repaired: is_repaired && !is_left,
                    gave_up: false,
                    lost: 0,
                }
            }
            Store::InPlace(it) => {
                let found = it.store.scrub(mend, &progress).await.map_err(InPlaceError::from)?;
                let gave_up = found.map_sectors > 0 && mend == Mend::Yes;
                Scrubbed {
                    report: serde_json::to_value(&found)?,
                    is_damaged: found.map_sectors > 0 && !gave_up || !found.lost.is_empty(),
                    is_repaired: gave_up,
                    gave_up,
                    lost: 0,
                }
            }
        };
        scrubbed.lost = lost_blocks(&scrubbed.report);
        Ok(scrubbed)
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
            Store::Chain(pool) => match size {
                None => Ok(()),
                Some(size) => {
                    self.refuse_smaller(size, self.size())?;
                    Ok(pool
                        .extend(&ExtendRequest { size: Some(size), ..ExtendRequest::default() })
                        .await?)
                }
            },
            Store::InPlace(it) => {
                if let Some(size) = size {
                    let device = it.store.devices().swap_remove(0);
                    let place = self.target.place().display();
                    if !self.target.place().is_file() {
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
            Store::Chain(_) => failure.help(format!(
                "thalweg volume shrink {place} --size SIZE gives up the end behind the last partition"
            )),
            Store::InPlace(_) => failure.help("copy the files to a smaller volume"),
        })
    }

    fn begin_change(&self) -> Outcome<tokio::sync::MutexGuard<'_, ()>> {
        self.changes.try_lock().map_err(|_| {
            Failure::new(format!("{} is being changed already", self.target.name))
                .help("wait until that change ends; thalweg volume status --watch shows it")
        })
    }

    /// Carries out a request that concerns the volume alone, not its clients.
    pub(crate) async fn execute(&self, request: &Request, report: &dyn Report) -> Outcome<Answer> {
        let _one_at_a_time = self.begin_change()?;
        if let Request::Scrub = request {
            // Giving up blocks needs a check of the filesystem too: fsck does both.
            let mut found = self.scrub(Mend::No, true, report).await?.report;
            found["degraded"] = self.degraded().into();
            return Ok(Answer::Json(found));
        }
        let pool = self.pool()?;
        let chain = pool.chain();
        match request {
            Request::CreateSnapshot { name } => drop(chain.create_snapshot(name).await?),
            Request::DeleteSnapshot { name } => chain.delete_snapshot(name).await?,
            Request::Rollback { name } => pool.roll_back(name).await?,
            Request::Extend { link, size, force } => {
                let link = link.as_ref().map(LinkArg::spec);
                pool.extend(&ExtendRequest { size: *size, link, force: *force }).await?;
            }
            Request::Shrink { link, size } => {
                // The size first: then no more is stored on the link than before.
                let wanted = size.map(ShrinkRequest::Size);
                for wanted in wanted.into_iter().chain(link.clone().map(ShrinkRequest::Link)) {
                    pool.shrink(&wanted, &share_done("emptying", report)).await?;
                }
            }
            Request::Replace { old, new, force } => {
                let progress = share_done("filling the new device", report);
                pool.replace(old, &new.spec(), *force, &progress).await?;
            }
            Request::Rebuild { device } => {
                pool.rebuild(device.as_deref(), &share_done("rebuilding", report)).await?;
            }
            Request::Set { settings } => pool.set(*settings).await?,
            other => {
                return Err(Failure::new(format!("{other:?} is nothing that a volume does")));
            }
        }
        Ok(Answer::Done)
    }
}

/// The result of a scrub.
pub(crate) struct Scrubbed {
    /// The store's report.
    pub(crate) report: Value,
    /// Whether damage is left.
    pub(crate) is_damaged: bool,
    /// Whether damage was repaired.
    pub(crate) is_repaired: bool,
    /// Whether a sector of the map was given up: blocks that were empty may then have content.
    pub(crate) gave_up: bool,
    /// Blocks of which no copy is right.
    pub(crate) lost: u64,
}

/// The number of blocks of which no copy is right, from a scrub's report.
pub(crate) fn lost_blocks(report: &Value) -> u64 {
    let listed = report["lost"].as_array().map(|lost| lost.len() as u64);
    listed.or(report["damaged"].as_u64()).unwrap_or(0)
}

async fn open_pool(env: &Env, target: &Target, access: Access) -> Outcome<Pool> {
    let options = OpenOptions { read_only: access.only_reads(), ..OpenOptions::default() };
    let opened = Pool::open(env, &target.folder, &options).await;
    let pool = opened.map_err(|error| match &error {
        PoolError::Chain(ChainError::Damaged(_)) => Failure::of(&error).help(format!(
            "nothing was changed; thalweg volume rebuild-index {} finds the blocks again",
            target.folder.display()
        )),
        _ => error.into(),
    })?;
    let found = pool.recovered();
    tracing::info!(volume = target.name, ?found, "opened");
    Ok(pool)
}

/// Reports progress.
fn share_done(what: &str, report: &dyn Report) -> impl Fn(u64, u64) + Send + Sync {
    move |done, total| report.step(Step { what: what.to_owned(), done, total })
}

impl DeviceArg {
    fn spec(&self) -> DeviceSpec {
        DeviceSpec { size: self.size, ..DeviceSpec::new(&self.path).preallocated() }
    }

    /// A part of an SSD: the size is how much of it.
    fn cache(&self) -> CacheSpec {
        CacheSpec { device: DeviceSpec::new(&self.path), bytes: self.size }
    }
}

impl LinkArg {
    fn spec(&self) -> LinkSpec {
        let specs = |members: &[DeviceArg]| members.iter().map(DeviceArg::spec).collect();
        match self {
            LinkArg::Device(device) => LinkSpec::plain(device.spec()),
            LinkArg::Mirror(sides) => LinkSpec::mirror(specs(sides)),
            LinkArg::Stripe(columns) => LinkSpec::stripe(specs(columns)),
        }
    }
}

/// Creates a volume; returns its place.
pub(crate) async fn create(env: &Env, args: &Create, report: &dyn Report) -> Outcome<Target> {
    let folder = std::path::absolute(&args.folder)?;
    let progress = share_done("making the volume", report);
    pool::create(env, &folder, &new_volume(&folder, args)?, &progress).await?;
    Target::volume(&folder.display().to_string())
}

fn new_volume(folder: &Path, args: &Create) -> Outcome<NewVolume> {
    let name = folder.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::new("the folder has no name in UTF-8"))?;
    let mut links: Vec<LinkSpec> = args.links.iter().map(LinkArg::spec).collect();
    if links.is_empty() {
        let file = |name: &str| LinkSpec::plain(DeviceSpec::new(folder.join(name)).preallocated());
        links = vec![file("link0"), file("link1")];
    }
    let mut new = NewVolume::new(name, args.size.0, links);
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
    let segment = args.segment.map(|size| size.0.div_ceil(BLOCK_SIZE as u64));
    new.segment_blocks = segment.map(|blocks| u32::try_from(blocks).unwrap_or(u32::MAX));
    new.growth = args.growth;
    new.sector = args.sector;
    new.settings = args.settings.into();
    new.force = args.force;
    Ok(new)
}

/// Rebuilds the index of a volume that no process has open.
pub(crate) async fn rebuild_index(
    env: &Env,
    target: &Target,
    how: Rebuild,
    report: &dyn Report,
) -> Outcome<RebuildReport> {
    if Client::connect(&target.folder).await?.is_some() {
        return Err(Failure::new(format!("{} is being served or attached", target.name))
            .help("its index is whole, then; to check all of it: thalweg volume scrub"));
    }
    let progress = share_done("reading the map", report);
    Ok(Pool::rebuild_index(env, &target.folder, how, &progress).await?)
}

/// Destroys the volume in `folder`, and removes the files that this program made there.
pub(crate) async fn destroy(env: &Env, folder: &Path) -> Outcome<()> {
    let folder = std::path::absolute(folder)?;
    if Client::connect(&folder).await?.is_some() {
        return Err(Failure::new(format!("{} is being served or attached", folder.display()))
            .help("detach it, or end its server, then destroy it"));
    }
    let files = own_files(&folder);
    pool::destroy(env, &folder).await?;
    for file in files {
        if let Err(error) = std::fs::remove_file(&file) {
            tracing::warn!(%error, file = %file.display(), "a file could not be removed");
        }
    }
    // The folder stays if it holds other files.
    let _ = std::fs::remove_dir(&folder);
    Ok(())
}

/// The volume's regular files in its folder: these were made for it. Files elsewhere belong to the user.
fn own_files(folder: &Path) -> Vec<std::path::PathBuf> {
    let text = std::fs::read_to_string(folder.join(pool::manifest::FILE)).unwrap_or_default();
    let paths: Vec<_> = match toml::from_str::<pool::manifest::Manifest>(&text) {
        Ok(manifest) => {
            let places = manifest.devices.into_iter().chain(manifest.leftovers);
            places.map(|place| place.path).collect()
        }
        Err(_) => Vec::new(),
    };
    let inside = paths.into_iter().filter(|path| path.components().count() == 1);
    let logs = [crate::attach::LOG, crate::mount::LOG];
    let named = [logs[0], logs[1], crate::control::SOCKET, thalweg_ipc::SOCKET];
    let named = named.map(std::path::PathBuf::from);
    let mut files: Vec<_> = inside.chain(named).map(|path| folder.join(path)).collect();
    files.sort();
    files.dedup();
    files.retain(|file| std::fs::symlink_metadata(file).is_ok_and(|found| !found.is_dir()));
    files
}
