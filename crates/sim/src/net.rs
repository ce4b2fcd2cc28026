//! A network in virtual time: hosts, links between them, and streams of bytes that break.
//!
//! A stream is like one of TCP. Bytes arrive in order, and at most a window of them is under way or unread: a write
//! waits for room. A link has a latency, a jitter and a bandwidth in each direction, which all its streams share;
//! streams are not ordered among each other.
//!
//! | fault | what the two ends notice |
//! |---|---|
//! | [`Network::cut`]: one direction of a link | nothing; bytes wait, and arrive some time after [`Network::heal`] |
//! | [`Network::reset`]: the streams between two hosts | an error, after a prefix of what was under way |
//! | [`Host::power_off`] | nothing, until they send to the host when it is back; what was under way is lost |
//! | a task that ends, or a process that is killed ([`thalweg_env::Node::kill`]) | the end of the stream, or an error |
//!
//! Acknowledgements take no time, but do not pass a link that is cut: with the opposite direction cut, a direction stands
//! still when its window is full.

mod pipe;
mod stream;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, Rng, Time, watch};
use tokio::sync::mpsc;

use pipe::Pipe;
pub use stream::{SimConnector, SimListener, SimStream};

/// How long a connection is tried while its peer does not answer.
const CONNECT: Duration = Duration::from_secs(10);
/// The longest time between the healing of a link and the arrival of what waited for it.
const RETRY: Duration = Duration::from_millis(200);

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// The time that a byte takes from end to end.
    pub latency: Duration,
    /// At most so much is added to it, at random, for each write.
    pub jitter: Duration,
    /// Bytes per second.
    pub bandwidth: u64,
    /// The most bytes of a stream that are under way or unread.
    pub window: usize,
}

impl LinkSpec {
    /// A link of `latency`, with a tenth of it as jitter, and 10 Gbit/s.
    pub fn of(latency: Duration) -> LinkSpec {
        LinkSpec { latency, jitter: latency / 10, bandwidth: 1_250_000_000, window: 4 << 20 }
    }
}

impl Default for LinkSpec {
    /// A link in a rack: 50 µs.
    fn default() -> LinkSpec {
        LinkSpec::of(Duration::from_micros(50))
    }
}

/// What one direction of a link carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTally {
    /// Bytes that were sent, those that were lost included.
    pub bytes: u64,
    /// Writes that these were: as many messages, when each is one write.
    pub writes: u64,
    /// Connections that were made in this direction.
    pub connections: u64,
}

/// A direction of a link, and what is under way on it.
struct Link {
    spec: LinkSpec,
    /// When the bytes that were sent so far have left.
    free_at: Time,
    tally: LinkTally,
    /// Whether bytes pass. Pipes wait for it.
    passes: watch::Sender<bool>,
}

impl Link {
    fn new(spec: LinkSpec) -> Link {
        Link {
            spec,
            free_at: Time::default(),
            tally: LinkTally::default(),
            passes: watch::Sender::new(true),
        }
    }
}

#[derive(Default)]
struct Hosts {
    names: Vec<String>,
    down: Vec<bool>,
    listeners: BTreeMap<(usize, u16), mpsc::UnboundedSender<SimStream>>,
}

struct State {
    rng: Rng,
    usual: LinkSpec,
    hosts: Hosts,
    /// By the hosts that send and receive.
    links: BTreeMap<(usize, usize), Link>,
    pipes: Vec<Weak<Pipe>>,
}

struct Shared {
    env: Env,
    state: Mutex<State>,
}

/// A network. Clones are the same one.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

/// A host of a network. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Host {
    network: Network,
    number: usize,
}

impl Network {
    /// A network without hosts. Links are like `usual` until they are set. `env` is the environment of
    /// the whole run, not of a node: what is under way outlives its sender.
    pub fn new(env: &Env, usual: LinkSpec) -> Network {
        let state = State {
            rng: env.rng(),
            usual,
            hosts: Hosts::default(),
            links: BTreeMap::new(),
            pipes: Vec::new(),
        };
        Network { shared: Arc::new(Shared { env: env.clone(), state: Mutex::new(state) }) }
    }

    /// Adds a host.
    pub fn host(&self, name: &str) -> Host {
        let mut state = self.shared.state.lock();
        state.hosts.names.push(name.to_owned());
        state.hosts.down.push(false);
        Host { network: self.clone(), number: state.hosts.names.len() - 1 }
    }

    /// Sets the link from one host to another, in this direction. Bytes under way arrive as before.
    pub fn set_link(&self, from: &Host, to: &Host, spec: LinkSpec) {
        self.shared.state.lock().link(from.number, to.number).spec = spec;
    }

    /// Sets both directions.
    pub fn set_links(&self, one: &Host, other: &Host, spec: LinkSpec) {
        self.set_link(one, other, spec);
        self.set_link(other, one, spec);
    }

    /// Nothing passes from one host to another from now on; the opposite direction is as it was.
    pub fn cut(&self, from: &Host, to: &Host) {
        self.shared.state.lock().link(from.number, to.number).passes.send_replace(false);
    }

    /// Cuts both directions of every link between the two groups.
    pub fn part(&self, one: &[Host], other: &[Host]) {
        for (one, other) in one.iter().flat_map(|one| other.iter().map(move |other| (one, other))) {
            self.cut(one, other);
            self.cut(other, one);
        }
    }

    /// Makes every link whole.
    pub fn heal(&self) {
        for link in self.shared.state.lock().links.values_mut() {
            link.passes.send_replace(true);
        }
    }

    /// Breaks the streams between two hosts. A random part of what is under way arrives before that.
    pub fn reset(&self, one: &Host, other: &Host) {
        let mut state = self.shared.state.lock();
        for pipe in state.pipes_of(|pipe| pipe.is_between(one.number, other.number)) {
            let keep = state.rng.random_range(0.0..=1.0);
            pipe.break_after(keep, io::ErrorKind::ConnectionReset);
        }
    }

    /// What was sent from one host to another.
    pub fn tally(&self, from: &Host, to: &Host) -> LinkTally {
        self.shared.state.lock().link(from.number, to.number).tally
    }

    /// What all hosts sent.
    pub fn total(&self) -> LinkTally {
        let state = self.shared.state.lock();
        state.links.values().fold(LinkTally::default(), |sum, link| LinkTally {
            bytes: sum.bytes + link.tally.bytes,
            writes: sum.writes + link.tally.writes,
            connections: sum.connections + link.tally.connections,
        })
    }
}

impl State {
    fn link(&mut self, from: usize, to: usize) -> &mut Link {
        let usual = match from == to {
            // A host reaches itself without a wire.
            true => LinkSpec { jitter: Duration::ZERO, ..LinkSpec::of(Duration::from_micros(5)) },
            false => self.usual,
        };
        self.links.entry((from, to)).or_insert_with(|| Link::new(usual))
    }

    /// Whether the directions between two hosts are whole: there and back.
    fn passes(&mut self, from: usize, to: usize) -> [watch::Receiver<bool>; 2] {
        [(from, to), (to, from)].map(|(from, to)| self.link(from, to).passes.subscribe())
    }

    fn pipes_of(&mut self, wanted: impl Fn(&Pipe) -> bool) -> Vec<Arc<Pipe>> {
        self.pipes.retain(|pipe| pipe.strong_count() > 0);
        self.pipes.iter().filter_map(Weak::upgrade).filter(|pipe| wanted(pipe)).collect()
    }

    /// Counts bytes that are sent now, and says when they arrive.
    fn send(&mut self, now: Time, from: usize, to: usize, bytes: usize) -> Time {
        let jitter = self.link(from, to).spec.jitter.as_nanos() as u64;
        let jitter = Duration::from_nanos(self.rng.random_range(0..=jitter));
        let link = self.link(from, to);
        let span = Duration::from_nanos(
            (bytes as u64).saturating_mul(1_000_000_000) / link.spec.bandwidth.max(1),
        );
        link.free_at = link.free_at.max(now) + span;
        link.tally.bytes += bytes as u64;
        link.tally.writes += 1;
        link.free_at + link.spec.latency + jitter
    }
}

impl Host {
    /// Its name.
    pub fn name(&self) -> String {
        self.network.shared.state.lock().hosts.names[self.number].clone()
    }

    /// Listens on a port.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`].
    pub fn listen(&self, port: u16) -> io::Result<SimListener> {
        let mut state = self.network.shared.state.lock();
        let (sender, receiver) = mpsc::unbounded_channel();
        let known = state.hosts.listeners.entry((self.number, port));
        match known {
            std::collections::btree_map::Entry::Occupied(known) if !known.get().is_closed() => {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::collections::btree_map::Entry::Occupied(mut known) => drop(known.insert(sender)),
            std::collections::btree_map::Entry::Vacant(place) => drop(place.insert(sender)),
        }
        Ok(SimListener::new(receiver))
    }

    /// Connects to a port of a host.
    pub fn connector(&self, to: &Host, port: u16) -> SimConnector {
        SimConnector::new(self.clone(), to.clone(), port)
    }

    /// Takes the power away: its streams are gone, and the other ends hear nothing of it. The caller kills the host's
    /// node.
    pub fn power_off(&self) {
        let mut state = self.network.shared.state.lock();
        state.hosts.down[self.number] = true;
        let number = self.number;
        state.hosts.listeners.retain(|(host, _), _| *host != number);
        for pipe in state.pipes_of(|pipe| pipe.touches(number)) {
            pipe.vanish();
        }
    }

    /// Gives the power back. Bytes sent on an old stream are answered with a reset from now on.
    pub fn power_on(&self) {
        let mut state = self.network.shared.state.lock();
        state.hosts.down[self.number] = false;
        let number = self.number;
        for pipe in state.pipes_of(|pipe| pipe.touches(number)) {
            pipe.forget();
        }
    }
}

#[cfg(test)]
mod tests;
