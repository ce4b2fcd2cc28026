//! Which transactions a journal must keep.
//!
//! Each unit of writes in place (a block, a page of a map) has a [`Claim`] on the oldest transaction that holds
//! a change of it that is not in place. Once the change is in place, the claim waits for a flush; after that it
//! ends. Transactions before the oldest claim may be released.

use std::collections::BTreeMap;

/// The claims on a journal's transactions.
#[derive(Debug, Default)]
pub struct Retention {
    /// Transactions with the number of claims on each.
    claims: BTreeMap<u64, usize>,
    /// Transactions of claims that wait for a flush, each as often as it is claimed.
    unflushed: Vec<u64>,
}

/// What the journal must keep for something that is written in place.
#[derive(Debug, Default)]
pub struct Claim {
    /// The oldest transaction that holds a change that is not in place.
    oldest: Option<u64>,
    /// The first transaction that changed it since its last write in place began.
    since_write: Option<u64>,
}

impl Claim {
    /// The oldest transaction that the journal must keep.
    pub fn oldest(&self) -> Option<u64> {
        self.oldest
    }

    /// A write in place begins: later transactions are not in it.
    pub fn begin_write(&mut self) {
        self.since_write = None;
    }

    /// Takes the transaction out, for [`Retention::await_flush`] or [`Retention::end`].
    pub fn take(&mut self) -> Option<u64> {
        self.since_write = None;
        self.oldest.take()
    }
}

impl Retention {
    /// Notes that transaction `sequence` holds a change.
    pub fn extend(&mut self, claim: &mut Claim, sequence: u64) {
        claim.since_write.get_or_insert(sequence);
        if claim.oldest.is_some_and(|oldest| oldest <= sequence) {
            return;
        }
        if let Some(later) = claim.oldest.replace(sequence) {
            self.end(later);
        }
        *self.claims.entry(sequence).or_default() += 1;
    }

    /// A write in place has ended: its changes wait for a flush. Transactions since it began are still claimed.
    pub fn written(&mut self, claim: &mut Claim) {
        let newer = claim.since_write;
        self.await_flush(claim.take());
        if let Some(newer) = newer {
            self.extend(claim, newer);
        }
    }

    /// Has claims on transactions wait for a flush.
    pub fn await_flush(&mut self, transactions: impl IntoIterator<Item = u64>) {
        self.unflushed.extend(transactions);
    }

    /// A durable transaction revokes all changes of older ones: these need not be kept.
    pub fn revoke(&mut self, claim: &mut Claim) {
        if let Some(oldest) = claim.take() {
            self.end(oldest);
        }
    }

    /// Takes the claims that wait for a flush. After the flush, [`Retention::end`] each.
    pub fn take_unflushed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unflushed)
    }

    /// Ends a claim on transaction `sequence`.
    pub fn end(&mut self, sequence: u64) {
        if let Some(count) = self.claims.get_mut(&sequence) {
            *count -= 1;
            if *count == 0 {
                self.claims.remove(&sequence);
            }
        }
    }

    /// The oldest transaction that the journal must keep.
    pub fn oldest(&self) -> Option<u64> {
        self.claims.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(retention: &mut Retention) {
        retention.take_unflushed().into_iter().for_each(|sequence| retention.end(sequence));
    }

    #[test]
    fn a_transaction_is_kept_until_its_changes_are_in_place_and_flushed() {
        let (mut retention, mut claims) =
            (Retention::default(), [Claim::default(), Claim::default()]);
        for (claim, sequence) in [(0, 5), (1, 5), (1, 6)] {
            retention.extend(&mut claims[claim], sequence);
        }
        for claim in &mut claims {
            assert_eq!((claim.oldest(), retention.oldest()), (Some(5), Some(5)));
            claim.begin_write();
            retention.written(claim);
        }
        assert_eq!(retention.oldest(), Some(5), "not flushed yet");
        flush(&mut retention);
        assert_eq!(retention.oldest(), None);
    }

    #[test]
    fn a_change_during_a_write_is_kept() {
        let (mut retention, mut claim) = (Retention::default(), Claim::default());
        retention.extend(&mut claim, 5);
        claim.begin_write();
        retention.extend(&mut claim, 7);
        retention.extend(&mut claim, 8);
        retention.written(&mut claim);
        flush(&mut retention);
        assert_eq!((claim.oldest(), retention.oldest()), (Some(7), Some(7)));
        retention.revoke(&mut claim);
        assert_eq!((claim.oldest(), retention.oldest()), (None, None));
    }

    #[test]
    fn a_claim_on_an_older_transaction_replaces_one_on_a_later() {
        let (mut retention, mut claim) = (Retention::default(), Claim::default());
        retention.extend(&mut claim, 9);
        retention.extend(&mut claim, 4);
        assert_eq!(retention.oldest(), Some(4));
        retention.revoke(&mut claim);
        assert_eq!(retention.oldest(), None);
    }
}
