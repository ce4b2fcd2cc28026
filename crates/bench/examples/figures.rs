//! `cargo run -r -p thalweg-bench --example figures -- NAME [--seed N] [--scale X] [--plot SVG] [TRACE ...]`

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next().ok_or("name a benchmark")?;
    let (mut options, mut plot) = (thalweg_bench::Options::default(), None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or("a value is missing");
        match arg.as_str() {
            "--seed" => options.seed = value()?.parse()?,
            "--scale" => options.scale = Some(value()?.parse()?),
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
