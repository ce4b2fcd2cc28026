//! Nested transactions, and the thread that a transaction belongs to (Isotope 4.1).
//!
//! A nested pair of begin and end changes nothing, so that a store which begins and ends transactions can be
//! used in a larger one. This is the state of one thread on one volume, and says what a call means there; the
//! caller talks to the volume.
//!
//! - An inner begin gives no new snapshot; an inner end succeeds and changes nothing.
//! - An inner abort dooms the enclosing transaction: until every enclosing pair has ended, each further call
//!   fails with [`TxnError::Doomed`], ends return false, and aborts succeed.
//! - After an abort from outside calls fail with [`TxnError::Preempted`], except that ends return false and
//!   aborts succeed.

use super::{Preempted, TxnError};

/// The nesting state of one thread.
#[derive(Debug)]
pub struct Nest<T> {
    /// The number of open pairs.
    depth: usize,
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    /// No transaction: reads and writes are transactions of their own.
    Outside,
    Running(T),
    /// A nested transaction was aborted.
    Doomed,
    /// It was aborted from outside.
    Preempted(Preempted),
}

/// What the caller has to do at a begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Began {
    /// Begin a transaction: see [`Nest::enter`].
    Outermost,
    /// Nothing.
    Inner,
}

/// What the caller has to do at an end.
#[derive(PartialEq, Eq, Debug)]
pub enum End<T> {
    /// The outermost pair is closed: commit this transaction.
    Commit(T),
    /// An inner pair is closed; nothing to do.
    Inner,
    /// The enclosing transaction will not commit, or has not: return false.
    Failed(TxnFate),
}

/// Why an end returns false.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxnFate {
    /// A nested transaction was aborted.
    Doomed,
    /// It was aborted from outside.
    Preempted(Preempted),
}

impl From<TxnFate> for TxnError {
    fn from(fate: TxnFate) -> TxnError {
        match fate {
            TxnFate::Doomed => TxnError::Doomed,
            TxnFate::Preempted(why) => TxnError::Preempted(why),
        }
    }
}

impl<T> Default for Nest<T> {
    fn default() -> Nest<T> {
        Nest { depth: 0, state: State::Outside }
    }
}

impl<T> Nest<T> {
    /// The number of open pairs.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Opens a pair.
    ///
    /// # Errors
    /// Those of the enclosing transaction; then no pair was opened.
    pub fn begin(&mut self) -> Result<Began, TxnError> {
        match self.running()? {
            None => Ok(Began::Outermost),
            Some(_) => {
                self.depth += 1;
                Ok(Began::Inner)
            }
        }
    }

    /// Binds a transaction that has begun, or was taken over.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] inside of another.
    pub fn enter(&mut self, transaction: T) -> Result<(), TxnError> {
        self.check_outside()?;
        *self = Nest { depth: 1, state: State::Running(transaction) };
        Ok(())
    }

    /// Whether a transaction may be taken over here.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] inside of another.
    pub fn check_outside(&self) -> Result<(), TxnError> {
        match self.depth {
            0 => Ok(()),
            _ => Err(TxnError::Invalid("a transaction is running here already".to_owned())),
        }
    }

    /// Closes a pair.
    ///
    /// # Errors
    /// [`TxnError::Ended`] when no pair is open.
    pub fn end(&mut self) -> Result<End<T>, TxnError> {
        let fate = match &self.state {
            State::Outside => return Err(TxnError::Ended),
            State::Running(_) if self.depth > 1 => {
                self.depth -= 1;
                return Ok(End::Inner);
            }
            State::Running(_) => None,
            State::Doomed => Some(TxnFate::Doomed),
            State::Preempted(why) => Some(TxnFate::Preempted(*why)),
        };
        match fate {
            Some(fate) => {
                self.close();
                Ok(End::Failed(fate))
            }
            None => match std::mem::take(self).state {
                State::Running(transaction) => Ok(End::Commit(transaction)),
                _ => Err(TxnError::Ended),
            },
        }
    }

    /// Aborts. Returns the transaction to abort now, if one still runs.
    ///
    /// # Errors
    /// [`TxnError::Ended`] when no pair is open.
    pub fn abort(&mut self) -> Result<Option<T>, TxnError> {
        if self.depth == 0 {
            return Err(TxnError::Ended);
        }
        let running = match self.state {
            State::Running(_) => match std::mem::replace(&mut self.state, State::Doomed) {
                State::Running(transaction) => Some(transaction),
                _ => None,
            },
            _ => None,
        };
        self.close();
        Ok(running)
    }

    /// Releases the transaction: returns it for the release; the thread is outside of transactions then. A
    /// pair inside of another cannot be released.
    ///
    /// # Errors
    /// [`TxnError::Ended`] outside of a transaction, [`TxnError::Invalid`] inside of an inner pair, and the
    /// error of a transaction that does not run any more.
    pub fn release(&mut self) -> Result<T, TxnError> {
        if self.running()?.is_none() {
            return Err(TxnError::Ended);
        }
        if self.depth > 1 {
            let why = "a nested transaction cannot be released: end it first".to_owned();
            return Err(TxnError::Invalid(why));
        }
        match std::mem::take(self).state {
            State::Running(transaction) => Ok(transaction),
            _ => Err(TxnError::Ended),
        }
    }

    /// The transaction that a read or a write belongs to; `None` outside of one.
    ///
    /// # Errors
    /// The error of a transaction that does not run any more.
    pub fn running(&self) -> Result<Option<&T>, TxnError> {
        match &self.state {
            State::Outside => Ok(None),
            State::Running(transaction) => Ok(Some(transaction)),
            State::Doomed => Err(TxnError::Doomed),
            State::Preempted(why) => Err(TxnError::Preempted(*why)),
        }
    }

    /// Records that the transaction was aborted from outside.
    pub fn preempt(&mut self, why: Preempted) {
        if matches!(self.state, State::Running(_)) {
            self.state = State::Preempted(why);
        }
    }

    /// Closes a pair of a transaction that does not run any more.
    fn close(&mut self) {
        self.depth -= 1;
        if self.depth == 0 {
            self.state = State::Outside;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread inside of `depth` pairs.
    fn nested(depth: usize) -> Nest<u8> {
        let mut nest = Nest::default();
        assert_eq!(nest.begin().unwrap(), Began::Outermost);
        nest.enter(7).unwrap();
        for _ in 1..depth {
            assert_eq!(nest.begin().unwrap(), Began::Inner);
        }
        assert_eq!(nest.depth(), depth);
        nest
    }

    fn is_outside(nest: &mut Nest<u8>) {
        assert_eq!((nest.depth(), nest.running().unwrap()), (0, None));
        assert!(matches!(nest.end(), Err(TxnError::Ended)));
        assert!(matches!(nest.abort(), Err(TxnError::Ended)));
        assert!(matches!(nest.release(), Err(TxnError::Ended)));
    }

    #[test]
    fn outside_reads_and_writes_stand_alone() {
        is_outside(&mut Nest::default());
    }

    #[test]
    fn a_pair_commits() {
        let mut nest = nested(1);
        assert_eq!(nest.running().unwrap(), Some(&7));
        assert_eq!(nest.end().unwrap(), End::Commit(7));
        is_outside(&mut nest);
    }

    #[test]
    fn inner_pairs_change_nothing() {
        let mut nest = nested(3);
        assert_eq!(nest.end().unwrap(), End::Inner);
        assert_eq!(nest.running().unwrap(), Some(&7));
        assert_eq!(nest.end().unwrap(), End::Inner);
        assert_eq!(nest.begin().unwrap(), Began::Inner);
        assert_eq!(nest.end().unwrap(), End::Inner);
        assert_eq!(nest.end().unwrap(), End::Commit(7));
        is_outside(&mut nest);
    }

    #[test]
    fn an_outer_abort_aborts() {
        let mut nest = nested(1);
        assert_eq!(nest.abort().unwrap(), Some(7));
        is_outside(&mut nest);
    }

    #[test]
    fn an_inner_abort_dooms_what_is_around_it() {
        let mut nest = nested(3);
        assert_eq!(nest.abort().unwrap(), Some(7));
        for depth in [2, 1] {
            assert_eq!(nest.depth(), depth);
            assert!(matches!(nest.running(), Err(TxnError::Doomed)));
            assert!(matches!(nest.begin(), Err(TxnError::Doomed)));
            assert!(matches!(nest.release(), Err(TxnError::Doomed)));
            assert_eq!(nest.depth(), depth, "a begin that failed opened a pair");
            match depth {
                2 => assert_eq!(nest.end().unwrap(), End::Failed(TxnFate::Doomed)),
                _ => assert_eq!(nest.abort().unwrap(), None),
            }
        }
        is_outside(&mut nest);
        assert_eq!(nest.begin().unwrap(), Began::Outermost);
    }

    #[test]
    fn after_an_abort_from_outside_only_ends_and_aborts_succeed() {
        for close_by_end in [true, false] {
            let mut nest = nested(2);
            nest.preempt(Preempted::Idle);
            assert!(matches!(nest.running(), Err(TxnError::Preempted(Preempted::Idle))));
            assert!(matches!(nest.begin(), Err(TxnError::Preempted(_))));
            assert!(matches!(nest.release(), Err(TxnError::Preempted(_))));
            let fate = TxnFate::Preempted(Preempted::Idle);
            for _ in 0..2 {
                match close_by_end {
                    true => assert_eq!(nest.end().unwrap(), End::Failed(fate)),
                    false => assert_eq!(nest.abort().unwrap(), None),
                }
            }
            is_outside(&mut nest);
        }
    }

    #[test]
    fn an_abort_from_outside_does_not_follow_into_the_next_transaction() {
        let mut nest = Nest::<u8>::default();
        nest.preempt(Preempted::Memory);
        is_outside(&mut nest);
    }

    #[test]
    fn only_the_outermost_pair_is_released_or_taken_over() {
        let mut nest = nested(2);
        assert!(matches!(nest.release(), Err(TxnError::Invalid(_))));
        assert!(matches!(nest.enter(8), Err(TxnError::Invalid(_))));
        assert_eq!(nest.running().unwrap(), Some(&7));
        assert_eq!(nest.end().unwrap(), End::Inner);
        assert_eq!(nest.release().unwrap(), 7);
        is_outside(&mut nest);
        nest.enter(8).unwrap();
        assert_eq!(nest.end().unwrap(), End::Commit(8));
    }
}
