//! Filesystems are made, opened and removed.

use std::sync::Arc;

use async_recursion::async_recursion;
use thalweg_env::Env;
use thalweg_store::block::Lba;
use thalweg_store::tree::{
    Kind as PartitionKind, NewPartition, Partition, Store, TreeError, catalogue,
};
use thalweg_store::txn::{self, Begin, Durability, Transact, Transaction};
use uuid::Uuid;
use zerocopy::IntoBytes;

use super::LocalFs;
use super::area::{BitmapPage, DataArea};
use super::format::{
    DATA_SUFFIX, ELSEWHERE, ELSEWHERE_VERSION, FIRST_VERSION, HASH_BITS, InodeRecord, META_SUFFIX,
    SUPER_MAGIC, SUPER_SUFFIX, SuperRecord, Tag, encode_kind, key,
};
use super::fs_state::{Found, FsState};
use super::gates::ExternalContents;
use super::options::{Format, Options};
use super::records::stored_time;
use super::space::{Covered, Space};
use super::superblock::{Copies, stored_record};
use crate::attributes::{Ino, Kind};
use crate::contents::{self, Contents};
use crate::error::FsError;

/// The partition of the metadata takes one block in so many.
pub(super) const METADATA_SHARE: u64 = 16;
/// Blocks of the smallest partition of metadata.
const MIN_METADATA: u64 = 32;
/// Blocks of the partition of data at most, where contents are kept elsewhere.
const MAX_LISTS: u64 = 1024;
/// Pages of bits that are read at a time.
const PAGES_AT_ONCE: u64 = 64;
/// Inodes for which a block of metadata may be enough.
const INODES_PER_BLOCK: u64 = 12;

/// Makes an empty filesystem in new partitions of a volume. A filesystem whose creation was interrupted is
/// made again.
///
/// # Errors
/// [`FsError::Exists`] when the name is in use; [`FsError::Invalid`] when the volume has too few blocks;
/// those of the catalogue of partitions.
#[async_recursion]
pub async fn make(env: &Env, volume: &Arc<dyn Transact>, format: &Format) -> Result<(), FsError> {
    make_with(env, volume, format, None).await
}

/// Makes an empty filesystem whose files have their contents elsewhere. Contents that are there are removed.
///
/// # Errors
/// As [`make`]; those of the contents.
pub async fn make_external(
    env: &Env,
    volume: &Arc<dyn Transact>,
    format: &Format,
    contents: &dyn Contents,
) -> Result<(), FsError> {
    make_with(env, volume, format, Some(contents)).await
}

/// Whether the files of a filesystem have their contents elsewhere.
///
/// # Errors
/// [`FsError::Damaged`], [`FsError::Newer`], and those of the catalogue of partitions.
pub async fn is_external(
    env: &Env,
    volume: &Arc<dyn Transact>,
    name: &str,
) -> Result<bool, FsError> {
    Ok(read_super(env, volume, name).await?.record.is_external())
}

async fn make_with(
    env: &Env,
    volume: &Arc<dyn Transact>,
    format: &Format,
    contents: Option<&dyn Contents>,
) -> Result<(), FsError> {
    let [meta, data] = [META_SUFFIX, DATA_SUFFIX].map(|suffix| format.name.clone() + suffix);
    match catalogue::list(&**volume).await {
        Ok(there) if there.iter().any(|it| it.name == meta || it.name == data) => {
            if read_super(env, volume, &format.name).await.is_ok() {
                return Err(FsError::Exists);
            }
            remove(env, volume, &format.name).await?;
        }
        Ok(_) | Err(TreeError::NoCatalogue) => {}
        Err(error) => return Err(error.into()),
    }
    let all = match format.blocks {
        Some(blocks) => blocks,
        None => largest_gap(volume).await?,
    };
    let share = match contents {
        // The data are the lists of callers' transactions.
        Some(_) => all - (all / METADATA_SHARE).min(MAX_LISTS),
        None => (all / METADATA_SHARE).max(MIN_METADATA),
    };
    let metadata = format.metadata_blocks.unwrap_or(share);
    // One is for the copy of the superblock.
    let rest = all.checked_sub(metadata + 1).filter(|rest| *rest > 1);
    let rest = rest.ok_or(FsError::Invalid("too few blocks for a filesystem"))?;
    let partition = |name: &str, kind, blocks| NewPartition {
        name: name.to_owned(),
        kind,
        first: None,
        blocks: Some(blocks),
    };
    if let Some(contents) = contents {
        contents::empty(contents).await?;
    }
    let btree = partition(&meta, PartitionKind::Btree, metadata);
    catalogue::create(env, &**volume, &btree).await?;
    let raw = partition(&data, PartitionKind::Raw, rest);
    let raw = catalogue::create(env, &**volume, &raw).await?;
    volume.discard_run(Lba(raw.first), raw.blocks).await?;
    let copy = partition(&(format.name.clone() + SUPER_SUFFIX), PartitionKind::Raw, 1);
    catalogue::create(env, &**volume, &copy).await?;
    let uuid = env.uuid();
    let area = DataArea::new(&raw, &uuid)?;
    let tree = Store::open_btree(env, volume.clone(), &meta).await?;
    let copies = Copies::find(volume, &format.name, &tree).await?;
    let now = stored_time(env.wall_nanos());
    let hash_bits = format.hash_bits.clamp(1, HASH_BITS);
    let record = super_record(env, (&raw, &uuid, &area), (hash_bits, contents.is_some()), now);
    let root = root_record(format, now);
    txn::run(&**volume, Begin::STRICT, Durability::Synced, async |txn| {
        tree.put_in(&*txn, &key(Ino::ROOT.0, Tag::Inode, &[]), root.as_bytes().to_vec()).await?;
        let first = (Ino::ROOT.0 + 1).to_le_bytes().to_vec();
        tree.put_in(&*txn, &key(0, Tag::Numbers, &[]), first).await?;
        tree.put_in(&*txn, &key(0, Tag::Counts, &[]), 1i64.to_le_bytes().to_vec()).await?;
        copies.write(&*txn, &record).await
    })
    .await
}

/// A superblock for data in a partition; names are hashed in a way of their own.
fn super_record(
    env: &Env,
    (raw, uuid, area): (&Partition, &Uuid, &DataArea),
    (hash_bits, is_external): (u8, bool),
    now: u64,
) -> SuperRecord {
    let mut record = SuperRecord {
        magic: SUPER_MAGIC,
        version: if is_external { ELSEWHERE_VERSION } else { FIRST_VERSION }.into(),
        hash_bits,
        flags: if is_external { ELSEWHERE } else { 0 },
        spare: [0; 4],
        uuid: *uuid.as_bytes(),
        data: *raw.uuid.as_bytes(),
        hash_key: *env.uuid().as_bytes(),
        data_blocks: area.blocks().into(),
        created: now.into(),
        checksum: 0.into(),
        end: [0; 4],
    };
    record.checksum = record.sum().into();
    record
}

/// Makes a superblock where it is lost. It has a new identity and a new hash key, so a repair must rewrite
/// the bitmap pages and the places of names.
///
/// # Errors
/// Those of the catalogue of partitions, and of the tree.
pub(crate) async fn make_super(
    env: &Env,
    volume: &Arc<dyn Transact>,
    name: &str,
    is_external: bool,
) -> Result<(), FsError> {
    let tree = Store::open_btree(env, volume.clone(), &(name.to_owned() + META_SUFFIX)).await?;
    let raw = catalogue::open(&**volume, &(name.to_owned() + DATA_SUFFIX)).await?;
    let uuid = env.uuid();
    let area = DataArea::new(&raw, &uuid)?;
    let now = stored_time(env.wall_nanos());
    let record = super_record(env, (&raw, &uuid, &area), (HASH_BITS, is_external), now);
    let copies = Copies::find(volume, name, &tree).await?;
    write_super(volume, &copies, &record).await
}

/// Restores the superblock in the tree from a copy; returns whether a copy exists.
///
/// # Errors
/// Those of the catalogue of partitions, and of the tree.
pub(crate) async fn restore_super(
    env: &Env,
    volume: &Arc<dyn Transact>,
    name: &str,
) -> Result<bool, FsError> {
    let tree = Store::open_btree(env, volume.clone(), &(name.to_owned() + META_SUFFIX)).await?;
    let raw = catalogue::open(&**volume, &(name.to_owned() + DATA_SUFFIX)).await?;
    let copies = Copies::find(volume, name, &tree).await?;
    let txn = volume.begin(Begin::SNAPSHOT).await?;
    let Some(record) = copies.record(&*txn, &raw).await? else { return Ok(false) };
    drop(txn);
    write_super(volume, &copies, &record).await?;
    Ok(true)
}

async fn write_super(
    volume: &Arc<dyn Transact>,
    copies: &Copies,
    record: &SuperRecord,
) -> Result<(), FsError> {
    let begin = (Begin::STRICT, Durability::Synced);
    txn::run(&**volume, begin.0, begin.1, async |txn| copies.write(&*txn, record).await).await
}

fn root_record(format: &Format, now: u64) -> InodeRecord {
    InodeRecord {
        mode: (format.mode & 0o7777).into(),
        kind: encode_kind(Kind::Directory),
        flags: 0,
        links: 2.into(),
        modified: now.into(),
        changed: now.into(),
        size: 0.into(),
        blocks: 0.into(),
        accessed: now.into(),
        created: now.into(),
        uid: format.uid.into(),
        gid: format.gid.into(),
        rdev: 0.into(),
        write_bound: 0.into(),
        parent: Ino::ROOT.0.into(),
        quota: 0.into(),
    }
}

/// Blocks of the largest gap between a volume's partitions.
async fn largest_gap(volume: &Arc<dyn Transact>) -> Result<u64, FsError> {
    let there = match catalogue::list(&**volume).await {
        Ok(there) => there,
        Err(TreeError::NoCatalogue) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let mut runs: Vec<_> = there.iter().flat_map(Partition::all_runs).collect();
    runs.sort_by_key(|run| run.first);
    let mut at = thalweg_store::tree::format::CATALOGUE_BLOCKS;
    let mut largest = 0;
    for run in runs {
        largest = largest.max(run.first.saturating_sub(at));
        at = run.end();
    }
    Ok(largest.max(volume.blocks().saturating_sub(at)))
}

/// Removes a filesystem with all its files, but for contents that are kept elsewhere ([`contents::empty`]).
///
/// # Errors
/// Those of the catalogue of partitions.
#[async_recursion]
pub async fn remove(env: &Env, volume: &Arc<dyn Transact>, name: &str) -> Result<(), FsError> {
    for suffix in [META_SUFFIX, DATA_SUFFIX, SUPER_SUFFIX] {
        match catalogue::remove(env, &**volume, &(name.to_owned() + suffix)).await {
            Ok(()) | Err(TreeError::Missing(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Where a filesystem lies.
pub(crate) struct Parts {
    pub(crate) tree: Store,
    pub(crate) area: DataArea,
    pub(crate) record: SuperRecord,
    /// Where else the superblock is.
    pub(crate) copies: Copies,
    /// Inodes for which there may be room.
    pub(crate) max_inodes: u64,
}

/// The contents that belong to a filesystem.
///
/// # Errors
/// [`FsError::ContentsElsewhere`] when they are missing, [`FsError::ContentsWithin`] when it has its own.
pub(super) fn external_contents(
    record: &SuperRecord,
    contents: Option<Arc<dyn Contents>>,
) -> Result<Option<ExternalContents>, FsError> {
    match (record.is_external(), contents) {
        (true, Some(contents)) => Ok(Some(ExternalContents::new(contents))),
        (true, None) => Err(FsError::ContentsElsewhere),
        (false, Some(_)) => Err(FsError::ContentsWithin),
        (false, None) => Ok(None),
    }
}

/// Inodes for which a partition of metadata may have room.
pub(super) fn inodes_for(metadata: &Partition) -> u64 {
    metadata.size() * INODES_PER_BLOCK
}

/// Finds the parts of a filesystem, and checks that they belong together.
pub(crate) async fn read_super(
    env: &Env,
    volume: &Arc<dyn Transact>,
    name: &str,
) -> Result<Parts, FsError> {
    let tree = Store::open_btree(env, volume.clone(), &(name.to_owned() + META_SUFFIX)).await?;
    let raw = catalogue::open(&**volume, &(name.to_owned() + DATA_SUFFIX)).await?;
    let meta = catalogue::open(&**volume, tree.name()).await?;
    let txn = volume.begin(Begin::SNAPSHOT).await?;
    let copies = Copies::find(volume, name, &tree).await?;
    let record = match stored_record(&tree, &*txn, &raw).await {
        Ok(record) => record,
        Err(error) if error.is_damage_below() || matches!(error, FsError::Damaged(_)) => {
            copies.record(&*txn, &raw).await?.ok_or(error)?
        }
        Err(error) => return Err(error),
    };
    let area = DataArea::new(&raw, &Uuid::from_bytes(record.uuid))?;
    if area.blocks() != record.data_blocks.get() {
        return Err(FsError::Damaged("the superblock has another number of blocks".to_owned()));
    }
    let max_inodes = inodes_for(&meta);
    Ok(Parts { tree, area, record, copies, max_inodes })
}

/// The free blocks under each bitmap page from `page` on.
///
/// # Errors
/// Those of the store, and [`FsError::Damaged`].
pub(super) async fn count_free(
    txn: &dyn Transaction,
    area: &DataArea,
    mut page: u64,
) -> Result<Vec<Covered>, FsError> {
    let mut pages = Vec::new();
    while page < area.pages() {
        let some = PAGES_AT_ONCE.min(area.pages_together(page));
        for content in txn.read_run(area.page_lba(page), some).await? {
            let free = BitmapPage::read(area, page, &content)?.free();
            let covered = area.covered(page);
            pages.push(Covered { free, blocks: covered.end - covered.start });
            page += 1;
        }
    }
    Ok(pages)
}

impl LocalFs {
    /// Opens the filesystem of that name, and begins to finish the work that a crash has left.
    ///
    /// # Errors
    /// [`FsError::Damaged`], [`FsError::Newer`], and those of the catalogue of partitions.
    pub async fn open(
        env: &Env,
        volume: Arc<dyn Transact>,
        name: &str,
        options: Options,
    ) -> Result<LocalFs, FsError> {
        LocalFs::open_with(env, volume, name, options, None).await
    }

    /// Opens the filesystem of that name with the contents of its files, if they are kept elsewhere. While it can be
    /// changed, no other handle may be.
    ///
    /// # Errors
    /// As [`LocalFs::open`]; [`FsError::ContentsElsewhere`], [`FsError::ContentsWithin`].
    #[async_recursion]
    pub async fn open_with(
        env: &Env,
        volume: Arc<dyn Transact>,
        name: &str,
        options: Options,
        contents: Option<Arc<dyn Contents>>,
    ) -> Result<LocalFs, FsError> {
        let Parts { tree, area, record, copies, max_inodes } =
            read_super(env, &volume, name).await?;
        let external_contents = external_contents(&record, contents)?;
        if !options.read_only {
            // Nothing depends on them now: a volume without room is used without.
            copies.refresh(&*volume).await.ok();
        }
        let txn = volume.begin(Begin::SNAPSHOT).await?;
        let pages = count_free(&*txn, &area, 0).await?;
        let counts = tree.get_in(&*txn, &key(0, Tag::Counts, &[])).await?;
        let inodes = counts.and_then(|it| Some(i64::from_le_bytes((*it).try_into().ok()?)));
        drop(txn);
        let found = Found {
            tree,
            hash_key: record.hash_key,
            hash_bits: record.hash_bits,
            space: Space::new(area.end(), pages),
            area,
            inodes: inodes.unwrap_or(1),
            max_inodes,
            copies,
            external_contents,
        };
        let inner = Arc::new(FsState::new(env, volume, found, options));
        inner.find_redirects(false).await?;
        if !options.read_only {
            inner.make_table().await?;
        }
        let background = Arc::new(env.spawn(inner.clone().keep()));
        let fs = LocalFs { inner, within: None, recorder: None, _keeper: background };
        if !options.read_only {
            fs.go_on_directly().await?;
            let inner = &fs.inner;
            let orphans =
                if options.keep_orphans { Vec::new() } else { inner.stored_orphans().await? };
            inner.resume_deferred_work(orphans);
        }
        Ok(fs)
    }
}
