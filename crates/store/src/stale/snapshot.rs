//! Snapshots: ordinary reads and writes at one version (5.2.2).

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{StaleError, StaleView, Versioned};
use crate::block::{BLOCK_SIZE, Class, Lba, StoreError, Version, Write};

/// Reads, and writes that become visible together when it is closed. It decides nothing about other writers: of two that
/// use one version, one fails.
pub struct Snapshot {
    versions: Versioned,
    version: Version,
    view: StaleView,
    /// Of a new version: what was written, and later changes replace earlier ones.
    writes: Option<Mutex<Written>>,
}

#[derive(Default)]
struct Written {
    blocks: BTreeMap<Lba, (Option<Bytes>, Class)>,
    is_closed: bool,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Snapshot {
    pub(super) fn open(versions: &Versioned, version: Version) -> Result<Snapshot, StaleError> {
        let now = versions.store().now();
        let is_new = version > now;
        let view = StaleView::at(versions, if is_new { now } else { version })?;
        let writes = is_new.then(Mutex::default);
        Ok(Snapshot { versions: versions.clone(), version, view, writes })
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The version that it reads, beside what was written through it.
    pub fn read_version(&self) -> Version {
        self.view.range().up
    }

    /// Whether it takes writes.
    pub fn is_writable(&self) -> bool {
        self.writes.is_some()
    }

    /// The content of a block: what was written through the snapshot, or else what is stored.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn read(&self, lba: Lba) -> Result<Option<Bytes>, StaleError> {
        let written = self.writes.as_ref().and_then(|writes| {
            let writes = writes.lock();
            writes.blocks.get(&lba).map(|(content, _)| content.clone())
        });
        match written {
            Some(content) => Ok(content),
            None => Ok(self.view.read(lba).await?),
        }
    }

    /// [`Snapshot::write`], of data or metadata.
    ///
    /// # Errors
    /// As [`Snapshot::write`].
    pub fn write_as(
        &self,
        lba: Lba,
        content: Option<Bytes>,
        class: Class,
    ) -> Result<(), StaleError> {
        let writes = self.writes.as_ref().ok_or(StaleError::OldSnapshot(self.version))?;
        let blocks = self.versions.store().blocks();
        let invalid = |why: String| Err(StaleError::Store(StoreError::Invalid(why)));
        if lba.0 >= blocks {
            return invalid(format!("block {} is outside of a volume of {blocks} blocks", lba.0));
        }
        if let Some(content) = &content
            && content.len() != BLOCK_SIZE
        {
            return invalid(format!("a block has {BLOCK_SIZE} bytes, not {}", content.len()));
        }
        let mut writes = writes.lock();
        if writes.is_closed {
            return Err(StaleError::Closed);
        }
        writes.blocks.insert(lba, (content, class));
        Ok(())
    }

    /// Writes a block, [`BLOCK_SIZE`] bytes; `None` discards it. Other readers do not see that before the snapshot is closed.
    ///
    /// # Errors
    /// [`StaleError::OldSnapshot`], [`StaleError::Closed`], and [`StoreError::Invalid`].
    pub fn write(&self, lba: Lba, content: Option<Bytes>) -> Result<(), StaleError> {
        self.write_as(lba, content, Class::Data)
    }

    /// Closes it: its writes become visible together, as its version (*CloseSnapshot*). They are durable after a sync of that.
    ///
    /// # Errors
    /// [`StaleError::Closed`]; [`StoreError::Invalid`] when another writer has come to this version or beyond, and
    /// those of the store. Nothing was written then.
    pub async fn close(&self) -> Result<(), StaleError> {
        let Some(writes) = &self.writes else { return Ok(()) };
        let blocks = {
            let mut writes = writes.lock();
            if std::mem::replace(&mut writes.is_closed, true) {
                return Err(StaleError::Closed);
            }
            std::mem::take(&mut writes.blocks)
        };
        if blocks.is_empty() {
            return Ok(());
        }
        let writes = blocks.into_iter().map(|(lba, (content, class))| Write {
            content,
            class,
            ..Write::block(lba, Bytes::new())
        });
        Ok(self.versions.write_all(self.version, writes.collect()).await?)
    }

    /// Forgets its writes, and closes it.
    pub fn discard_writes(&self) {
        if let Some(writes) = &self.writes {
            *writes.lock() = Written { is_closed: true, ..Written::default() };
        }
    }

    /// The store below.
    pub fn versions(&self) -> &Versioned {
        &self.versions
    }
}
