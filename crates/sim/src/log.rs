//! The log of a recording: every write, discard and flush of its devices, in one order.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_store::device::Geometry;

use crate::content::{Content, PATTERN};

/// One event in the common order. Writes and flushes are numbered from 0 over all devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write or discard was submitted.
    WriteBegan(usize),
    /// A write or discard was completed.
    WriteEnded(usize),
    /// A flush was submitted to the device with this index.
    FlushBegan {
        /// The flush's number.
        flush: usize,
        /// The device's index.
        device: usize,
    },
    /// A flush was completed.
    FlushEnded {
        /// The flush's number.
        flush: usize,
        /// The device's index.
        device: usize,
    },
    /// The checker's own mark.
    Mark(u64),
}

/// A logged write or discard.
#[derive(Clone, Debug)]
pub struct Change {
    /// The device's index.
    pub device: usize,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The content of the range afterwards.
    pub payload: Payload,
}

/// The content of a range after a change.
#[derive(Clone, Debug)]
pub enum Payload {
    /// The buffers of a write, one after the other.
    Data(Vec<Bytes>),
    /// A repeated pattern: one possible content of a discarded range.
    Fill([u8; PATTERN]),
    /// The old content: another possible content of a discarded range.
    Keep,
}

impl Change {
    /// Applies the whole change to its device's content.
    pub fn apply(&self, content: &mut Content) {
        match &self.payload {
            Payload::Data(data) => content.write_all(self.offset, data),
            Payload::Fill(pattern) => content.fill(self.offset, self.len, *pattern),
            Payload::Keep => {}
        }
    }

    /// Applies the pieces of `unit` bytes that `keep` selects.
    pub fn apply_torn(&self, content: &mut Content, unit: u64, mut keep: impl FnMut() -> bool) {
        match &self.payload {
            Payload::Data(data) => {
                let mut at = self.offset;
                let unit = usize::try_from(unit).unwrap_or(usize::MAX);
                for piece in data.iter().flat_map(|buffer| buffer.chunks(unit)) {
                    if keep() {
                        content.write(at, piece);
                    }
                    at += piece.len() as u64;
                }
            }
            Payload::Fill(pattern) => {
                let end = self.offset + self.len;
                // A discard may span a whole device: a few large pieces test as much.
                let unit = unit * (self.len / unit).div_ceil(64).max(1);
                let mut at = self.offset;
                while at < end {
                    let take = unit.min(end - at);
                    if keep() {
                        content.fill(at, take, *pattern);
                    }
                    at += take;
                }
            }
            Payload::Keep => {}
        }
    }
}

/// A device at the start of its recording.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The device's name.
    pub name: String,
    /// Its size and sector.
    pub geometry: Geometry,
    /// Its content.
    pub content: Content,
}

/// Everything that was recorded.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The devices, by index.
    pub origins: Vec<Origin>,
    /// The common order.
    pub events: Vec<Event>,
    /// Writes and discards, by number.
    pub changes: Vec<Arc<Change>>,
    pub(crate) flushes: usize,
}
