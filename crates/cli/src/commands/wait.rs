//! `thalweg wait`: until a volume has reached a position, or files have come to a level.

mod files;

use std::time::Duration;

use clap::Args;
use clap::error::ErrorKind;
use thalweg_env::Env;
use thalweg_fs::Level;
use thalweg_ipc::Connection;
use thalweg_ipc::remote::Remote;
use thalweg_store::block::{Blocks, Lineage, NoPosition, Position};
use thalweg_store::chain::ChainError;
use thalweg_store::txn::Transact;

use super::key;
use crate::failure::{Failure, Outcome};
use crate::target::Target;
use crate::volume::opened::Opened;

/// The exit code for invalid arguments.
const USAGE: u8 = 2;

/// Wait until a volume has reached a position, or files have come to a level
///
/// With --for, the command waits for files on a mount: until all changes of each are on the drives of the server, or of this machine if
/// the volume is its own (`server`), or on those of the volume's replicas too (`replicas`). On a mount of a shared filesystem that
/// keeps a journal, `journal` waits until they are there, which takes no server; elsewhere it is the same as `server`. With --ask the command waits for
/// nothing, and prints how far each file has come: `memory` means that some changes may be lost in a crash.
///
/// A position is what `thalweg replica position` prints of a primary or of another replica. When the command ends, the
/// volume has that state or a later one, and it survives a crash there. It is an error if it never will: if the position is
/// of another volume, or of one that has gone another way.
#[derive(Debug, Args)]
#[command(override_usage = "thalweg wait VOLUME POSITION [--timeout DURATION]\n       \
                            thalweg wait FILE... --for LEVEL [--timeout DURATION]\n       \
                            thalweg wait FILE... --ask [--json]")]
pub(crate) struct Wait {
    /// The folder of a volume that a process serves, or thalweg://HOST:PORT/NAME, and a position VOLUME:TIMELINE:VERSION; with
    /// --for or --ask, files and directories on mounts
    #[arg(required = true, value_name = "FILE")]
    places: Vec<String>,
    /// Wait until the files have come to this level
    #[arg(long = "for", value_name = "LEVEL")]
    level: Option<WaitLevel>,
    /// Print how far the files have come, and wait for nothing
    #[arg(long, conflicts_with_all = ["level", "timeout"])]
    ask: bool,
    /// Print JSON
    #[arg(long, requires = "ask")]
    json: bool,
    /// Fail after this time: a number with ms, s, m or h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
}

/// A level to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WaitLevel {
    /// In the journal of this machine's mount, or on the drives of the filesystem
    Journal,
    /// On the drives of the filesystem
    Server,
    /// On those of replicas, too
    Replicas,
}

impl From<WaitLevel> for Level {
    fn from(level: WaitLevel) -> Level {
        match level {
            WaitLevel::Journal => Level::Journal,
            WaitLevel::Server => Level::Server,
            WaitLevel::Replicas => Level::Replicas,
        }
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time: expected a number with ms, s, m or h, such as 5s");
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        _ => return Err(wrong()),
    };
    let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(millis));
    number.map(Duration::from_millis).ok_or_else(wrong)
}

/// The volume's server, if there is one.
async fn connect(env: &Env, volume: &str) -> Outcome<Option<Connection>> {
    if let Some(remote) = Remote::of(volume) {
        return Ok(Some(remote?.connect(env, &key::home(None)).await?));
    }
    let target = Target::volume(volume)?.chained()?;
    Ok(Connection::open(env, &target.folder).await?)
}

/// Opens a volume that no process serves, to look at it.
async fn open(env: &Env, volume: &str) -> Outcome<Opened> {
    Opened::open_read_only(env, &Target::volume(volume)?.chained()?).await
}

/// Says what is wrong with the arguments; the exit code.
fn refuse(why: &str) -> Outcome<u8> {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{why}\n")).print()?;
    Ok(USAGE)
}

/// Runs the command; its exit code.
pub(crate) async fn run(env: &Env, args: &Wait) -> Outcome<u8> {
    match (&args.level, args.ask) {
        (Some(level), _) => files::wait(env, &args.places, (*level).into(), args.timeout).await?,
        (None, true) => files::ask(&args.places, args.json).await?,
        (None, false) => {
            let [volume, position] = &args.places[..] else {
                return refuse(
                    "a wait needs a volume and a position, or files with --for LEVEL or --ask",
                );
            };
            match position.parse() {
                Ok(position) => wait_for_position(env, volume, &position, &args.timeout).await?,
                Err(error) => return refuse(&NoPosition::to_string(&error)),
            }
        }
    }
    Ok(0)
}

async fn wait_for_position(
    env: &Env,
    volume: &str,
    position: &Position,
    timeout: &Option<Duration>,
) -> Outcome<()> {
    let reached = match connect(env, volume).await? {
        Some(connection) => connection.reached(*position, *timeout).await?,
        None => {
            let opened = open(env, volume).await?;
            let pool = opened.chained().ok_or_else(|| opened.target.refused())?;
            // Nothing comes while no process runs it.
            let reached = env.timeout(Duration::ZERO, pool.chain().reached(*position)).await;
            opened.close().await?;
            match reached {
                Some(reached) => reached.map_err(ChainError::from)?,
                None => {
                    return Err(Failure::new(format!("{volume} has not reached {position}"))
                        .help("no process serves it: thalweg serve, or thalweg replica run"));
                }
            }
            true
        }
    };
    match (reached, timeout) {
        (false, Some(timeout)) => Err(Failure::new(format!(
            "{volume} has not reached {position} within {} s",
            timeout.as_secs_f64()
        ))),
        _ => Ok(()),
    }
}

/// Prints the position of a volume.
pub(super) async fn print_position(env: &Env, volume: &str) -> Outcome<()> {
    let position = match connect(env, volume).await? {
        Some(connection) => connection.position().await?,
        None => {
            let opened = open(env, volume).await?;
            let pool = opened.chained().ok_or_else(|| opened.target.refused())?;
            let position = pool.chain().position_of(pool.chain().now());
            opened.close().await?;
            position
        }
    };
    let position = position.ok_or_else(|| {
        Failure::new(format!("{volume} has no position"))
            .help("a volume has positions from its first replica on")
    })?;
    println!("{position}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        let of = |text: &str| duration(text).ok();
        assert_eq!(of("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(of("5s"), Some(Duration::from_secs(5)));
        assert_eq!(of("2h"), Some(Duration::from_secs(7200)));
        for wrong in ["", "5", "s", "-5s", "5d", "1.5s", "99999999999999999999s"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
