//! What was written on which timeline, and what sessions read: checked when all is known.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_env::{Env, HashMap, Time};
use thalweg_sim::passing::Around;
use thalweg_sim::sessions::{Read, Seen, SessionChecker, Value};
use thalweg_store::block::{Position, Version, Write};
use thalweg_store::chain::{Chain, Timeline};
use uuid::Uuid;

/// A commit: its version, when it was visible, and what it gave to which block.
type Commit = (Version, Time, Vec<(u64, Value)>);

/// What a client did.
#[derive(Clone, Debug)]
pub(crate) enum Mutation {
    /// A read, the name of the oldest version of its answer, and when it ended.
    Read(Read, Position, Time),
    /// A write of a session that was acknowledged.
    Wrote { session: u64, item: u64, position: Position, ended: Time },
}

/// Everything that happened.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    commits: HashMap<Uuid, Vec<Commit>>,
    /// The timelines up to each one, and by when it had begun.
    lineages: HashMap<Uuid, (Vec<Timeline>, Time)>,
    pub(crate) mutations: Vec<Mutation>,
    pub(crate) met: Met,
}

/// What the machines went through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    /// Segments that cleaning went through.
    pub(crate) cleaned: u64,
    /// Blocks of drives that were damaged.
    pub(crate) damaged: u64,
    /// Blocks that were repaired.
    pub(crate) repaired: u64,
    /// Replicas that were made primaries.
    pub(crate) promotions: u64,
}

impl Met {
    pub(crate) fn add(&mut self, other: &Met) {
        self.cleaned += other.cleaned;
        self.damaged += other.damaged;
        self.repaired += other.repaired;
        self.promotions += other.promotions;
    }
}

pub(crate) type SharedTruth = Arc<Mutex<Truth>>;

/// Notes what a primary commits.
#[derive(Debug)]
pub(crate) struct Witness {
    pub(crate) env: Env,
    pub(crate) chain: Arc<Chain>,
    pub(crate) truth: SharedTruth,
}

/// The value that a block has.
pub(crate) fn value(content: &[u8]) -> Value {
    content.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl Around for Witness {
    fn applied(&self, version: Version, writes: &[Write]) {
        let mut truth = self.truth.lock();
        truth.learn(&self.chain, self.env.now());
        let timeline = self.chain.position_of(version).unwrap().timeline;
        let written = |write: &Write| (write.lba.0, write.content.as_deref().map_or(0, value));
        let writes = writes.iter().map(written).collect();
        truth.commits.entry(timeline).or_default().push((version, self.env.now(), writes));
    }
}

impl Truth {
    /// Notes the timelines of a volume.
    pub(crate) fn learn(&mut self, chain: &Chain, now: Time) {
        let history = chain.history();
        let timelines = history.timelines();
        for (nth, timeline) in timelines.iter().enumerate() {
            let lineage = || (timelines[..=nth].to_vec(), now);
            self.lineages.entry(timeline.id).or_insert_with(lineage);
        }
    }

    /// Whether a state is one of those that led to `timeline`, or of it.
    fn leads_to(&self, position: &Position, timeline: Uuid) -> bool {
        let lineage = &self.lineages[&timeline].0;
        let Some(place) = lineage.iter().position(|it| it.id == position.timeline) else {
            return false;
        };
        let end = lineage.get(place + 1).map_or(Version(u64::MAX), |next| next.from);
        (lineage[place].from..=end).contains(&position.version)
    }

    /// The timelines that had begun by `ended` and to which a state leads, those of most timelines first. A primary and the
    /// one that replaces it are both a way that a state may go on.
    fn ways(&self, position: &Position, ended: Time) -> Vec<Uuid> {
        let all = self.lineages.iter().filter(|(_, (_, since))| *since <= ended);
        let mut ways: Vec<(usize, Uuid)> = all
            .filter(|(id, _)| self.leads_to(position, **id))
            .map(|(id, (lineage, _))| (lineage.len(), *id))
            .collect();
        ways.sort_unstable();
        ways.into_iter().rev().map(|(_, id)| id).collect()
    }

    /// A checker of everything that led to a timeline, and is on it.
    fn checker(&self, timeline: Uuid) -> SessionChecker {
        let lineage = &self.lineages[&timeline].0;
        let mut all: BTreeMap<Version, &Commit> = BTreeMap::new();
        for (nth, it) in lineage.iter().enumerate() {
            let end = lineage.get(nth + 1).map_or(Version(u64::MAX), |next| next.from);
            let commits = self.commits.get(&it.id).into_iter().flatten();
            all.extend(commits.filter(|commit| commit.0 <= end).map(|commit| (commit.0, commit)));
        }
        let mut checker = SessionChecker::new();
        all.values().for_each(|(version, at, writes)| checker.committed(*version, *at, writes));
        checker
    }

    /// Checks all reads.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut checkers: HashMap<Uuid, SessionChecker> = HashMap::default();
        let mut sessions: HashMap<u64, (Option<Position>, Seen)> = HashMap::default();
        for mutation in &self.mutations {
            let (session, position, ended) = match mutation {
                Mutation::Read(read, position, ended) => (read.session, position, *ended),
                Mutation::Wrote { session, position, ended, .. } => (*session, position, *ended),
            };
            let (known, seen) = sessions.entry(session).or_default();
            let mut ways = self.ways(position, ended);
            if let (Some(before), true) = (*known, compares(mutation)) {
                ways.retain(|way| self.leads_to(&before, *way));
                if ways.is_empty() {
                    return Err(format!("it has seen {before}, and gets {position}: {mutation:?}"));
                }
            }
            let newer = known.is_none_or(|known| position.version > known.version);
            *known = if newer { Some(*position) } else { *known };
            match mutation {
                Mutation::Wrote { item, position, .. } => seen.wrote(*item, position.version),
                Mutation::Read(read, ..) => {
                    let mut wrong = vec![format!("{position}")];
                    for way in ways {
                        let checker = checkers.entry(way).or_insert_with(|| self.checker(way));
                        let mut after = seen.clone();
                        match checker.check_after(&mut after, read) {
                            Ok(()) => {
                                *seen = after;
                                wrong.clear();
                                break;
                            }
                            Err(why) => wrong.push(format!("on the way to {way}: {why}")),
                        }
                    }
                    if !wrong.is_empty() {
                        return Err(wrong.join("\n"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Number of reads for each guarantee.
    pub(crate) fn reads(&self) -> BTreeMap<String, u64> {
        let mut reads = BTreeMap::new();
        for mutation in &self.mutations {
            if let Mutation::Read(read, ..) = mutation {
                let at = read.guarantee.at.map(|_| "at".to_owned());
                *reads.entry(at.unwrap_or_else(|| read.guarantee.to_string())).or_default() += 1;
            }
        }
        reads
    }
}

/// Whether an event is compared with what the session has seen.
fn compares(mutation: &Mutation) -> bool {
    match mutation {
        // A write of any session goes on from all that it has seen.
        Mutation::Wrote { .. } => true,
        Mutation::Read(Read { guarantee, .. }, ..) => {
            guarantee.read_my_writes || guarantee.monotonic_reads || guarantee.causal
        }
    }
}
