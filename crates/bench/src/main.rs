//! `thalweg-bench`: runs a benchmark, prints its figures and draws them. `thalweg bench` executes it.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use thalweg_bench::page::{self, Results};
use thalweg_bench::{BenchError, Options, Report};

/// The allocator of `thalweg`, so that figures are those of its servers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Run a benchmark, in virtual time unless its description says otherwise
#[derive(Debug, Parser)]
#[command(name = "thalweg-bench", bin_name = "thalweg bench", version, max_term_width = 100)]
struct Args {
    /// Name of the benchmark; see --list
    #[arg(required_unless_present_any = ["list", "page", "store"])]
    name: Option<String>,
    /// List the benchmarks
    #[arg(long)]
    list: bool,
    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,
    /// Draw the figures into an SVG file, beside the paper's values
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Size of the run as a share of the paper's
    #[arg(long, value_name = "SHARE")]
    scale: Option<f64>,
    /// Recorded trace to replay instead of generated ones; may be repeated
    #[arg(long = "trace", value_name = "FILE")]
    traces: Vec<PathBuf>,
    /// Load to run, for a benchmark with several; may be repeated [default: all]
    #[arg(long = "load", value_name = "NAME")]
    loads: Vec<String>,
    /// Folder for the files of benchmarks that use a real disk [default: the system's folder for
    /// temporary files]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Also store the figures in this folder, for the page of results
    #[arg(long, value_name = "FOLDER")]
    save: Option<PathBuf>,
    /// Name of the stored run, for a benchmark with several
    #[arg(long, value_name = "RUN", requires = "save", default_value = "")]
    save_as: String,
    /// Print the page of results that are stored in this folder
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["name", "list"])]
    page: Option<PathBuf>,
    /// With --page: print the commands of the stored runs instead
    #[arg(long, requires = "page")]
    commands: bool,
    /// Serve a store to the benchmark that started this process
    #[arg(long, hide = true, num_args = 2, value_names = ["FOLDER", "PARTITION"])]
    store: Option<Vec<String>>,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(text) => print(&text),
        Err(error) => {
            eprintln!("error: {}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// Prints a text. A reader that closes the pipe early, as `| head` does, is no failure.
fn print(text: &str) -> ExitCode {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("error: cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Runs the command; the text to print.
fn run(args: Args) -> Result<String, BenchError> {
    if let Some([folder, partition]) = args.store.as_deref() {
        thalweg_bench::imgstore::serve_store(folder.as_ref(), partition)?;
        return Ok(String::new());
    }
    if let Some(folder) = &args.page {
        let results = Results::read(folder)?;
        return match args.commands {
            true => Ok(results.commands().map(|command| format!("{command}\n")).collect()),
            false => results.render(),
        };
    }
    let command = command(&args);
    let Some(name) = args.name.as_ref().filter(|_| !args.list) else {
        return Ok(list(args.json));
    };
    let (program, store_process) = programs()?;
    let Args { seed, scale, traces, loads, dir, .. } = args;
    let options = Options { seed, scale, traces, loads, dir, program, store_process };
    let report = thalweg_bench::run(name, &options)?;
    if let Some(path) = args.plot {
        report.draw(&path)?;
    }
    if let Some(folder) = args.save {
        page::save(&folder, &report, &args.save_as, &command)?;
    }
    Ok(text(&report, args.json))
}

/// The command that repeats a run: the options that its figures depend on.
fn command(args: &Args) -> String {
    let mut words = vec!["thalweg bench".to_owned()];
    words.extend(args.name.clone());
    words.extend(args.loads.iter().map(|load| format!("--load {load}")));
    words.extend(args.traces.iter().map(|trace| format!("--trace {}", trace.display())));
    words.extend(args.scale.map(|scale| format!("--scale {scale}")));
    if args.seed != 1 {
        words.push(format!("--seed {}", args.seed));
    }
    words.join(" ")
}

/// The program `thalweg`, if it lies beside this one, and the command that serves a store: this program.
fn programs() -> Result<(Option<PathBuf>, Vec<OsString>), BenchError> {
    let own = std::env::current_exe()
        .map_err(|source| BenchError::Io { path: "/proc/self/exe".into(), source })?;
    let program = Some(own.with_file_name("thalweg")).filter(|path| path.is_file());
    Ok((program, vec![own.into(), "--store".into()]))
}

fn text(report: &Report, json: bool) -> String {
    match json {
        true => format!("{}\n", report.to_json()),
        false => {
            let figures = report.figures.iter();
            figures.map(|(figure, value)| format!("{figure:32} {value}\n")).collect()
        }
    }
}

fn list(json: bool) -> String {
    let entries = thalweg_bench::list().iter();
    match json {
        true => {
            let names: Vec<_> = entries.map(|entry| entry.name).collect();
            format!("{}\n", serde_json::json!(names))
        }
        false => entries.map(|entry| format!("{:20} {}\n", entry.name, entry.about)).collect(),
    }
}

/// An error with all its causes, each once.
fn with_causes(error: &BenchError) -> String {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        let text = source.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = source.source();
    }
    message
}
