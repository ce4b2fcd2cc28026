//! A transaction in memory, and its encoding.

use bytes::Bytes;

use super::address::{Address, put_var, take_var};
use super::format::{FRESH, KIND, KIND_BYTES, KIND_VOID, KIND_WHOLE, SAME};
use super::log::LogRecord;
use crate::block::BLOCK_SIZE;

/// One update of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update<A> {
    /// Some bytes of a block.
    Bytes {
        /// The block.
        at: A,
        /// The first byte in it.
        offset: usize,
        /// The new bytes: at least one.
        bytes: Bytes,
        /// The block was empty before: recovery need not read it.
        fresh: bool,
    },
    /// A whole block.
    Whole {
        /// The block.
        at: A,
        /// Its whole content.
        content: Bytes,
    },
    /// Earlier transactions' updates of a run of blocks are revoked.
    Void(Void<A>),
}

/// A run of blocks whose earlier updates are revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Void<A> {
    /// The first block.
    pub at: A,
    /// Number of blocks.
    pub count: u64,
    /// The user's note on them.
    pub note: u8,
}

impl<A: Copy> Update<A> {
    /// The block, or the first block of the run.
    pub fn at(&self) -> A {
        match self {
            Update::Bytes { at, .. } | Update::Whole { at, .. } | Update::Void(Void { at, .. }) => {
                *at
            }
        }
    }
}

/// A transaction to be appended. Later updates of a block override earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<A> {
    /// The user's stamp: recovery reports that of the last transaction.
    pub stamp: u64,
    /// Its updates, in order.
    pub updates: Vec<Update<A>>,
}

impl<A: Address> Record<A> {
    /// Encodes the transaction.
    pub(super) fn encode(&self) -> LogRecord {
        let body = self.updates.iter().filter_map(|update| match update {
            Update::Bytes { bytes, .. } => Some(bytes.clone()),
            _ => None,
        });
        LogRecord {
            stamp: self.stamp,
            header: self.encode_tags(),
            body: body.collect(),
            blocks: self.updates.iter().filter_map(Update::whole).collect(),
        }
    }

    /// Bytes of tags and payload, without commit record and padding.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        let of = |update: &Update<A>| match update {
            Update::Bytes { bytes, .. } => bytes.len(),
            Update::Whole { content, .. } => content.len(),
            Update::Void(_) => 0,
        };
        self.encode_tags().len() + self.updates.iter().map(of).sum::<usize>()
    }

    fn encode_tags(&self) -> Vec<u8> {
        let mut tags = Vec::with_capacity(self.updates.len() * 8);
        // The previous tag's block, and where its bytes ended.
        let mut before: Option<(A, usize)> = None;
        for update in &self.updates {
            let at = update.at();
            let follows = before.filter(|(there, _)| *there == at);
            let head = |kind: u8, fresh: bool, same: bool| {
                kind | if fresh { FRESH } else { 0 } | if same { SAME } else { 0 }
            };
            match update {
                Update::Bytes { offset, bytes, fresh, .. } => {
                    let same = follows.filter(|(_, end)| end <= offset);
                    tags.push(head(KIND_BYTES, *fresh, same.is_some()));
                    match same {
                        Some((_, end)) => put_var((offset - end) as u64, &mut tags),
                        None => {
                            at.encode(before.map(|(at, _)| at), &mut tags);
                            put_var(*offset as u64, &mut tags);
                        }
                    }
                    put_var(bytes.len().saturating_sub(1) as u64, &mut tags);
                    before = Some((at, offset + bytes.len()));
                }
                Update::Whole { .. } => {
                    tags.push(head(KIND_WHOLE, false, false));
                    at.encode(before.map(|(at, _)| at), &mut tags);
                    before = Some((at, BLOCK_SIZE));
                }
                Update::Void(Void { count, note, .. }) => {
                    tags.push(head(KIND_VOID, false, false));
                    at.encode(before.map(|(at, _)| at), &mut tags);
                    put_var(count.saturating_sub(1), &mut tags);
                    tags.push(*note);
                    before = Some((at, BLOCK_SIZE));
                }
            }
        }
        tags
    }
}

impl<A> Update<A> {
    fn whole(&self) -> Option<Bytes> {
        match self {
            Update::Whole { content, .. } => Some(content.clone()),
            _ => None,
        }
    }
}

/// A decoded tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag<A> {
    /// The next `len` bytes of the multiwrite blocks.
    Bytes {
        at: A,
        offset: usize,
        len: usize,
        fresh: bool,
    },
    /// The next regular block.
    Whole {
        at: A,
    },
    Void(Void<A>),
}

/// Decodes the tags of a transaction; `None` when they are invalid.
pub(super) fn decode_tags<A: Address>(mut from: &[u8]) -> Option<Vec<Tag<A>>> {
    let mut tags = Vec::new();
    let mut before: Option<(A, usize)> = None;
    while let Some((head, rest)) = from.split_first() {
        from = rest;
        if head & !(KIND | SAME | FRESH) != 0 {
            return None;
        }
        let there = before.map(|(at, _)| at);
        let tag = match head & KIND {
            KIND_BYTES => {
                let (at, base) = match head & SAME != 0 {
                    true => before?,
                    false => (A::decode(&mut from, there)?, 0),
                };
                let offset =
                    usize::try_from(take_var::<u64>(&mut from)?).ok()?.checked_add(base)?;
                let len = usize::try_from(take_var::<u64>(&mut from)?).ok()?.checked_add(1)?;
                let end = offset.checked_add(len).filter(|end| *end <= BLOCK_SIZE)?;
                before = Some((at, end));
                Tag::Bytes { at, offset, len, fresh: head & FRESH != 0 }
            }
            KIND_WHOLE => {
                let at = A::decode(&mut from, there)?;
                before = Some((at, BLOCK_SIZE));
                Tag::Whole { at }
            }
            KIND_VOID => {
                let at = A::decode(&mut from, there)?;
                let count = take_var::<u64>(&mut from)?.checked_add(1)?;
                at.plus(count)?;
                let (note, rest) = from.split_first()?;
                from = rest;
                before = Some((at, BLOCK_SIZE));
                Tag::Void(Void { at, count, note: *note })
            }
            _ => return None,
        };
        tags.push(tag);
    }
    Some(tags)
}
