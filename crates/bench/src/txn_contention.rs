//! `txn-contention`: rate of transactions that want the same blocks (Isotope, figures 4.5, 4.6).
//!
//! Virtual time. Sixty-four clients each run transactions that read three random blocks, change a
//! random 16-byte segment of each, and write them back. The blocks come from a prefix of the volume:
//! the shorter it is, the more transactions conflict. With marks, a transaction names the segments that
//! it accessed; without marks, each access is of a whole block. The chains are those of the paper: three
//! hard disks with an SSD that caches the tail, and two SSDs.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, Time};
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::block::{BLOCK_SIZE, Blocks, Lba};
use thalweg_store::chain::{Cleaning, Options as ChainOptions};
use thalweg_store::device::{AlignedBuf, DeviceRef};
use thalweg_store::txn::{
    Begin, Durability, FRAGMENT, Options as TxnOptions, Transact, Transaction, TransactionManager,
    TxnError,
};

use crate::plot::{Chart, LogAxes, Series, Shape};
use crate::rig::{self, Placement, Plan, Rig, SEGMENT, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "txn-contention",
    about: "goodput and commit rate of transactions that conflict, with and without marks",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Bytes on a drive of the paper.
const DRIVE_BYTES: f64 = 600e9;
const DEFAULT_SCALE: f64 = 1.0 / 1024.0;
const CLIENTS: usize = 64;
/// Virtual time of a call; the rest of a transaction on cached blocks takes no virtual time.
const CALL: Duration = Duration::from_micros(10);
/// Blocks that transactions choose from, besides the whole space.
const PREFIXES: [u64; 7] = [3, 16, 64, 256, 1024, 8192, 65_536];
/// Virtual time until the rate is steady, and the duration of the measurement.
const WARM_UP: Duration = Duration::from_millis(200);
const MEASURED: Duration = Duration::from_millis(1000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drives {
    HardDisks,
    SolidStates,
}

impl Drives {
    fn name(self) -> &'static str {
        match self {
            Drives::HardDisks => "hdd",
            Drives::SolidStates => "ssd",
        }
    }
}

/// One line of a figure.
#[derive(Clone, Copy, Debug)]
struct Case {
    drives: Drives,
    fine: bool,
}

impl Case {
    fn name(self) -> String {
        format!("{}_{}", self.drives.name(), if self.fine { "fine" } else { "coarse" })
    }
}

const CASES: [Case; 4] = [
    Case { drives: Drives::HardDisks, fine: false },
    Case { drives: Drives::HardDisks, fine: true },
    Case { drives: Drives::SolidStates, fine: false },
    Case { drives: Drives::SolidStates, fine: true },
];

/// The values of one point of a line.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    prefix: u64,
    /// Commits and attempts per second.
    goodput: f64,
    throughput: f64,
    false_conflicts: u64,
}

impl Outcome {
    fn commit_rate(&self) -> f64 {
        self.goodput / self.throughput.max(1e-9)
    }

    /// MB/s that commits write.
    fn written(&self) -> f64 {
        self.goodput * 3.0 * BLOCK_SIZE as f64 / 1e6
    }
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let mut lines = Vec::new();
    let mut false_conflicts = 0;
    for case in CASES {
        let outcomes =
            thalweg_sim::run(options.seed, |env| async move { measure(&env, case, scale).await })?;
        for outcome in &outcomes {
            let (name, prefix) = (case.name(), outcome.prefix);
            report.figure(&format!("{name}_goodput_{prefix}"), rounded(outcome.goodput));
            report.figure(&format!("{name}_throughput_{prefix}"), rounded(outcome.throughput));
            report.figure(&format!("{name}_commit_rate_{prefix}"), rounded(outcome.commit_rate()));
            report.figure(&format!("{name}_mb_per_s_{prefix}"), rounded(outcome.written()));
            false_conflicts += if case.fine { outcome.false_conflicts } else { 0 };
        }
        lines.push((case, outcomes));
    }
    report.figure("false_conflicts_fine", false_conflicts);
    for (lines, caption) in
        [(&lines, "Figures 4.5 and 4.6, on disks"), (&lines, "Figures 4.5 and 4.6, on SSDs")]
    {
        let drives =
            if caption.ends_with("disks") { Drives::HardDisks } else { Drives::SolidStates };
        report.charts.push(chart(caption, lines.iter().filter(|(case, _)| case.drives == drives)));
    }
    Ok(report)
}

fn chart<'a>(title: &str, lines: impl Iterator<Item = &'a (Case, Vec<Outcome>)>) -> Chart {
    let mut series = Vec::new();
    let mut widest: f64 = 0.0;
    for (case, outcomes) in lines {
        let label = if case.fine { "with marks" } else { "without marks" };
        let points: Vec<_> = outcomes.iter().map(|it| (it.prefix as f64, it.written())).collect();
        widest = points.iter().fold(widest, |widest, point| widest.max(point.0));
        series.push(Series::measured(label, points));
    }
    if title.ends_with("disks") {
        let best = vec![(PREFIXES[0] as f64, 120.0), (widest, 120.0)];
        series.push(Series::paper("the best point of the paper: a drive's rate", best));
    }
    Chart {
        title: title.to_owned(),
        x: "blocks that transactions choose from".to_owned(),
        y: "MB/s written by transactions that commit".to_owned(),
        shape: Shape::LogLines(LogAxes::X),
        series,
    }
}

/// A chain that holds blocks in half of its space.
async fn build(env: &Env, drives: Drives, scale: f64) -> Result<Rig, BenchError> {
    let segment_bytes = f64::from(SEGMENT) * BLOCK_SIZE as f64;
    let drive_segments = ((DRIVE_BYTES * scale / segment_bytes) as u32).max(12);
    let drive = u64::from(drive_segments) * u64::from(SEGMENT);
    let count = if drives == Drives::HardDisks { 3 } else { 2 };
    let plan = Plan {
        placement: Placement::Chained,
        drives: count,
        mirrored: false,
        standby: false,
        drive_segments,
        blocks: drive * count as u64 / 2,
        cleaning: Cleaning::CompactInBody,
        // 32 GB for drives of 600.
        tail_ssd: if drives == Drives::HardDisks { drive * 32 / 600 } else { 0 },
        body_ssd: 0,
        options: ChainOptions { tail_cache_blocks: 4096, ..ChainOptions::default() },
    };
    let mut rig = match drives {
        Drives::HardDisks => Rig::build(env, &plan).await?,
        Drives::SolidStates => {
            let bytes = plan.drive_blocks() * BLOCK_SIZE as u64;
            let ssd = |number: usize| {
                let spec = SolidStateSpec::sata(bytes);
                Arc::new(SolidState::new(env, &format!("ssd{number}"), spec)) as DeviceRef
            };
            Rig::assemble(env, &plan, Vec::new(), (0..count).map(ssd).collect()).await?
        }
    };
    rig.fill(plan.blocks, |block| block).await?;
    rig.sync().await?;
    Ok(rig)
}

async fn measure(env: &Env, case: Case, scale: f64) -> Result<Vec<Outcome>, BenchError> {
    let rig = build(env, case.drives, scale).await?;
    let manager = TransactionManager::new(env, rig.chain.clone(), TxnOptions::default());
    let whole = rig.chain.blocks();
    let mut outcomes = Vec::new();
    for prefix in PREFIXES.into_iter().filter(|prefix| *prefix < whole).chain([whole]) {
        outcomes.push(point(env, &manager, case.fine, prefix).await?);
    }
    Ok(outcomes)
}

type Segment = (u64, usize);

/// One attempt, to account for conflicts. Times are numbers of events.
#[derive(Clone, Debug)]
struct Attempt {
    segments: [Segment; 3],
    began: u64,
    /// Just before its commit got its timestamp, and just after its decision was known.
    asked: u64,
    answered: u64,
    committed: bool,
    at: Time,
}

#[derive(Default)]
struct Account {
    events: u64,
    attempts: Vec<Attempt>,
}

impl Account {
    fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// Attempts that were refused although no commit between their snapshot and their timestamp changed one
    /// of their segments.
    fn false_conflicts(&self) -> u64 {
        let mut commits: std::collections::BTreeMap<Segment, Vec<&Attempt>> = Default::default();
        for commit in self.attempts.iter().filter(|attempt| attempt.committed) {
            commit.segments.iter().for_each(|it| commits.entry(*it).or_default().push(commit));
        }
        let stood = |refused: &Attempt| {
            let met = refused.segments.iter().filter_map(|segment| commits.get(segment));
            met.flatten().any(|it| it.asked < refused.asked && it.answered > refused.began)
        };
        let refused = self.attempts.iter().filter(|attempt| !attempt.committed);
        refused.filter(|refused| !stood(refused)).count() as u64
    }
}

async fn point(
    env: &Env,
    manager: &TransactionManager,
    fine: bool,
    prefix: u64,
) -> Result<Outcome, BenchError> {
    let account = Arc::new(Mutex::new(Account::default()));
    let start = env.now() + WARM_UP;
    let until = start + MEASURED;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let client = Client {
                env: env.clone(),
                manager: manager.clone(),
                account: account.clone(),
                fine,
                prefix,
                until,
            };
            env.spawn(client.run())
        })
        .collect();
    for client in clients {
        let died = || failed(std::io::Error::other("a client died"));
        client.await.ok_or_else(died)?.map_err(failed)?;
    }
    let account = account.lock();
    let measured = account.attempts.iter().filter(|it| it.at >= start && it.at <= until);
    let seconds = MEASURED.as_secs_f64();
    let (all, good) =
        measured.fold((0, 0), |(all, good), it| (all + 1, good + u64::from(it.committed)));
    Ok(Outcome {
        prefix,
        goodput: good as f64 / seconds,
        throughput: all as f64 / seconds,
        false_conflicts: account.false_conflicts(),
    })
}

struct Client {
    env: Env,
    manager: TransactionManager,
    account: Arc<Mutex<Account>>,
    fine: bool,
    prefix: u64,
    until: Time,
}

impl Client {
    async fn run(self) -> Result<(), TxnError> {
        let mut rng = self.env.rng();
        while self.env.now() < self.until {
            let mut segment = || {
                let lba = rng.random_range(0..self.prefix);
                (lba, rng.random_range(0..BLOCK_SIZE / FRAGMENT) * FRAGMENT)
            };
            let segments = [segment(), segment(), segment()];
            let stamp = rng.random();
            let mut began = self.account.lock().event();
            // Refused transactions are repeated, on a new snapshot.
            while !self.attempt(segments, stamp, began).await? && self.env.now() < self.until {
                began = self.account.lock().event();
            }
        }
        Ok(())
    }

    async fn attempt(
        &self,
        segments: [Segment; 3],
        stamp: u64,
        began: u64,
    ) -> Result<bool, TxnError> {
        let txn = self.manager.begin(Begin::STRICT).await?;
        self.env.sleep(CALL).await;
        for (lba, at) in segments {
            self.change(&*txn, Lba(lba), at, stamp).await?;
        }
        self.env.sleep(CALL).await;
        let asked = self.account.lock().event();
        // The decision is known before it is durable.
        let committed = match txn.commit(Durability::Visible).await {
            Ok(_) => true,
            Err(error) if error.is_retryable() => false,
            Err(error) => return Err(error),
        };
        let answered = self.account.lock().event();
        if committed {
            Blocks::sync(&self.manager, self.manager.now()).await?;
        }
        let at = self.env.now();
        let attempt = Attempt { segments, began, asked, answered, committed, at };
        self.account.lock().attempts.push(attempt);
        Ok(committed)
    }

    async fn change(
        &self,
        txn: &dyn Transaction,
        lba: Lba,
        at: usize,
        stamp: u64,
    ) -> Result<(), TxnError> {
        let block = txn.read(lba).await?;
        self.env.sleep(CALL).await;
        let mut block = AlignedBuf::copy_of(&block);
        block[at..at + 8].copy_from_slice(&stamp.to_le_bytes());
        if self.fine {
            txn.mark_accessed(lba, at..at + FRAGMENT)?;
        }
        txn.write(lba, block.freeze())?;
        self.env.sleep(CALL).await;
        if self.fine {
            txn.mark_accessed(lba, at..at + FRAGMENT)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(fine: bool, prefix: u64) -> Outcome {
        let case = Case { drives: Drives::SolidStates, fine };
        thalweg_sim::run(1, |env| async move {
            let rig = build(&env, case.drives, 1e-4).await.unwrap();
            let options = TxnOptions::default();
            let manager = TransactionManager::new(&env, rig.chain.clone(), options);
            point(&env, &manager, fine, prefix).await.unwrap()
        })
    }

    #[test]
    fn marks_keep_transactions_apart() {
        let (coarse, fine) = (small(false, 16), small(true, 16));
        assert!(fine.commit_rate() > 0.9, "{fine:?}");
        assert!(coarse.commit_rate() < 0.5, "{coarse:?}");
        assert_eq!(fine.false_conflicts, 0);
        assert!(coarse.false_conflicts > 0, "the account sees none");
    }
}
