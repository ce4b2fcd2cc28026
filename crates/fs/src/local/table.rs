//! The table of reservations, and the lists that it leads to, as they are stored.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::txn::{FRAGMENT, Transaction};

use super::area::DataArea;
use super::extents::Run;
use super::format::{LIST_ENTRIES, ListKind, ListPage, NO_OWNER, Tag, key};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use crate::error::FsError;

/// The key of the record that leads to the table of reservations.
pub(super) fn table_key() -> Vec<u8> {
    key(0, Tag::Reservations, &[])
}

impl ListPage {
    /// The runs that it lists.
    pub(super) fn runs(&self, area: &DataArea) -> Result<Vec<Run>, FsError> {
        let runs = (0..LIST_ENTRIES).map(|at| self.get(at)).filter(|entry| *entry != (0, 0));
        let run = |(start, count): (u64, u64)| {
            let damaged = || FsError::Damaged("a reserved run of blocks is invalid".to_owned());
            area.run(start, count).ok_or_else(damaged)
        };
        runs.map(run).collect()
    }
}

impl FsCall<'_> {
    async fn stored_table(&mut self) -> Result<Option<u64>, FsError> {
        let Some(value) = self.get(&table_key()).await? else { return Ok(None) };
        let block = value.as_ref().try_into().ok().map(u64::from_le_bytes);
        let block = block.filter(|block| self.inner.area.has(*block, 1));
        block.map(Some).ok_or_else(|| {
            FsError::Damaged("the record of the table of reservations is invalid".to_owned())
        })
    }

    /// One block of a list, without anything that depends on its entries.
    pub(super) async fn read_list(
        &self,
        block: u64,
        kind: ListKind,
        shared: bool,
    ) -> Result<ListPage, FsError> {
        let lba = self.inner.area.lba(block);
        let content = self.txn.read(lba).await?;
        if shared {
            self.txn.mark_accessed(lba, 0..FRAGMENT)?;
        }
        let page = ListPage::read(content, kind, self.inner.area.tag());
        page.ok_or_else(|| FsError::Damaged(format!("block {block} is no list of reservations")))
    }

    pub(super) fn depend_on_slot(&self, table: u64, slot: usize) -> Result<(), FsError> {
        let range = ListPage::range(slot);
        Ok(self.txn.mark_accessed(self.inner.area.lba(table), range)?)
    }

    /// Writes a block of a list.
    pub(super) fn put_page(&mut self, block: u64, content: Bytes) {
        self.lists.push((block, Some(content), 0..BLOCK_SIZE));
    }

    /// Writes a block of a list, of which one slot has changed.
    pub(super) fn put_entry(&mut self, block: u64, page: ListPage, slot: usize) {
        self.lists.push((block, Some(page.into_bytes()), ListPage::range(slot)));
    }
}

impl FsState {
    /// The block of the table of reservations, if there is one.
    pub(super) async fn table(&self, txn: &Arc<dyn Transaction>) -> Result<Option<u64>, FsError> {
        if let Some(table) = self.table.get() {
            return Ok(Some(*table));
        }
        let found = FsCall::new(self, txn, false).stored_table().await?;
        Ok(found.map(|table| *self.table.get_or_init(|| table)))
    }

    /// Makes the table of reservations where it is missing. Where no block is free there is no table, and
    /// transactions hold contents in memory.
    ///
    /// # Errors
    /// Those of the transaction.
    pub(super) async fn make_table(&self) -> Result<(), FsError> {
        let txn = self.look().await?;
        if self.table(&txn).await?.is_some() {
            return Ok(());
        }
        drop(txn);
        let made = self
            .change(async |txn| {
                let mut op = FsCall::new(self, &txn, false);
                if op.stored_table().await?.is_none() {
                    let runs = op.allocate_blocks(0, 0, 1, 0).await?;
                    let block = runs.first().map_or(0, |run| run.start);
                    let tag = self.area.tag();
                    let page = ListPage::new(ListKind::Table, tag, NO_OWNER, None);
                    op.put_page(block, page.into_bytes());
                    op.put(table_key(), block.to_le_bytes().to_vec());
                }
                Ok(((), op.finish().await?))
            })
            .await;
        match made {
            Err(FsError::NoSpace) => Ok(()),
            made => {
                made?;
                let txn = self.look().await?;
                self.table(&txn).await.map(drop)
            }
        }
    }
}
