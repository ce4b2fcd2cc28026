//! `thalweg cluster selftest`: whether two mounts of one filesystem see each other at once.

mod agent;
mod checks;
mod full;
mod locks;
mod sides;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use thalweg_env::Env;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use self::agent::{Agent, serve};
use self::agent::{Op, Reply};
use self::checks::Check;
use self::sides::{Place, Side};
use crate::failure::{Failure, Outcome};
use crate::output;

/// How long the second mount may take to show the directory of the test.
const PATIENCE: Duration = Duration::from_secs(5);

/// Check that two mounts of one shared filesystem see each other's changes at once, and each other's locks
///
/// A and B are the same directory on two mounts. The checks work in a directory below A, which is removed at the end. Each
/// prints a line: `ok` with the shortest, the median and the longest time from the end of a change on one mount until the
/// other one has shown it; or `FAIL` with what was seen instead. B may be on another machine that `ssh` reaches without a
/// password and that has this program: HOST:DIRECTORY. Times then include the round trip to it.
#[derive(Debug, Args)]
pub(crate) struct Selftest {
    /// A directory on the first mount
    a: String,
    /// The same directory on the second mount, or HOST:DIRECTORY
    b: String,
    /// How often each check is repeated, from either side in turns
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Print one JSON object at the end instead
    #[arg(long)]
    json: bool,
}

/// The two mounts, and the directory of the test on both.
#[derive(Debug)]
struct Pair {
    env: Env,
    sides: [Side; 2],
    folder: String,
}

impl Pair {
    /// The mount that changes something in a round, and the one that looks.
    fn turn(&mut self, round: u32) -> (&mut Side, &mut Side) {
        let [one, two] = &mut self.sides;
        if round.is_multiple_of(2) { (one, two) } else { (two, one) }
    }

    /// A name in the directory of the test.
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    fn restart(&mut self) -> Outcome<()> {
        self.sides.iter_mut().try_for_each(Side::restart)
    }
}

/// The directory of a test, which is removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("warning: {} stays: {error}", self.0.display());
        }
    }
}

/// What a check has come to.
struct Checked {
    check: Check,
    times: Vec<Duration>,
    failure: Option<String>,
}

pub(super) async fn selftest(env: &Env, args: &Selftest) -> Outcome<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (a, b) = (Place::of(&args.a), Place::of(&args.b));
    let Place::Here(first) = &a else {
        return Err(Failure::new(format!("{a} is not a directory of this machine"))
            .help("run the test on that machine; B may be on another one"));
    };
    for place in [&a, &b] {
        if let Place::Here(directory) = place {
            check_directory(directory)?;
        }
    }
    let name = format!("thalweg-selftest-{}", env.uuid().simple());
    let directory = first.join(&name);
    std::fs::create_dir(&directory).map_err(|error| {
        Failure::of(&error).while_doing(format!("cannot make a directory in {a}"))
    })?;
    let _folder = Folder(directory);
    let sides = [Side::start(env, a.clone())?, Side::start(env, b.clone())?];
    let pair = Pair { env: env.clone(), sides, folder: name };
    tokio::select! {
        biased;
        _ = interrupt.recv() => Err(Failure::new("the test was interrupted")),
        _ = terminate.recv() => Err(Failure::new("the test was ended")),
        tested = test(args, pair) => tested,
    }
}

fn check_directory(directory: &Path) -> Outcome<()> {
    let shown = directory.display();
    let found = std::fs::metadata(directory);
    match found {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Failure::new(format!("{shown} is not a directory"))
            .help("name the same directory on two mounts of one filesystem")),
        Err(error) => Err(Failure::of(&error).while_doing(format!("cannot look at {shown}"))),
    }
}

async fn test(args: &Selftest, mut pair: Pair) -> Outcome<()> {
    let same_mount = compare(&mut pair).await?;
    if same_mount {
        eprintln!(
            "warning: {} and {} are on one mount: its kernel has one cache for both, and nothing of the server is tested",
            args.a, args.b
        );
    }
    let (mut failed, mut shown) = (0, Vec::new());
    for check in Check::ALL {
        let checked = run(&mut pair, check, args.rounds).await;
        if checked.failure.is_some() {
            failed += 1;
            // What they have open, locked and not answered is gone with them.
            pair.restart()?;
        }
        match args.json {
            true => shown.push(as_json(&checked)),
            false => println!("{}", line(&checked)),
        }
        output::flush();
    }
    if args.json {
        let (a, b) = (&args.a, &args.b);
        println!("{}", json!({ "a": a, "b": b, "same_mount": same_mount, "checks": shown }));
    }
    let all = Check::ALL.len();
    match failed {
        0 => Ok(()),
        _ => Err(Failure::new(format!("{failed} of {all} checks failed")).help(
            "programs that use both mounts at a time may see old names, old bytes, or no locks",
        )),
    }
}

/// Checks that both mounts show one directory; whether they are one mount.
async fn compare(pair: &mut Pair) -> Outcome<bool> {
    let path = pair.folder.clone();
    let [one, two] = &mut pair.sides;
    let start = pair.env.now();
    loop {
        let found = two.call(Op::Stat { path: path.clone() }).await?;
        if matches!(found, Reply::Stat { .. }) {
            break;
        }
        if pair.env.now().since(start) > PATIENCE {
            let (a, b) = (&one.place, &two.place);
            let what = format!("{a} and {b} are not the same directory of one filesystem");
            return Err(Failure::new(format!(
                "{what}: {path}, which was made in {a}, is not in {b} after {} s",
                PATIENCE.as_secs()
            ))
            .help("name the same directory on two mounts"));
        }
        pair.env.sleep(Duration::from_millis(20)).await;
    }
    let both_here = [&one.place, &two.place].iter().all(|it| matches!(it, Place::Here(_)));
    let device = async |side: &mut Side| match side.call(Op::Device).await? {
        Reply::Stat { device, .. } => Ok::<_, Failure>(Some(device)),
        _ => Ok(None),
    };
    Ok(both_here && device(one).await? == device(two).await?)
}

async fn run(pair: &mut Pair, check: Check, rounds: u32) -> Checked {
    let mut times = Vec::new();
    for round in 0..rounds {
        if let Err(failure) = check.run(pair, round, &mut times).await {
            let failure = Some(format!("round {}: {failure}", round + 1));
            return Checked { check, times, failure };
        }
    }
    times.sort_unstable();
    Checked { check, times, failure: None }
}

/// The shortest, the median and the longest of sorted times, in microseconds.
fn spread(times: &[Duration]) -> Option<[u128; 3]> {
    let at = |index: usize| times[index].as_micros();
    (!times.is_empty()).then(|| [at(0), at(times.len() / 2), at(times.len() - 1)])
}

fn line(Checked { check, times, failure }: &Checked) -> String {
    let name = check.name();
    match (failure, spread(times)) {
        (Some(failure), _) => format!("FAIL  {name:22} {failure}"),
        (None, None) if check.needs_quota() => {
            format!("skip  {name:22} this client may set no quota here")
        }
        (None, None) => format!("ok    {name:22}"),
        (None, Some(spread)) => {
            let [least, median, most] = spread.map(|micros| micros as f64 / 1000.0);
            format!("ok    {name:22} {least:.2} / {median:.2} / {most:.2} ms")
        }
    }
}

fn as_json(Checked { check, times, failure }: &Checked) -> Value {
    let mut shown =
        json!({ "check": check.name(), "passed": failure.is_none(), "failure": failure });
    if failure.is_none() && times.is_empty() && check.needs_quota() {
        shown["skipped"] = true.into();
    }
    if let (None, Some([least, median, most])) = (failure, spread(times)) {
        shown["seen_us"] = json!({ "min": least, "median": median, "max": most });
    }
    shown
}
