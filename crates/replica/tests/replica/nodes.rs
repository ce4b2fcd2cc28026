//! Several machines, each a primary or a follower, and a model for each way that the volume has gone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, HashMap, Rng};
use thalweg_replica::Room;
use thalweg_sim::model::BlockModel;
use thalweg_sim::net::{Host, LinkSpec, Network};
use thalweg_store::block::{Blocks, BlocksExt, Lba, Version, Versions, Write};
use uuid::Uuid;

use crate::clients::Desk;
use crate::cluster::{BLOCKS, Machine, Role};

/// A sync that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    /// The machine.
    pub(crate) at: usize,
    pub(crate) version: Version,
}

pub(crate) struct Nodes {
    pub(crate) network: Network,
    pub(crate) machines: Vec<Machine>,
    /// What was written, for each machine that was a primary.
    models: Vec<BlockModel>,
    /// Whose model a timeline belongs to.
    timelines: HashMap<Uuid, usize>,
    pub(crate) acknowledged: Arc<Mutex<Vec<Acknowledged>>>,
    /// Syncs that a primary acknowledged after it had heard of another one with a higher term.
    pub(crate) violations: Arc<Mutex<Vec<Acknowledged>>>,
    rng: Rng,
    stamp: u64,
}

impl Nodes {
    /// The first machine is the primary, and the others follow it.
    pub(crate) async fn new(env: &Env, count: usize, ack: usize, room: Room) -> Nodes {
        Nodes::with(env, (0..count).map(|_| None).collect(), ack, room).await
    }

    /// The same machines, which serve clients too.
    pub(crate) async fn serving(env: &Env, desks: Vec<Desk>, ack: usize, room: Room) -> Nodes {
        Nodes::with(env, desks.into_iter().map(Some).collect(), ack, room).await
    }

    async fn with(env: &Env, desks: Vec<Option<Desk>>, ack: usize, room: Room) -> Nodes {
        let network = Network::new(env, LinkSpec::of(Duration::from_millis(1)));
        let (mut machines, count) = (Vec::new(), desks.len());
        for (number, desk) in desks.into_iter().enumerate() {
            let host = network.host(&format!("machine{number}"));
            let role = if number == 0 { Role::Primary } else { Role::Follower };
            let mut machine = Machine::new(env, host, role, room).await;
            machine.desk = desk;
            machines.push(machine);
        }
        let met = machines[0].met.clone();
        machines
            .iter_mut()
            .for_each(|machine| (machine.options.ack, machine.met) = (ack, met.clone()));
        let mut nodes = Nodes {
            network,
            machines,
            models: (0..count).map(|_| BlockModel::new(BLOCKS)).collect(),
            timelines: HashMap::default(),
            acknowledged: Arc::default(),
            violations: Arc::default(),
            rng: env.rng(),
            stamp: 0,
        };
        for number in 0..count {
            nodes.start(number, 0).await;
        }
        nodes
    }

    pub(crate) fn host(&self, number: usize) -> Host {
        self.machines[number].host.clone()
    }

    /// Starts a machine, which follows `of` if it is a follower; returns whether its volume opened.
    pub(crate) async fn start(&mut self, number: usize, of: usize) -> bool {
        let primary = self.host(of);
        let started = self.machines[number].try_start(&primary).await;
        if let Err(error) = started {
            assert!(error.to_string().contains("was fenced"), "{error}");
            return false;
        }
        if self.machines[number].is_primary() {
            let chain = self.machines[number].process().chain.clone();
            let model = &mut self.models[number];
            model.rewind(chain.now());
            // The versions of a copy that was taken back have nothing in them.
            while model.now() < chain.now() {
                model.apply(&[]);
            }
            for timeline in chain.history().timelines() {
                self.timelines.entry(timeline.id).or_insert(number);
            }
        }
        true
    }

    /// Makes a follower a primary, and starts it.
    pub(crate) async fn promote(&mut self, number: usize, replaces: usize) {
        self.machines[number].kill().await;
        let old = self.host(replaces);
        let Ok(position) = self.machines[number].promote(&old).await else {
            // It had no whole state yet.
            self.start(number, replaces).await;
            return;
        };
        let of = self.timelines[&position.timeline];
        let mut model = self.models[of].clone();
        model.rewind(position.version);
        self.models[number] = model;
        assert!(self.start(number, number).await);
        self.check(number).await;
    }

    /// As [`Nodes::promote`], of machines that only clients write.
    pub(crate) async fn promote_served(&mut self, number: usize, replaces: usize) {
        self.machines[number].kill().await;
        let old = self.host(replaces);
        // It may have no whole state yet.
        let promoted = self.machines[number].promote(&old).await.is_ok();
        assert!(self.start(number, if promoted { number } else { replaces }).await);
    }

    /// Writes a transaction at a primary, unless it refuses, and begins to make it durable.
    pub(crate) async fn write(&mut self, number: usize) -> bool {
        let chain = self.machines[number].process().chain.clone();
        let first = self.rng.random_range(0..BLOCKS - 20);
        let mut writes = Vec::new();
        for step in 0..self.rng.random_range(1..4) {
            self.stamp += 1;
            let content = Bytes::from(self.stamp.to_le_bytes().repeat(512));
            writes.push(Write::block(Lba(first + 3 * step), content));
        }
        let Ok(version) = chain.apply(writes.clone()).await else { return false };
        assert_eq!(self.models[number].apply(&writes), version);
        let (acknowledged, violations) = (self.acknowledged.clone(), self.violations.clone());
        let met = self.machines[number].met.clone();
        let name = self.machines[number].host.name();
        let syncing = async move {
            if chain.sync(version).await.is_ok() {
                let ack = Acknowledged { at: number, version };
                let is_higher = |(at, term): &(String, u32)| *at == name && *term > chain.term();
                if met.lock().iter().any(is_higher) {
                    violations.lock().push(ack);
                }
                acknowledged.lock().push(ack);
            }
        };
        self.machines[number].node().env().spawn(syncing).detach();
        true
    }

    /// The newest version that a machine has acknowledged.
    pub(crate) fn newest_acknowledged(&self, at: usize) -> Version {
        let all = self.acknowledged.lock();
        all.iter().filter(|ack| ack.at == at).map(|ack| ack.version).max().unwrap_or_default()
    }

    /// Checks that a machine holds the state that its position names, if it has a whole one; returns its version.
    pub(crate) async fn check(&self, number: usize) -> Option<Version> {
        let chain = self.machines[number].process().chain.clone();
        let hold = chain.hold(chain.now())?;
        let version = hold.version();
        if version < chain.whole_from() || version == Version(0) {
            return None;
        }
        let position = chain.position_of(version).unwrap();
        let model = &self.models[self.timelines[&position.timeline]];
        assert!(version <= model.now(), "machine {number}: version {version} is of the future");
        for lba in (0..BLOCKS).map(Lba) {
            let found = chain.read(lba, 1, version).await.unwrap().pop().flatten();
            let found = found.filter(|content| content.iter().any(|byte| *byte != 0));
            let expected = model.read(lba, version);
            assert_eq!(found, expected, "machine {number}: block {} of {version}", lba.0);
        }
        Some(version)
    }
}
