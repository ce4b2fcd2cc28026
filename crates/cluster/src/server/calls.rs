//! The calls of a session that are carried out once, and their answers until the client has them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;

use crate::protocol::{Grants, Reply};

/// Maximum number of unacknowledged calls of a session.
const MAX_CALLS: usize = 1 << 16;

/// A call that must not be carried out twice.
#[derive(Debug)]
enum CallState {
    Running(RunningCall),
    Done(Box<Reply>, Vec<Bytes>),
}

#[derive(Debug)]
struct RunningCall {
    /// The answer goes to this call of the present connection.
    answers: Option<u64>,
    /// The client does not want the answer any more.
    is_unwanted: bool,
    /// It is not to wait for a lock.
    is_cancelled: bool,
}

/// What is to be done with a call.
#[derive(Debug)]
pub(super) enum Admission {
    /// Carry it out.
    New,
    /// Answer this.
    Known(Box<Reply>, Vec<Bytes>),
    /// Nothing: it runs, or the client knows the answer.
    Ignored,
    /// End the connection: the client acknowledges no answers.
    TooMany,
}

/// The calls, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: BTreeMap<u64, CallState>,
    /// The client knows the answers to all calls before this one.
    oldest: u64,
}

impl Calls {
    /// The client has a new connection, on which it sends its calls again.
    pub(super) fn connect(&mut self) {
        for call in self.calls.values_mut() {
            if let CallState::Running(running) = call {
                running.answers = None;
            }
        }
    }

    /// The client knows the answers to all calls before `oldest`, and to these. The calls that run, and that it does not wait for.
    pub(super) fn acknowledge(&mut self, oldest: u64, answered: &[u64]) -> Vec<u64> {
        self.oldest = self.oldest.max(oldest);
        let mut over: Vec<u64> = self.calls.range(..oldest).map(|(number, _)| *number).collect();
        over.extend_from_slice(answered);
        over.retain(|number| self.drop_answer(*number));
        over
    }

    /// As [`Calls::acknowledge`], of all calls but these, which are in their order.
    pub(super) fn acknowledge_others(&mut self, pending: &[u64]) -> Vec<u64> {
        let others = self.calls.keys().copied().filter(|it| pending.binary_search(it).is_err());
        let mut others: Vec<u64> = others.collect();
        others.retain(|number| self.drop_answer(*number));
        others
    }

    /// The client does not want the answer of a call any more; whether the call runs.
    fn drop_answer(&mut self, number: u64) -> bool {
        let Entry::Occupied(mut call) = self.calls.entry(number) else { return false };
        match call.get_mut() {
            CallState::Running(running) => {
                (running.is_unwanted, running.is_cancelled) = (true, true);
                true
            }
            CallState::Done(..) => {
                call.remove();
                false
            }
        }
    }

    /// What is to be done with call `number`, which is call `id` of the connection.
    pub(super) fn admit(&mut self, number: u64, id: u64) -> Admission {
        if number < self.oldest {
            return Admission::Ignored;
        }
        let is_full = self.calls.len() >= MAX_CALLS;
        match self.calls.get_mut(&number) {
            None if is_full => Admission::TooMany,
            None => {
                let (answers, is_unwanted, is_cancelled) = (Some(id), false, false);
                let running = RunningCall { answers, is_unwanted, is_cancelled };
                self.calls.insert(number, CallState::Running(running));
                assert!(
                    self.calls.len() <= MAX_CALLS,
                    "more calls are admitted than a session may have"
                );
                Admission::New
            }
            Some(CallState::Running(running)) => {
                running.answers = Some(id);
                Admission::Ignored
            }
            Some(CallState::Done(reply, payload)) => {
                // What was granted with the lost answer may have been invalidated since.
                let reply = Reply { grants: Grants::default(), ..(**reply).clone() };
                Admission::Known(Box::new(reply), payload.clone())
            }
        }
    }

    /// A call has its answer. Returns the call of the present connection that waits for it.
    pub(super) fn done(&mut self, number: u64, reply: &Reply, payload: &[Bytes]) -> Option<u64> {
        let Entry::Occupied(mut call) = self.calls.entry(number) else { return None };
        let CallState::Running(RunningCall { answers, is_unwanted, .. }) = *call.get() else {
            return None;
        };
        match is_unwanted {
            true => drop(call.remove()),
            false => drop(call.insert(CallState::Done(Box::new(reply.clone()), payload.to_vec()))),
        }
        answers
    }

    /// A call is not to wait for a lock any more.
    pub(super) fn cancel(&mut self, number: u64) {
        if let Some(CallState::Running(running)) = self.calls.get_mut(&number) {
            running.is_cancelled = true;
        }
    }

    /// Whether a call is not to wait for a lock.
    pub(super) fn is_cancelled(&self, number: u64) -> bool {
        matches!(self.calls.get(&number), Some(CallState::Running(it)) if it.is_cancelled)
    }

    /// Whether a call is carried out now.
    pub(super) fn runs(&self, number: u64) -> bool {
        matches!(self.calls.get(&number), Some(CallState::Running(_)))
    }

    /// How many are carried out now.
    pub(super) fn running(&self) -> usize {
        self.calls.values().filter(|call| matches!(call, CallState::Running(_))).count()
    }

    /// The session has ended.
    pub(super) fn clear(&mut self) {
        self.calls.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Answer;

    fn reply() -> Reply {
        let answer = Answer::Done;
        let (grants, room) = Default::default();
        Reply { stamp: 0, grants, committed: None, room, quota: 0, inode_token: 0, answer }
    }

    #[test]
    fn one_call_without_an_answer_keeps_no_other_answers() {
        let mut calls = Calls::default();
        assert!(matches!(calls.admit(1, 1), Admission::New));
        for number in 2..=3 * MAX_CALLS as u64 {
            assert!(matches!(calls.admit(number, number), Admission::New));
            assert_eq!(calls.done(number, &reply(), &[]), Some(number));
            assert!(calls.acknowledge(1, &[number]).is_empty());
        }
        assert_eq!((calls.running(), calls.calls.len()), (1, 1));
        // A peer that acknowledges nothing is stopped.
        let first = 4 * MAX_CALLS as u64;
        let full = (first..).find(|number| !matches!(calls.admit(*number, 1), Admission::New));
        assert_eq!(full, Some(first + MAX_CALLS as u64 - 1));
    }

    #[test]
    fn an_answer_is_kept_until_it_is_acknowledged() {
        let mut calls = Calls::default();
        for number in [1, 2, 3, 4] {
            assert!(matches!(calls.admit(number, number), Admission::New));
        }
        for number in [2, 4] {
            assert_eq!(calls.done(number, &reply(), &[]), Some(number));
        }
        calls.connect();
        assert!(matches!(calls.admit(2, 9), Admission::Known(..)));
        assert!(matches!(calls.admit(3, 8), Admission::Ignored));
        // The client does not wait for call 1, which runs, and has the answer of call 2.
        assert_eq!(calls.acknowledge_others(&[3, 4]), [1]);
        assert!(calls.is_cancelled(1) && !calls.is_cancelled(3));
        assert_eq!(calls.done(1, &reply(), &[]), None);
        assert_eq!(calls.done(3, &reply(), &[]), Some(8));
        assert_eq!(calls.calls.keys().copied().collect::<Vec<_>>(), [3, 4]);
        assert!(calls.acknowledge(5, &[]).is_empty() && calls.calls.is_empty());
        assert!(matches!(calls.admit(4, 1), Admission::Ignored));
    }
}
