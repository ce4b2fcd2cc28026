//! Clients of a volume on several machines, and what the machines run for them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rand::RngExt;
use rand::seq::{IndexedMutRandom, IndexedRandom};
use thalweg_env::connection::Listener;
use thalweg_env::{Env, Rng};
use thalweg_ipc::{Config, Connection, Service};
use thalweg_net::keys::Access;
use thalweg_replica::Follower;
use thalweg_replica::nodes::{Nodes, NodesOptions, Reach};
use thalweg_sim::net::{Host, SimConnector};
use thalweg_sim::passing::Passing;
use thalweg_sim::sessions::Read;
use thalweg_store::block::{
    BLOCK_SIZE, BlockStore, BlockVersion, Epoch, EpochVersion, Keep, Lba, Position, Retained,
    StoreError, Version,
};
use thalweg_store::chain::{Chain, Followed};
use thalweg_store::stale::{Guarantee, Item, Needs, Session, Unserved, Upstream, Versioned};
use thalweg_store::txn::{
    Begin, Contention, Handle, Options, Transact, Transaction, TransactionManager, TxnError,
    read_for, write_for,
};

use crate::cluster::BLOCKS;
use crate::truth::{Mutation, SharedTruth, Witness, value};

const PORT: u16 = 8495;
/// Blocks that are written and read.
const HOT: u64 = 24;
/// Blocks that are written with each of them.
const BESIDE: u64 = 60;

/// The volume of a machine, for its clients.
pub(crate) struct Desk {
    pub(crate) truth: SharedTruth,
}

impl Desk {
    /// Serves clients of a machine.
    pub(crate) fn open(
        &self,
        env: &Env,
        host: &Host,
        chain: &Arc<Chain>,
        follower: Option<&Arc<Follower>>,
    ) {
        let keep = Keep { versions: 60, ..Keep::latest(u64::MAX) };
        let versions = |store| Versioned::of(env, Arc::new(Retained::new(env, store, keep)));
        let versions = match follower {
            None => {
                self.truth.lock().learn(chain, env.now());
                let (env, chain) = (env.clone(), chain.clone());
                let witness = Witness { env, chain: chain.clone(), truth: self.truth.clone() };
                versions(Arc::new(Passing::new(chain, witness)))
            }
            Some(follower) => {
                let (upstream, asked) = (Arc::new(Upstream::default()), follower.clone());
                upstream.set(Box::new(move || asked.current_as_of()));
                let store: Arc<dyn BlockStore> = Arc::new(Followed::new(chain.clone()));
                versions(store).following(upstream)
            }
        };
        let manager = TransactionManager::of(env, versions, Options::default());
        let service = Service::without_socket(env, &manager, Config::default());
        let (listener, on) = (host.listen(PORT).unwrap(), env.clone());
        let accepting = async move {
            while let Ok(stream) = listener.accept().await {
                let service = service.clone();
                let talk = async move { drop(service.serve(stream, Access::Write).await) };
                on.spawn(talk).detach();
            }
        };
        env.spawn(accepting).detach();
    }
}

/// The way from a client to a machine.
#[derive(Debug)]
struct Way {
    env: Env,
    to: SimConnector,
    name: String,
}

#[async_trait]
impl Reach for Way {
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn reach(&self) -> Result<Arc<dyn Transact>, TxnError> {
        let lost = |error: std::io::Error| TxnError::Disconnected(error.to_string());
        let stream = self.to.open().await.map_err(lost)?;
        Ok(Arc::new(Connection::over(&self.env, stream).await?))
    }
}

/// Connects a client's host to all machines; again until one can be reached.
pub(crate) async fn connect(env: &Env, from: &Host, machines: &[Host]) -> Nodes {
    let options =
        NodesOptions { beat: Duration::from_millis(300), patience: Duration::from_secs(2) };
    loop {
        let way = |host: &Host| {
            let (to, name) = (from.connector(host, PORT), host.name());
            Box::new(Way { env: env.clone(), to, name }) as Box<dyn Reach>
        };
        match Nodes::connect(env, machines.iter().map(way).collect(), options).await {
            Ok(nodes) => return nodes,
            Err(TxnError::Disconnected(_)) => env.sleep(Duration::from_millis(100)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The guarantees of the sessions.
pub(crate) fn guarantees() -> Vec<Guarantee> {
    let bounded = Guarantee::bounded;
    vec![
        Guarantee::STRONG,
        Guarantee::EVENTUAL,
        Guarantee::READ_MY_WRITES,
        Guarantee::MONOTONIC_READS,
        Guarantee { monotonic_writes: true, ..Guarantee::READ_MY_WRITES },
        Guarantee { writes_follow_reads: true, ..Guarantee::MONOTONIC_READS },
        Guarantee::CAUSAL,
        bounded(Duration::from_millis(500)),
        Guarantee { monotonic_reads: true, ..bounded(Duration::from_secs(2)) },
        Guarantee::updates(3),
        Guarantee::updates(0),
    ]
}

fn item(lba: u64) -> Item {
    Item::Block(Lba(lba))
}

/// A bug that a client or a node could have, for tests of the checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// What a session has seen is forgotten.
    StaleLow,
    /// Another block is read in a range that the first one did not narrow.
    NoNarrowing,
    /// A node that has gone another way serves the session.
    NoWay,
    /// A primary that has gone another way takes the session's writes.
    NoWayToWrite,
    /// A node's age is not compared with the bound.
    NoBound,
}

/// The nodes of a client that makes a mistake.
#[derive(Debug)]
struct Mistaken {
    nodes: Arc<Nodes>,
    mistake: Option<Mistake>,
}

#[async_trait]
impl Transact for Mistaken {
    fn blocks(&self) -> u64 {
        self.nodes.blocks()
    }

    async fn begin(&self, begin: Begin) -> Result<Arc<dyn Transaction>, TxnError> {
        let after = begin.after.filter(|_| self.mistake != Some(Mistake::NoWayToWrite));
        self.nodes.begin(Begin { after, ..begin }).await
    }

    async fn takeover(&self, handle: Handle) -> Result<Arc<dyn Transaction>, TxnError> {
        self.nodes.takeover(handle).await
    }

    async fn sync(&self) -> Result<EpochVersion, TxnError> {
        self.nodes.sync().await
    }

    async fn versions(&self, lba: Lba) -> Result<(Epoch, Vec<BlockVersion>), TxnError> {
        self.nodes.versions(lba).await
    }

    fn contention(&self) -> &Contention {
        self.nodes.contention()
    }

    async fn view(&self, needs: &Needs, first: Version) -> Result<Arc<dyn Transaction>, TxnError> {
        let needs = match self.mistake {
            Some(Mistake::StaleLow) => Needs { low: Version(0), ..*needs },
            Some(Mistake::NoWay) => Needs { after: None, ..*needs },
            Some(Mistake::NoBound) => Needs { max_age: None, ..*needs },
            Some(Mistake::NoNarrowing | Mistake::NoWayToWrite) | None => *needs,
        };
        self.nodes.view(&needs, first).await
    }
}

/// A client, with a session for each guarantee.
pub(crate) struct Client {
    env: Env,
    nodes: Arc<Nodes>,
    truth: SharedTruth,
    rng: Rng,
    number: u64,
    sessions: Vec<(u64, Session)>,
    stamp: u64,
    mistake: Option<Mistake>,
    /// Sessions that were begun.
    begun: u64,
}

impl Client {
    pub(crate) fn new(
        env: &Env,
        nodes: Nodes,
        truth: SharedTruth,
        number: u64,
        mistake: Option<Mistake>,
    ) -> Client {
        let mut client = Client {
            env: env.clone(),
            nodes: Arc::new(nodes),
            truth,
            rng: env.rng(),
            number,
            sessions: Vec::new(),
            stamp: 0,
            mistake,
            begun: 0,
        };
        client.sessions = guarantees().into_iter().map(|it| client.session(it)).collect();
        client
    }

    fn session(&mut self, guarantee: Guarantee) -> (u64, Session) {
        self.begun += 1;
        (self.number << 32 | self.begun, Session::new(guarantee))
    }

    /// One read or write of each session.
    pub(crate) async fn turn(&mut self) {
        for place in 0..self.sessions.len() {
            let lba = self.rng.random_range(0..HOT);
            let done = match self.rng.random_range(0..12) {
                0 => self.write(place, lba).await,
                1 => self.exact(lba).await,
                _ => self.read(place, lba).await,
            };
            match done {
                Ok(()) => {}
                // What it has seen was lost.
                Err(TxnError::Unserved(Unserved::Apart(_))) => self.renew(place),
                Err(error) if is_expected(&error) => {
                    self.env.sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        // A session is carried to another process at times.
        let Some((_, session)) = self.sessions.choose_mut(&mut self.rng) else { return };
        *session = Session::resumed(session.guarantee(), &session.token());
    }

    fn mistaken(&self) -> Mistaken {
        Mistaken { nodes: self.nodes.clone(), mistake: self.mistake }
    }

    fn renew(&mut self, place: usize) {
        let guarantee = self.sessions[place].1.guarantee();
        self.sessions[place] = self.session(guarantee);
    }

    async fn read(&mut self, place: usize, lba: u64) -> Result<(), TxnError> {
        let (id, mut session) = self.sessions[place].clone();
        self.read_with(id, &mut session, lba).await?;
        self.sessions[place].1 = session;
        Ok(())
    }

    /// A state that was seen before, by a session of its own.
    async fn exact(&mut self, lba: u64) -> Result<(), TxnError> {
        let Some((_, other)) = self.sessions.choose(&mut self.rng) else { return Ok(()) };
        let (read, written) = other.newest();
        let (id, mut session) = self.session(Guarantee::at(read.max(written)));
        self.read_with(id, &mut session, lba).await
    }

    /// Reads a block, and another one of the same state.
    async fn read_with(
        &mut self,
        id: u64,
        session: &mut Session,
        lba: u64,
    ) -> Result<(), TxnError> {
        let (began, beside) = (self.env.now(), self.rng.random_range(0..HOT));
        let needs = session.clone();
        let work = async |view: Arc<dyn Transaction>| {
            let content = view.read(Lba(lba)).await?;
            let content_beside = match self.mistake {
                Some(Mistake::NoNarrowing) => {
                    let other = self.nodes.view(&needs.needs(&item(beside)), Version(0)).await?;
                    other.read(Lba(beside)).await?
                }
                _ => view.read(Lba(beside)).await?,
            };
            let position = view.seen().await?.position;
            Ok::<_, TxnError>((value(&content), value(&content_beside), position))
        };
        let mistaken = self.mistaken();
        let got = read_for(&mistaken, session, &item(lba), Version(0), work).await?;
        let (value, value_beside, position) = got.value;
        let read = Read {
            session: id,
            guarantee: session.guarantee(),
            item: lba,
            value,
            said: (got.range.low, got.range.up),
            age: got.age,
            began,
        };
        self.begun += 1;
        let second = Read {
            session: self.number << 32 | self.begun,
            guarantee: Guarantee::EVENTUAL,
            item: beside,
            value: value_beside,
            ..read.clone()
        };
        let Some(position) = position else {
            // No history names the empty volume, which a replica has that is new.
            assert_eq!((value, value_beside, got.range.up), (0, 0, Version(0)));
            return Ok(());
        };
        let ended = self.env.now();
        let mut truth = self.truth.lock();
        truth.mutations.push(Mutation::Read(read, position, ended));
        truth.mutations.push(Mutation::Read(second, position, ended));
        Ok(())
    }

    async fn write(&mut self, place: usize, lba: u64) -> Result<(), TxnError> {
        self.stamp += 1;
        let stamp = self.number << 32 | self.stamp;
        let content = Bytes::from(stamp.to_le_bytes().repeat(BLOCK_SIZE / 8));
        // The blocks that are written beside it make the log go round, so that it is cleaned.
        let beside = self.rng.random_range(HOT..BLOCKS - BESIDE);
        let mistaken = self.mistaken();
        let (id, session) = &mut self.sessions[place];
        let write = async |txn: Arc<dyn Transaction>| {
            let mut all = (beside..beside + BESIDE).chain([lba]);
            all.try_for_each(|lba| txn.write(Lba(lba), content.clone())).map(|()| true)
        };
        let (_, version) = write_for(&mistaken, session, &item(lba), write).await?;
        let seen: Option<Position> = session.position();
        let position = Position { version, ..seen.unwrap() };
        self.truth.lock().mutations.push(Mutation::Wrote {
            session: *id,
            item: lba,
            position,
            ended: self.env.now(),
        });
        Ok(())
    }
}

/// Errors that faults of machines and of the network bring about.
fn is_expected(error: &TxnError) -> bool {
    match error {
        TxnError::Unserved(_) | TxnError::Disconnected(_) | TxnError::Gone(_) => true,
        TxnError::Preempted(_) | TxnError::Ended => true,
        TxnError::Store(StoreError::Fenced(_) | StoreError::Gone(_) | StoreError::NoSpace) => true,
        TxnError::Store(StoreError::Invalid(why)) => why.contains("first copy"),
        TxnError::Store(StoreError::Corrupt { .. } | StoreError::Device(_)) => true,
        _ => false,
    }
}
