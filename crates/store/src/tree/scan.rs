//! Reads keys and values in order, leaf after leaf, or bucket after bucket.

use std::collections::VecDeque;
use std::ops::Bound;

use bytes::Bytes;

use super::error::TreeError;
use super::value::{Pair, Stored};
use super::work::Work;
use super::{btree, hash};

/// The part of a store that is still to be read, and what was read ahead.
#[derive(Debug)]
pub struct Scan {
    rest: Rest,
    ahead: VecDeque<(Bytes, Stored)>,
}

/// The remaining part.
#[derive(Debug)]
enum Rest {
    Keys { from: Bound<Bytes>, to: Bound<Bytes>, backward: bool },
    Table(u64),
    End,
}

impl Scan {
    /// All of a hash table.
    pub(super) fn table() -> Scan {
        Scan::of(Rest::Table(0))
    }

    /// The keys in a range of a B-tree, in order.
    pub(super) fn keys(from: Bound<Bytes>, to: Bound<Bytes>) -> Scan {
        match is_empty(&from, &to) {
            true => Scan::of(Rest::End),
            false => Scan::of(Rest::Keys { from, to, backward: false }),
        }
    }

    fn of(rest: Rest) -> Scan {
        Scan { rest, ahead: VecDeque::new() }
    }

    /// The same keys in reverse order.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] for a hash table, which has no order, and after the first key.
    pub fn backward(mut self) -> Result<Scan, TreeError> {
        match &mut self.rest {
            Rest::End => Ok(self),
            Rest::Keys { backward, .. } if self.ahead.is_empty() => {
                *backward = true;
                Ok(self)
            }
            _ => Err(TreeError::Invalid(
                "only a b-tree, and only before its first key, can be read backward".to_owned(),
            )),
        }
    }

    /// The next key and its value.
    pub(super) async fn next(&mut self, work: &mut Work<'_>) -> Result<Option<Pair>, TreeError> {
        loop {
            if let Some((key, stored)) = self.ahead.pop_front() {
                return Ok(Some((key, work.fetch(stored).await?)));
            }
            if matches!(self.rest, Rest::End) {
                return Ok(None);
            }
            self.fill(work).await?;
        }
    }

    /// Reads the next leaf or bucket.
    async fn fill(&mut self, work: &mut Work<'_>) -> Result<(), TreeError> {
        let (entries, rest) = match std::mem::replace(&mut self.rest, Rest::End) {
            Rest::End => return Ok(()),
            Rest::Table(at) => {
                let part = hash::iterate(work, at).await?;
                (part.entries, part.rest.map(Rest::Table))
            }
            Rest::Keys { from, to, backward: false } => {
                let part = btree::ascend(work, &from, &to).await?;
                let rest = part.rest.map(|from| Rest::Keys { from, to, backward: false });
                (part.entries, rest)
            }
            Rest::Keys { from, to, backward: true } => {
                let part = btree::descend_part(work, &from, &to).await?;
                let rest = part.rest.map(|to| Rest::Keys { from, to, backward: true });
                (part.entries, rest)
            }
        };
        self.ahead.extend(entries);
        self.rest = rest.unwrap_or(Rest::End);
        Ok(())
    }
}

/// Whether a range can contain no key.
fn is_empty(from: &Bound<Bytes>, to: &Bound<Bytes>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (
            Bound::Included(from) | Bound::Excluded(from),
            Bound::Included(to) | Bound::Excluded(to),
        ) => from >= to,
        _ => false,
    }
}
