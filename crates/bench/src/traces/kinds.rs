//! Models of nine kinds of servers (Gecko, table 3.1).
//!
//! The table gives the bytes that each server wrote in about a week; the other fields of a [`Kind`] are
//! general knowledge about such servers, not fitted to a trace. A server's requests are of these
//! sorts:
//!
//! - a *hot* write goes to a place of the hot set, drawn by Zipf's law over places that are
//!   scattered over the address space: database pages, directories, mail indices, logs that wrap;
//! - a *run* continues one of a few sequential writers through the whole data set: builds, copies,
//!   mailbox moves. A writer continues at a random place when its run ends;
//! - a *rewrite* repeats a recent write: a log that is appended in pieces smaller than a block, a
//!   journal, a directory that is filled. The distance back in the history of writes is
//!   log-uniform, from the latest to the whole history kept;
//! - a *recent* read repeats a write at such a distance: consumers read soon after producers;
//! - a *hot* read goes to the places of hot writes;
//! - a *scan* reads the data set in runs, recent or not: backups, indexing, cold files.

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use thalweg_env::Rng;

use super::Access;

/// The behaviour of one server. Shares are of blocks, not of requests, because measurements of servers
/// report the volume of reads, writes and rewrites.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// The server's name in the table.
    pub name: &'static str,
    /// GB that it writes, from the table.
    pub writes_gb: f64,
    /// The share of its accesses that are reads.
    pub read_share: f64,
    /// GB that it stores.
    pub data_gb: f64,
    /// GB that are rewritten repeatedly.
    pub hot_gb: f64,
    /// The share of its writes that rewrite recent ones.
    pub rewrites: f64,
    /// The share of its other writes that are hot.
    pub hot_share: f64,
    /// Zipf's exponent over the hot set.
    pub skew: f64,
    /// Blocks in a hot request.
    pub hot_blocks: u32,
    /// Blocks in a request of a run or scan.
    pub run_blocks: u32,
    /// Requests in a run or scan.
    pub run_requests: u32,
    /// The share of reads that are recent. The share of `hot_reads` comes next; the remaining reads are scans.
    pub recent_reads: f64,
    /// See `recent_reads`.
    pub hot_reads: f64,
}

/// The nine servers of the table, A to I.
pub const KINDS: [Kind; 9] = [
    // A build and release server: many fresh files, read back soon by the next step.
    Kind {
        name: "DevDivRelease",
        writes_gb: 176.1,
        read_share: 0.55,
        data_gb: 500.0,
        hot_gb: 6.0,
        rewrites: 0.15,
        hot_share: 0.75,
        skew: 1.1,
        hot_blocks: 2,
        run_blocks: 8,
        run_requests: 64,
        recent_reads: 0.35,
        hot_reads: 0.35,
    },
    // Mail: small random pages of databases, logs that wrap.
    Kind {
        name: "Exchange",
        writes_gb: 459.6,
        read_share: 0.45,
        data_gb: 600.0,
        hot_gb: 12.0,
        rewrites: 0.25,
        hot_share: 0.85,
        skew: 1.1,
        hot_blocks: 2,
        run_blocks: 8,
        run_requests: 32,
        recent_reads: 0.20,
        hot_reads: 0.50,
    },
    // Map tiles: large scans of cold tiles, large writes of new ones.
    Kind {
        name: "LiveMapsBE",
        writes_gb: 558.2,
        read_share: 0.70,
        data_gb: 900.0,
        hot_gb: 8.0,
        rewrites: 0.15,
        hot_share: 0.70,
        skew: 1.1,
        hot_blocks: 8,
        run_blocks: 16,
        run_requests: 128,
        recent_reads: 0.15,
        hot_reads: 0.35,
    },
    // A web proxy: a small set rewritten without end.
    Kind {
        name: "prxy",
        writes_gb: 778.6,
        read_share: 0.60,
        data_gb: 100.0,
        hot_gb: 4.0,
        rewrites: 0.20,
        hot_share: 0.95,
        skew: 1.2,
        hot_blocks: 2,
        run_blocks: 8,
        run_requests: 16,
        recent_reads: 0.20,
        hot_reads: 0.70,
    },
    // Source control: checkouts and metadata.
    Kind {
        name: "src1",
        writes_gb: 883.7,
        read_share: 0.50,
        data_gb: 600.0,
        hot_gb: 8.0,
        rewrites: 0.20,
        hot_share: 0.80,
        skew: 1.1,
        hot_blocks: 4,
        run_blocks: 16,
        run_requests: 64,
        recent_reads: 0.30,
        hot_reads: 0.40,
    },
    // Project directories.
    Kind {
        name: "proj",
        writes_gb: 342.2,
        read_share: 0.65,
        data_gb: 1200.0,
        hot_gb: 8.0,
        rewrites: 0.20,
        hot_share: 0.75,
        skew: 1.1,
        hot_blocks: 2,
        run_blocks: 16,
        run_requests: 64,
        recent_reads: 0.20,
        hot_reads: 0.30,
    },
    // A file server's metadata and files.
    Kind {
        name: "MSNFS",
        writes_gb: 102.3,
        read_share: 0.70,
        data_gb: 400.0,
        hot_gb: 4.0,
        rewrites: 0.25,
        hot_share: 0.80,
        skew: 1.1,
        hot_blocks: 1,
        run_blocks: 8,
        run_requests: 32,
        recent_reads: 0.25,
        hot_reads: 0.45,
    },
    // A print server: spool files, written, read once, overwritten.
    Kind {
        name: "prn",
        writes_gb: 76.8,
        read_share: 0.40,
        data_gb: 150.0,
        hot_gb: 4.0,
        rewrites: 0.20,
        hot_share: 0.75,
        skew: 1.05,
        hot_blocks: 2,
        run_blocks: 8,
        run_requests: 32,
        recent_reads: 0.50,
        hot_reads: 0.25,
    },
    // Home directories.
    Kind {
        name: "usr",
        writes_gb: 95.7,
        read_share: 0.75,
        data_gb: 1300.0,
        hot_gb: 6.0,
        rewrites: 0.20,
        hot_share: 0.75,
        skew: 1.1,
        hot_blocks: 2,
        run_blocks: 8,
        run_requests: 64,
        recent_reads: 0.20,
        hot_reads: 0.35,
    },
];

/// The odds of each sort of request, from the shares of blocks.
#[derive(Clone, Copy, Debug)]
struct Odds {
    read: f64,
    hot_write: f64,
    recent_read: f64,
    hot_read: f64,
}

impl Odds {
    fn of(kind: &Kind) -> Odds {
        let (hot, run) = (f64::from(kind.hot_blocks), f64::from(kind.run_blocks));
        // Requests for each block of a sort.
        let hot_writes = kind.hot_share / hot;
        let writes = hot_writes + (1.0 - kind.hot_share) / run;
        let recent_reads = kind.recent_reads * writes;
        let hot_reads = kind.hot_reads / hot;
        let reads = recent_reads + hot_reads + (1.0 - kind.recent_reads - kind.hot_reads) / run;
        let (all_reads, all_writes) = (kind.read_share * reads, (1.0 - kind.read_share) * writes);
        Odds {
            read: all_reads / (all_reads + all_writes),
            hot_write: hot_writes / writes,
            recent_read: recent_reads / reads,
            hot_read: hot_reads / reads,
        }
    }
}

/// Writes that may be repeated, as a share of all that a server stores.
const HISTORY_SHARE: f64 = 0.02;
const WRITERS: usize = 4;
const BLOCKS_PER_GB: f64 = 1e9 / 4096.0;

/// A run through the data set.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    next: u64,
    requests_left: u32,
}

/// An endless trace of one server.
#[derive(Debug)]
pub struct Generator {
    kind: Kind,
    odds: Odds,
    rng: Rng,
    /// Blocks in the address space.
    span: u64,
    hot_places: u64,
    popularity: Zipf<f64>,
    writers: [Run; WRITERS],
    scan: Run,
    history: VecDeque<Access>,
    history_limit: usize,
}

impl Generator {
    /// A server of `kind` whose sizes are `scale` times the real ones.
    pub fn new(kind: Kind, scale: f64, seed: u64) -> Generator {
        let span = blocks(kind.data_gb, scale).max(u64::from(kind.run_blocks) * 16);
        let places = blocks(kind.hot_gb, scale) / u64::from(kind.hot_blocks);
        let hot_places = places.max(16);
        // The arguments are at least 16 and above 0, as Zipf requires.
        let popularity = Zipf::new(hot_places as f64, kind.skew).expect("a valid Zipf law");
        let history_limit = (span as f64 * HISTORY_SHARE) as usize / kind.hot_blocks as usize;
        Generator {
            kind,
            odds: Odds::of(&kind),
            rng: Rng::seed_from_u64(seed),
            span,
            hot_places,
            popularity,
            writers: [Run::default(); WRITERS],
            scan: Run::default(),
            history: VecDeque::new(),
            history_limit: history_limit.max(16),
        }
    }

    /// Blocks in the address space.
    pub fn span(&self) -> u64 {
        self.span
    }

    /// The next request.
    pub fn access(&mut self) -> Access {
        if self.rng.random_bool(self.odds.read) { self.read() } else { self.write() }
    }

    fn write(&mut self) -> Access {
        let rewrite = self.rng.random_bool(self.kind.rewrites);
        let earlier = if rewrite { self.recent() } else { None };
        let (block, blocks) = if let Some(earlier) = earlier {
            earlier
        } else if self.rng.random_bool(self.odds.hot_write) {
            self.hot_place()
        } else {
            let writer = self.rng.random_range(0..WRITERS);
            let mut run = self.writers[writer];
            let place = self.advance(&mut run);
            self.writers[writer] = run;
            place
        };
        let access = Access { write: true, block, blocks };
        if self.history.len() == self.history_limit {
            self.history.pop_back();
        }
        self.history.push_front(access);
        access
    }

    fn read(&mut self) -> Access {
        let sort: f64 = self.rng.random();
        let recent = self.odds.recent_read;
        let earlier = if sort < recent { self.recent() } else { None };
        let (block, blocks) = if let Some(earlier) = earlier {
            earlier
        } else if sort < recent + self.odds.hot_read {
            self.hot_place()
        } else {
            let mut scan = self.scan;
            let place = self.advance(&mut scan);
            self.scan = scan;
            place
        };
        Access { write: false, block, blocks }
    }

    /// A recent write, if there was any.
    fn recent(&mut self) -> Option<(u64, u32)> {
        let back = (self.history.len() as f64).powf(self.rng.random()) as usize;
        let earlier = self.history.get(back.saturating_sub(1))?;
        Some((earlier.block, earlier.blocks))
    }

    /// A place of the hot set: its rank by Zipf's law, scattered over the address space.
    fn hot_place(&mut self) -> (u64, u32) {
        let rank = self.popularity.sample(&mut self.rng) as u64 - 1;
        let slots = self.span / u64::from(self.kind.hot_blocks);
        let stride = slots / self.hot_places.min(slots);
        // Places of adjacent ranks are not adjacent: the factor is a large prime.
        let place = (rank * 2_654_435_761) % self.hot_places * stride;
        (place * u64::from(self.kind.hot_blocks), self.kind.hot_blocks)
    }

    fn advance(&mut self, run: &mut Run) -> (u64, u32) {
        let len = u64::from(self.kind.run_blocks);
        if run.requests_left == 0 || run.next + len > self.span {
            run.next = self.rng.random_range(0..self.span / len) * len;
            run.requests_left = self.kind.run_requests;
        }
        let block = run.next;
        run.next += len;
        run.requests_left -= 1;
        (block, self.kind.run_blocks)
    }
}

fn blocks(gb: f64, scale: f64) -> u64 {
    (gb * BLOCKS_PER_GB * scale) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: f64 = 1.0 / 1024.0;

    #[test]
    fn a_trace_is_a_function_of_its_seed_and_stays_in_its_span() {
        for kind in KINDS {
            let mut one = Generator::new(kind, SCALE, 7);
            let mut two = Generator::new(kind, SCALE, 7);
            let mut other = Generator::new(kind, SCALE, 8);
            let mut differs = false;
            for _ in 0..20_000 {
                let access = one.access();
                assert_eq!(access, two.access());
                differs |= access != other.access();
                assert!(access.blocks > 0);
                assert!(access.block + u64::from(access.blocks) <= one.span(), "{}", kind.name);
            }
            assert!(differs);
        }
    }

    #[test]
    fn shares_of_blocks_are_as_the_kind_says() {
        for kind in KINDS {
            let mut trace = Generator::new(kind, SCALE, 1);
            let (mut read, mut hot, mut written) = (0.0, 0.0, 0.0);
            for access in (0..200_000).map(|_| trace.access()) {
                let blocks = f64::from(access.blocks);
                if !access.write {
                    read += blocks;
                } else {
                    written += blocks;
                    hot += if access.blocks == kind.hot_blocks { blocks } else { 0.0 };
                }
            }
            assert!((read / (read + written) - kind.read_share).abs() < 0.02, "{}", kind.name);
            assert!((hot / written - kind.hot_share).abs() < 0.03, "{}", kind.name);
        }
    }
}
