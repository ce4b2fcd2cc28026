//! The connected followers of a primary, and the acknowledgements that users wait for.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use thalweg_store::block::{StoreError, Version};
use tokio::sync::Notify;

use super::protocol::Durable;

/// What a primary knows of a connected follower.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) name: String,
    /// The number of the follower, which it keeps from one connection to the next.
    pub(super) replica: u32,
    pub(super) sent: Version,
    /// What survives a crash of the follower, once it has said so.
    durable: Option<Durable>,
    /// Blocks of a copy that were sent, and all of them.
    pub(super) copy: Option<(u64, u64)>,
    /// Bytes of records that were sent.
    pub(super) bytes: u64,
    /// Its versions are those from before a roll-back: it connects again.
    is_stale: bool,
}

impl Known {
    /// The newest state of the volume that survives a crash of the follower.
    pub(super) fn durable_state(&self) -> Option<Durable> {
        self.durable.filter(|durable| durable.is_whole)
    }
}

/// How many followers acknowledge what users make durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct AckStatus {
    /// Followers at which a change is durable before a user's sync returns.
    pub needed: usize,
    /// Connected followers that have a state of the volume.
    pub connected: usize,
    /// Syncs that wait for followers now.
    pub waiting: usize,
}

#[derive(Debug, Default)]
struct Members {
    followers: BTreeMap<u64, Known>,
    /// The names of followers whose connections have ended, by their numbers.
    left: BTreeMap<u32, String>,
    /// The newest version that enough followers have made durable.
    acknowledged: Version,
    waiting: usize,
    has_ended: bool,
    /// Fewer followers than needed are connected, and the log says so.
    is_short: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Roster {
    needed: usize,
    members: Mutex<Members>,
    /// Something changed. Waiters wake in the order in which they came.
    news: Notify,
}

impl Roster {
    pub(super) fn new(needed: usize) -> Roster {
        Roster { needed, members: Mutex::default(), news: Notify::new() }
    }

    /// Takes in a follower that connected; returns its number.
    pub(super) fn enter(&self, name: &str) -> u64 {
        let mut members = self.members.lock();
        let number = members.followers.last_key_value().map_or(0, |(last, _)| last + 1);
        let name = name.to_owned();
        let (sent, durable, copy) = (Version(0), None, None);
        let known = Known { name, replica: 0, sent, durable, copy, bytes: 0, is_stale: false };
        members.followers.insert(number, known);
        number
    }

    /// A follower's connection ended.
    pub(super) fn leave(&self, number: u64) {
        self.change(|members| {
            // One without a number has not followed.
            if let Some(known) = members.followers.remove(&number).filter(|it| it.replica != 0) {
                members.left.insert(known.replica, known.name);
            }
        });
    }

    /// Changes what is known of a follower.
    pub(super) fn note(&self, number: u64, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.members.lock().followers.get_mut(&number) {
            change(known);
        }
    }

    /// A follower says what survives its crash.
    pub(super) fn note_durable(&self, number: u64, durable: Durable) {
        self.change(|members| {
            let known = members.followers.get_mut(&number);
            if let Some(known) = known.filter(|known| !known.is_stale) {
                known.durable = Some(durable);
            }
        });
    }

    /// The volume went back to `version`, or has another size: what followers have said is of no use any more.
    pub(super) fn reshape(&self, version: Version) {
        self.change(|members| {
            members.acknowledged = members.acknowledged.min(version);
            for known in members.followers.values_mut() {
                (known.durable, known.is_stale) = (None, true);
            }
        });
    }

    /// Ends all waiting: the server ends.
    pub(super) fn end(&self) {
        self.change(|members| members.has_ended = true);
    }

    fn change(&self, change: impl FnOnce(&mut Members)) {
        {
            let mut members = self.members.lock();
            change(&mut members);
            members.count(self.needed);
        }
        self.news.notify_waiters();
    }

    /// The connected followers.
    pub(super) fn followers(&self) -> Vec<Known> {
        self.members.lock().followers.values().cloned().collect()
    }

    /// The names of the followers that were connected and are not now. One that has just connected has not said yet which of
    /// those with its name it is.
    pub(super) fn lost(&self) -> Vec<String> {
        let members = self.members.lock();
        let is_back = |replica: u32, name: &str| {
            let mut connected = members.followers.values();
            connected.any(|it| it.replica == replica || it.replica == 0 && it.name == name)
        };
        let lost = members.left.iter().filter(|(replica, name)| !is_back(**replica, name));
        lost.map(|(_, name)| name.clone()).collect()
    }

    /// The acknowledgements that users wait for; `None` if they wait for none.
    pub(super) fn status(&self) -> Option<AckStatus> {
        let members = self.members.lock();
        let (needed, connected, waiting) = (self.needed, members.states().count(), members.waiting);
        (needed > 0).then_some(AckStatus { needed, connected, waiting })
    }

    /// Waits until `count` followers have made `version` durable.
    pub(super) async fn held_by(&self, version: Version, count: usize) {
        loop {
            let news = self.news.notified();
            let holders = {
                let members = self.members.lock();
                members.states().filter(|state| state.version >= version).count()
            };
            if holders >= count {
                return;
            }
            news.await;
        }
    }

    /// See [`Tap::replicated`](thalweg_store::chain::Tap::replicated).
    pub(super) async fn replicated(&self, version: Version) -> bool {
        loop {
            let news = self.news.notified();
            {
                let members = self.members.lock();
                let holders = members.states().filter(|state| state.version >= version).count();
                if holders >= self.needed.max(1) {
                    return true;
                }
                let is_alone = self.needed == 0 && members.states().next().is_none();
                if is_alone || members.has_ended {
                    return false;
                }
            }
            news.await;
        }
    }

    /// See [`Tap::acknowledged`](thalweg_store::chain::Tap::acknowledged).
    pub(super) fn acknowledged(
        self: &Arc<Roster>,
        version: Version,
    ) -> Option<BoxFuture<'static, Result<(), StoreError>>> {
        let is_acknowledged = |roster: &Roster| roster.members.lock().acknowledged >= version;
        if self.needed == 0 || is_acknowledged(self) {
            return None;
        }
        let roster = self.clone();
        Some(async move { roster.wait(version).await }.boxed())
    }

    async fn wait(&self, version: Version) -> Result<(), StoreError> {
        let _waiting = Waiting::new(self);
        loop {
            let news = self.news.notified();
            {
                let members = self.members.lock();
                if members.acknowledged >= version {
                    return Ok(());
                }
                if members.has_ended {
                    let why = "the server ends, or is the primary no longer";
                    return Err(StoreError::Unreplicated(why.into()));
                }
            }
            news.await;
        }
    }
}

impl Members {
    /// The durable state of each follower. One that lost its power and is back has two connections, until the primary
    /// notices that the former one is dead.
    fn states(&self) -> impl Iterator<Item = Durable> + '_ {
        let mut newest: BTreeMap<u32, Durable> = BTreeMap::new();
        for known in self.followers.values() {
            let Some(state) = known.durable_state() else { continue };
            let of_replica = newest.entry(known.replica).or_insert(state);
            if state.version > of_replica.version {
                *of_replica = state;
            }
        }
        newest.into_values()
    }

    /// Looks which version enough followers have made durable.
    fn count(&mut self, needed: usize) {
        let Some(nth) = needed.checked_sub(1) else { return };
        let mut versions: Vec<Version> = self.states().map(|state| state.version).collect();
        versions.sort_unstable_by(|a, b| b.cmp(a));
        self.acknowledged = self.acknowledged.max(versions.get(nth).copied().unwrap_or_default());
        let is_short = versions.len() < needed && !self.has_ended;
        if is_short != self.is_short {
            self.is_short = is_short;
            let connected = versions.len();
            match is_short {
                true => tracing::warn!(needed, connected, "syncs wait for replicas to connect"),
                false => tracing::info!(needed, connected, "enough replicas acknowledge syncs"),
            }
        }
    }
}

/// A sync that waits.
struct Waiting<'a>(&'a Roster);

impl Waiting<'_> {
    fn new(roster: &Roster) -> Waiting<'_> {
        roster.members.lock().waiting += 1;
        Waiting(roster)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.members.lock().waiting -= 1;
    }
}
