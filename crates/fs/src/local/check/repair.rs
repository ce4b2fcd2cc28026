//! Repairs: each is a transaction, and none depends on another.

use std::ops::Range;

use bytes::Bytes;
use thalweg_store::block::Class;

use super::damage::Damage;
use super::lost::{self, Missing};
use super::scan::{Name, Scan};
use super::{Outcome, contents, rescue, salvage};
use crate::attributes::{Ino, Kind};
use crate::error::FsError;
use crate::filesystem::MAX_FILE;
use crate::local::content::BLOCK;
use crate::local::dir_slots::place_key;
use crate::local::effects::Effects;
use crate::local::extents::Run;
use crate::local::format::{
    DirSlot, DirectoryEntry, END_OF_NUMBERS, Extent, HAS_ACL, HAS_DEFAULT_ACL, HAS_LOST,
    HAS_XATTRS, LOST_VERSION, Tag, extent_key, key, key_behind, parse_key,
};
use crate::local::fs_call::FsCall;
use crate::local::fs_state::FsState;
use crate::local::orphans::freed_key;
use crate::local::quota::quota_key;
use crate::local::records::kind_of;
use crate::local::xattrs::xattr_key;
use crate::xattr_name::{ACCESS_ACL, DEFAULT_ACL};

/// Records that one transaction removes.
const RECORDS_AT_ONCE: usize = 64;
/// Ranges that are told one by one.
const TOLD: usize = 64;
/// Inode numbers that are left out behind the highest: some may have been given away.
const NUMBERS_SKIPPED: u64 = 1 << 16;

/// Repairs one thing.
pub(super) async fn repair(
    inner: &FsState,
    scan: &Scan,
    damage: &Damage,
    missing: &mut Missing,
) -> Result<Outcome, FsError> {
    let repaired = match damage {
        Damage::NotUsed { start, blocks } => {
            let run = Run { start: *start, blocks: *blocks };
            inner.volume.discard_run(inner.area.lba(run.start), run.blocks).await?;
            change(inner, async |op| op.clear_bits(run).await.map(|()| Outcome::Repaired)).await
        }
        Damage::NotEmpty { start, blocks } => {
            inner.volume.discard_run(inner.area.lba(*start), *blocks).await?;
            Ok(Outcome::Repaired)
        }
        Damage::NamesInFile { ino, names } => remove_all(inner, *ino, Tag::Entry, *names).await,
        Damage::ExtentsOfOther { ino, extents } => {
            remove_all(inner, *ino, Tag::Extent, *extents).await
        }
        Damage::Tree(_) => {
            salvage::salvage(&inner.env, inner.volume.clone(), inner.tree.name(), missing).await
        }
        Damage::BadRecord(key) => {
            missing.add_record(key);
            change(inner, async |op| op.mend(scan, damage).await).await
        }
        Damage::NoRoot => change(inner, async |op| op.make_inode(Ino::ROOT.0, missing).await).await,
        Damage::MissingInode { ino, .. } => {
            change(inner, async |op| op.make_inode(*ino, missing).await).await
        }
        Damage::OrphanedContents { ino, end, .. } => {
            match contents::remove(inner, (*ino, *end), missing).await {
                Ok(None) => change(inner, async |op| op.make_file(*ino, *end).await).await,
                Ok(Some(outcome)) => Ok(outcome),
                Err(error) => Err(error),
            }
        }
        Damage::ContentsBehind { ino, size, end } => {
            contents::cut(inner, *ino, (*size, *end)).await
        }
        Damage::WrongBlocks { ino, .. } => mend_blocks(inner, *ino, missing).await,
        Damage::BadBitmap { page } => rewrite_page(inner, scan, *page).await,
        Damage::Unreachable { ino } => match rescue::number(inner).await {
            Ok(number) => change(inner, async |op| op.rescue(*ino, number).await).await,
            Err(error) => Err(error),
        },
        other => change(inner, async |op| op.mend(scan, other).await).await,
    };
    match repaired {
        // No room for the repair: the user has to delete something first.
        Err(FsError::NoSpace) => Ok(Outcome::Left),
        // Another repair has changed the same structure.
        Err(FsError::Stale | FsError::NotFound | FsError::Damaged(_)) => Ok(Outcome::Left),
        // Nothing of the tree can be read, or something that was readable before cannot be now.
        Err(error) if error.is_damage_below() => Ok(Outcome::Left),
        done => done,
    }
}

/// Finishes the work that a crash has left, and updates the copies of the superblock.
pub(super) async fn finish(inner: &FsState) -> Result<(), FsError> {
    inner.copies.refresh(&*inner.volume).await?;
    inner.resume_deferred_work(inner.stored_orphans().await?);
    inner.run_deferred_work().await?;
    inner.finish_deferred_removals().await
}

/// Runs one repair in a transaction of its own.
async fn change(
    inner: &FsState,
    work: impl for<'o> AsyncFn(&'o mut FsCall<'_>) -> Result<Outcome, FsError>,
) -> Result<Outcome, FsError> {
    inner
        .change(async |txn| {
            let mut op = FsCall::new(inner, &txn, false);
            // No quota refuses a repair.
            (op.is_repair, op.is_stored) = (true, true);
            let outcome = work(&mut op).await?;
            Ok((outcome, op.finish().await?))
        })
        .await
}

/// Removes all records of an inode with a tag.
async fn remove_all(inner: &FsState, ino: u64, tag: Tag, count: u64) -> Result<Outcome, FsError> {
    loop {
        let left = inner.change(async |txn| {
            let mut op = FsCall::new(inner, &txn, false);
            let some = op.range(key(ino, tag, &[])..key_behind(ino, tag), RECORDS_AT_ONCE).await?;
            let left = !some.is_empty();
            some.into_iter().for_each(|(key, _)| op.delete(key.to_vec()));
            Ok((left, op.finish().await?))
        });
        if !left.await? {
            return Ok(Outcome::Lost(format!("{count} records of inode {ino}")));
        }
    }
}

/// Rewrites a bitmap page from the blocks found in use.
async fn rewrite_page(inner: &FsState, scan: &Scan, page: u64) -> Result<Outcome, FsError> {
    let covered = inner.area.covered(page);
    let content = inner.area.page_of(page, scan.taken_within(&covered));
    inner
        .change(async |txn| {
            txn.write_as(inner.area.page_lba(page), content.clone(), Class::Metadata)?;
            Ok((Outcome::Repaired, Effects::default()))
        })
        .await
}

/// Corrects the block count of a file, and records as lost the blocks that its record counts and no extent has.
async fn mend_blocks(inner: &FsState, ino: u64, missing: &Missing) -> Result<Outcome, FsError> {
    let txn = inner.look().await?;
    let mut op = FsCall::new(inner, &txn, false);
    op.is_repair = true;
    let (record, extents) = (op.inode(ino).await?, op.stored_extents(ino).await?);
    drop(op);
    let stored = extents.iter().filter(|extent| !extent.is_lost());
    let found: u64 = match kind_of(ino, &record)? {
        Kind::File if inner.external_contents.is_some() => record.size.get().div_ceil(BLOCK),
        _ => stored.map(|extent| extent.blocks).sum(),
    };
    let gone = record.blocks.get().saturating_sub(found);
    let lost = match kind_of(ino, &record)? {
        Kind::File if gone > 0 && inner.external_contents.is_none() => {
            let holes = lost::holes(&extents, record.size.get().div_ceil(BLOCK));
            lost::lost(holes, &missing.beginnings(ino), gone)
        }
        _ => Vec::new(),
    };
    let mut rest = lost.as_slice();
    loop {
        let (some, more) = rest.split_at(rest.len().min(RECORDS_AT_ONCE));
        rest = more;
        change(inner, async |op| {
            op.record_lost(ino, some).await?;
            let mut record = op.inode(ino).await?;
            // As long as some are not recorded, the count says so.
            if more.is_empty() {
                record.blocks = found.into();
            }
            op.set_inode(ino, record);
            Ok(Outcome::Repaired)
        })
        .await?;
        if rest.is_empty() {
            break;
        }
    }
    Ok(if lost.is_empty() {
        Outcome::Repaired
    } else {
        Outcome::Lost(lost_bytes(ino, &lost, record.size.get()))
    })
}

impl FsCall<'_> {
    /// Repairs damage that one transaction can repair.
    async fn mend(&mut self, scan: &Scan, damage: &Damage) -> Result<Outcome, FsError> {
        match damage {
            Damage::UnknownRecord(key) | Damage::BadRecord(key) => {
                self.delete(key.to_vec());
                Ok(Outcome::Lost(lost_record(key)))
            }
            Damage::BadList { ino, name } => {
                self.delete(xattr_key(*ino, name));
                Ok(Outcome::Lost(format!("an access control list of inode {ino}")))
            }
            Damage::Overlap { ino, at, blocks, .. } => self.cut_extent(*ino, *at, *blocks).await,
            Damage::BadFreed { start, .. } => {
                self.delete(freed_key(*start));
                Ok(Outcome::Repaired)
            }
            Damage::NotMarked { start, blocks } => {
                self.set_bits(Run { start: *start, blocks: *blocks }).await?;
                Ok(Outcome::Repaired)
            }
            Damage::DanglingName { directory, name, position, .. }
            | Damage::SecondName { directory, name, position, .. } => {
                let found = scan.name_at(*directory, *position).ok_or(FsError::NotFound)?;
                self.clear_place(found).await?;
                Ok(Outcome::Lost(format!("name {} in directory {directory}", text(name))))
            }
            Damage::DoubleName { directory, position, name }
            | Damage::MisplacedName { directory, position, name } => {
                self.move_to_its_slot(scan, *directory, *position, name).await
            }
            Damage::WrongKind { directory, position, ino, .. } => {
                let kind = kind_of(*ino, &self.inode(*ino).await?)?;
                let found = scan.name_at(*directory, *position).ok_or(FsError::NotFound)?;
                self.rewrite_place(found, kind).await
            }
            Damage::Cycle { ino } => {
                let found = scan.name_of(*ino).ok_or(FsError::NotFound)?;
                self.clear_place(found).await?;
                Ok(Outcome::Lost(format!("the name of directory {ino}")))
            }
            Damage::NoTarget { ino } => self.mend_target(scan, *ino).await,
            Damage::UnlistedOrphan { ino } => {
                self.note_orphan(*ino);
                Ok(Outcome::Repaired)
            }
            Damage::StaleRemoval { ino } | Damage::StaleOrphan { ino } => {
                match damage {
                    Damage::StaleOrphan { .. } => self.forget_orphan(*ino),
                    _ => self.forget_removed(*ino),
                }
                Ok(Outcome::Repaired)
            }
            Damage::WrongNumber { highest, .. } => {
                let next = highest.saturating_add(NUMBERS_SKIPPED).min(END_OF_NUMBERS);
                self.set_next_number(next);
                Ok(Outcome::Repaired)
            }
            Damage::NoQuotaRoot { root } => {
                self.delete(quota_key(*root));
                Ok(Outcome::Lost(format!("the limits of quota {root}")))
            }
            Damage::WrongUsage { root, found, .. } => self.mend_usage(*root, *found).await,
            other => self.mend_inode(other).await,
        }
    }

    /// Corrects an inode's record.
    async fn mend_inode(&mut self, damage: &Damage) -> Result<Outcome, FsError> {
        let ino = match damage {
            Damage::WrongLinks { ino, .. }
            | Damage::WrongParent { ino, .. }
            | Damage::WrongCount { ino, .. }
            | Damage::WrongSize { ino, .. }
            | Damage::WrongQuota { ino, .. }
            | Damage::WrongFlags { ino } => *ino,
            _ => return Ok(Outcome::Left),
        };
        let mut record = self.inode(ino).await?;
        match damage {
            Damage::WrongLinks { found, .. } => record.links = (*found).into(),
            Damage::WrongParent { found, .. } => record.parent = (*found).into(),
            Damage::WrongCount { found, .. } => record.size = (*found).into(),
            Damage::WrongSize { .. } => record.size = MAX_FILE.into(),
            Damage::WrongQuota { found, .. } => record.quota = (*found).into(),
            _ => {
                record.flags &= !(HAS_XATTRS | HAS_ACL | HAS_DEFAULT_ACL);
                let range = key(ino, Tag::Xattr, &[])..key_behind(ino, Tag::Xattr);
                let lists = [(ACCESS_ACL, HAS_ACL), (DEFAULT_ACL, HAS_DEFAULT_ACL)];
                for (key, _) in self.range(range, usize::MAX).await? {
                    let list = lists.iter().find(|(name, _)| key[9..] == **name);
                    record.flags |= HAS_XATTRS | list.map_or(0, |(_, flag)| *flag);
                }
                if self.stored_extents(ino).await?.iter().any(Extent::is_lost) {
                    record.flags |= HAS_LOST;
                }
            }
        }
        self.set_inode(ino, record);
        Ok(Outcome::Repaired)
    }

    /// The extents of an inode, as they are stored.
    async fn stored_extents(&mut self, ino: u64) -> Result<Vec<Extent>, FsError> {
        let range = key(ino, Tag::Extent, &[])..key_behind(ino, Tag::Extent);
        let mut extents = Vec::new();
        for (key, value) in self.range(range, usize::MAX).await? {
            let extent = self.inner.area.extent(&key[9..], &value);
            extents.push(extent.ok_or(FsError::NotFound)?);
        }
        Ok(extents)
    }

    /// Records that blocks of a file are lost: there are none of data. An older program cannot read that.
    async fn record_lost(&mut self, ino: u64, ranges: &[Range<u64>]) -> Result<(), FsError> {
        if ranges.is_empty() {
            return Ok(());
        }
        self.raise_version(LOST_VERSION).await?;
        let mut record = self.inode(ino).await?;
        record.flags |= HAS_LOST;
        self.set_inode(ino, record);
        for range in ranges {
            let extent = Extent::lost(range.clone());
            self.put(extent.key(ino), extent.encode());
        }
        Ok(())
    }

    /// Creates an inode for existing records. If the file may have lost extents, the record counts their
    /// blocks too: they are then recorded as lost.
    async fn make_inode(&mut self, ino: u64, missing: &Missing) -> Result<Outcome, FsError> {
        let is_directory = ino == Ino::ROOT.0 || self.has_records(ino, Tag::Entry).await?;
        let target = self.get(&key(ino, Tag::Target, &[])).await?;
        let extents = self.stored_extents(ino).await?;
        let end = extents.last().map_or(0, Extent::end);
        let stored = extents.iter().filter(|extent| !extent.is_lost());
        let mut blocks: u64 = stored.map(|extent| extent.blocks).sum();
        let is_known = missing.has(&key(ino, Tag::Inode, &[]));
        let (kind, size) = match &target {
            _ if is_directory => (Kind::Directory, 0),
            Some(target) if extents.is_empty() => (Kind::Symlink, target.len() as u64),
            _ => (Kind::File, end * BLOCK),
        };
        if kind == Kind::File {
            let holes = lost::holes(&extents, end);
            let known = is_known.then(|| lost::suspects(&holes, &missing.beginnings(ino)));
            blocks += lost::blocks_of(known.as_ref().unwrap_or(&holes));
        }
        let flags = if extents.iter().any(Extent::is_lost) { HAS_LOST } else { 0 };
        self.put_made(ino, (kind, flags), (size, blocks), 0);
        Ok(Outcome::Lost(format!("owner, mode, size and times of inode {ino}")))
    }

    /// Removes the front of an extent whose blocks another inode has. The file's content there is lost,
    /// unless another of its own extents has the same blocks.
    async fn cut_extent(&mut self, ino: u64, at: u64, blocks: u64) -> Result<Outcome, FsError> {
        let Some(value) = self.get(&extent_key(ino, at)).await? else { return Ok(Outcome::Left) };
        let rest = (at as u32).to_be_bytes();
        let extent = self.inner.area.extent(&rest, &value);
        let extent = extent.ok_or(FsError::NotFound)?;
        if extent.is_lost() {
            return Ok(Outcome::Left);
        }
        self.delete(extent_key(ino, at));
        let blocks = blocks.min(extent.blocks);
        let mut others = self.stored_extents(ino).await?;
        others.retain(|other| other.at != at);
        let mut gone = at..at + blocks;
        if extent.blocks > blocks {
            let rest = extent.part(gone.end..extent.end());
            // Where another one begins there already, this one is lost as a whole.
            if others.iter().any(|other| other.at == rest.at) {
                gone.end = extent.end()
            } else {
                self.put(rest.key(ino), rest.encode())
            }
        }
        let mut lost = lost::holes(&others, gone.end);
        lost.retain(|hole| hole.end > gone.start);
        lost.iter_mut().for_each(|hole| hole.start = hole.start.max(gone.start));
        let mut record = self.inode(ino).await?;
        let size = record.size.get();
        lost.retain(|hole| hole.start * BLOCK < size);
        record.blocks = record.blocks.get().saturating_sub(gone.end - gone.start).into();
        self.set_inode(ino, record);
        self.record_lost(ino, &lost).await?;
        Ok(Outcome::Lost(lost_bytes(ino, &[gone], size)))
    }

    /// Marks blocks as in use; some of them may be already.
    async fn set_bits(&mut self, run: Run) -> Result<(), FsError> {
        use crate::local::format::BITS_PER_PAGE;
        for block in run.start..run.start + run.blocks {
            let page = self.page(block / BITS_PER_PAGE).await?;
            let bit = block % BITS_PER_PAGE;
            page.flip(bit..bit + 1, true);
        }
        Ok(())
    }

    /// Clears a place in a directory.
    async fn clear_place(&mut self, name: &Name) -> Result<(), FsError> {
        self.put(place_key(name.directory, name.position), DirSlot::Vacant.encode());
        if let Some(mut record) = self.find_inode(name.directory).await? {
            record.size = record.size.get().saturating_sub(1).into();
            self.set_inode(name.directory, record);
        }
        Ok(())
    }

    /// Says of a name that it leads to an inode of a kind.
    async fn rewrite_place(&mut self, name: &Name, kind: Kind) -> Result<Outcome, FsError> {
        let key = place_key(name.directory, name.position);
        let value = self.get(&key).await?.ok_or(FsError::NotFound)?;
        let Some(DirSlot::Taken(entry)) = DirSlot::decode(&value) else { return Ok(Outcome::Left) };
        self.put(key, DirSlot::Taken(DirectoryEntry { kind, ..entry }).encode());
        Ok(Outcome::Repaired)
    }

    /// Moves a name to where it is looked for; it goes if there is one already.
    async fn move_to_its_slot(
        &mut self,
        scan: &Scan,
        directory: u64,
        position: u64,
        text: &Bytes,
    ) -> Result<Outcome, FsError> {
        let name = scan.name_at(directory, position).ok_or(FsError::NotFound)?;
        self.clear_place(name).await?;
        match self.lookup(directory, text).await {
            Ok(there) if there.ino.0 == name.ino => return Ok(Outcome::Repaired),
            Ok(_) | Err(FsError::Damaged(_)) => {
                return Ok(Outcome::Lost(format!(
                    "the second name {} in directory {directory}, for inode {}",
                    self::text(text),
                    name.ino
                )));
            }
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error),
        }
        let Some(record) = self.find_inode(name.ino).await? else {
            let name = format!("name {} in directory {directory}", self::text(text));
            return Ok(Outcome::Lost(name));
        };
        let kind = kind_of(name.ino, &record)?;
        let slot = self.absent(directory, text).await?;
        self.add_name(directory, text, slot, (name.ino, kind)).await?;
        Ok(Outcome::Repaired)
    }

    /// Removes a symbolic link without its target; corrects the size of one with a target of another length.
    async fn mend_target(&mut self, scan: &Scan, ino: u64) -> Result<Outcome, FsError> {
        let mut record = self.inode(ino).await?;
        if let Some(target) = self.get(&key(ino, Tag::Target, &[])).await? {
            record.size = (target.len() as u64).into();
            self.set_inode(ino, record);
            return Ok(Outcome::Repaired);
        }
        for name in scan.names.iter().filter(|name| name.ino == ino) {
            self.clear_place(name).await?;
        }
        self.charge(record.quota.get(), 0, -1).await?;
        self.remove_inode(ino);
        Ok(Outcome::Lost(format!("symbolic link {ino}")))
    }
}

/// Says which bytes of a file of some size are lost with these blocks.
fn lost_bytes(ino: u64, blocks: &[Range<u64>], size: u64) -> String {
    let bytes = |it: &Range<u64>| format!("{} to {}", it.start * BLOCK, (it.end * BLOCK).min(size));
    let mut told: Vec<String> = blocks.iter().take(TOLD).map(bytes).collect();
    if blocks.len() > TOLD {
        told.push(format!("{} more such ranges", blocks.len() - TOLD));
    }
    format!("bytes {} of inode {ino}", told.join(", "))
}

fn lost_record(key: &[u8]) -> String {
    match parse_key(key) {
        Some((ino, tag, _)) if ino > 0 => format!("a record of inode {ino}: {tag:?}"),
        Some((_, tag, _)) => format!("a record of the filesystem: {tag:?}"),
        None => "a record of no known kind".to_owned(),
    }
}

fn text(name: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(name))
}
