//! Progress of long tasks: a bar on a terminal, nothing elsewhere.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The progress of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// What is being done.
    pub(crate) what: String,
    /// How much is done.
    pub(crate) done: u64,
    /// The whole, in the same unit.
    pub(crate) total: u64,
}

/// Takes reports of progress.
pub(crate) trait Report: Send + Sync {
    fn step(&self, step: Step);
}

/// Shows nothing.
#[derive(Debug)]
pub(crate) struct Silent;

impl Report for Silent {
    fn step(&self, _: Step) {}
}

/// A bar on standard error, which appears with the first step.
#[derive(Debug, Default)]
struct Bar(Mutex<Option<ProgressBar>>);

impl Report for Bar {
    fn step(&self, step: Step) {
        let mut bar = self.0.lock();
        let bar = bar.get_or_insert_with(|| ProgressBar::new(step.total).with_style(style()));
        bar.set_length(step.total);
        bar.set_message(step.what);
        bar.set_position(step.done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.0.lock().take() {
            bar.finish_and_clear();
        }
    }
}

/// Reports progress.
pub(crate) fn share_done(what: &str, report: &dyn Report) -> impl Fn(u64, u64) + Send + Sync {
    move |done, total| report.step(Step { what: what.to_owned(), done, total })
}

fn style() -> ProgressStyle {
    let template = "{msg} {wide_bar} {percent}%, {eta} left";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// A bar on a terminal, unless the output is JSON.
pub(crate) fn for_user(json: bool) -> Box<dyn Report> {
    match !json && std::io::stderr().is_terminal() {
        true => Box::new(Bar::default()),
        false => Box::new(Silent),
    }
}
