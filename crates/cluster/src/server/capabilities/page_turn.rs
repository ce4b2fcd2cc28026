//! Changes of bytes, until their calls are answered.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_fs::Ino;
use tokio::sync::Notify;

use super::pages::content_of;
use super::table::Table;
use crate::protocol::Changed;

/// A change of bytes until its call is answered.
#[derive(Debug)]
pub(in crate::server) struct PageTurn {
    table: Arc<Mutex<Table>>,
    ended: Arc<Notify>,
    number: u64,
    inodes: SmallVec<[Ino; 2]>,
}

impl PageTurn {
    /// Of changes that have begun with this number, if bytes are among them.
    pub(super) fn of(
        table: &Arc<Mutex<Table>>,
        ended: &Arc<Notify>,
        number: u64,
        changes: &[Changed],
    ) -> Option<PageTurn> {
        let inodes: SmallVec<[Ino; 2]> = changes.iter().filter_map(content_of).collect();
        let (table, ended) = (table.clone(), ended.clone());
        (!inodes.is_empty()).then_some(PageTurn { table, ended, number, inodes })
    }

    /// Its call is not answered before other sessions have heard of it: changes that begin from here on do not wait for pages that its
    /// session holds by it.
    pub(in crate::server) fn wait(&self) {
        let mut table = self.table.lock();
        self.inodes.iter().for_each(|ino| table.pages.wait(self.number, *ino));
    }
}

impl Drop for PageTurn {
    fn drop(&mut self) {
        {
            let mut table = self.table.lock();
            self.inodes.iter().for_each(|ino| table.pages.end(self.number, *ino));
        }
        self.ended.notify_waiters();
    }
}
