//! Which calls of a session the filesystem has, as its records say.

use parking_lot::Mutex;
use thalweg_env::HashMap;
use thalweg_fs::session_table::{Committed, SlotRecord};

/// The calls of a session that were recorded before this server started, and those that were made again.
#[derive(Debug, Default)]
pub(in crate::server) struct CallRecords {
    /// By slots, the last calls that an earlier incarnation of the server has recorded.
    recorded: Mutex<HashMap<u16, SlotRecord>>,
    /// By numbers, the calls that were made again here, until the client knows that it has reclaimed everything.
    replayed: Mutex<Option<HashMap<u64, Committed>>>,
}

impl CallRecords {
    /// The records of an earlier incarnation.
    pub(in crate::server) fn expect(&self, slots: Vec<SlotRecord>) {
        *self.recorded.lock() = slots.into_iter().map(|it| (it.slot, it)).collect();
        *self.replayed.lock() = Some(HashMap::default());
    }

    /// The record of the last call of a slot.
    pub(in crate::server) fn last_of(&self, slot: u16) -> Option<SlotRecord> {
        self.recorded.lock().get(&slot).copied()
    }

    /// The record of a call, if it is the last of a slot.
    pub(in crate::server) fn of(&self, number: u64) -> Option<SlotRecord> {
        self.recorded.lock().values().find(|it| it.number == number).copied()
    }

    /// A later call has recorded this one.
    pub(in crate::server) fn add(&self, record: SlotRecord) {
        self.recorded.lock().insert(record.slot, record);
    }

    /// Whether the client may make calls again: it has not said yet that it knows that it has reclaimed everything.
    pub(in crate::server) fn may_replay(&self) -> bool {
        self.replayed.lock().is_some()
    }

    /// What a call has come to that was made again here.
    pub(in crate::server) fn replayed(&self, number: u64) -> Option<Committed> {
        self.replayed.lock().as_ref()?.get(&number).copied()
    }

    /// A call was made again.
    pub(in crate::server) fn add_replayed(&self, number: u64, committed: Committed) {
        self.replayed.lock().get_or_insert_default().insert(number, committed);
    }

    /// The client knows that it has reclaimed everything: it makes no call again.
    pub(in crate::server) fn end_replays(&self) {
        drop(self.replayed.lock().take());
    }
}
