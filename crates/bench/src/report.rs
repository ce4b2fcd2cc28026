//! The result of a run, as JSON and as SVG.

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::BenchError;
use crate::plot::{self, Chart};

/// The papers whose figures the benchmarks draw.
const PAPERS: [(&str, &str); 5] = [
    ("arion-", "Hatzieleftheriou, thesis, Ioannina; section and figure numbers are the thesis's"),
    (
        "chain-",
        "Shin et al., Gecko, FAST 2013; section numbers: Shin, Isolation in Cloud Storage, Cornell 2017",
    ),
    (
        "okeanos-",
        "Hatzieleftheriou and Anastasiadis, Okeanos, USENIX ATC 2011; section numbers: Hatzieleftheriou, thesis, Ioannina",
    ),
    ("stale-", "Shin, Isolation in Cloud Storage, Cornell 2017"),
    (
        "",
        "Shin et al., Isotope, FAST 2016; section numbers: Shin, Isolation in Cloud Storage, Cornell 2017",
    ),
];

/// Named figures: numbers, or arrays of numbers.
pub type Figures = Map<String, Value>;

/// The result of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The benchmark's name.
    pub bench: &'static str,
    /// The seed of the run.
    pub seed: u64,
    /// The measured figures.
    pub figures: Figures,
    /// The paper's figures with ours beside them.
    #[serde(skip)]
    pub charts: Vec<Chart>,
}

impl Report {
    /// A report without figures.
    pub fn new(bench: &'static str, seed: u64) -> Report {
        Report { bench, seed, figures: Figures::new(), charts: Vec::new() }
    }

    /// Adds a figure: a number, a string, or an array of them.
    pub fn figure(&mut self, name: &str, value: impl Into<Value>) -> &mut Report {
        self.figures.insert(name.to_owned(), value.into());
        self
    }

    /// The figure called `name`, if it is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.figures.get(name)?.as_f64()
    }

    /// One JSON object: `bench`, `seed`, `figures`.
    pub fn to_json(&self) -> Value {
        serde_json::json!({ "bench": self.bench, "seed": self.seed, "figures": self.figures })
    }

    /// Draws the charts, one below the other, into an SVG file that cites the paper.
    ///
    /// # Errors
    /// [`BenchError::Plot`] when there is nothing to draw, or the file cannot be written.
    pub fn draw(&self, path: &Path) -> Result<(), BenchError> {
        let is_ours = self.bench.starts_with("steady");
        let paper = PAPERS.iter().find(|(prefix, _)| self.bench.starts_with(prefix) && !is_ours);
        plot::draw(&self.charts, paper.map_or("", |(_, paper)| *paper), path)
    }
}
