//! Charts of the benchmarks on a real machine, from the figures of their reports, with the values beside them that the thesis states in its
//! text. Values that it only draws are not guessed: there our bars stand alone.

use crate::Report;
use crate::plot::{Chart, Series, Shape};

/// Systems, as figures name them, and as charts do.
const SYSTEMS: [(&str, &str); 4] = [
    ("ceph_fuse", "ceph-fuse"),
    ("rados", "ours on the same cluster"),
    ("embedded", "ours on a volume"),
    ("local", "a local mount"),
];

/// One value of the thesis: of the load with this number, by a system.
pub(crate) type Stated = (usize, f64);

/// The bars of one chart for each load; `None` where nothing was measured.
pub(crate) fn rates(
    report: &Report,
    title: &str,
    loads: &[&str],
    (ceph, arion): (&[Stated], &[Stated]),
) -> Option<Chart> {
    let measured =
        |system: &str| points(loads, |load| report.number(&format!("{system}_{load}_per_s")));
    let y = "operations/s".to_owned();
    chart(title, loads, y, [stated("Ceph, thesis", ceph), stated("Arion, thesis", arion)], measured)
}

/// The rates of ours over those of `ceph-fuse`.
pub(crate) fn ratios(
    report: &Report,
    title: &str,
    loads: &[&str],
    thesis: &[Stated],
) -> Option<Chart> {
    let measured = |system: &str| {
        points(loads, |load| report.number(&format!("{system}_{load}_over_ceph_fuse")))
    };
    chart(title, loads, "rate over Ceph's".to_owned(), [stated("thesis", thesis), None], measured)
}

/// Mean milliseconds of updates and of reads. One thread makes as many of these as of those, so the time that is not its reads' is that of its
/// updates.
pub(crate) fn latencies(
    report: &Report,
    title: &str,
    load: &str,
    (ceph, arion): (&[Stated], &[Stated]),
) -> Option<Chart> {
    let measured = |system: &str| {
        let rate = report.number(&format!("{system}_{load}_per_s"));
        let read = report.number(&format!("{system}_read_latency_us"));
        let Some((rate, read)) = rate.zip(read) else { return Vec::new() };
        vec![(0.0, 2e3 / rate - read / 1e3), (1.0, read / 1e3)]
    };
    let y = "ms".to_owned();
    let thesis = [stated("Ceph, thesis", ceph), stated("Arion, thesis", arion)];
    chart(title, &["update", "read"], y, thesis, measured)
}

fn points(loads: &[&str], of: impl Fn(&str) -> Option<f64>) -> Vec<(f64, f64)> {
    loads.iter().enumerate().filter_map(|(x, load)| Some((x as f64, of(load)?))).collect()
}

fn stated(label: &str, values: &[Stated]) -> Option<Series> {
    let points = values.iter().map(|(x, value)| (*x as f64, *value)).collect();
    (!values.is_empty()).then(|| Series::paper(label, points))
}

fn chart(
    title: &str,
    groups: &[&str],
    y: String,
    thesis: [Option<Series>; 2],
    measured: impl Fn(&str) -> Vec<(f64, f64)>,
) -> Option<Chart> {
    let measured = SYSTEMS.iter().map(|(system, label)| Series::measured(label, measured(system)));
    let measured: Vec<Series> = measured.filter(|series| !series.points.is_empty()).collect();
    let (title, x, shape) = (title.to_owned(), groups.join(", "), Shape::Bars);
    let is_empty = measured.is_empty();
    let series = thesis.into_iter().flatten().chain(measured).collect();
    (!is_empty).then_some(Chart { title, x, y, shape, series })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Origin;

    fn report(figures: &[(&str, f64)]) -> Report {
        let mut report = Report::new("arion-test", 1);
        for (name, value) in figures {
            report.figure(name, *value);
        }
        report
    }

    fn series(chart: &Chart, label: &str) -> (Origin, Vec<(f64, f64)>) {
        let found = chart.series.iter().find(|it| it.label == label).unwrap();
        (found.origin, found.points.clone())
    }

    #[test]
    fn rates_stand_beside_those_of_the_text() {
        let report = report(&[
            ("ceph_fuse_a_per_s", 100.0),
            ("ceph_fuse_b_per_s", 200.0),
            ("rados_b_per_s", 900.0),
        ]);
        let chart = rates(&report, "Figure", &["a", "b"], (&[(0, 233.0)], &[(0, 1669.0)])).unwrap();
        assert_eq!(chart.x, "a, b");
        assert_eq!(series(&chart, "Ceph, thesis"), (Origin::Paper, vec![(0.0, 233.0)]));
        assert_eq!(series(&chart, "Arion, thesis"), (Origin::Paper, vec![(0.0, 1669.0)]));
        let ceph = series(&chart, "ceph-fuse");
        assert_eq!(ceph, (Origin::Measured, vec![(0.0, 100.0), (1.0, 200.0)]));
        assert_eq!(series(&chart, "ours on the same cluster").1, [(1.0, 900.0)]);
        assert_eq!(chart.series.len(), 4, "what was not measured has no bars");
    }

    #[test]
    fn ratios_are_those_over_ceph() {
        let report = report(&[("rados_b_over_ceph_fuse", 4.5), ("rados_b_over_local", 0.8)]);
        let chart = ratios(&report, "Figure", &["a", "b"], &[(1, 4.9)]).unwrap();
        assert_eq!(series(&chart, "thesis"), (Origin::Paper, vec![(1.0, 4.9)]));
        assert_eq!(series(&chart, "ours on the same cluster").1, [(1.0, 4.5)]);
    }

    #[test]
    fn updates_take_what_reads_leave() {
        let report = report(&[("rados_run_a_per_s", 1000.0), ("rados_read_latency_us", 200.0)]);
        let chart = latencies(&report, "Figure", "run_a", (&[(0, 4.4)], &[(0, 0.7)])).unwrap();
        assert_eq!(series(&chart, "ours on the same cluster").1, [(0.0, 1.8), (1.0, 0.2)]);
    }

    #[test]
    fn nothing_is_drawn_of_what_was_not_measured() {
        let report = report(&[("below_aim", 0.0)]);
        assert!(rates(&report, "Figure", &["a"], (&[(0, 1.0)], &[])).is_none());
        assert!(ratios(&report, "Figure", &["a"], &[]).is_none());
        assert!(latencies(&report, "Figure", "a", (&[], &[])).is_none());
    }
}
