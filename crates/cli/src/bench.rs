//! `thalweg bench`: runs a benchmark, prints its figures and draws them.

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Outcome};

/// Run a benchmark, in virtual time unless its description says otherwise
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Name of the benchmark; see --list
    #[arg(required_unless_present_any = ["list", "store"])]
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
    /// Serve a store to the benchmark that started this process
    #[arg(long, hide = true, num_args = 2, value_names = ["FOLDER", "PARTITION"])]
    store: Option<Vec<String>>,
}

pub(crate) fn run(args: Bench) -> Outcome<()> {
    if let Some([folder, partition]) = args.store.as_deref() {
        return Ok(thalweg_bench::imgstore::serve_store(folder.as_ref(), partition)?);
    }
    let Some(name) = args.name.filter(|_| !args.list) else {
        list(args.json);
        return Ok(());
    };
    let Bench { seed, scale, traces, loads, dir, .. } = args;
    let store_process = vec![std::env::current_exe()?.into(), "bench".into(), "--store".into()];
    let options = thalweg_bench::Options { seed, scale, traces, loads, dir, store_process };
    let report = thalweg_bench::run(&name, &options).map_err(|error| match error {
        error @ thalweg_bench::BenchError::Unknown(_) => {
            Failure::of(&error).help(format!("known are: {}", names().join(", ")))
        }
        error => error.into(),
    })?;
    if args.json {
        println!("{}", report.to_json());
    } else {
        for (figure, value) in &report.figures {
            println!("{figure:32} {value}");
        }
    }
    if let Some(path) = args.plot {
        report.draw(&path)?;
    }
    Ok(())
}

fn names() -> Vec<&'static str> {
    thalweg_bench::list().iter().map(|entry| entry.name).collect()
}

fn list(json: bool) {
    if json {
        println!("{}", serde_json::json!(names()));
        return;
    }
    for entry in thalweg_bench::list() {
        println!("{:20} {}", entry.name, entry.about);
    }
}
