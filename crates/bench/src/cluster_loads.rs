//! Loads of one or two clients on a shared directory, measured on several filesystems in turns.

pub(crate) mod durable;
pub(crate) mod leveldb;
pub(crate) mod losing;
pub(crate) mod oltp;
pub(crate) mod redis;
mod stage;
pub(crate) mod usual;

use std::path::Path;

use thalweg_env::Env;

use crate::cluster_mounts::{Kind, Site, Subject, new_folder};
use crate::fs::loads::SourceTree;
use crate::machine::execute;
use crate::rig::{median, rounded};
use crate::{BenchError, Report};
pub(crate) use stage::{Load, Stage};

/// Number of rounds.
const ROUNDS: usize = 3;

/// The results of one filesystem under one load.
#[derive(Clone, Debug, Default)]
struct Row {
    rates: Vec<f64>,
    /// Calls to our server for each operation.
    calls: Vec<f64>,
    /// Seconds from the end until the server has what is in the journal.
    drains: Vec<f64>,
    /// Mean seconds of a read in each round, if the load times them.
    reads: Vec<f64>,
    /// Of all rounds.
    lost: Option<u64>,
}

/// The parts of a run.
pub(crate) struct Plan<'a> {
    pub(crate) env: &'a Env,
    pub(crate) sites: &'a [Site],
    pub(crate) loads: &'a [Load],
    pub(crate) tree: &'a SourceTree,
    pub(crate) scale: f64,
    pub(crate) seed: u64,
}

/// Measures each load on each filesystem in turns.
pub(crate) fn measure(plan: &Plan<'_>, report: &mut Report) -> Result<(), BenchError> {
    for load in plan.loads {
        let mut rows = vec![Row::default(); plan.sites.len()];
        for round in 0..ROUNDS {
            for turn in 0..plan.sites.len() {
                // Each round begins with another one.
                let nth = (round + turn) % plan.sites.len();
                measure_once(plan, load, round, &plan.sites[nth], &mut rows[nth])?;
            }
        }
        tell(report, load, plan.sites, &rows);
    }
    Ok(())
}

fn measure_once(
    plan: &Plan<'_>,
    load: &Load,
    round: usize,
    site: &Site,
    row: &mut Row,
) -> Result<(), BenchError> {
    let [first, second] = new_folder(site, format!("{}{round}", load.name))?;
    execute::<&str>(Path::new("sync"), &[])?;
    let Plan { env, tree, scale, .. } = *plan;
    let seed = plan.seed ^ (round as u64) << 32;
    let before = site.calls()?;
    let timed = (load.run)(&Stage { env, first, second, tree, scale, seed })?;
    let name = site.subject.name;
    let lost = timed.lost.map_or(String::new(), |lost| format!(", {lost} lost"));
    eprintln!("{} on {name}: {:.1} {}{lost}", load.name, timed.rate(), load.unit);
    if let (Some(before), Some(after)) = (before, site.calls()?) {
        row.calls.push((after - before) as f64 / timed.operations.max(1.0));
    }
    // Else it would be written back while another filesystem is measured.
    let ended = env.now();
    if site.drain()? {
        row.drains.push(env.now().since(ended).as_secs_f64());
    }
    row.rates.push(timed.rate());
    row.reads.extend(timed.read);
    row.lost = timed.lost.map(|lost| row.lost.unwrap_or(0) + lost);
    Ok(())
}

fn tell(report: &mut Report, load: &Load, sites: &[Site], rows: &[Row]) {
    for (site, row) in sites.iter().zip(rows) {
        let name = format!("{}_{}", site.subject.name, load.name);
        report.figure(&format!("{name}_{}", load.unit), rounded(median(row.rates.clone())));
        if !row.calls.is_empty() {
            report.figure(&format!("{name}_calls"), rounded(median(row.calls.clone())));
        }
        if !row.drains.is_empty() {
            report.figure(&format!("{name}_drain_s"), rounded(median(row.drains.clone())));
        }
        if !row.reads.is_empty() {
            let micros = median(row.reads.clone()) * 1e6;
            report.figure(&format!("{}_read_latency_us", site.subject.name), rounded(micros));
        }
        if let Some(lost) = row.lost {
            report.figure(&format!("{name}_lost"), lost);
        }
        let peers = sites.iter().zip(rows);
        for (peer, its) in peers.filter(|(peer, _)| is_compared(site.subject, peer.subject)) {
            let over = median(row.rates.clone()) / median(its.rates.clone()).max(1e-9);
            report.figure(&ratio_name(site.subject, load, peer.subject), rounded(over));
            if !row.reads.is_empty() {
                let over = median(row.reads.clone()) / median(its.reads.clone()).max(1e-9);
                report.figure(&latency_name(site.subject, peer.subject), rounded(over));
            }
        }
    }
}

/// Whether a ratio tells how many times as fast one filesystem is as the other: one of ours as one of others; or as the same
/// without a journal.
fn is_compared(ours: Subject, peer: Subject) -> bool {
    let is_unjournaled = ours.kind == peer.kind && ours.journals > 0 && peer.journals == 0;
    ours.is_ours() && (!peer.is_ours() || is_unjournaled)
}

/// The name of the figure that tells how many times as fast `ours` is as `peer`.
pub(crate) fn ratio_name(ours: Subject, load: &Load, peer: Subject) -> String {
    let peer = if ours.kind == peer.kind { "unjournaled" } else { peer.name };
    format!("{}_{}_over_{peer}", ours.name, load.name)
}

/// The name of the figure that tells how many times as long a read takes on `ours` as on `peer`.
pub(crate) fn latency_name(ours: Subject, peer: Subject) -> String {
    format!("{}_read_latency_over_{}", ours.name, peer.name)
}

/// The ratios over `peer` that are below an aim.
pub(crate) fn below(
    report: &Report,
    loads: &[Load],
    peer: Kind,
    aim: impl Fn(&Load) -> f64,
) -> Vec<String> {
    let mut names = Vec::new();
    for ours in [Kind::Rados, Kind::Embedded] {
        for load in loads {
            let name = ratio_name(ours.subject(), load, peer.subject());
            if report.number(&name).is_some_and(|over| over < aim(load)) {
                names.push(name);
            }
        }
    }
    names
}

/// The number of the ratios that miss their aims: `aim` is the least for a load of ours over a peer, if there is one.
pub(crate) fn missed(
    report: &Report,
    loads: &[Load],
    subjects: &[Subject],
    aim: impl Fn(&Load, Subject, Subject) -> Option<f64>,
) -> usize {
    let mut missed = 0;
    for load in loads {
        for (ours, peer) in
            subjects.iter().flat_map(|ours| subjects.iter().map(move |peer| (*ours, *peer)))
        {
            let over = report.number(&ratio_name(ours, load, peer));
            let is_missed = |(over, aim): (f64, f64)| over < aim;
            missed += usize::from(over.zip(aim(load, ours, peer)).is_some_and(is_missed));
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::stage::sync;
    use super::*;

    /// Runs a test on a stage whose clients are a plain directory.
    pub(super) fn on_stage(test: impl FnOnce(&Stage<'_>)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let folder = tempfile::tempdir().unwrap();
        let tree = SourceTree::make(folder.path()).unwrap();
        let first = folder.path().join("stage");
        std::fs::create_dir(&first).unwrap();
        let (env, second) = (Env::real(), first.clone());
        test(&Stage { env: &env, first, second, tree: &tree, scale: 0.005, seed: 1 });
    }

    fn load(name: &'static str) -> Load {
        Load { name, unit: "per_s", run: |stage| stage.time(10, || sync(&stage.first)) }
    }

    fn row(rates: [f64; 3], lost: Option<u64>) -> Row {
        Row { rates: rates.into(), lost, ..Row::default() }
    }

    #[test]
    fn ratios_above_1_say_that_ours_is_faster() {
        let folder = tempfile::tempdir().unwrap();
        let kinds = [Kind::CephFuse, Kind::Rados, Kind::Embedded, Kind::Local];
        let site = |kind: Kind| {
            Site::on([folder.path().into(), folder.path().into()], kind.subject()).unwrap()
        };
        let sites = kinds.map(site);
        let rows = [
            row([100.0, 10.0, 1000.0], Some(7)),
            row([300.0, 1.0, 400.0], None),
            row([50.0, 50.0, 50.0], None),
            row([600.0, 600.0, 600.0], None),
        ];
        let mut report = Report::new("cluster-fs", 1);
        tell(&mut report, &load("creates"), &sites, &rows);
        assert_eq!(report.number("rados_creates_over_ceph_fuse"), Some(3.0));
        assert_eq!(report.number("rados_creates_over_local"), Some(0.5));
        assert_eq!(report.number("embedded_creates_over_ceph_fuse"), Some(0.5));
        assert_eq!(report.number("ceph_fuse_creates_per_s"), Some(100.0));
        assert_eq!(report.number("ceph_fuse_creates_lost"), Some(7.0));
        assert_eq!(report.number("rados_creates_lost"), None);
        assert_eq!(report.number("local_creates_over_ceph_fuse"), None);
        let below = |peer, aim| below(&report, &[load("creates")], peer, |_| aim);
        assert_eq!(below(Kind::CephFuse, 3.0), ["embedded_creates_over_ceph_fuse"]);
        assert_eq!(below(Kind::CephFuse, 3.1).len(), 2);
        assert_eq!(below(Kind::Local, 0.05), [""; 0]);
    }

    #[test]
    fn reads_above_1_say_that_ours_is_slower() {
        let folder = tempfile::tempdir().unwrap();
        let sites = [Kind::CephFuse, Kind::Rados].map(|kind| {
            Site::on([folder.path().into(), folder.path().into()], kind.subject()).unwrap()
        });
        let mut rows = [row([1.0; 3], None), row([2.0; 3], None)];
        let mut report = Report::new("arion-leveldb", 1);
        tell(&mut report, &load("run_f"), &sites, &rows);
        assert_eq!(report.number("rados_read_latency_over_ceph_fuse"), None);
        rows[0].reads = vec![0.0001, 0.0003, 0.0002];
        rows[1].reads = vec![0.0005, 0.0009, 0.0001];
        tell(&mut report, &load("run_a"), &sites, &rows);
        assert_eq!(report.number("rados_read_latency_over_ceph_fuse"), Some(2.5));
        assert_eq!(report.number("ceph_fuse_read_latency_us"), Some(200.0));
        assert_eq!(report.number("ceph_fuse_read_latency_over_rados"), None);
    }

    #[test]
    fn what_a_journal_brings_is_beside_the_same_without() {
        let folder = tempfile::tempdir().unwrap();
        let subject = |name, kind: Kind, journals| Subject { name, journals, ..kind.subject() };
        let subjects = [
            Kind::CephFuse.subject(),
            subject("rados", Kind::Rados, 1),
            subject("rados_unjournaled", Kind::Rados, 0),
            subject("embedded", Kind::Embedded, 1),
        ];
        let sites = subjects.map(|subject| {
            Site::on([folder.path().into(), folder.path().into()], subject).unwrap()
        });
        let rates = [100.0, 1000.0, 200.0, 500.0];
        let mut rows = rates.map(|rate| row([rate; 3], None));
        rows[1].drains = vec![3.0, 1.0, 2.0];
        let mut report = Report::new("arion-fs", 1);
        tell(&mut report, &load("fsync"), &sites, &rows);
        assert_eq!(report.number("rados_fsync_over_unjournaled"), Some(5.0));
        assert_eq!(report.number("rados_fsync_over_ceph_fuse"), Some(10.0));
        assert_eq!(report.number("rados_unjournaled_fsync_over_ceph_fuse"), Some(2.0));
        assert_eq!(report.number("embedded_fsync_over_ceph_fuse"), Some(5.0));
        assert_eq!(report.number("rados_fsync_drain_s"), Some(2.0));
        for absent in [
            "rados_unjournaled_fsync_over_unjournaled",
            "rados_unjournaled_fsync_over_rados",
            "embedded_fsync_over_unjournaled",
            "embedded_fsync_over_rados_unjournaled",
            "embedded_fsync_drain_s",
        ] {
            assert_eq!(report.number(absent), None, "{absent}");
        }
    }

    #[test]
    fn filesystems_are_measured_in_turns_each_in_new_directories() {
        on_stage(|stage| {
            let site = |name: &str, kind| {
                let root = stage.first.join(name);
                Site::on([root.clone(), root], Kind::subject(kind)).unwrap()
            };
            let sites = [site("a", Kind::CephFuse), site("b", Kind::Rados)];
            let Stage { env, tree, scale, seed, .. } = *stage;
            let loads = [load("syncs")];
            let plan = Plan { env, sites: &sites, loads: &loads, tree, scale, seed };
            let mut report = Report::new("cluster-fs", 1);
            measure(&plan, &mut report).unwrap();
            for site in &sites {
                assert_eq!(std::fs::read_dir(&site.roots[0]).unwrap().count(), ROUNDS);
            }
            assert!(report.number("rados_syncs_over_ceph_fuse").unwrap() > 0.0);
            assert_eq!(report.number("rados_syncs_calls"), None, "there is no server");
            // The directories are not new.
            assert!(measure(&plan, &mut report).is_err());
        });
    }
}
