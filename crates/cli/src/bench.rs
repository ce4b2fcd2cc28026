//! `thalweg bench`: measures, and draws the figures.

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Outcome};

/// Measure, in virtual time unless a benchmark says otherwise
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// The benchmark; --list names them all
    #[arg(required_unless_present_any = ["list", "store"])]
    name: Option<String>,
    /// Name every benchmark
    #[arg(long)]
    list: bool,
    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,
    /// Draw the figures into an SVG file, the paper's values beside ours
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Seed of everything that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Size of the run as a share of the paper's
    #[arg(long, value_name = "SHARE")]
    scale: Option<f64>,
    /// A recorded trace to replay in place of generated ones; may be given several times
    #[arg(long = "trace", value_name = "FILE")]
    traces: Vec<PathBuf>,
    /// A load of a benchmark that has several; may be given several times [default: all]
    #[arg(long = "load", value_name = "NAME")]
    loads: Vec<String>,
    /// Where benchmarks of a real disk put their files [default: the system's folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Run as the store's process of a benchmark, which starts it
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
