//! Whether a history of calls is linearizable: whether each call took effect at one time between its beginning and its
//! end, so that every answer is right (the method of Wing and Gong, with the states that were tried kept, as Lowe has it).

use std::fmt::Debug;
use std::hash::Hash;

use thalweg_env::{HashSet, Time};

/// A call, with what it was answered.
#[derive(Clone, Debug)]
pub(crate) struct Recorded<O> {
    pub(crate) client: usize,
    pub(crate) start: Time,
    /// `None` if the answer was lost: the call took effect at some time after its beginning, or never.
    pub(crate) end: Option<Time>,
    pub(crate) op: O,
}

/// Checks a history of at most 128 calls. `step` is the state after a call with its answer, or `None` if the answer would
/// be wrong.
pub(crate) fn is_linearizable<S, O>(
    first: S,
    history: &[Recorded<O>],
    step: impl Fn(&S, &O) -> Option<S>,
) -> bool
where
    S: Clone + Eq + Hash,
{
    has_order(first, history, |state, call| step(state, &call.op))
}

/// The same, where a call may lead to one of several states.
pub(crate) fn has_order<S, O, I>(
    first: S,
    history: &[Recorded<O>],
    step: impl Fn(&S, &Recorded<O>) -> I,
) -> bool
where
    S: Clone + Eq + Hash,
    I: IntoIterator<Item = S>,
{
    assert!(history.len() <= 128);
    let all_answered = history.iter().enumerate().filter(|(_, it)| it.end.is_some());
    let needed = all_answered.fold(0u128, |set, (at, _)| set | 1 << at);
    let mut tried: HashSet<(u128, S)> = HashSet::default();
    let mut open = vec![(0u128, first)];
    while let Some((done, state)) = open.pop() {
        if done & needed == needed {
            return true;
        }
        let rest = || history.iter().enumerate().filter(move |(at, _)| done & (1 << at) == 0);
        // A call may come next if no other one had ended before it began.
        let bound = rest().filter_map(|(_, it)| it.end).min();
        for (at, call) in rest() {
            if bound.is_some_and(|bound| call.start > bound) {
                continue;
            }
            for next in step(&state, call) {
                let next = (done | 1 << at, next);
                if tried.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::default() + Duration::from_millis(millis)
    }

    /// A register: a write of a number, or a read that found it.
    #[derive(Clone, Debug)]
    enum Call {
        Write(u8),
        Read(u8),
    }

    fn check(calls: &[(u64, Option<u64>, Call)]) -> bool {
        let history: Vec<_> = calls
            .iter()
            .map(|(start, end, op)| Recorded {
                client: 0,
                start: at(*start),
                end: end.map(at),
                op: op.clone(),
            })
            .collect();
        is_linearizable(0, &history, |state, call| match call {
            Call::Write(number) => Some(*number),
            Call::Read(found) => (found == state).then_some(*state),
        })
    }

    #[test]
    fn a_register_is_checked() {
        use Call::{Read, Write};
        assert!(check(&[(0, Some(1), Write(1)), (2, Some(3), Read(1))]));
        assert!(!check(&[(0, Some(1), Write(1)), (2, Some(3), Read(0))]));
        // They overlap.
        assert!(check(&[(0, Some(4), Write(1)), (2, Some(3), Read(0))]));
        // What was seen once is not unseen.
        let overlap = (0, Some(9), Write(1));
        assert!(!check(&[overlap.clone(), (1, Some(2), Read(1)), (3, Some(4), Read(0))]));
        assert!(check(&[overlap, (1, Some(2), Read(0)), (3, Some(4), Read(1))]));
        // A lost call may count late, or never.
        assert!(check(&[(0, None, Write(1)), (5, Some(6), Read(0)), (7, Some(8), Read(1))]));
        assert!(check(&[(0, None, Write(1)), (5, Some(6), Read(0))]));
        assert!(!check(&[(0, None, Write(1)), (5, Some(6), Read(2))]));
    }
}
