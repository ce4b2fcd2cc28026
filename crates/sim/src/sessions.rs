//! A checker of sessions' guarantees: what was written, and what sessions read, with nothing of how versions are chosen.

use std::collections::BTreeMap;
use std::time::Duration;

use thalweg_env::Time;
use thalweg_store::block::Version;
use thalweg_store::stale::Guarantee;

/// A value; none that is written is 0, which stands for nothing.
pub type Value = u64;

/// One read, as its reader saw it.
#[derive(Clone, Debug)]
pub struct Read {
    /// The reader.
    pub session: u64,
    /// What the reader had asked for.
    pub guarantee: Guarantee,
    /// What was read.
    pub item: u64,
    /// The value.
    pub value: Value,
    /// The versions of which the answer says that they have it.
    pub said: (Version, Version),
    /// How old the answer says that it is, at most.
    pub age: Option<Duration>,
    /// When the read began.
    pub began: Time,
}

/// A value of an item.
#[derive(Clone, Copy, Debug)]
struct Written {
    version: Version,
    value: Value,
}

/// What a session has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The version that wrote what was last read of each item.
    reads: BTreeMap<u64, Version>,
    /// The version of the last write to each item.
    writes: BTreeMap<u64, Version>,
}

impl Seen {
    /// Notes that the session wrote `item` as `version`, and was told so.
    pub fn wrote(&mut self, item: u64, version: Version) {
        let newest = self.writes.entry(item).or_default();
        *newest = version.max(*newest);
    }

    /// The newest version that it has read or written.
    pub fn newest(&self) -> Version {
        self.reads.values().chain(self.writes.values()).max().copied().unwrap_or_default()
    }
}

/// Every write, and what sessions have seen of it.
#[derive(Clone, Debug, Default)]
pub struct SessionChecker {
    items: BTreeMap<u64, Vec<Written>>,
    /// Versions and when each became visible.
    versions: Vec<(Version, Time)>,
    sessions: BTreeMap<u64, Seen>,
    reads: u64,
}

impl SessionChecker {
    /// Nothing is written.
    pub fn new() -> SessionChecker {
        SessionChecker::default()
    }

    /// Notes that `version`, newer than all before, became visible at `at` and gave these items these values.
    pub fn committed(&mut self, version: Version, at: Time, writes: &[(u64, Value)]) {
        self.versions.push((version, at));
        for (item, value) in writes {
            let value = *value;
            self.items.entry(*item).or_default().push(Written { version, value });
        }
    }

    /// Notes that a session wrote `item` as `version`, and was told so.
    pub fn wrote(&mut self, session: u64, item: u64, version: Version) {
        self.sessions.entry(session).or_default().wrote(item, version);
    }

    /// Versions above `version` are lost for good: those that survive go on from there.
    pub fn lost_after(&mut self, version: Version) {
        self.versions.retain(|(of, _)| *of <= version);
        self.items.values_mut().for_each(|all| all.retain(|it| it.version <= version));
    }

    /// Number of reads that were checked.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// The newest version.
    pub fn newest(&self) -> Version {
        self.versions.last().map_or(Version(0), |(version, _)| *version)
    }

    /// The newest version that was visible at a time.
    fn newest_at(&self, time: Time) -> Version {
        let after = self.versions.partition_point(|(_, at)| *at <= time);
        after.checked_sub(1).map_or(Version(0), |last| self.versions[last].0)
    }

    /// The values of an item with the versions from which and to which each was valid.
    fn values(&self, item: u64) -> Vec<(Version, Version, Value)> {
        let all = self.items.get(&item).map_or(&[][..], Vec::as_slice);
        let first = all.first().map_or(Version(u64::MAX), |first| Version(first.version.0 - 1));
        let ends = all.iter().skip(1).map(|next| Version(next.version.0 - 1));
        let spans = all.iter().zip(ends.chain([Version(u64::MAX)]));
        let spans = spans.map(|(it, end)| (it.version, end, it.value));
        [(Version(0), first, 0)].into_iter().chain(spans).collect()
    }

    /// Checks a read.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&mut self, read: &Read) -> Result<(), String> {
        self.reads += 1;
        let mut seen = self.sessions.remove(&read.session).unwrap_or_default();
        let checked = self.check_after(&mut seen, read);
        self.sessions.insert(read.session, seen);
        checked
    }

    /// Checks a read of a session that has seen `seen`, and notes it there.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_after(&self, seen: &mut Seen, read: &Read) -> Result<(), String> {
        let wrong = |why: String| Err(format!("{why}: {read:?}"));
        let values = self.values(read.item);
        let valid = |(from, to, value): &&(Version, Version, Value)| {
            *value == read.value && *from <= read.said.1 && read.said.0 <= *to
        };
        let Some((from, to, _)) = values.iter().find(valid) else {
            return wrong(format!("the item had no such value then, but {values:?}"));
        };
        if read.said.0 < *from || *to < read.said.1 {
            return wrong(format!("the value was valid from {from} to {to} alone"));
        }
        let later = values.iter().filter(|(since, ..)| since > from);
        let next = self.versions.partition_point(|(version, _)| version <= to);
        let replaced = self.versions.get(next).map(|(_, at)| *at);
        let of =
            |marks: &BTreeMap<u64, Version>| marks.get(&read.item).copied().unwrap_or_default();
        let newest_of =
            |marks: &BTreeMap<u64, Version>| marks.values().max().copied().unwrap_or_default();
        let (last_read, last_write) = (of(&seen.reads), of(&seen.writes));
        let depends = newest_of(&seen.reads).max(newest_of(&seen.writes));
        seen.reads.insert(read.item, *from);
        let guarantee = &read.guarantee;
        if guarantee.strong && *to < self.newest_at(read.began) {
            return wrong(format!("it is not the newest value, valid to {to}"));
        }
        if guarantee.read_my_writes && *to < last_write {
            return wrong(format!("the session wrote the item as {last_write}"));
        }
        if guarantee.monotonic_reads && *from < last_read {
            return wrong(format!("the session read what {last_read} wrote before"));
        }
        if guarantee.causal && *to < depends {
            return wrong(format!("it depends on version {depends}"));
        }
        if let (Some(age), Some(replaced)) = (guarantee.max_age, replaced)
            && read.began.since(replaced) > age
        {
            return wrong(format!("it was replaced at {replaced:?}"));
        }
        if let Some(most) = guarantee.max_updates {
            let newest = self.newest_at(read.began);
            let updates = later.filter(|(since, ..)| *since <= newest).count() as u64;
            if updates > most {
                return wrong(format!("{updates} later updates existed"));
            }
        }
        if guarantee.at.is_some_and(|at| at < *from || *to < at) {
            return wrong("it is not of the version asked for".to_owned());
        }
        if let (Some(age), Some(replaced)) = (read.age, replaced)
            && read.began.since(replaced) > age
        {
            return wrong(format!("the answer says that it is younger than since {replaced:?}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: u64) -> Time {
        Time::from_nanos(n * 1_000_000_000)
    }

    /// Versions 1 to 5, one in each second, of item 1; version 6 of item 2.
    fn checker() -> SessionChecker {
        let mut checker = SessionChecker::new();
        for n in 1..=5 {
            checker.committed(Version(n), second(n), &[(1, 10 + n)]);
        }
        checker.committed(Version(6), second(6), &[(2, 20)]);
        checker
    }

    fn read(guarantee: Guarantee, version: u64) -> Read {
        let said = (Version(version), Version(version));
        let (value, age) = (10 + version, None);
        Read { session: 1, guarantee, item: 1, value, said, age, began: second(10) }
    }

    #[test]
    fn each_guarantee_is_checked() {
        let passes = |read: Read| checker().check(&read).is_ok();
        assert!(passes(read(Guarantee::EVENTUAL, 1)));
        assert!(!passes(Read { value: 99, ..read(Guarantee::EVENTUAL, 1) }));
        assert!(!passes(Read { said: (Version(1), Version(2)), ..read(Guarantee::EVENTUAL, 1) }));
        assert!(passes(read(Guarantee::STRONG, 5)));
        assert!(!passes(read(Guarantee::STRONG, 4)));
        assert!(passes(Read { began: second(4), ..read(Guarantee::STRONG, 4) }));
        // Version 3 was replaced in second 4.
        let bounded = |age| read(Guarantee::bounded(Duration::from_secs(age)), 3);
        assert!(passes(bounded(6)) && !passes(bounded(5)));
        let updates = |most| read(Guarantee::updates(most), 3);
        assert!(passes(updates(2)) && !passes(updates(1)));
        assert!(passes(read(Guarantee::at(Version(3)), 3)));
        assert!(!passes(Read {
            said: (Version(4), Version(4)),
            value: 14,
            ..read(Guarantee::at(Version(3)), 3)
        }));
        let aged =
            |age| Read { age: Some(Duration::from_secs(age)), ..read(Guarantee::EVENTUAL, 3) };
        assert!(passes(aged(6)) && !passes(aged(5)));
    }

    #[test]
    fn sessions_are_followed() {
        let mut checker = checker();
        checker.check(&read(Guarantee::MONOTONIC_READS, 3)).unwrap();
        assert!(checker.check(&read(Guarantee::MONOTONIC_READS, 2)).is_err());
        let other = Read { session: 2, ..read(Guarantee::MONOTONIC_READS, 2) };
        checker.check(&other).unwrap();
        checker.wrote(2, 1, Version(4));
        let other = |guarantee, version| Read { session: 2, ..read(guarantee, version) };
        assert!(checker.check(&other(Guarantee::READ_MY_WRITES, 3)).is_err());
        checker.check(&other(Guarantee::READ_MY_WRITES, 4)).unwrap();
        // It has seen version 6 of another item, and then may not see a state before that.
        let seen = Read {
            item: 2,
            value: 20,
            said: (Version(6), Version(6)),
            ..other(Guarantee::CAUSAL, 6)
        };
        checker.check(&seen).unwrap();
        checker.check(&other(Guarantee::CAUSAL, 5)).unwrap();
        assert!(checker.check(&other(Guarantee::CAUSAL, 4)).is_err());
    }
}
