//! A primary and its follower on two machines of a simulated network, and a model of what was written.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::connection::Listener;
use thalweg_env::{Env, Node, Rng, Time};
use thalweg_replica::{Follower, FollowerOptions, Primary, PrimaryOptions, Room, Stopped};
use thalweg_sim::crash::Shape;
use thalweg_sim::faults::Faults;
use thalweg_sim::model::BlockModel;
use thalweg_sim::net::{Host, LinkSpec, Network, SimConnector};
use thalweg_sim::recording::Recorder;
use thalweg_store::block::{
    BLOCK_SIZE, Blocks, BlocksExt, ByteRanges, Lba, Version, Versions, Write,
};
use thalweg_store::chain::{Chain, ChainError, Cleaning, Create, Followed, Options, Position};
use thalweg_store::device::{DeviceRef, Geometry};
use uuid::Uuid;

use crate::clients::Desk;
use crate::connection::{Connection, tell};
use crate::devices::{faulty, parts};

pub(crate) const BLOCKS: u64 = 600;
/// The most blocks that a volume gets here.
pub(crate) const MOST: u64 = 2000;
const SEGMENT: u32 = 240;
const SEGMENTS: u32 = 12;
/// Bytes of a drive.
pub(crate) const DRIVE: u64 = (SEGMENTS * SEGMENT) as u64 * BLOCK_SIZE as u64;
const PORT: u16 = 8494;
/// Requests to a device take at most so long.
const LATENCY: Duration = Duration::from_micros(200);

/// How often followers ask.
pub(crate) const BEAT: Duration = Duration::from_millis(100);

/// What a machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Primary,
    Follower,
}

/// A machine with disks that survive it.
pub(crate) struct Machine {
    env: Env,
    pub(crate) host: Host,
    role: Role,
    recorder: Recorder,
    devices: Vec<DeviceRef>,
    /// Damage to them.
    pub(crate) faults: Vec<Faults>,
    /// How it treats its followers as a primary.
    pub(crate) options: PrimaryOptions,
    /// The machine of the primary that this one has replaced.
    replaces: Option<Host>,
    /// Answers that nodes of this cluster got: from which machine, and the term of the node that had asked.
    pub(crate) met: Arc<Mutex<Vec<(String, u32)>>>,
    /// What it serves to clients.
    pub(crate) desk: Option<Desk>,
    /// The process that runs.
    process: Option<(Node, Arc<Process>)>,
}

/// A running process.
pub(crate) struct Process {
    pub(crate) chain: Arc<Chain>,
    pub(crate) primary: Option<Arc<Primary>>,
    pub(crate) follower: Option<Arc<Follower>>,
    /// Why the follower was told to give up.
    pub(crate) refused: Mutex<Option<String>>,
    /// What is wrong with its own volume.
    pub(crate) trouble: Mutex<Option<String>>,
}

/// Whether a follower's drives are too small.
fn is_short_of_room(error: &ChainError) -> bool {
    let error = error.to_string();
    ["no space", "links hold up to"].iter().any(|why| error.contains(why))
}

/// A new volume on new drives with so many segments each.
async fn blank(env: &Env, role: Role, count: u32) -> (Recorder, Vec<DeviceRef>, Vec<Faults>) {
    let recorder = Recorder::with_latency(env, LATENCY);
    let segments = u64::from(count * SEGMENT) * BLOCK_SIZE as u64;
    // With room for another drive.
    let map = Chain::map_bytes(SEGMENT, 3 * count);
    let sizes = [("one", segments), ("two", segments), ("map", map)];
    let device = |(name, size)| recorder.device(name, Geometry { size, sector: 512 });
    let (devices, faults) = faulty(env, sizes.into_iter().map(device));
    let create = Create {
        volume: Uuid::from_u128(7),
        blocks: BLOCKS,
        segment_blocks: SEGMENT,
        max_segments: 3 * count,
        cleaning: Cleaning::CompactInBody,
        placement: Default::default(),
        follows: role == Role::Follower,
    };
    Chain::create(env, parts(&devices), &create).await.unwrap();
    (recorder, devices, faults)
}

impl Machine {
    pub(crate) async fn new(env: &Env, host: Host, role: Role, room: Room) -> Machine {
        Machine::sized(env, host, role, room, SEGMENTS).await
    }

    /// As [`Machine::new`], with so many segments on each drive.
    pub(crate) async fn sized(
        env: &Env,
        host: Host,
        role: Role,
        room: Room,
        count: u32,
    ) -> Machine {
        let env = env.clone();
        let (recorder, devices, faults) = blank(&env, role, count).await;
        let (replaces, met, desk, process) = Default::default();
        let patience = Duration::from_secs(1);
        let options = PrimaryOptions { room, patience, ..PrimaryOptions::default() };
        Machine {
            env,
            host,
            role,
            recorder,
            devices,
            faults,
            options,
            replaces,
            met,
            desk,
            process,
        }
    }

    /// Stops the process, and makes the machine a replica that has nothing yet, on new drives.
    pub(crate) async fn start_over(&mut self) {
        self.kill().await;
        (self.role, self.replaces) = (Role::Follower, None);
        (self.recorder, self.devices, self.faults) = blank(&self.env, self.role, SEGMENTS).await;
    }

    pub(crate) fn is_primary(&self) -> bool {
        self.role == Role::Primary
    }

    pub(crate) fn runs(&self) -> bool {
        self.process.is_some()
    }

    async fn open(&self, env: &Env) -> Result<Arc<Chain>, ChainError> {
        let follow = self.role == Role::Follower;
        // Clients read more blocks than the cache holds.
        let tail_cache_blocks = if self.desk.is_some() { 16 } else { 16 << 10 };
        let commit_interval = Duration::from_millis(50);
        let options = Options { follow, commit_interval, tail_cache_blocks, ..Options::default() };
        Ok(Arc::new(Chain::open(env, parts(&self.devices), options).await?.0))
    }

    /// Makes a follower that does not run the primary in the place of the one on another machine.
    pub(crate) async fn promote(&mut self, replaces: &Host) -> Result<Position, ChainError> {
        let chain = self.open(&self.env).await?;
        let promoted = chain.promote(0).await;
        chain.close().await?;
        let position = promoted?;
        (self.role, self.replaces) = (Role::Primary, Some(replaces.clone()));
        Ok(position)
    }

    /// Starts the process, which connects to `primary` if it is a follower.
    pub(crate) async fn start(&mut self, primary: &Host) {
        self.try_start(primary).await.unwrap();
    }

    /// As [`Machine::start`], for a volume that may be fenced.
    pub(crate) async fn try_start(&mut self, primary: &Host) -> Result<(), ChainError> {
        let node = self.env.node();
        let env = node.env().clone();
        let chain = self.open(&env).await?;
        let mut process = Process {
            chain: chain.clone(),
            primary: None,
            follower: None,
            refused: Mutex::default(),
            trouble: Mutex::default(),
        };
        match self.role {
            Role::Primary => {
                let serving = Arc::new(Primary::new(&env, chain, self.options).await.unwrap());
                process.primary = Some(serving.clone());
                let listener = self.host.listen(PORT).unwrap();
                let on = env.clone();
                let accepting = async move {
                    while let Ok(stream) = listener.accept().await {
                        let serving = serving.clone();
                        let work = async move { drop(serving.serve(stream, "follower").await) };
                        on.spawn(work).detach();
                    }
                };
                env.spawn(accepting).detach();
                if let Some(replaced) = &self.replaces {
                    let telling = tell(env.clone(), process.chain.clone(), self.connect(replaced));
                    env.spawn(telling).detach();
                }
                self.process = Some((node, Arc::new(process)));
            }
            Role::Follower => {
                let options = FollowerOptions { beat: BEAT, patience: Duration::from_secs(3) };
                let follower = Arc::new(Follower::with(&env, chain, options));
                process.follower = Some(follower.clone());
                let process = Arc::new(process);
                let connection = self.connect(primary);
                let (on, of) = (env.clone(), Arc::downgrade(&process));
                let following = async move {
                    loop {
                        if let Ok(stream) = connection.to.open().await {
                            let stopped = follower.follow(stream).await;
                            let Some(process) = of.upgrade() else { return };
                            if matches!(stopped, Stopped::Refused(_)) {
                                connection.meet(process.chain.term());
                            }
                            match stopped {
                                Stopped::Lost(_) => {}
                                Stopped::Refused(refusal) => {
                                    *process.refused.lock() = Some(refusal.to_string());
                                }
                                Stopped::Chain(error) if is_short_of_room(&error) => {
                                    *process.trouble.lock() = Some(error.to_string());
                                }
                                Stopped::Chain(error) => panic!("{error}"),
                            }
                        }
                        on.sleep(Duration::from_millis(20)).await;
                    }
                };
                env.spawn(following).detach();
                self.process = Some((node, process));
            }
        }
        self.open_desk();
        Ok(())
    }

    fn open_desk(&self) {
        if let (Some(desk), Some((node, process))) = (&self.desk, &self.process) {
            desk.open(node.env(), &self.host, &process.chain, process.follower.as_ref());
        }
    }

    /// The way to the service of another machine.
    pub(crate) fn connector(&self, to: &Host) -> SimConnector {
        self.host.connector(to, PORT)
    }

    fn connect(&self, to: &Host) -> Connection {
        let name = to.name();
        Connection { to: self.connector(to), name, met: self.met.clone() }
    }

    pub(crate) fn process(&self) -> Arc<Process> {
        self.process.as_ref().unwrap().1.clone()
    }

    pub(crate) fn node(&self) -> &Node {
        &self.process.as_ref().unwrap().0
    }

    /// Kills the process.
    pub(crate) async fn kill(&mut self) {
        let Some((node, process)) = self.process.take() else { return };
        node.kill();
        drop(process);
        node.gone().await;
    }

    /// Cuts the power: of the writes that no flush covered, any sectors survive.
    pub(crate) async fn cut_power(&mut self, seed: u64) {
        self.lose_power(seed).await;
        self.host.power_on();
    }

    /// As [`Machine::cut_power`]; the machine stays off.
    pub(crate) async fn lose_power(&mut self, seed: u64) {
        self.host.power_off();
        let point = self.recorder.position();
        self.kill().await;
        let image = self.recorder.image(point, Shape::ShuffledTorn(seed));
        let (recorder, devices) = Recorder::from_image(&self.env, LATENCY, &image);
        self.recorder = recorder;
        (self.devices, self.faults) = faulty(&self.env, devices);
    }

    /// Gives the volume of the process another drive.
    pub(crate) async fn add_drive(&mut self, segments: u32) {
        let size = u64::from(segments * SEGMENT) * BLOCK_SIZE as u64;
        let device = self.recorder.device("three", Geometry { size, sector: 512 });
        let (devices, faults) = faulty(&self.env, [device]);
        self.devices.extend(devices);
        self.faults.extend(faults);
        let link = parts(&self.devices).links.pop().unwrap();
        self.process().chain.add_link(link).await.unwrap();
    }

    /// Takes all damage to the drives back.
    pub(crate) fn mend(&self) {
        self.faults.iter().for_each(Faults::heal);
    }

    /// The damage to the drives with contents.
    pub(crate) fn drives(&self) -> &[Faults] {
        &self.faults[..2]
    }
}

/// Both machines, and what was written.
pub(crate) struct Cluster {
    pub(crate) env: Env,
    pub(crate) network: Network,
    pub(crate) primary: Machine,
    pub(crate) follower: Machine,
    pub(crate) model: BlockModel,
    rng: Rng,
    stamp: u64,
    /// Versions of the primary, and by when each was visible.
    made: Vec<(Time, Version)>,
}

impl Cluster {
    pub(crate) async fn new(env: &Env, room: Room) -> Cluster {
        Cluster::sized(env, room, [SEGMENTS; 2]).await
    }

    /// As [`Cluster::new`], with so many segments on each drive of the primary and of the follower.
    pub(crate) async fn sized(env: &Env, room: Room, segments: [u32; 2]) -> Cluster {
        let network = Network::new(env, LinkSpec::of(Duration::from_millis(1)));
        let (one, two) = (network.host("primary"), network.host("follower"));
        let mut primary = Machine::sized(env, one.clone(), Role::Primary, room, segments[0]).await;
        let mut follower = Machine::sized(env, two, Role::Follower, room, segments[1]).await;
        primary.start(&one).await;
        follower.start(&one).await;
        let (model, rng) = (BlockModel::new(MOST), env.rng());
        Cluster {
            env: env.clone(),
            network,
            primary,
            follower,
            model,
            rng,
            stamp: 0,
            made: Vec::new(),
        }
    }

    /// Starts a machine again.
    pub(crate) async fn start(&mut self, role: Role) {
        let primary = self.primary.host.clone();
        match role {
            Role::Primary => {
                self.primary.start(&primary).await;
                // What the crash took back is written again with the same versions.
                self.model.rewind(self.primary.process().chain.now());
                let survived = self.model.now();
                self.made.retain(|(_, version)| *version <= survived);
                assert_eq!(self.model.now(), self.primary.process().chain.now());
            }
            Role::Follower => self.follower.start(&primary).await,
        }
    }

    /// Writes one transaction at the primary: small changes, whole blocks, discards.
    pub(crate) async fn write(&mut self) {
        let chain = self.primary.process().chain.clone();
        self.write_to(&chain).await;
        self.made.push((self.env.now(), chain.now()));
        self.check_bound();
    }

    async fn write_to(&mut self, chain: &Chain) {
        let first = self.rng.random_range(0..chain.blocks() - 20);
        if self.rng.random_range(0..20) == 0 {
            let before = chain.now();
            let count = self.rng.random_range(1..20);
            let version = chain.discard(Lba(first), count).await.unwrap();
            if version > before {
                assert_eq!(self.model.discard(Lba(first), count), version);
            }
            return;
        }
        let mut writes = Vec::new();
        for step in 0..self.rng.random_range(1..6) {
            let lba = first + 3 * step;
            self.stamp += 1;
            writes.push(match self.rng.random_range(0..10) {
                0 => Write { content: None, ..Write::block(Lba(lba), Bytes::new()) },
                1..5 => Write::block(Lba(lba), Bytes::from(self.stamp.to_le_bytes().repeat(512))),
                _ => self.small_change(lba),
            });
        }
        // Noted first: a crash during the call may leave it done.
        let version = self.model.apply(&writes);
        assert_eq!(chain.apply(writes).await.unwrap(), version);
    }

    fn small_change(&mut self, lba: u64) -> Write {
        let old = self.model.read(Lba(lba), self.model.now());
        let mut content = old.map_or_else(|| vec![0; BLOCK_SIZE], |old| old.to_vec());
        let mut changed = ByteRanges::none();
        for _ in 0..self.rng.random_range(1..4) {
            let start = self.rng.random_range(0..BLOCK_SIZE - 64);
            content[start..start + 64].fill(self.stamp as u8);
            changed.add(start..start + 64);
        }
        Write { changed, ..Write::block(Lba(lba), Bytes::from(content)) }
    }

    /// Checks that the follower's readers see everything that was visible at the primary at the time as of which the
    /// follower calls its state current; returns how long ago that was.
    pub(crate) fn check_bound(&self) -> Option<Duration> {
        let process = self.follower.process.as_ref()?.1.clone();
        let as_of = process.follower.as_ref().unwrap().current_as_of()?;
        let seen = Followed::new(process.chain.clone()).now();
        let newer = self.made.iter().rev().take_while(|(_, version)| *version > seen);
        let missed = newer.last().filter(|(visible, _)| *visible <= as_of);
        assert!(missed.is_none(), "{seen} is called current as of {as_of:?}: {missed:?}");
        Some(self.env.now().since(as_of))
    }

    /// Checks that the follower has one state of the primary, if it says that it has any; returns its version.
    pub(crate) async fn check(&self) -> Option<Version> {
        let chain = self.follower.process().chain.clone();
        let hold = chain.hold(chain.now())?;
        let version = hold.version();
        if version < chain.whole_from() {
            return None;
        }
        self.compare(&chain, version).await;
        Some(version)
    }

    async fn compare(&self, chain: &Chain, version: Version) {
        assert_eq!(self.unreadable(chain, version).await, 0, "version {version}");
    }

    /// Checks the blocks of a version that can be read; returns how many cannot.
    pub(crate) async fn unreadable(&self, chain: &Chain, version: Version) -> usize {
        assert!(version <= self.model.now(), "version {version} is of the future");
        let mut unreadable = 0;
        // Beyond the end is nothing that the version has.
        let mut beyond = (chain.blocks()..MOST).map(Lba);
        assert!(beyond.all(|lba| self.model.read(lba, version).is_none()), "{version} is cut off");
        for lba in (0..chain.blocks()).map(Lba) {
            let Ok(mut found) = chain.read(lba, 1, version).await else {
                // It may have become smaller meanwhile.
                let is_cut = lba.0 >= chain.blocks() && self.model.read(lba, version).is_none();
                unreadable += usize::from(!is_cut);
                continue;
            };
            let found = found.pop().flatten();
            let found = found.filter(|content| content.iter().any(|byte| *byte != 0));
            assert_eq!(found, self.model.read(lba, version), "block {} of {version}", lba.0);
        }
        unreadable
    }

    /// Waits until the follower has everything, and compares.
    pub(crate) async fn catch_up(&self) {
        let target = self.primary.process().chain.now();
        for _ in 0..4000 {
            let follower = self.follower.process();
            if let Some(refused) = &*follower.refused.lock() {
                panic!("the follower was refused: {refused}");
            }
            if follower.chain.now() >= target && self.check().await == Some(target) {
                return;
            }
            self.env.sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "the follower does not catch up: {:?}",
            self.follower.process().follower.as_ref().unwrap().status()
        );
    }
}

/// The chain of a follower that has followed nothing yet.
pub(crate) async fn follower_chain(env: &Env) -> Arc<Chain> {
    let network = Network::new(env, LinkSpec::default());
    let host = network.host("follower");
    let machine = Machine::new(env, host, Role::Follower, Room::default()).await;
    let options = Options { follow: true, ..Options::default() };
    Arc::new(Chain::open(env, parts(&machine.devices), options).await.unwrap().0)
}
