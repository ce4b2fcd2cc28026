//! Named partitions of a volume.
//!
//! The catalogue takes the volume's first blocks. Every change of it is one strictly serializable transaction
//! that has read all of it: no two partitions can overlap or share a name. Work that takes more than one
//! transaction, emptying blocks, is done while the partition is unfinished.

mod blocks;
mod entry;
pub mod growth;

use std::ops::Range;

use async_recursion::async_recursion;
use bytes::Bytes;
use thalweg_env::Env;
use uuid::Uuid;
use zerocopy::IntoBytes;

use blocks::Stored;

use super::area::Area;
use super::error::TreeError;
use super::format::{
    BODY, CATALOGUE_BLOCKS, CATALOGUE_ENTRIES, CATALOGUE_MAGIC, DATA_SUFFIX, Kind, MAX_NAME,
    META_SUFFIX, PageHeader, PageKind, SUPER_SUFFIX, State, StoreHeader,
};
use super::page::Page;
use super::partition::{NewPartition, Partition, Run};
use super::work::Work;
use crate::block::{BLOCK_SIZE, Blocks, Class, Lba};
use crate::txn::{Begin, Durability, Transact, Transaction, TransactionManager, newest, run};

/// Blocks behind the catalogue that must be empty too before a volume counts as unused: some filesystems
/// leave their first blocks alone.
const EMPTY_BLOCKS: u64 = 64;
/// Blocks that one transaction empties.
const BATCH: u64 = 128;

/// Every partition of a volume, and the state of the catalogue's blocks.
#[derive(Debug, Default)]
struct Catalogue {
    partitions: Vec<Partition>,
    /// Damaged blocks whose copies were read instead.
    damaged: Vec<u64>,
}

impl Catalogue {
    /// Reads all of it. `None` for a volume that was never written.
    #[async_recursion]
    async fn read(txn: &dyn Transaction) -> Result<Option<Catalogue>, TreeError> {
        let Some(Stored { partitions, damaged }) = blocks::read(txn).await? else {
            return Ok(None);
        };
        let catalogue = Catalogue { partitions, damaged };
        catalogue.check(txn.blocks())?;
        Ok(Some(catalogue))
    }

    async fn require(txn: &dyn Transaction) -> Result<Catalogue, TreeError> {
        Catalogue::read(txn).await?.ok_or(TreeError::NoCatalogue)
    }

    /// The catalogue, or `None` when the volume has none.
    async fn find_any(txn: &dyn Transaction) -> Result<Option<Catalogue>, TreeError> {
        match Catalogue::read(txn).await {
            Err(TreeError::NoCatalogue | TreeError::Foreign(_)) => Ok(None),
            found => found,
        }
    }

    /// The catalogue of a volume; an empty one when the volume is unused.
    async fn read_or_begin(txn: &dyn Transaction) -> Result<Catalogue, TreeError> {
        if let Some(catalogue) = Catalogue::read(txn).await? {
            return Ok(catalogue);
        }
        let blocks = txn.read_run(Lba(0), EMPTY_BLOCKS.min(txn.blocks())).await?;
        match blocks.iter().position(|block| block.iter().any(|byte| *byte != 0)) {
            Some(used) => Err(TreeError::Foreign(used as u64)),
            None => Ok(Catalogue::default()),
        }
    }

    fn check(&self, blocks: u64) -> Result<(), TreeError> {
        let mut start = CATALOGUE_BLOCKS;
        for (partition, run) in self.runs() {
            let end = run.first.checked_add(run.blocks);
            if run.first < start || run.blocks == 0 || end.is_none() {
                return Err(damaged("its partitions overlap"));
            }
            if end.is_some_and(|end| end > blocks) {
                return Err(TreeError::Invalid(format!(
                    "partition {} ends behind the volume, which has become smaller",
                    partition.name
                )));
            }
            start = run.end();
        }
        Ok(())
    }

    fn sorted(&self) -> Vec<&Partition> {
        let mut sorted: Vec<&Partition> = self.partitions.iter().collect();
        sorted.sort_by_key(|partition| partition.first);
        sorted
    }

    /// All runs with their partitions, in the order of their blocks.
    fn runs(&self) -> Vec<(&Partition, Run)> {
        let of = |partition| Partition::all_runs(partition).map(move |run| (partition, run));
        let mut runs: Vec<_> = self.partitions.iter().flat_map(of).collect();
        runs.sort_by_key(|(_, run)| run.first);
        runs
    }

    /// Writes all of it, over damaged blocks too.
    async fn write(&self, txn: &dyn Transaction) -> Result<(), TreeError> {
        let blocks = blocks::encode(&self.partitions).ok_or_else(|| {
            TreeError::Invalid(format!(
                "a volume has at most {} partitions, each run of one that has grown counted",
                CATALOGUE_BLOCKS as usize * CATALOGUE_ENTRIES
            ))
        })?;
        for (index, content) in (0..).zip(blocks) {
            let is_stored = match txn.read(Lba(index)).await {
                Err(error) if error.is_damage() => false,
                stored => stored? == content,
            };
            if !is_stored {
                txn.write_as(Lba(index), content, Class::Metadata)?;
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<&Partition, TreeError> {
        let found = self.partitions.iter().find(|partition| partition.name == name);
        found.ok_or_else(|| TreeError::Missing(name.to_owned()))
    }

    /// Runs of blocks that belong to no partition.
    fn gaps(&self, blocks: u64) -> Vec<Range<u64>> {
        let mut at = CATALOGUE_BLOCKS;
        let mut gaps = Vec::new();
        for (_, run) in self.runs() {
            gaps.push(at..run.first);
            at = run.end();
        }
        gaps.push(at..blocks);
        gaps.retain(|gap| gap.start < gap.end);
        gaps
    }

    /// The blocks of a new partition.
    fn place(&self, new: &NewPartition, volume: u64) -> Result<Range<u64>, TreeError> {
        let gaps = self.gaps(volume);
        let len = |gap: &Range<u64>| gap.end - gap.start;
        let Some(first) = new.first else {
            let largest = gaps.iter().max_by_key(|gap| len(gap)).cloned().unwrap_or(0..0);
            let wanted = new.blocks.unwrap_or(len(&largest));
            let gap = gaps.iter().find(|gap| wanted > 0 && len(gap) >= wanted);
            return match gap {
                Some(gap) => Ok(gap.start..gap.start + wanted),
                None => Err(TreeError::NoGap(wanted, len(&largest))),
            };
        };
        let gap = gaps.iter().find(|gap| gap.contains(&first));
        let blocks = new.blocks.unwrap_or(gap.map_or(1, |gap| gap.end - first));
        let range = first..first.saturating_add(blocks);
        match gap {
            Some(gap) if blocks > 0 && range.end <= gap.end => Ok(range),
            _ => Err(self.overlap(&range, volume)),
        }
    }

    fn overlap(&self, range: &Range<u64>, volume: u64) -> TreeError {
        let runs = self.runs();
        let overlaps = |(_, it): &&(_, Run)| it.first < range.end && range.start < it.end();
        let with = match runs.iter().find(overlaps) {
            Some((partition, _)) => format!("partition {}", partition.name),
            None if range.start < CATALOGUE_BLOCKS => "the catalogue".to_owned(),
            None => format!("the end of the volume of {volume} blocks"),
        };
        TreeError::Overlap { first: range.start, last: range.end.saturating_sub(1), with }
    }
}

fn damaged(detail: &str) -> TreeError {
    TreeError::Damaged { what: "the catalogue of partitions".to_owned(), detail: detail.to_owned() }
}

fn check_name(name: &str) -> Result<(), TreeError> {
    let plain = |c: char| !c.is_control() && c != '/';
    match (1..=MAX_NAME).contains(&name.len()) && name.chars().all(plain) {
        true => Ok(()),
        false => Err(TreeError::Invalid(format!(
            "a partition's name has 1 to {MAX_NAME} bytes, no control characters and no slash"
        ))),
    }
}

/// All partitions, in the order of their blocks.
///
/// # Errors
/// [`TreeError::NoCatalogue`], [`TreeError::Foreign`], [`TreeError::Damaged`], [`TreeError::Newer`].
#[async_recursion]
pub async fn list(volume: &dyn Transact) -> Result<Vec<Partition>, TreeError> {
    run(volume, Begin::READ_ONLY, Durability::Synced, async |txn| {
        let catalogue = Catalogue::require(&*txn).await?;
        Ok(catalogue.sorted().into_iter().cloned().collect())
    })
    .await
}

/// The damaged blocks of the catalogue whose copies are whole. Empty for a volume without a catalogue.
///
/// # Errors
/// [`TreeError::Damaged`], [`TreeError::Newer`], the volume's: the catalogue cannot be read.
pub async fn damaged_blocks(volume: &dyn Transact) -> Result<Vec<u64>, TreeError> {
    run(volume, Begin::READ_ONLY, Durability::Synced, async |txn| {
        Ok(Catalogue::find_any(&*txn).await?.map_or_else(Vec::new, |catalogue| catalogue.damaged))
    })
    .await
}

/// Rewrites damaged blocks of the catalogue, and adds missing copies. Returns the blocks that were damaged.
/// Volumes of older programs have no copies.
///
/// # Errors
/// Those of [`damaged_blocks`].
pub async fn repair(volume: &dyn Transact) -> Result<Vec<u64>, TreeError> {
    run(volume, Begin::STRICT, Durability::Synced, async |txn| {
        let Some(catalogue) = Catalogue::find_any(&*txn).await? else { return Ok(Vec::new()) };
        catalogue.write(&*txn).await?;
        Ok(catalogue.damaged)
    })
    .await
}

/// The partition of that name.
///
/// # Errors
/// [`TreeError::Missing`], [`TreeError::Unfinished`], and those of [`list`].
#[async_recursion]
pub async fn open(volume: &dyn Transact, name: &str) -> Result<Partition, TreeError> {
    let txn = newest(volume).await?;
    let partition = Catalogue::require(&*txn).await?.find(name)?.clone();
    match partition.state {
        State::Ready => Ok(partition),
        State::Unfinished => Err(TreeError::Unfinished(partition.name)),
    }
}

/// Makes writes outside of the volume's transactions fail while it has a catalogue:
/// [`TransactionManager::fenced`]. A catalogue that cannot be read counts as one.
#[async_recursion]
pub async fn fence(volume: &TransactionManager) {
    // Not in a transaction: its snapshot would keep old blocks until the next one begins.
    let first = volume.read_newest(Lba(0), 1).await;
    let begins = |block: &Bytes| block.starts_with(&CATALOGUE_MAGIC);
    let is_up = first.map_or(true, |(_, blocks)| blocks.iter().flatten().any(begins));
    volume.fence(&CATALOGUE_MAGIC, is_up);
}

/// Whether the volume has a catalogue, of any number of partitions.
pub(super) async fn is_there_in(txn: &dyn Transaction) -> Result<bool, TreeError> {
    match Catalogue::read(txn).await {
        Ok(found) => Ok(found.is_some()),
        Err(TreeError::NoCatalogue | TreeError::Foreign(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Why raw access to `block` of a volume with partitions is refused.
pub async fn refusal(volume: &dyn Transact, block: u64) -> TreeError {
    match list(volume).await {
        Ok(partitions) => TreeError::Partitioned { block, there: what_lies(&partitions, block) },
        Err(error) => error,
    }
}

fn what_lies(partitions: &[Partition], block: u64) -> String {
    match partitions.iter().find(|it| it.all_runs().any(|run| run.range().contains(&block))) {
        Some(it) => match filesystem_of(it, partitions) {
            Some(name) => format!("partition {} of filesystem {name}", it.name),
            None => format!("partition {} ({})", it.name, it.kind),
        },
        None if block < CATALOGUE_BLOCKS => "the catalogue of partitions".to_owned(),
        None => "the space between partitions".to_owned(),
    }
}

/// The filesystem that a partition belongs to.
fn filesystem_of<'a>(partition: &'a Partition, all: &[Partition]) -> Option<&'a str> {
    let (own, other): (&[&str], _) = match partition.kind {
        Kind::Btree => (&[META_SUFFIX], (DATA_SUFFIX, Kind::Raw)),
        Kind::Raw => (&[DATA_SUFFIX, SUPER_SUFFIX], (META_SUFFIX, Kind::Btree)),
        Kind::Hash => return None,
    };
    let stem = own.iter().find_map(|suffix| partition.name.strip_suffix(suffix))?;
    let is_other = |it: &Partition| {
        it.kind == other.1 && it.name.strip_suffix(other.0).is_some_and(|name| name == stem)
    };
    all.iter().any(is_other).then_some(stem)
}

/// Refuses a partition that belongs to a filesystem.
///
/// # Errors
/// [`TreeError::OfFilesystem`], and those of [`list`].
pub async fn refuse_filesystem(volume: &dyn Transact, name: &str) -> Result<(), TreeError> {
    let all = list(volume).await?;
    match all.iter().find(|it| it.name == name).and_then(|it| filesystem_of(it, &all)) {
        Some(_) => Err(TreeError::OfFilesystem(name.to_owned())),
        None => Ok(()),
    }
}

/// The catalogue block that lists a partition, which has to be the same as before.
pub(super) async fn listing(
    txn: &dyn Transaction,
    partition: &Partition,
) -> Result<Lba, TreeError> {
    let catalogue = Catalogue::require(txn).await?;
    let mut before = 0;
    for it in &catalogue.partitions {
        if it == partition {
            return Ok(Lba((before / CATALOGUE_ENTRIES) as u64));
        }
        before += it.all_runs().count();
    }
    Err(TreeError::Missing(partition.name.clone()))
}

/// Creates a partition, and a catalogue on an empty volume. The former contents of its blocks are lost.
///
/// # Errors
/// [`TreeError::Exists`], [`TreeError::Overlap`], [`TreeError::NoGap`], [`TreeError::Foreign`],
/// [`TreeError::Invalid`] for an invalid name or size.
#[async_recursion]
pub async fn create(
    env: &Env,
    volume: &dyn Transact,
    new: &NewPartition,
) -> Result<Partition, TreeError> {
    check_name(&new.name)?;
    let uuid = env.uuid();
    let mut partition =
        run(volume, Begin::STRICT, Durability::Synced, async |txn| enter(&*txn, new, uuid).await)
            .await?;
    if partition.kind != Kind::Raw {
        let area = Area::new(&partition)?;
        let prepared = area.prepared();
        let end = area.lba(prepared.end).0;
        empty(volume, partition.first..end).await?;
        run(volume, Begin::STRICT, Durability::Synced, async |txn| {
            begin_store(env, &*txn, &area).await?;
            set_state(&*txn, &partition, Some(State::Ready)).await
        })
        .await?;
        partition.state = State::Ready;
    }
    Ok(partition)
}

async fn enter(
    txn: &dyn Transaction,
    new: &NewPartition,
    uuid: Uuid,
) -> Result<Partition, TreeError> {
    let mut catalogue = Catalogue::read_or_begin(txn).await?;
    if catalogue.find(&new.name).is_ok() {
        return Err(TreeError::Exists(new.name.clone()));
    }
    let range = catalogue.place(new, txn.blocks())?;
    let partition = Partition {
        name: new.name.clone(),
        kind: new.kind,
        first: range.start,
        blocks: range.end - range.start,
        further: Vec::new(),
        uuid,
        state: if new.kind == Kind::Raw { State::Ready } else { State::Unfinished },
    };
    if new.kind != Kind::Raw {
        Area::new(&partition)?;
    }
    catalogue.partitions.push(partition.clone());
    catalogue.write(txn).await?;
    Ok(partition)
}

/// The content of a store's first block.
pub(super) fn header_of(area: &Area) -> Bytes {
    let header = StoreHeader {
        uuid: *area.uuid.as_bytes(),
        blocks: area.blocks.into(),
        kind: area.kind.encode(),
        spare: [0; 7],
    };
    let page = PageHeader::new(PageKind::Header, 0, area.tag, 0);
    let mut first = Page::fresh(0, &[0; BLOCK_SIZE], &page);
    first.put(BODY, header.as_bytes());
    Bytes::copy_from_slice(first.bytes())
}

/// Writes the pages of an empty store.
async fn begin_store(env: &Env, txn: &dyn Transaction, area: &Area) -> Result<(), TreeError> {
    txn.write_as(area.lba(0), header_of(area), Class::Metadata)?;
    if area.kind == Kind::Btree {
        let mut work = Work::new(txn, area, env);
        work.create(area.root(), PageKind::Node, 0).await?;
        work.finish()?;
    }
    Ok(())
}

/// Changes the state of a partition, or removes it.
async fn set_state(
    txn: &dyn Transaction,
    partition: &Partition,
    state: Option<State>,
) -> Result<(), TreeError> {
    let mut catalogue = Catalogue::require(txn).await?;
    let found = catalogue.partitions.iter().position(|it| it.uuid == partition.uuid);
    let index = found.ok_or_else(|| TreeError::Missing(partition.name.clone()))?;
    match state {
        Some(state) => catalogue.partitions[index].state = state,
        None => drop(catalogue.partitions.remove(index)),
    }
    catalogue.write(txn).await
}

/// Drops a partition; its blocks are discarded. Stores that are open in it fail from then on.
///
/// # Errors
/// [`TreeError::Missing`], and those of [`list`].
#[async_recursion]
pub async fn remove(env: &Env, volume: &dyn Transact, name: &str) -> Result<(), TreeError> {
    let partition = run(volume, Begin::STRICT, Durability::Synced, async |txn| {
        let partition = Catalogue::require(&*txn).await?.find(name)?.clone();
        set_state(&*txn, &partition, Some(State::Unfinished)).await?;
        if partition.kind != Kind::Raw {
            txn.discard(Lba(partition.first))?;
        }
        Ok::<_, TreeError>(partition)
    })
    .await?;
    empty_partition(env, volume, &partition).await?;
    run(volume, Begin::STRICT, Durability::Synced, async |txn| {
        set_state(&*txn, &partition, None).await
    })
    .await
}

/// Discards all blocks of a partition that hold anything. A store's bitmap tells which these are; where it is
/// damaged, and in other partitions, every block is read.
async fn empty_partition(
    env: &Env,
    volume: &dyn Transact,
    partition: &Partition,
) -> Result<(), TreeError> {
    let area = match Area::new(partition) {
        Ok(area) if partition.kind != Kind::Raw => area,
        _ => return empty_runs(volume, partition).await,
    };
    for bitmap in area.bitmaps() {
        let used = run(volume, Begin::READ_ONLY, Durability::Synced, async |txn| {
            let mut work = Work::without_header(&*txn, &area, env);
            work.blocks_in_use(bitmap).await
        });
        match used.await {
            Ok(blocks) => discard(volume, &area, &blocks).await?,
            Err(TreeError::Damaged { .. } | TreeError::Newer { .. }) => {
                return empty_runs(volume, partition).await;
            }
            Err(error) => return Err(error),
        }
    }
    for bitmap in area.bitmaps().filter(|bitmap| *bitmap >= area.prepared().end) {
        discard(volume, &area, &[bitmap]).await?;
    }
    let metadata = partition.first..area.lba(area.prepared().end).0;
    empty(volume, metadata).await
}

/// Discards all blocks that hold anything in the runs of a partition.
async fn empty_runs(volume: &dyn Transact, partition: &Partition) -> Result<(), TreeError> {
    for run in partition.all_runs() {
        empty(volume, run.range()).await?;
    }
    Ok(())
}

async fn discard(volume: &dyn Transact, area: &Area, blocks: &[u32]) -> Result<(), TreeError> {
    for blocks in blocks.chunks(BATCH as usize) {
        run(volume, Begin::SNAPSHOT, Durability::Visible, async |txn| {
            blocks.iter().try_for_each(|block| txn.discard(area.lba(*block)))?;
            Ok::<_, TreeError>(())
        })
        .await?;
    }
    Ok(())
}

/// Discards those blocks of a range that hold anything.
async fn empty(volume: &dyn Transact, range: Range<u64>) -> Result<(), TreeError> {
    let mut at = range.start;
    while at < range.end {
        let count = BATCH.min(range.end - at);
        run(volume, Begin::SNAPSHOT, Durability::Visible, async |txn| {
            let blocks = txn.read_run(Lba(at), count).await?;
            for (lba, block) in (at..).zip(blocks) {
                if block.iter().any(|byte| *byte != 0) {
                    txn.discard(Lba(lba))?;
                }
            }
            Ok::<_, TreeError>(())
        })
        .await?;
        at += count;
    }
    Ok(())
}
