//! The records that a server of a filesystem keeps in it: its clients' sessions, and which of their calls it holds.
//!
//! A call that changes something is recorded in the transaction of its change. So after a crash the filesystem says which
//! calls of each client it has; the others can be made again, with the same inode numbers and times.
//!
//! The calls of a session use *slots*, each for one call at a time, as in NFS version 4.1 (RFC 8881, 2.10.6). A slot has the
//! record of its last call: with that one, the filesystem holds all earlier calls of the slot.

use std::ops::Range;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::attributes::{Ino, Timestamp};

/// A call that changes something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordedCall {
    /// The session's number.
    pub session: u64,
    /// Its slot. No other call of the slot is under way.
    pub slot: u16,
    /// Its number, which is higher than those of earlier calls of the slot.
    pub number: u64,
    /// What it came to when it was made before a crash.
    pub before: Option<Committed>,
}

/// What a call has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Committed {
    /// The version of the volume that has it. A higher one has it too.
    pub version: u64,
    /// The time of the change.
    pub time: Timestamp,
    /// The number of the new inode, the offset of a write, the bytes that were copied, or 0.
    pub outcome: u64,
}

/// The last call of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotRecord {
    /// The slot.
    pub slot: u16,
    /// The number of the call.
    pub number: u64,
    /// As in [`Committed`].
    pub outcome: u64,
    /// [`JournalPosition::hash`] of a call by which mutations were applied; else 0.
    pub hash: u64,
}

/// A position in a client's journal, which counts mutations from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JournalPosition {
    /// How many mutations there are up to here.
    pub position: u64,
    /// The client's hash over all of them; 0 before the first one.
    pub hash: u64,
}

/// A call that is recorded by a later one, which has replaced everything that it would have come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SupersededCall {
    /// The number of its session.
    pub session: u64,
    /// Its record.
    pub record: SlotRecord,
}

/// A session.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SessionRecord {
    /// Its number.
    pub session: u64,
    /// What the server has written down of it. Nothing: it has ended, and a crash has left slots of it.
    pub info: Bytes,
    /// Its slots that were used.
    pub slots: Vec<SlotRecord>,
    /// The inodes that it was shut out of, and the generation of the inode tokens that are valid since.
    pub revoked: Vec<(Ino, u64)>,
    /// Of a client with a journal: what it may have changed there.
    pub held: Held,
}

/// What a client with a journal may change by itself: its journal may have changes of that, also when the client reboots or is away.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Inodes that were delegated to it.
    pub inodes: Vec<Ino>,
    /// Inode numbers that were reserved for it.
    pub numbers: Vec<Range<u64>>,
    /// Inodes of these that other clients have used while it was away.
    pub used: Vec<UsedByOthers>,
    /// The filesystem was used without a server meanwhile.
    pub all: Option<AllUsed>,
    /// Inodes that it has made since.
    pub made: Vec<Ino>,
}

/// The filesystem was used without a server, by programs that note nothing: each inode that it had counts as used by others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllUsed {
    /// When that began. Each change since has a later time, whatever the clock says.
    pub noted: Timestamp,
    /// The position in the client's journal that the filesystem had: inodes that the client has made behind it came later.
    pub position: u64,
}

/// An inode that other clients have used while the client was away that has changes of it in its journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsedByOthers {
    /// The inode.
    pub ino: Ino,
    /// The time of its last change before that.
    pub changed: Timestamp,
    /// If they have read no bytes, and changed nothing but bytes: these, at most [`MAX_WRITTEN`] ranges. `None`: all of it.
    pub written: Option<Vec<Range<u64>>>,
}

/// Ranges in [`UsedByOthers::written`] at most.
pub const MAX_WRITTEN: usize = 32;

/// Records a call in the transactions of its change.
#[derive(Debug)]
pub struct Recorder {
    /// The call.
    pub call: RecordedCall,
    superseded: Mutex<Vec<SupersededCall>>,
    committed: Mutex<Option<Committed>>,
}

impl Recorder {
    /// Of a call that begins.
    pub fn new(call: RecordedCall) -> Recorder {
        Recorder { call, superseded: Mutex::default(), committed: Mutex::default() }
    }

    /// The call's transaction is to record these, too: it comes after them, and nothing of them is left to be done.
    pub fn supersede(&self, calls: Vec<SupersededCall>) {
        self.superseded.lock().extend(calls);
    }

    /// The calls that it supersedes.
    pub(crate) fn superseded(&self) -> Vec<SupersededCall> {
        self.superseded.lock().clone()
    }

    /// What the call has come to; `None` when it has changed nothing.
    pub fn committed(&self) -> Option<Committed> {
        *self.committed.lock()
    }

    /// The call has committed.
    pub(crate) fn commit(&self, committed: Committed) {
        *self.committed.lock() = Some(committed);
    }
}
