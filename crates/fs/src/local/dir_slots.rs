//! The places of names in a directory.
//!
//! A name lies where its hash says, in the first vacant one of 256 slots. Names with the same hash follow
//! without gaps: a removed name leaves a vacant slot if another one may follow.

use std::hash::Hasher;

use bytes::Bytes;
use siphasher::sip::SipHasher13;

use super::format::{DirSlot, DirectoryEntry, InodeRecord, MAX_SLOTS, Tag, key};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use crate::attributes::Kind;
use crate::error::FsError;

/// The key of a place in a directory.
pub(super) fn place_key(directory: u64, position: u64) -> Vec<u8> {
    key(directory, Tag::Entry, &position.to_be_bytes())
}

/// The place that the key of a record stands for.
pub(super) fn position_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(9..)?.try_into().ok()?))
}

impl FsState {
    /// The first slot of a name's hash.
    pub(super) fn position(&self, name: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.hash_key);
        hasher.write(name);
        let hash = hasher.finish() >> (64 - u32::from(self.hash_bits));
        hash.max(1) * MAX_SLOTS
    }
}

/// An entry, and the slot where it is.
#[derive(Debug)]
pub(super) struct PlacedEntry {
    position: u64,
    pub(super) entry: DirectoryEntry,
}

/// A slot that a name can take.
#[derive(Debug)]
pub(super) struct FreeSlot {
    position: u64,
    /// The slot is that of a removed name, and names may still follow it.
    is_vacant: bool,
    /// The entry in the slot before, if it says that no name follows it.
    last: Option<DirectoryEntry>,
}

/// The result of a search for a name.
#[derive(Debug, Default)]
pub(super) struct DirectoryLookup {
    pub(super) found: Option<PlacedEntry>,
    /// The slot that the name can take, if it is absent and the directory has one.
    free: Option<FreeSlot>,
}

pub(super) fn damaged_place(directory: u64) -> FsError {
    FsError::Damaged(format!("a name in directory {directory} is invalid"))
}

impl FsCall<'_> {
    async fn place(&mut self, directory: u64, position: u64) -> Result<Option<DirSlot>, FsError> {
        let value = self.get(&place_key(directory, position)).await?;
        let decode = |value| DirSlot::decode(&value).ok_or_else(|| damaged_place(directory));
        value.map(decode).transpose()
    }

    fn put_dir_slot(&mut self, directory: u64, position: u64, place: &DirSlot) {
        self.put(place_key(directory, position), place.encode());
    }

    /// Searches for a name. The result is outdated once a name of the directory was added or removed.
    pub(super) async fn find(
        &mut self,
        directory: u64,
        name: &[u8],
    ) -> Result<DirectoryLookup, FsError> {
        let first = self.inner.position(name);
        let end = first + MAX_SLOTS;
        let mut free = None;
        for position in first..end {
            let slot = |is_vacant| FreeSlot { position, is_vacant, last: None };
            match self.place(directory, position).await? {
                None => {
                    return Ok(DirectoryLookup { found: None, free: free.or(Some(slot(false))) });
                }
                Some(DirSlot::Vacant) => free = free.or(Some(slot(true))),
                Some(DirSlot::Taken(entry)) if entry.name == name => {
                    let found = Some(PlacedEntry { position, entry });
                    return Ok(DirectoryLookup { found, free: None });
                }
                Some(DirSlot::Taken(entry)) if !entry.chained => {
                    let position = position + 1;
                    if free.is_none() && position < end {
                        let is_vacant = self.place(directory, position).await?.is_some();
                        free = Some(FreeSlot { position, is_vacant, last: Some(entry) });
                    }
                    return Ok(DirectoryLookup { found: None, free });
                }
                Some(DirSlot::Taken(_)) => {}
            }
        }
        Ok(DirectoryLookup { found: None, free })
    }

    /// A name that exists.
    ///
    /// # Errors
    /// [`FsError::NotFound`]
    pub(super) async fn existing(
        &mut self,
        directory: u64,
        name: &[u8],
    ) -> Result<PlacedEntry, FsError> {
        self.find(directory, name).await?.found.ok_or(FsError::NotFound)
    }

    /// A slot for a name that does not exist yet.
    ///
    /// # Errors
    /// [`FsError::Exists`], and [`FsError::NoSpace`] when too many names have the same hash.
    pub(super) async fn absent(
        &mut self,
        directory: u64,
        name: &[u8],
    ) -> Result<FreeSlot, FsError> {
        let lookup = self.find(directory, name).await?;
        match lookup.found {
            Some(_) => Err(FsError::Exists),
            None => lookup.free.ok_or(FsError::NoSpace),
        }
    }

    /// Adds a name to a directory, and sets the directory's times. `slot` is that of the name's last search.
    pub(super) async fn add_name(
        &mut self,
        directory: u64,
        name: &[u8],
        slot: FreeSlot,
        (ino, kind): (u64, Kind),
    ) -> Result<(), FsError> {
        let FreeSlot { position, is_vacant, last } = slot;
        if let Some(last) = last {
            let last = DirectoryEntry { chained: true, ..last };
            self.put_dir_slot(directory, position - 1, &DirSlot::Taken(last));
        }
        let name = Bytes::copy_from_slice(name);
        let entry = DirectoryEntry { ino, kind, chained: is_vacant, name: name.clone() };
        self.put_dir_slot(directory, position, &DirSlot::Taken(entry));
        let mut record = self.directory(directory).await?;
        record.size = (record.size.get() + 1).into();
        self.touch_directory(directory, record);
        self.note_name(directory, name);
        Ok(())
    }

    /// Takes a name out of a directory. `there` is the result of its last search.
    pub(super) async fn remove_name(
        &mut self,
        directory: u64,
        there: PlacedEntry,
    ) -> Result<(), FsError> {
        let PlacedEntry { position, entry } = there;
        if entry.chained || !position.is_multiple_of(MAX_SLOTS) {
            self.put_dir_slot(directory, position, &DirSlot::Vacant)
        } else {
            self.delete(place_key(directory, position))
        }
        let mut record = self.directory(directory).await?;
        let names = record.size.get().checked_sub(1);
        let names = names.ok_or_else(|| {
            let what = format!("directory {directory} has a name, and its record counts none");
            FsError::Damaged(what)
        })?;
        record.size = names.into();
        self.touch_directory(directory, record);
        self.note_name(directory, entry.name);
        Ok(())
    }

    /// Has a name lead to another inode. `there` is the result of its last search.
    pub(super) async fn redirect(
        &mut self,
        directory: u64,
        there: PlacedEntry,
        (ino, kind): (u64, Kind),
    ) -> Result<(), FsError> {
        let PlacedEntry { position, entry } = there;
        let name = entry.name.clone();
        self.put_dir_slot(
            directory,
            position,
            &DirSlot::Taken(DirectoryEntry { ino, kind, ..entry }),
        );
        let record = self.directory(directory).await?;
        self.touch_directory(directory, record);
        self.note_name(directory, name);
        Ok(())
    }

    fn touch_directory(&mut self, directory: u64, mut record: InodeRecord) {
        self.touch_content(directory, &mut record);
        self.set_inode(directory, record);
    }
}
