//! A volume on several nodes, as its clients use it: a primary and replicas (Yogurt, 5.4, after Pileus).
//!
//! Writes, and transactions that need the newest state, go to the primary. A read with needs goes to the node at which it is
//! expected to take the least time, of those that are believed to serve it; a node that cannot serve it says so, and the next
//! one is asked. A wrong belief of a client only costs time: the node itself compares the needs with
//! the versions that it has.

mod address;
mod choice;
mod member;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use parking_lot::Mutex;
use thalweg_env::{Env, Task};
use thalweg_store::block::{BlockVersion, Epoch, EpochVersion, Lba, Position, StoreError, Version};
use thalweg_store::stale::{Cost, Needs, Standing, Unserved, VersionRange};
use thalweg_store::txn::{Begin, Contention, Handle, Reading, Transact, Transaction, TxnError};
use uuid::Uuid;

pub use self::address::{node_at, several};
use self::choice::{Candidate, Progress};
use self::member::Member;
pub use self::member::Reach;

/// How a client deals with the nodes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesOptions {
    /// How often each node is asked how far it has come.
    pub beat: Duration,
    /// A node that does not answer a read within so long is taken for lost.
    pub patience: Duration,
}

impl Default for NodesOptions {
    fn default() -> NodesOptions {
        NodesOptions { beat: Duration::from_secs(1), patience: Duration::from_secs(5) }
    }
}

#[derive(Debug)]
struct Shared {
    env: Env,
    members: Vec<Arc<Member>>,
    /// The volume of which all have replicas.
    volume: Mutex<Option<Uuid>>,
    progress: Mutex<Progress>,
    /// The newest version that a transaction has read: what is learned of blocks later is no older.
    floor: AtomicU64,
}

/// A volume on several nodes. The primary is the node that takes writes; another one may become it at any time.
#[derive(Debug)]
pub struct Nodes {
    shared: Arc<Shared>,
    contention: Contention,
    blocks: AtomicU64,
    _keepers: Vec<Task<()>>,
}

impl Shared {
    /// Notes what a node says of itself.
    fn news(&self, standing: &Standing) {
        if let Some(position) = standing.position {
            self.volume.lock().get_or_insert(position.volume);
        }
        if standing.is_primary && Some(standing.term) == self.term() {
            self.progress.lock().note(standing.newest, self.env.now());
        }
    }

    /// The newest term that a node knows.
    fn term(&self) -> Option<u32> {
        self.members.iter().filter_map(|member| member.standing()).map(|it| it.term).max()
    }

    /// The primary of the newest term, as far as it is known.
    fn known_primary(&self) -> Option<Arc<Member>> {
        let term = self.term()?;
        let is_it = |member: &&Arc<Member>| {
            member.standing().is_some_and(|it| it.is_primary && it.term == term)
        };
        self.members.iter().find(is_it).cloned()
    }

    /// The primary. If it is not known, all nodes are asked.
    async fn primary(&self) -> Result<Arc<Member>, TxnError> {
        if let Some(primary) = self.known_primary() {
            return Ok(primary);
        }
        self.ask_all().await;
        self.known_primary().ok_or_else(|| Unserved::NotPrimary.into())
    }

    async fn ask_all(&self) {
        let volume = *self.volume.lock();
        let asking = self.members.iter().map(|member| async move {
            match member.volume() {
                Some(_) => member.ask().await,
                None => member.connect(volume).await,
            }
        });
        join_all(asking).await.iter().flatten().for_each(|standing| self.news(standing));
    }

    /// Runs `call` at the primary: again at the next one, if the one that was known is none any more.
    async fn at_primary<T, Work>(
        &self,
        call: impl Fn(Arc<dyn Transact>) -> Work,
    ) -> Result<T, TxnError>
    where
        Work: Future<Output = Result<T, TxnError>>,
    {
        let first = self.primary().await?;
        let volume = first.volume().ok_or_else(|| first.unreached())?;
        let refused = match first.call(call(volume)).await {
            Err(
                error @ (TxnError::Disconnected(_)
                | TxnError::Store(StoreError::Fenced(_))
                | TxnError::Unserved(_)),
            ) => error,
            answer => return answer,
        };
        self.ask_all().await;
        let primary = self.primary().await?;
        if Arc::ptr_eq(&primary, &first) && !matches!(refused, TxnError::Disconnected(_)) {
            return Err(refused);
        }
        let volume = primary.volume().ok_or_else(|| primary.unreached())?;
        primary.call(call(volume)).await
    }

    /// The primary, for a call that may take longer than a node's patience.
    async fn slow(&self) -> Result<Arc<dyn Transact>, TxnError> {
        let check = |volume: Arc<dyn Transact>| async move {
            let is_primary = volume.standing().await?.is_primary;
            is_primary.then_some(volume).ok_or_else(|| Unserved::NotPrimary.into())
        };
        self.at_primary(check).await
    }

    /// The nodes that are connected, in the order in which a read asks them.
    fn order(&self, needs: &Needs, first: Version) -> Vec<Arc<Member>> {
        let volume = *self.volume.lock();
        let known = self.members.iter().filter_map(|it| Some((it.clone(), it.candidate(volume)?)));
        let (members, candidates): (Vec<Arc<Member>>, Vec<Candidate>) = known.unzip();
        let progress = self.progress.lock();
        let order = choice::order(&candidates, needs, first, &progress, self.env.now());
        order.into_iter().map(|nth| members[nth].clone()).collect()
    }
}

impl Nodes {
    /// Connects to the nodes of a volume, and goes on without those that cannot be reached.
    ///
    /// # Errors
    /// [`TxnError::Disconnected`] when none can be reached; [`TxnError::Invalid`] when two have different volumes, or volumes
    /// without replicas.
    pub async fn connect(
        env: &Env,
        nodes: Vec<Box<dyn Reach>>,
        options: NodesOptions,
    ) -> Result<Nodes, TxnError> {
        let NodesOptions { beat, patience } = options;
        let member = |reach| Arc::new(Member::new(env, reach, patience, beat));
        let members: Vec<Arc<Member>> = nodes.into_iter().map(member).collect();
        let connected = join_all(members.iter().map(|member| member.connect(None))).await;
        let standings: Vec<Standing> = connected.iter().flatten().copied().collect();
        if standings.is_empty() {
            let first = connected.into_iter().find_map(Result::err);
            return Err(first.unwrap_or_else(|| TxnError::Invalid("no node is named".to_owned())));
        }
        let mut volumes = standings.iter().filter_map(|it| Some(it.position?.volume));
        let volume = volumes.next();
        if volumes.any(|other| Some(other) != volume) {
            let why = "the nodes do not have replicas of one volume";
            return Err(TxnError::Invalid(why.to_owned()));
        }
        if members.len() > 1 && standings.iter().any(|it| it.is_primary && it.position.is_none()) {
            let why = "the volume has no replicas: make one with `thalweg replica create`";
            return Err(TxnError::Invalid(why.to_owned()));
        }
        let blocks = members.iter().filter_map(|member| Some(member.volume()?.blocks())).max();
        let shared = Arc::new(Shared {
            env: env.clone(),
            members,
            volume: Mutex::new(volume),
            progress: Mutex::default(),
            floor: AtomicU64::new(0),
        });
        standings.iter().for_each(|standing| shared.news(standing));
        let keep = |member: &Arc<Member>| {
            let (member, shared) = (member.clone(), shared.clone());
            env.spawn(async move {
                let volume = || *shared.volume.lock();
                member.keep(volume, |standing| shared.news(standing)).await;
            })
        };
        let keepers = shared.members.iter().map(keep).collect();
        let (contention, blocks) = (Contention::new(env), AtomicU64::new(blocks.unwrap_or(0)));
        Ok(Nodes { shared, contention, blocks, _keepers: keepers })
    }
}

#[async_trait]
impl Transact for Nodes {
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    async fn begin(&self, begin: Begin) -> Result<Arc<dyn Transaction>, TxnError> {
        // The node checks it: what is known of it here may be old.
        let begin = Begin { at_primary: true, ..begin };
        let begun =
            self.shared.at_primary(move |volume| async move { volume.begin(begin).await }).await?;
        self.blocks.store(begun.blocks(), Ordering::Relaxed);
        self.shared.floor.fetch_max(begun.version().version.0, Ordering::AcqRel);
        Ok(begun)
    }

    async fn takeover(&self, handle: Handle) -> Result<Arc<dyn Transaction>, TxnError> {
        self.shared.at_primary(move |volume| async move { volume.takeover(handle).await }).await
    }

    async fn sync(&self) -> Result<EpochVersion, TxnError> {
        self.shared.slow().await?.sync().await
    }

    async fn versions(&self, lba: Lba) -> Result<(Epoch, Vec<BlockVersion>), TxnError> {
        self.shared.at_primary(move |volume| async move { volume.versions(lba).await }).await
    }

    async fn view(&self, needs: &Needs, first: Version) -> Result<Arc<dyn Transaction>, TxnError> {
        let mut order = self.shared.order(needs, first);
        if order.is_empty() {
            self.shared.ask_all().await;
            order = self.shared.order(needs, first);
        }
        let mut refused = None;
        for member in order {
            match member.view(needs, first).await {
                Ok(view) => {
                    let view = Reading(view);
                    if *needs == Needs::default() {
                        let version = view.version().version;
                        self.shared.floor.fetch_max(version.0, Ordering::AcqRel);
                    }
                    return Ok(Arc::new(view));
                }
                Err(error @ (TxnError::Unserved(_) | TxnError::Disconnected(_))) => {
                    refused = Some(worse(refused, error));
                }
                Err(error) => return Err(error),
            }
        }
        Err(refused.unwrap_or_else(|| TxnError::Disconnected("no node can be reached".to_owned())))
    }

    async fn contents(
        &self,
        lba: Lba,
        range: VersionRange,
    ) -> Result<Vec<(VersionRange, Cost)>, TxnError> {
        let floor = Version(self.shared.floor.load(Ordering::Acquire));
        let mut refused = TxnError::Unserved(Unserved::Behind(floor));
        for member in self.shared.order(&Needs { low: floor, ..Needs::default() }, floor) {
            let Some(volume) = member.volume() else { continue };
            // Asked for first: what it knows then has all of this version.
            match member.ask().await {
                Ok(standing) if standing.newest >= floor => {}
                Ok(_) => continue,
                Err(error) => {
                    refused = error;
                    continue;
                }
            }
            match member.call(volume.contents(lba, range)).await {
                Err(error @ TxnError::Disconnected(_)) => refused = error,
                answer => return answer,
            }
        }
        Err(refused)
    }

    async fn standing(&self) -> Result<Standing, TxnError> {
        self.shared.at_primary(move |volume| async move { volume.standing().await }).await
    }

    async fn position(&self) -> Result<Option<Position>, TxnError> {
        Ok(self.standing().await?.position)
    }

    async fn reached(
        &self,
        position: Position,
        within: Option<Duration>,
    ) -> Result<bool, TxnError> {
        self.shared.slow().await?.reached(position, within).await
    }

    fn contention(&self) -> &Contention {
        &self.contention
    }

    async fn discard_run(&self, lba: Lba, count: u64) -> Result<(), TxnError> {
        self.shared.slow().await?.discard_run(lba, count).await
    }
}

/// Of two refusals the one that tells more: a session that has lost its way, a version to wait for, a node that is away.
fn worse(one: Option<TxnError>, other: TxnError) -> TxnError {
    let rank = |error: &TxnError| match error {
        TxnError::Unserved(Unserved::Apart(_)) => 3,
        TxnError::Unserved(Unserved::Behind(_)) => 2,
        TxnError::Unserved(_) => 1,
        _ => 0,
    };
    match one {
        Some(one) if rank(&one) >= rank(&other) => one,
        _ => other,
    }
}
