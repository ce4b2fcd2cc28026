//! The page of benchmark results: stored runs, a template, and the rendered page.
//!
//! A folder holds one file `NAME.json` for each benchmark, a [`Stored`], and the template `page.md`. In the
//! template `{{...}}` stands for:
//!
//! | placeholder | rendered as |
//! |---|---|
//! | `{{NAME FIGURE FORMAT}}` | a figure of a stored run; `–` when the run lacks it, or there is none yet |
//! | `{{run NAME}}` | the run's command, machine, date and commit |
//! | `{{remarks NAME}}` | the run's remarks, as a list |
//!
//! `NAME` is a benchmark, or `BENCHMARK:RUN` for a named run of it. `FORMAT` is `.2` for two decimals, `%.1` for
//! a percentage with one, `k.0` for thousands without decimals; without it a figure is printed as it is stored. A
//! figure that is an array of two numbers is a range over several runs.
//!
//! Another document quotes a figure as `2.30<!--fig: chain-reads vs_raid10_total .2-->`: the text before the
//! comment must be what the placeholder renders, and the page must have the figure. See
//! [`Results::check_quotes`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::{self, said};
use crate::report::Figures;
use crate::{BenchError, Clock, Report};

/// The template's name in the folder of results.
const TEMPLATE: &str = "page.md";
/// Rendered in place of a figure that a run lacks.
const ABSENT: &str = "–";
/// Rendered in place of the run of a benchmark that has none.
const UNMEASURED: &str = "Not measured yet.";

/// The stored runs of one benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// The benchmark's name.
    pub bench: String,
    /// Its runs, one for each command.
    pub runs: Vec<Run>,
}

/// One stored run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The run's name; empty for the benchmark's main run.
    pub name: String,
    /// The command that made it, without `--json` and the options that say where to store figures.
    pub command: String,
    /// The machine, or that the figures do not depend on it.
    pub machine: String,
    /// The date as `2026-11-23`, or a limit as `before 2026-11-23`.
    pub date: String,
    /// The commit that was measured, or that recorded the figures; empty when not known.
    pub commit: String,
    /// The seed.
    pub seed: u64,
    /// The figures.
    pub figures: Figures,
    /// Facts of this run that its figures do not show.
    pub remarks: Vec<String>,
}

/// All stored runs of a folder, with its template.
#[derive(Clone, Debug)]
pub struct Results {
    benches: BTreeMap<String, Stored>,
    template: String,
    path: PathBuf,
}

impl Results {
    /// Reads the stored runs and the template in `folder`.
    ///
    /// # Errors
    /// [`BenchError::Io`], or [`BenchError::Page`] when a file has an invalid form.
    pub fn read(folder: &Path) -> Result<Results, BenchError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| BenchError::Io { path, source }
        };
        let mut benches = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(io(folder))? {
            let path = entry.map_err(io(folder))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let stored = read_stored(&path)?;
                benches.insert(stored.bench.clone(), stored);
            }
        }
        let path = folder.join(TEMPLATE);
        let template = std::fs::read_to_string(&path).map_err(io(&path))?;
        Ok(Results { benches, template, path })
    }

    /// The names of the benchmarks with stored runs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.benches.keys().map(String::as_str)
    }

    /// The commands of all stored runs.
    pub fn commands(&self) -> impl Iterator<Item = &str> {
        self.benches.values().flat_map(|stored| &stored.runs).map(|run| &*run.command)
    }

    /// The page: the template with its placeholders replaced.
    ///
    /// # Errors
    /// [`BenchError::Page`] when a placeholder is invalid or names a run that is not stored, or when a stored run
    /// is not on the page.
    pub fn render(&self) -> Result<String, BenchError> {
        let mut page = String::new();
        let mut shown = BTreeSet::new();
        for piece in pieces(&self.template) {
            match piece.map_err(|detail| self.invalid(detail))? {
                Piece::Text(text) => page.push_str(text),
                Piece::Placeholder(inside) => {
                    let words: Vec<&str> = inside.split_whitespace().collect();
                    let text = match words[..] {
                        ["run", name] => {
                            shown.insert(name);
                            self.run(name).map(|run| run.map_or(UNMEASURED.to_owned(), describe))
                        }
                        ["remarks", name] => {
                            self.run(name).map(|run| run.map_or(String::new(), list_remarks))
                        }
                        _ => self.figure(inside),
                    };
                    page.push_str(&text.map_err(|detail| self.invalid(detail))?);
                }
            }
        }
        for (bench, run) in self
            .benches
            .values()
            .flat_map(|stored| stored.runs.iter().map(move |run| (&*stored.bench, &*run.name)))
        {
            let name = if run.is_empty() { bench.to_owned() } else { format!("{bench}:{run}") };
            if !shown.contains(&*name) {
                return Err(
                    self.invalid(format!("{{{{run {name}}}}} is missing: the run is stored"))
                );
            }
        }
        Ok(page)
    }

    /// Checks the figures that a document quotes against the stored runs; returns how many it quotes.
    ///
    /// # Errors
    /// [`BenchError::Page`] for the first quotation that differs from its figure, or that the page does not have.
    pub fn check_quotes(&self, document: &Path) -> Result<usize, BenchError> {
        let io = |source| BenchError::Io { path: document.to_owned(), source };
        let text = std::fs::read_to_string(document).map_err(io)?;
        let invalid = |detail| BenchError::Page { path: document.to_owned(), detail };
        let mut on_page = BTreeSet::new();
        for piece in pieces(&self.template) {
            if let Piece::Placeholder(inside) = piece.map_err(|detail| self.invalid(detail))? {
                on_page.extend(figure_name(inside));
            }
        }
        let mut count = 0;
        let mut rest = &*text;
        while let Some((before, (comment, after))) = rest
            .split_once("<!--fig:")
            .and_then(|(before, after)| Some((before, after.split_once("-->")?)))
        {
            rest = after;
            let comment = comment.trim();
            let wanted = self.figure(comment).map_err(invalid)?;
            if !before.ends_with(&wanted) || wanted == ABSENT {
                let from =
                    before.char_indices().rev().nth(wanted.len() + 8).map_or(0, |(at, _)| at);
                let found = &before[from..];
                return Err(invalid(format!(
                    "{comment:?} is {wanted}, but the text is \"{found}\""
                )));
            }
            if figure_name(comment).is_none_or(|name| !on_page.contains(&name)) {
                return Err(invalid(format!("{comment:?} is not on the page of benchmarks")));
            }
            count += 1;
        }
        Ok(count)
    }

    fn invalid(&self, detail: String) -> BenchError {
        BenchError::Page { path: self.path.clone(), detail }
    }

    /// The run called `BENCHMARK` or `BENCHMARK:RUN`; `None` when the benchmark's file has no runs yet.
    fn run(&self, name: &str) -> Result<Option<&Run>, String> {
        let (bench, run) = name.split_once(':').unwrap_or((name, ""));
        let missing = || format!("no run of {name} is stored");
        let runs = &self.benches.get(bench).ok_or_else(missing)?.runs;
        let run = runs.iter().find(|it| it.name == run);
        if run.is_some() || runs.is_empty() { Ok(run) } else { Err(missing()) }
    }

    /// Renders `NAME FIGURE FORMAT`.
    fn figure(&self, placeholder: &str) -> Result<String, String> {
        let words: Vec<&str> = placeholder.split_whitespace().collect();
        let (name, figure, format) = match words[..] {
            [name, figure] => (name, figure, ""),
            [name, figure, format] => (name, figure, format),
            _ => return Err(format!("{{{{{placeholder}}}}} is not a placeholder")),
        };
        let Some(value) = self.run(name)?.and_then(|run| run.figures.get(figure)) else {
            return Ok(ABSENT.to_owned());
        };
        let numbers = match value {
            Value::Array(values) => values.iter().map(Value::as_f64).collect(),
            value => Some(value.as_f64().into_iter().collect::<Vec<f64>>()),
        };
        let numbers = numbers.filter(|numbers: &Vec<f64>| matches!(numbers.len(), 1 | 2));
        let numbers =
            numbers.ok_or_else(|| format!("{name} {figure} is neither a number nor a range"))?;
        let texts: Result<Vec<String>, String> =
            numbers.into_iter().map(|number| formatted(number, format)).collect();
        Ok(texts?.join(" to "))
    }
}

/// A part of a template.
enum Piece<'a> {
    Text(&'a str),
    /// The text between the braces.
    Placeholder(&'a str),
}

/// Splits a template at its placeholders.
fn pieces(template: &str) -> impl Iterator<Item = Result<Piece<'_>, String>> {
    let mut parts = template.split("{{");
    let first = parts.next().map(|text| Ok(Piece::Text(text)));
    first.into_iter().chain(parts.flat_map(|part| match part.split_once("}}") {
        Some((inside, text)) => vec![Ok(Piece::Placeholder(inside)), Ok(Piece::Text(text))],
        None => {
            let line = part.lines().next().unwrap_or_default();
            vec![Err(format!("\"{{{{{line}\" has no end"))]
        }
    }))
}

/// The run and the figure that a placeholder names, if it is one of a figure.
fn figure_name(placeholder: &str) -> Option<(&str, &str)> {
    let mut words = placeholder.split_whitespace();
    let name = words.next().filter(|name| !["run", "remarks"].contains(name))?;
    Some((name, words.next()?))
}

/// A number in a placeholder's format, its integer part in groups of three digits.
fn formatted(number: f64, format: &str) -> Result<String, String> {
    let decimals = |text: &str| {
        let text = text.strip_prefix('.');
        text.and_then(|text| text.parse::<usize>().ok())
            .ok_or_else(|| format!("{format} is not a format"))
    };
    let text = match format.split_at_checked(1) {
        None => number.to_string(),
        Some(("%", rest)) => format!("{:.*}", decimals(rest)?, number * 100.0),
        Some(("k", rest)) => format!("{:.*}", decimals(rest)?, number / 1e3),
        Some(_) => format!("{:.*}", decimals(format)?, number),
    };
    let (whole, fraction) =
        text.split_once('.').map_or((&*text, None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::new();
    for (nth, digit) in whole.chars().enumerate() {
        if nth > 0 && (whole.len() - nth) % 3 == 0 && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if let Some(fraction) = fraction {
        grouped.push('.');
        grouped.push_str(fraction);
    }
    Ok(if format.starts_with('%') { grouped + " %" } else { grouped })
}

/// A run's command, machine, date and commit.
fn describe(run: &Run) -> String {
    let commit =
        if run.commit.is_empty() { String::new() } else { format!(", commit {}", run.commit) };
    let date = match run.date.strip_prefix("before ") {
        Some(limit) => format!("measured before {limit}"),
        None => run.date.clone(),
    };
    format!("`{}`: {}, seed {}; {date}{commit}.", run.command, run.machine, run.seed)
}

fn list_remarks(run: &Run) -> String {
    run.remarks.iter().map(|remark| format!("- {remark}")).collect::<Vec<_>>().join("\n")
}

fn read_stored(path: &Path) -> Result<Stored, BenchError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| BenchError::Io { path: path.to_owned(), source })?;
    serde_json::from_str(&text)
        .map_err(|error| BenchError::Page { path: path.to_owned(), detail: error.to_string() })
}

/// Stores a report in `folder`: it replaces the run of the same command, or else the one called `name`, or becomes a new
/// run of that name. The new run has no remarks. Creates the folder when it is missing.
///
/// # Errors
/// [`BenchError::Io`], or [`BenchError::Page`] when the benchmark's file has an invalid form.
pub fn save(folder: &Path, report: &Report, name: &str, command: &str) -> Result<(), BenchError> {
    std::fs::create_dir_all(folder)
        .map_err(|source| BenchError::Io { path: folder.to_owned(), source })?;
    let path = folder.join(format!("{}.json", report.bench));
    let mut stored = match path.exists() {
        true => read_stored(&path)?,
        false => Stored { bench: report.bench.to_owned(), runs: Vec::new() },
    };
    let entry = crate::list().iter().find(|entry| entry.name == report.bench);
    let run = Run {
        name: name.to_owned(),
        command: command.to_owned(),
        machine: match entry.map(|entry| entry.clock) {
            Some(Clock::Virtual) => "virtual time".to_owned(),
            Some(Clock::Counts) => "counts".to_owned(),
            Some(Clock::Real) | None => machine::describe(),
        },
        date: said("date", &["-u", "+%F"]).unwrap_or_default(),
        commit: said("git", &["describe", "--always", "--dirty"]).unwrap_or_default(),
        seed: report.seed,
        figures: report.figures.clone(),
        remarks: Vec::new(),
    };
    let same = stored.runs.iter().position(|old| old.command == command);
    match same.or_else(|| stored.runs.iter().position(|old| old.name == name)) {
        Some(at) => stored.runs[at] = Run { name: stored.runs[at].name.clone(), ..run },
        None => stored.runs.push(run),
    }
    let text =
        serde_json::to_string_pretty(&stored).map_err(|error| BenchError::Failed(error.into()))?;
    std::fs::write(&path, text + "\n").map_err(|source| BenchError::Io { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn docs() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
    }

    /// Results of one benchmark with two runs, and a template.
    fn results(template: &str) -> Results {
        let folder = tempfile::tempdir().unwrap();
        let mut report = Report::new("chain-gc", 7);
        report.figure("rate", 12345.678).figure("share", 0.983).figure("range", vec![604, 617]);
        report.figure("name", "text");
        let results = folder.path().join("new");
        save(&results, &report, "", "thalweg bench chain-gc").unwrap();
        save(&results, &report, "small", "thalweg bench chain-gc --scale 0.1").unwrap();
        std::fs::write(results.join(TEMPLATE), template).unwrap();
        Results::read(&results).unwrap()
    }

    const RUNS: &str = "{{run chain-gc}}{{run chain-gc:small}}";

    #[test]
    fn the_page_is_what_the_stored_runs_render() {
        let results = Results::read(&docs().join("figures")).unwrap();
        let page = std::fs::read_to_string(docs().join("benchmarks.md")).unwrap();
        assert!(results.render().unwrap() == page, "stale page: run scripts/benchmarks");
    }

    #[test]
    fn a_run_replaces_the_one_of_its_name() {
        let (folder, report) = (tempfile::tempdir().unwrap(), Report::new("chain-gc", 7));
        for (name, command) in [("", "a"), ("", "b"), ("small", "b"), ("small", "c")] {
            save(folder.path(), &report, name, command).unwrap();
        }
        let stored = read_stored(&folder.path().join("chain-gc.json")).unwrap();
        let of = |nth: usize| (&*stored.runs[nth].name, &*stored.runs[nth].command);
        assert_eq!((stored.runs.len(), of(0), of(1)), (2, ("", "b"), ("small", "c")));
    }

    #[test]
    fn every_benchmark_is_on_the_page() {
        let results = Results::read(&docs().join("figures")).unwrap();
        let mut names: Vec<&str> = crate::list().iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        // Not stored yet: it needs a quiet machine. With its figures this line has to go.
        names.retain(|name| *name != crate::arion_fs::ENTRY.name);
        assert_eq!(results.names().collect::<Vec<_>>(), names);
        for (bench, stored) in &results.benches {
            let entry = crate::list().iter().find(|entry| entry.name == *bench).unwrap();
            for run in &stored.runs {
                assert!(run.command.starts_with(&format!("thalweg bench {bench}")), "{bench}");
                let fixed = ["virtual time", "counts"].contains(&&*run.machine);
                assert_eq!(fixed, entry.clock != Clock::Real, "{bench} on {}", run.machine);
                assert!(!run.date.is_empty(), "{bench}");
            }
        }
    }

    #[test]
    fn the_readme_quotes_figures_of_the_page() {
        let results = Results::read(&docs().join("figures")).unwrap();
        let readme = docs().join("../README.md");
        assert!(results.check_quotes(&readme).unwrap() > 10);
        // Every number in a table of figures is a quotation.
        let text = std::fs::read_to_string(&readme).unwrap();
        let part = text.split_once("\n## Figures\n").unwrap().1;
        let part = part.split("\n## ").next().unwrap();
        let rows = part.lines().filter(|line| line.starts_with('|'));
        for cell in rows.flat_map(|row| row.split('|').skip(2)) {
            let begins = cell.trim().starts_with(|first: char| first.is_ascii_digit());
            assert!(!begins || cell.contains("<!--fig:"), "{cell}");
        }
        assert!(text.lines().count() <= 250, "the README is a front page");
    }

    #[test]
    fn figures_are_rendered_in_their_formats() {
        let template = format!(
            "{RUNS}|{{{{chain-gc rate}}}} {{{{chain-gc rate .1}}}} {{{{chain-gc rate k.0}}}} \
             {{{{chain-gc:small share %.1}}}} {{{{chain-gc range .0}}}} {{{{chain-gc missing .1}}}}"
        );
        let page = results(&template).render().unwrap();
        let (runs, figures) = page.split_once('|').unwrap();
        assert_eq!(figures, "12,345.678 12,345.7 12 98.3 % 604 to 617 –");
        assert!(
            runs.contains("`thalweg bench chain-gc --scale 0.1`: virtual time, seed 7; "),
            "{runs}"
        );
        assert_eq!(formatted(-1234567.0, ".0").unwrap(), "-1,234,567");
        assert_eq!(formatted(-123.0, ".0").unwrap(), "-123");
        assert_eq!(formatted(0.5, "").unwrap(), "0.5");
    }

    #[test]
    fn invalid_templates_are_refused() {
        for (template, wanted) in [
            ("{{run chain-gc}}", "{{run chain-gc:small}} is missing"),
            ("{{run chain-gc", "has no end"),
            ("{{chain-gc}}", "is not a placeholder"),
            ("{{run nothing}}", "no run of nothing"),
            ("{{chain-gc:big rate}}", "no run of chain-gc:big"),
            ("{{chain-gc name}}", "neither a number"),
            ("{{chain-gc rate 2}}", "is not a format"),
        ] {
            let error = results(template).render().unwrap_err().to_string();
            assert!(error.contains(wanted), "{template}: {error}");
        }
    }

    #[test]
    fn a_benchmark_without_runs_is_not_measured_yet() {
        let mut results = results("{{run chain-gc}} {{chain-gc rate}}{{remarks chain-gc}}");
        results.benches.get_mut("chain-gc").unwrap().runs.clear();
        assert_eq!(results.render().unwrap(), format!("{UNMEASURED} {ABSENT}"));
    }

    #[test]
    fn quotations_must_match_the_page() {
        let results = results(&format!("{RUNS}{{{{chain-gc rate .1}}}}"));
        let folder = tempfile::tempdir().unwrap();
        let document = folder.path().join("document.md");
        let check = |text: &str| {
            std::fs::write(&document, text).unwrap();
            results.check_quotes(&document).map_err(|error| error.to_string())
        };
        let good = "12,345.7<!--fig: chain-gc rate .1--> and 12<!--fig: chain-gc rate k.0-->";
        assert_eq!(check(good), Ok(2));
        assert_eq!(check("<!-- a comment -->"), Ok(0));
        for (text, wanted) in [
            ("12,345.8<!--fig: chain-gc rate .1-->", "is 12,345.7, but the text is"),
            ("0.98<!--fig: chain-gc share .2-->", "is not on the page"),
            ("–<!--fig: chain-gc missing-->", "but the text is"),
            ("1<!--fig: other rate-->", "no run of other"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn a_repeated_run_replaces_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = |rate: f64, name: &str, command: &str| {
            let mut report = Report::new("kv", 1);
            report.figure("rate", rate);
            save(folder.path(), &report, name, command).unwrap();
        };
        store(1.0, "first", "thalweg bench kv");
        store(2.0, "second", "thalweg bench kv --scale 2");
        store(3.0, "", "thalweg bench kv");
        let stored = read_stored(&folder.path().join("kv.json")).unwrap();
        let runs: Vec<_> =
            stored.runs.iter().map(|run| (&*run.name, run.figures["rate"].as_f64())).collect();
        assert_eq!(runs, [("first", Some(3.0)), ("second", Some(2.0))]);
        assert_eq!(stored.runs[0].date.len(), "2026-11-23".len());
    }
}
