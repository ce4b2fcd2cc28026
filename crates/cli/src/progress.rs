//! Progress of long tasks: a bar on a terminal, nothing elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thalweg_env::{Env, Time};

/// What is done within this time needs no progress.
const SOON: Duration = Duration::from_secs(1);
/// The time between two lines where there is no terminal.
const AGAIN: Duration = Duration::from_secs(10);

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

/// Shows nothing of a task that is done within a second. Then a bar on a terminal, and elsewhere a line now and then.
pub(crate) struct Patient {
    env: Env,
    begun: Time,
    /// When the last line was printed; `None` on a terminal.
    said: Option<Mutex<Option<Time>>>,
    bar: Bar,
}

impl Patient {
    pub(crate) fn new(env: &Env) -> Patient {
        let said = (!std::io::stderr().is_terminal()).then(Mutex::default);
        Patient { env: env.clone(), begun: env.now(), said, bar: Bar::default() }
    }
}

impl Report for Patient {
    fn step(&self, step: Step) {
        let now = self.env.now();
        if now.since(self.begun) < SOON {
            return;
        }
        let Some(said) = &self.said else { return self.bar.step(step) };
        let mut said = said.lock();
        if said.is_none_or(|said| now.since(said) >= AGAIN) {
            *said = Some(now);
            eprintln!("{}: {} of {}", step.what, step.done, step.total);
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
