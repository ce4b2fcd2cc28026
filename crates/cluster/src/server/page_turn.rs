//! Changes of bytes, until their calls are answered.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_fs::Ino;

use super::capabilities::Table;
use super::pages::content_of;
use crate::protocol::Changed;

/// A change of bytes until its call is answered.
#[derive(Debug)]
pub(super) struct PageTurn {
    table: Arc<Mutex<Table>>,
    number: u64,
    inodes: SmallVec<[Ino; 2]>,
}

impl PageTurn {
    /// Of changes that have begun with this number, if bytes are among them.
    pub(super) fn of(
        table: &Arc<Mutex<Table>>,
        number: u64,
        changes: &[Changed],
    ) -> Option<PageTurn> {
        let inodes: SmallVec<[Ino; 2]> = changes.iter().filter_map(content_of).collect();
        (!inodes.is_empty()).then(|| PageTurn { table: table.clone(), number, inodes })
    }

    /// Its call is not answered before other sessions have heard of it: changes that begin from here on do not wait for pages that its
    /// session holds by it.
    pub(super) fn wait(&self) {
        let mut table = self.table.lock();
        self.inodes.iter().for_each(|ino| table.pages.wait(self.number, *ino));
    }
}

impl Drop for PageTurn {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        self.inodes.iter().for_each(|ino| table.pages.end(self.number, *ino));
        table.pages_ended.notify_waiters();
    }
}
