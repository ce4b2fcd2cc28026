//! `cargo run -r -p thalweg-bench --example figures -- NAME [--seed N] [--scale X] [--load NAME] [--plot SVG] [TRACE ...]`

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Instead of a name: be the process of a store.
const STORE: &str = "--store";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next().ok_or("name a benchmark")?;
    if name == STORE {
        let (folder, partition) =
            (args.next().unwrap_or_default(), args.next().unwrap_or_default());
        return Ok(thalweg_bench::imgstore::serve_store(folder.as_ref(), &partition)?);
    }
    let store_process = vec![std::env::current_exe()?.into(), STORE.into()];
    let mut options = thalweg_bench::Options { store_process, ..Default::default() };
    let mut plot = None;
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or("a value is missing");
        match arg.as_str() {
            "--seed" => options.seed = value()?.parse()?,
            "--scale" => options.scale = Some(value()?.parse()?),
            "--load" => options.loads.push(value()?),
            "--plot" => plot = Some(value()?),
            _ => options.traces.push(arg.into()),
        }
    }
    let report = thalweg_bench::run(&name, &options)?;
    println!("{:#}", report.to_json());
    if let Some(path) = plot {
        report.draw(path.as_ref())?;
    }
    Ok(())
}
