//! `okeanos-recovery`: duration of a mount after a crash (Okeanos 5.2.5, figure 5.7).
//!
//! 100 writers make 100 synchronous writes of 8 bytes each, and the power is cut before any of them
//! was written back.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_fs::{Filesystem, Ino, WriteAt};
use thalweg_store::inplace::{Mode, Recovered};

use super::rig::{Caches, Plan, Rig};
use crate::plot::{Chart, Series, Shape};
use crate::rig::{all, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "okeanos-recovery",
    about: "scan, revoke and replay after a crash, in every mode",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

const WRITERS: usize = 100;
const WRITES: u64 = 100;
const SIZE: usize = 8;

fn run(options: &Options) -> Result<Report, BenchError> {
    let mut report = Report::new(ENTRY.name, options.seed);
    let mut phases = [Vec::new(), Vec::new(), Vec::new()];
    for (nth, mode) in Mode::ALL.into_iter().enumerate() {
        let found = thalweg_sim::run(options.seed, |env| async move { crash(&env, mode).await })?;
        let spans = [found.scan_us, found.revoke_us, found.replay_us].map(|us| us as f64 / 1e3);
        for ((name, ms), phase) in ["scan", "revoke", "replay"].iter().zip(spans).zip(&mut phases) {
            report.figure(&format!("{mode}_{name}_ms"), rounded(ms));
            phase.push((nth as f64, ms));
        }
        report.figure(&format!("{mode}_total_ms"), rounded(spans.iter().sum()));
        report.figure(&format!("{mode}_journal_bytes"), found.journal_bytes);
        report.figure(&format!("{mode}_blocks"), found.blocks);
    }
    let [scan, revoke, replay] = phases;
    report.charts.push(Chart {
        title: "5.7: recovery; the paper has a tenth of data's scan, 140 % of its replay"
            .to_owned(),
        x: Mode::ALL.map(Mode::name).join(", "),
        y: "ms".to_owned(),
        shape: Shape::Bars,
        series: vec![
            Series::measured("scan", scan),
            Series::measured("revoke", revoke),
            Series::measured("replay", replay),
        ],
    });
    Ok(report)
}

async fn crash(env: &Env, mode: Mode) -> Result<Recovered, BenchError> {
    let rig = Rig::build(env, Plan::new(mode, Caches::Off)).await?;
    let mut rng = env.rng();
    let mut files = Vec::new();
    for writer in 0..WRITERS {
        let folder = rig.mkdir(Ino::ROOT, &format!("d{writer}")).await?;
        files.push(rig.create(folder, "events", 0, &mut rng).await?);
    }
    rig.settle().await?;
    let rig = Arc::new(rig);
    let writers = files.iter().enumerate().map(|(writer, file)| {
        let (rig, file) = (rig.clone(), *file);
        env.spawn(async move {
            for nth in 0..WRITES {
                let at = WriteAt::Offset(nth * SIZE as u64);
                rig.write(file, at, event(writer, nth), true).await?;
            }
            Ok(())
        })
    });
    all(writers.collect()).await?;
    let rig = Arc::into_inner(rig)
        .ok_or_else(|| BenchError::Failed("a writer is still running".into()))?;
    let (rig, found) = rig.crash().await?;
    for (writer, file) in files.iter().enumerate() {
        let read = rig.fs.read(*file, 0, SIZE * WRITES as usize).await.map_err(failed)?;
        let expected: Vec<u8> = (0..WRITES).flat_map(|nth| event(writer, nth)).collect();
        if read.concat() != expected {
            return Err(BenchError::Failed(
                format!("writer {writer} lost acknowledged writes").into(),
            ));
        }
    }
    Ok(found)
}

/// The bytes of a write, different for each.
fn event(writer: usize, nth: u64) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(&((writer as u64) << 32 | (nth + 1)).to_le_bytes())
}
