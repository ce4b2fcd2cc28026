//! The blocks of the catalogue: each has a copy, as long as there is room for it.
//!
//! The copy replaces a block that cannot be read, or does not match its own checksum, and no other: a first
//! block that is whole but not a catalogue's says that the volume holds something else by now, and no copy
//! overrides that.

use bytes::Bytes;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::damaged;
use super::entry::{Listed, decode_entry, entries_of, fill_entries};
use crate::block::{BLOCK_SIZE, Lba};
use crate::tree::error::TreeError;
use crate::tree::format::{
    CATALOGUE_BLOCKS, CATALOGUE_ENTRIES, CATALOGUE_MAGIC, CATALOGUE_VERSION, CatalogueBlock,
    FORMAT_VERSION, copy_place,
};
use crate::tree::partition::{Partition, Run};
use crate::txn::Transaction;

/// A catalogue as it was read.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) partitions: Vec<Partition>,
    /// Damaged blocks that have a whole copy.
    pub(super) damaged: Vec<u64>,
}

impl Stored {
    /// Adds the next entry: a partition's first run, or a further one of an earlier partition.
    fn take(&mut self, entry: Listed) -> Result<(), TreeError> {
        let Listed { partition, run: number } = entry;
        let name = &partition.name;
        let Some(known) = self.partitions.iter_mut().find(|other| other.name == *name) else {
            if number > 0 {
                return Err(damaged(&format!("a run of partition {name} comes before its first")));
            }
            self.partitions.push(partition);
            return Ok(());
        };
        if number == 0 {
            return Err(damaged(&format!("two partitions are named {name}")));
        }
        let fits = known.uuid == partition.uuid
            && known.kind == partition.kind
            && usize::from(number) == known.further.len() + 1;
        if !fits {
            return Err(damaged(&format!("a run of partition {name} belongs to another")));
        }
        let Partition { first, blocks, state, .. } = partition;
        known.further.push(Run { first, blocks, state });
        Ok(())
    }
}

/// What one block lists.
#[derive(Debug, Default)]
struct List {
    entries: Vec<Listed>,
    /// The number of catalogue blocks that list partitions; 0 from an older program.
    lists: u64,
}

impl List {
    /// Whether the block after this one, which is number `index`, may list partitions. Blocks are filled one
    /// after the other. `may_follow`: whether this one might.
    fn may_be_followed(&self, index: u64, may_follow: bool) -> bool {
        match self.lists {
            0 => self.entries.len() == CATALOGUE_ENTRIES,
            lists => may_follow && index + 1 < lists,
        }
    }
}

/// Reads all blocks. `None`: they were never written.
///
/// # Errors
/// [`TreeError::Foreign`], [`TreeError::Newer`]; the error of a damaged block without a copy.
pub(super) async fn read(txn: &dyn Transaction) -> Result<Option<Stored>, TreeError> {
    let blocks = read_each(txn, CATALOGUE_BLOCKS.min(txn.blocks())).await?;
    match blocks.first() {
        None => return Err(TreeError::NoCatalogue),
        Some(Ok(first)) if is_zeros(first) => return Ok(None),
        Some(Ok(first)) if !first.starts_with(&CATALOGUE_MAGIC) => {
            return Err(TreeError::Foreign(0));
        }
        Some(_) => {}
    }
    let mut stored = Stored::default();
    let mut may_follow = true;
    for (index, block) in (0..).zip(&blocks) {
        let content = block.as_ref().map_err(Clone::clone);
        let decoded = content.and_then(|block| decode(index, block));
        let found = match decoded {
            Ok(found) => found,
            Err(error) if !error.is_damage() => return Err(error),
            Err(error) => {
                stored.damaged.push(index);
                match copy_of(index, &blocks) {
                    Some(found) => found,
                    None if may_follow => return Err(error),
                    None => List::default(),
                }
            }
        };
        may_follow = found.may_be_followed(index, may_follow);
        found.entries.into_iter().try_for_each(|entry| stored.take(entry))?;
    }
    if !stored.damaged.is_empty() {
        let blocks = &stored.damaged;
        tracing::warn!(?blocks, "blocks of the catalogue of partitions are damaged: run fsck -y");
    }
    Ok(Some(stored))
}

/// Reads blocks, one by one where a joint read fails.
async fn read_each(
    txn: &dyn Transaction,
    count: u64,
) -> Result<Vec<Result<Bytes, TreeError>>, TreeError> {
    match txn.read_run(Lba(0), count).await {
        Ok(blocks) => return Ok(blocks.into_iter().map(Ok).collect()),
        Err(error) if !error.is_damage() => return Err(error.into()),
        Err(_) => {}
    }
    let mut blocks = Vec::with_capacity(count as usize);
    for index in 0..count {
        match txn.read(Lba(index)).await {
            Err(error) if !error.is_damage() => return Err(error.into()),
            read => blocks.push(read.map_err(TreeError::from)),
        }
    }
    Ok(blocks)
}

/// All blocks of a catalogue; `None` when it has no room for so many partitions.
pub(super) fn encode(partitions: &[Partition]) -> Option<Vec<Bytes>> {
    let mut blocks: Vec<Option<Bytes>> = vec![None; CATALOGUE_BLOCKS as usize];
    let entries: Vec<Listed> = partitions.iter().flat_map(entries_of).collect();
    let parts: Vec<&[Listed]> = match entries.is_empty() {
        true => vec![&[]],
        false => entries.chunks(CATALOGUE_ENTRIES).collect(),
    };
    let version = match entries.iter().any(|entry| entry.run > 0) {
        true => CATALOGUE_VERSION,
        false => FORMAT_VERSION.into(),
    };
    let lists = parts.len() as u32;
    for (index, part) in (0..).zip(&parts) {
        let mut block = begin(index, (lists, version), part);
        block.header.count = (part.len() as u32).into();
        *blocks.get_mut(index as usize)? = Some(end(block));
    }
    for (index, part) in (0..).zip(&parts) {
        let place = copy_place(index);
        if let Some(free @ None) = blocks.get_mut(place as usize) {
            // A copy lists no partitions itself.
            let mut block = begin(place, (lists, version), part);
            block.header.copy_of = (index as u32 + 1).into();
            block.header.copied = (part.len() as u32).into();
            *free = Some(end(block));
        }
    }
    let zeros = Bytes::from(vec![0; BLOCK_SIZE]);
    Some(blocks.into_iter().map(|block| block.unwrap_or_else(|| zeros.clone())).collect())
}

fn begin(index: u64, (lists, version): (u32, u32), entries: &[Listed]) -> CatalogueBlock {
    let mut block = CatalogueBlock::new_zeroed();
    block.header.magic = CATALOGUE_MAGIC;
    block.header.version = version.into();
    block.header.index = (index as u32).into();
    block.header.lists = lists.into();
    fill_entries(&mut block, entries);
    block
}

fn end(mut block: CatalogueBlock) -> Bytes {
    block.header.checksum = block.sum().into();
    Bytes::copy_from_slice(block.as_bytes())
}

/// The list in a block.
fn decode(index: u64, bytes: &[u8]) -> Result<List, TreeError> {
    if index > 0 && is_zeros(bytes) {
        return Ok(List::default());
    }
    let block = verify(index, bytes)?;
    list(index, block, block.header.count.get())
}

/// The list of a block from its copy, if there is one.
fn copy_of(index: u64, blocks: &[Result<Bytes, TreeError>]) -> Option<List> {
    let place = copy_place(index);
    let bytes = blocks.get(place as usize)?.as_ref().ok()?;
    let block = verify(place, bytes).ok()?;
    let is_copy = u64::from(block.header.copy_of.get()) == index + 1;
    is_copy.then(|| list(place, block, block.header.copied.get()).ok()).flatten()
}

/// Checks that a block of the catalogue is whole and in its place.
fn verify(index: u64, bytes: &[u8]) -> Result<&CatalogueBlock, TreeError> {
    let block = CatalogueBlock::ref_from_bytes(bytes).map_err(|_| damaged("a block is short"))?;
    let header = &block.header;
    if header.magic != CATALOGUE_MAGIC {
        return Err(damaged(&format!("block {index} is no block of it")));
    }
    if header.checksum.get() != block.sum() {
        return Err(damaged(&format!("block {index} does not match its checksum")));
    }
    if header.version.get() > CATALOGUE_VERSION {
        let what = "the catalogue of partitions".to_owned();
        return Err(TreeError::Newer { what, version: header.version.get() });
    }
    match u64::from(header.index.get()) == index {
        true => Ok(block),
        false => Err(damaged(&format!("block {index} belongs elsewhere"))),
    }
}

fn list(index: u64, block: &CatalogueBlock, count: u32) -> Result<List, TreeError> {
    let entries = block.entries.get(..count as usize);
    let entries = entries.ok_or_else(|| damaged(&format!("block {index} lists too many")))?;
    let invalid = || damaged(&format!("block {index} has an entry that is invalid"));
    let entries = entries.iter().map(|entry| decode_entry(entry).ok_or_else(invalid));
    let lists = u64::from(block.header.lists.get());
    Ok(List { entries: entries.collect::<Result<_, _>>()?, lists })
}

fn is_zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
