//! Plays traces on a chain.
//!
//! The chain's addresses are a body, which is written beforehand, and a region for the traces' writes,
//! which is assigned in order of first write: a trace's address space is far larger than the set of
//! blocks that it writes. A read of a block that was never written goes to a fixed address in the
//! body.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_store::block::{Blocks, BlocksExt, Lba, StoreError};
use thalweg_store::chain::Chain;

use crate::BenchError;
use crate::rig;
use crate::traces::{Access, Generator, KINDS};

/// Not written yet.
const NOWHERE: u32 = u32::MAX;
/// Blocks of a trace that stay adjacent when they are read from the body.
const TOGETHER: u64 = 64;

/// Maps the blocks of traces to addresses of the chain.
#[derive(Debug)]
pub(crate) struct Places {
    /// Blocks of the body, from address 0 on.
    body: u64,
    /// Addresses after the body.
    room: u64,
    next: AtomicU64,
}

impl Places {
    pub(crate) fn new(body: u64, room: u64) -> Places {
        Places { body, room, next: AtomicU64::new(0) }
    }

    /// The address of a block that is written for the first time. When all addresses are used, the oldest
    /// one serves a second block.
    fn take(&self) -> u32 {
        (self.body + self.next.fetch_add(1, Ordering::Relaxed) % self.room) as u32
    }

    /// The address in the body for reads of the block `block` of trace `trace`, which was never written.
    fn in_body(&self, trace: u64, block: u64) -> u32 {
        let mixed = ((block / TOGETHER) ^ (trace << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slots = (self.body / TOGETHER).max(1);
        ((mixed >> 20) % slots * TOGETHER + block % TOGETHER) as u32
    }
}

/// Number of blocks read and written.
#[derive(Debug, Default)]
pub(crate) struct Played {
    pub(crate) read: AtomicU64,
    pub(crate) written: AtomicU64,
    failure: Mutex<Option<StoreError>>,
}

impl Played {
    /// Blocks read and written so far.
    ///
    /// # Errors
    /// The error of a player.
    pub(crate) fn now(&self) -> Result<(u64, u64), BenchError> {
        match self.failure.lock().clone() {
            Some(error) => Err(rig::failed(error)),
            None => Ok((self.read.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed))),
        }
    }
}

/// One trace and the addresses of its blocks.
#[derive(Debug)]
pub(crate) struct Player {
    number: u64,
    chain: Arc<Chain>,
    places: Arc<Places>,
    played: Arc<Played>,
    course: Mutex<Course>,
}

#[derive(Debug)]
struct Course {
    trace: Generator,
    written: Vec<u32>,
    stamp: u64,
}

impl Player {
    /// Players of the servers at these positions in [`KINDS`].
    pub(crate) fn all(
        kinds: &[usize],
        scale: f64,
        seed: u64,
        chain: &Arc<Chain>,
        places: &Arc<Places>,
        played: &Arc<Played>,
    ) -> Vec<Arc<Player>> {
        let player = |(number, kind): (usize, &usize)| {
            let number = number as u64;
            let seed = seed.wrapping_mul(1_000_003) + number;
            let trace = Generator::new(KINDS[*kind], scale, seed);
            let written = vec![NOWHERE; trace.span() as usize];
            Arc::new(Player {
                number,
                chain: chain.clone(),
                places: places.clone(),
                played: played.clone(),
                course: Mutex::new(Course { trace, written, stamp: number << 40 }),
            })
        };
        kinds.iter().enumerate().map(player).collect()
    }

    /// Plays the next request, a write until it is durable; returns the number of blocks that it read and
    /// wrote.
    ///
    /// # Errors
    /// Errors of the chain.
    pub(crate) async fn step(&self) -> Result<(u64, u64), StoreError> {
        let (write, addresses, stamp) = self.next();
        let blocks = addresses.len() as u64;
        if write {
            let block = |lba: &u32| rig::block(u64::from(*lba), stamp);
            let version = self.chain.apply(addresses.iter().map(block).collect()).await?;
            self.chain.sync(version).await?;
            self.played.written.fetch_add(blocks, Ordering::Relaxed);
            return Ok((0, blocks));
        }
        let runs: Vec<&[u32]> = addresses.chunk_by(|a, b| a + 1 == *b).collect();
        let read = |run: &[u32]| {
            let (first, count) = (Lba(u64::from(run[0])), run.len() as u64);
            let chain = self.chain.clone();
            async move { chain.read_newest(first, count).await }
        };
        futures::future::try_join_all(runs.into_iter().map(read)).await?;
        self.played.read.fetch_add(blocks, Ordering::Relaxed);
        Ok((blocks, 0))
    }

    /// Plays requests one after the other until the chain fails.
    pub(crate) async fn play(self: Arc<Player>) {
        loop {
            if let Err(error) = self.step().await {
                *self.played.failure.lock() = Some(error);
                return;
            }
        }
    }

    /// The next request: whether it is a write, and its addresses in the chain.
    fn next(&self) -> (bool, Vec<u32>, u64) {
        let mut course = self.course.lock();
        let Access { write, block, blocks } = course.trace.access();
        course.stamp += 1;
        let addresses = (block..block + u64::from(blocks)).map(|block| {
            let known = &mut course.written[block as usize];
            if write && *known == NOWHERE {
                *known = self.places.take();
            }
            match *known {
                NOWHERE => self.places.in_body(self.number, block),
                address => address,
            }
        });
        let addresses: Vec<u32> = addresses.collect();
        (write, addresses, course.stamp)
    }
}

/// Keeps `window` requests of each player in flight, until the tasks are dropped.
pub(crate) fn start(
    env: &Env,
    players: &[Arc<Player>],
    window: usize,
) -> Vec<thalweg_env::Task<()>> {
    let of_player = |player: &Arc<Player>| {
        (0..window).map(|_| env.spawn(player.clone().play())).collect::<Vec<_>>()
    };
    players.iter().flat_map(of_player).collect()
}
