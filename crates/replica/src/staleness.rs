//! How old a follower's state may be: told by round trips, never by a clock of the other machine.
//!
//! The follower asks with a number, and the primary answers with its newest version. A state of the follower that has this
//! version has everything that was visible at the primary when the question was sent.

use std::collections::VecDeque;

use thalweg_env::Time;
use thalweg_store::block::Version;

/// Maximum answers whose version the follower has not reached. Of more, every other one is forgotten, which makes the
/// bound larger and never wrong.
const MAX_ANSWERED: usize = 256;
/// Maximum questions without an answer; older ones are forgotten.
const MAX_ASKED: usize = 256;

/// The questions of a follower, and what their answers say.
#[derive(Debug, Default)]
pub(super) struct Staleness {
    last: u64,
    /// Questions without an answer: their numbers, and when they were sent.
    asked: VecDeque<(u64, Time)>,
    /// Versions that the follower has not reached, and when the question was sent that each answered.
    answered: VecDeque<(Version, Time)>,
    current_as_of: Option<Time>,
}

impl Staleness {
    /// The number of a question that is sent now or later.
    pub(super) fn ask(&mut self, now: Time) -> u64 {
        self.last += 1;
        if self.asked.len() >= MAX_ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back((self.last, now));
        self.last
    }

    /// Notes an answer. Answers come in the order of the questions; one to no question is ignored.
    pub(super) fn answer(&mut self, number: u64, newest: Version) {
        self.asked.retain(|(asked, _)| *asked >= number);
        let Some((_, sent)) = self.asked.front().copied().filter(|(asked, _)| *asked == number)
        else {
            return;
        };
        self.asked.pop_front();
        if self.answered.len() >= MAX_ANSWERED {
            let mut nth = 0;
            self.answered.retain(|_| {
                nth += 1;
                nth % 2 == 0
            });
        }
        self.answered.push_back((newest, sent));
    }

    /// Notes that the state that readers see has `version`.
    pub(super) fn reach(&mut self, version: Version) {
        while let Some((newest, sent)) = self.answered.front().copied() {
            if newest > version {
                return;
            }
            self.current_as_of = self.current_as_of.max(Some(sent));
            self.answered.pop_front();
        }
    }

    /// Forgets questions and answers: the connection ended. The bound that is known stays true.
    pub(super) fn disconnect(&mut self) {
        self.asked.clear();
        self.answered.clear();
    }

    /// When the state that readers see was the newest one.
    pub(super) fn current_as_of(&self) -> Option<Time> {
        self.current_as_of
    }
}

/// At which times a primary had reached which versions: how old the state of a follower may be, by the primary's clock
/// alone.
#[derive(Debug, Default)]
pub(super) struct Marks(VecDeque<(Time, Version)>);

/// Maximum marks. Of more, every other one is forgotten.
const MAX_MARKS: usize = 1024;

impl Marks {
    /// Notes that `newest` is the newest version now.
    pub(super) fn note(&mut self, now: Time, newest: Version) {
        if self.0.back().is_some_and(|(_, version)| *version > newest) {
            // The volume was rolled back.
            self.0.clear();
        }
        // A version that lasted is current as of the last time at which it was the newest.
        if self.0.back().is_some_and(|(_, version)| *version == newest) {
            self.0.pop_back();
        }
        if self.0.len() >= MAX_MARKS {
            let mut nth = 0;
            self.0.retain(|_| {
                nth += 1;
                nth % 2 == 0
            });
        }
        self.0.push_back((now, newest));
    }

    /// A time at which a state with `version` was the newest one; `None` for one from before the first mark.
    pub(super) fn current_as_of(&self, version: Version) -> Option<Time> {
        let after = self.0.partition_point(|(_, newest)| *newest <= version);
        self.0.get(after.checked_sub(1)?).map(|(time, _)| *time)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::default() + Duration::from_millis(millis)
    }

    #[test]
    fn a_state_is_as_old_as_the_question_whose_answer_it_has_reached() {
        let mut staleness = Staleness::default();
        let first = staleness.ask(at(10));
        let second = staleness.ask(at(20));
        assert_eq!(staleness.current_as_of(), None);
        staleness.answer(first, Version(5));
        staleness.answer(second, Version(7));
        staleness.reach(Version(4));
        assert_eq!(staleness.current_as_of(), None);
        staleness.reach(Version(6));
        assert_eq!(staleness.current_as_of(), Some(at(10)));
        staleness.disconnect();
        staleness.reach(Version(9));
        assert_eq!(staleness.current_as_of(), Some(at(10)));
    }

    #[test]
    fn an_answer_to_no_question_says_nothing() {
        let mut staleness = Staleness::default();
        let first = staleness.ask(at(10));
        staleness.answer(first + 1, Version(0));
        staleness.answer(first, Version(0));
        staleness.reach(Version(9));
        assert_eq!(staleness.current_as_of(), None);
    }

    #[test]
    fn what_is_forgotten_makes_the_bound_larger() {
        let mut staleness = Staleness::default();
        let mut marks = Marks::default();
        for number in 1..5000 {
            let asked = staleness.ask(at(number));
            staleness.answer(asked, Version(number));
            marks.note(at(number), Version(number));
        }
        assert!(staleness.answered.len() <= MAX_ANSWERED && marks.0.len() <= MAX_MARKS);
        for version in 1..5000 {
            staleness.reach(Version(version));
            for found in [staleness.current_as_of(), marks.current_as_of(Version(version))] {
                assert!(found.is_none_or(|found| found <= at(version)), "{found:?}");
            }
        }
        assert_eq!(staleness.current_as_of(), Some(at(4999)));
        assert_eq!(marks.current_as_of(Version(6000)), Some(at(4999)));
    }
}
