//! Checks of the workspace's own sources, as a test: `cargo test -p thalweg-tidy`.
//!
//! Each rule measures the sources, and `ratchet.toml` has the numbers of today: none may rise, and what falls is
//! lowered in the file, so that it cannot rise again. The rules:
//!
//! - `lengths`: lines of files and of functions;
//! - `layers`: dependencies between crates, imports between the modules of `store`;
//! - `circles`: siblings that import each other;
//! - `parents`: imports of modules from the file of a module around them;
//! - `impls`: types of `cluster` with `impl` blocks in many files;
//! - `locks`: a crate with more than one lock says in which order they are taken;
//! - `environment`: sources that read environment variables;
//! - `words`: words to avoid in comments and documentation.

mod circles;
mod comments;
mod environment;
mod error;
mod impls;
mod items;
mod layers;
mod lengths;
mod locks;
mod modules;
mod parents;
mod ratchet;
mod sources;
#[cfg(test)]
mod test_times;
mod words;

use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;

pub use error::TidyError;
use modules::{Edges, Upward};
use ratchet::{Change, Kind, Measured, Ratchet, Section};
pub use ratchet::{FILE, UPDATE};
use sources::Sources;

/// The sections of the ratchet file.
const SECTIONS: &[Section] = &[
    Section {
        name: "files",
        about: "Lines of Rust files above 500, and of README.md above 250.",
        kind: Kind::Numbers,
    },
    Section {
        name: "functions",
        about: "Lines of functions above 70, from `fn` to the closing brace.",
        kind: Kind::Numbers,
    },
    Section {
        name: "crates",
        about: "Dependencies between crates against their layers (src/layers.rs), and why.",
        kind: Kind::Reasons,
    },
    Section {
        name: "store",
        about: "Imports between modules of `store` against their layers (src/layers.rs), and why.",
        kind: Kind::Reasons,
    },
    Section {
        name: "circles",
        about: "Sibling modules that import each other, and why.",
        kind: Kind::Reasons,
    },
    Section {
        name: "knots",
        about: "For each parent, how many of its modules are in a circle of any length.",
        kind: Kind::Numbers,
    },
    Section {
        name: "parents",
        about: "For each module, how many imports modules below it have of items in its own file.",
        kind: Kind::Numbers,
    },
    Section {
        name: "impls",
        about: "Types of `cluster` with `impl` blocks in more than three files.",
        kind: Kind::Numbers,
    },
    Section {
        name: "lock-order",
        about: "Crates with more than one lock that do not have one heading `# Lock order`, and why.",
        kind: Kind::Reasons,
    },
    Section {
        name: "environment",
        about: "Sources that read environment variables, and why.",
        kind: Kind::Reasons,
    },
    Section {
        name: "words",
        about: "Lines of comments and pages with words to avoid (src/words.rs).",
        kind: Kind::Numbers,
    },
];

/// How the sources differ from the ratchet file.
pub struct Report {
    ratchet: Ratchet,
    changes: Vec<Change>,
    places: Vec<String>,
}

/// Measures the workspace in `root` and compares it with its ratchet file.
pub fn check(root: &Path) -> Result<Report, TidyError> {
    let path = root.join(FILE);
    let text = fs::read_to_string(&path).map_err(|source| TidyError::File { path, source })?;
    let mut ratchet = Ratchet::parse(&text, SECTIONS)?;
    let measured = measure(&Sources::read(root)?)?;
    let mut changes = Vec::new();
    for (section, measured) in SECTIONS.iter().zip(&measured) {
        changes.extend(ratchet.compare(section, measured));
    }
    let places = measured.iter().flat_map(Measured::places).map(str::to_owned).collect();
    Ok(Report { ratchet, changes, places })
}

/// What each of [`SECTIONS`] measures.
fn measure(sources: &Sources) -> Result<[Measured; 11], TidyError> {
    let parsed = sources.parse()?;
    let packages = sources.packages()?;
    let (mut edges, mut upward) = (Edges::new(), Upward::new());
    for package in &packages {
        let (siblings, parents) = modules::references(package, &parsed)?;
        edges.extend(siblings);
        upward.extend(parents);
    }
    Ok([
        lengths::files(sources),
        lengths::functions(&parsed),
        layers::crates(&packages),
        layers::store(&edges),
        circles::pairs(&edges),
        circles::knots(&edges),
        parents::measure(&upward),
        impls::measure(&parsed),
        locks::measure(sources, &parsed, &packages),
        environment::measure(sources),
        words::measure(sources),
    ])
}

impl Report {
    /// Whether nothing is worse than the ratchet file says, and nothing better.
    pub fn is_clean(&self) -> bool {
        self.changes.is_empty()
    }

    /// Lowers the numbers of the ratchet file of the workspace in `root`, and drops the exceptions that are gone.
    /// Rises stay differences.
    pub fn update(&mut self, root: &Path) -> Result<(), TidyError> {
        let path = root.join(FILE);
        let written = fs::write(&path, self.ratchet.text(SECTIONS));
        written.map_err(|source| TidyError::File { path, source })?;
        self.changes.retain(Change::is_rise);
        Ok(())
    }

    /// Every place that a rule found: `FILE:LINE: what`.
    pub fn places(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(String::as_str)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |rises: bool| {
            let mut list = String::new();
            for change in self.changes.iter().filter(|change| change.is_rise() == rises) {
                let _ = writeln!(list, "  {change}");
            }
            list
        };
        let (rises, falls) = (list(true), list(false));
        if !rises.is_empty() {
            write!(
                f,
                "Worse than {FILE}. Mend it; only with a good reason change the file by hand:\n{rises}"
            )?;
        }
        if !falls.is_empty() {
            write!(f, "Better than {FILE}. To keep it so, run {UPDATE}\n{falls}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `TIDY_UPDATE=1` lowers the numbers of the file, `TIDY_LIST=1` prints every place that a rule finds.
    #[test]
    fn the_workspace_is_no_worse_than_its_ratchets() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let asked = |name| std::env::var_os(name).is_some_and(|value| value == "1");
        let mut report = check(&root).unwrap_or_else(|error| panic!("{error}"));
        if asked("TIDY_LIST") {
            report.places().for_each(|place| println!("{place}"));
        }
        if asked("TIDY_UPDATE") {
            report.update(&root).unwrap_or_else(|error| panic!("{error}"));
        }
        assert!(report.is_clean(), "\n{report}");
    }
}
