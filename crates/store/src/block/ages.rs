//! How old versions are.

use std::collections::VecDeque;
use std::time::Duration;

use thalweg_env::Time;

use super::Version;

/// Maximum number of times that are remembered.
const MOST: usize = 1024;
/// The shortest span between two of them at first.
const FINEST: Duration = Duration::from_millis(1);

/// Times, with a version than which none was newer then. Both ascend.
///
/// At most 1,024 of them: the longer the time that is remembered, the coarser it is known.
#[derive(Debug)]
pub struct Ages {
    seen: VecDeque<(Time, Version)>,
    span: Duration,
}

impl Default for Ages {
    fn default() -> Ages {
        Ages { seen: VecDeque::new(), span: FINEST }
    }
}

impl Ages {
    /// Notes that at `time` there was no version newer than `newest`.
    pub fn note(&mut self, time: Time, newest: Version) {
        if let Some((last, version)) = self.seen.back()
            && (time.since(*last) < self.span || newest < *version)
        {
            return;
        }
        self.seen.push_back((time, newest));
        if self.seen.len() > MOST {
            let mut nth = 0_usize;
            self.seen.retain(|_| {
                nth += 1;
                nth.is_multiple_of(2)
            });
            self.span *= 2;
        }
    }

    /// The oldest version that is known to be at most `age` old at the time `now`: no newer one existed then.
    pub fn young_enough(&self, now: Time, age: Duration) -> Option<Version> {
        let old = self.seen.partition_point(|(time, _)| now.since(*time) > age);
        self.seen.get(old).map(|(_, version)| *version)
    }

    /// The age of a version at the time `now`, at most: no newer one existed so long ago. `None` when that is not known.
    pub fn age(&self, now: Time, version: Version) -> Option<Duration> {
        let after = self.seen.partition_point(|(_, seen)| *seen <= version);
        let (time, _) = self.seen.get(after.checked_sub(1)?)?;
        Some(now.since(*time))
    }

    /// Forgets what is only about versions older than `version`.
    pub fn forget_before(&mut self, version: Version) {
        while self.seen.get(1).is_some_and(|(_, next)| *next <= version) {
            self.seen.pop_front();
        }
    }

    /// A version that existed before the time `before`: all that are older were replaced by then.
    pub(super) fn before(&self, before: Time) -> Option<Version> {
        let after = self.seen.partition_point(|(time, _)| *time < before);
        self.seen.get(after.checked_sub(1)?).map(|(_, version)| *version)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the times at which versions came.
        #[test]
        fn no_version_is_taken_for_younger_than_it_is(
            steps in proptest::collection::vec((0..50_u64, 0..3_u64), 1..3000),
            asked in proptest::collection::vec((0..10_000_u64, 0..3000_u64), 20),
        ) {
            let mut ages = Ages::default();
            // When each version came.
            let mut came = vec![0_u64];
            let mut now = 0;
            for (millis, versions) in steps {
                now += millis;
                came.extend((0..versions).map(|_| now));
                ages.note(Time::from_nanos(now * 1_000_000), Version(came.len() as u64 - 1));
            }
            prop_assert!(ages.seen.len() <= MOST);
            let newest = came.len() as u64 - 1;
            // How long ago a version was replaced.
            let age = |version: u64| match came.get(version as usize + 1) {
                Some(replaced) => now - replaced,
                None => 0,
            };
            let time = Time::from_nanos(now * 1_000_000);
            for (millis, version) in asked {
                if let Some(Version(young)) = ages.young_enough(time, Duration::from_millis(millis)) {
                    prop_assert!(young <= newest && age(young) <= millis);
                }
                let version = version.min(newest);
                if let Some(known) = ages.age(time, Version(version)) {
                    prop_assert!(known >= Duration::from_millis(age(version)));
                }
            }
        }
    }
}
