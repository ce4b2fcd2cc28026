//! `thalweg replica promote`: a replica takes its primary's place.

use std::path::PathBuf;
use thalweg_store::block::Blocks;

use clap::Args;
use serde_json::json;
use thalweg_env::Env;
use thalweg_ipc::remote::Remote;
use thalweg_net::entry::Service;
use thalweg_net::keys::Home;
use thalweg_replica::protocol::{Behind, Described, State};
use thalweg_replica::{announce, describe};

use thalweg_store::pool::Pool;

use super::super::key;
use crate::daemon::heard::Heard;
use crate::daemon::replicas::followed;
use crate::failure::{Failure, Outcome};
use crate::size::Size;
use crate::target::Target;
use crate::volume::opened::Opened;

/// Make a replica the primary: from then on it is written here
///
/// The process that runs it must have ended. Changes that only the old primary has are lost to this volume; they stay
/// readable at the old one, as a snapshot. The old primary writes nothing more from the moment at which it
/// hears of it: now, if it can be reached, or from the server of this volume, which goes on trying.
#[derive(Debug, Args)]
pub(crate) struct Promote {
    /// The folder of the replica
    volume: String,
    /// Folder with the keys [default: $THALWEG_KEYS; or /etc/thalweg for root, ~/.config/thalweg for others]
    #[arg(long, value_name = "FOLDER")]
    keys: Option<PathBuf>,
    /// Do it although the primary can be reached: it ends being the primary first
    #[arg(long)]
    force: bool,
    /// Refuse if more versions are lost, or if it is not known how many
    #[arg(long, value_name = "N")]
    max_versions: Option<u64>,
    /// Refuse if changes of more bytes are lost, or if it is not known how many
    #[arg(long, value_name = "SIZE")]
    max_bytes: Option<Size>,
    /// Refuse if the replica's state is older, or if it is not known how old it is
    #[arg(long, value_name = "S")]
    max_seconds: Option<f64>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// What is lost by a promotion.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Loss {
    versions: Option<u64>,
    bytes: Option<u64>,
    seconds: Option<f64>,
    source: Source,
}

/// Where that is known from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// The primary, which is fenced: nothing more comes.
    Final,
    /// The primary, which goes on.
    Primary,
    /// The replica heard it so many seconds ago.
    Heard(u64),
    /// Nothing.
    Unknown,
}

impl Loss {
    fn at_primary(behind: Option<Behind>, source: Source) -> Loss {
        let seconds = behind.and_then(|behind| behind.ms).map(|ms| ms as f64 / 1e3);
        let bytes = behind.and_then(|behind| behind.bytes);
        Loss { versions: behind.map(|behind| behind.versions), bytes, seconds, source }
    }

    /// What is lost at least, as far as a replica with `version` has heard.
    fn heard(env: &Env, heard: Option<Heard>, version: u64) -> Loss {
        let Some(heard) = heard else {
            return Loss { versions: None, bytes: None, seconds: None, source: Source::Unknown };
        };
        let ago = env.wall_clock().saturating_sub(heard.at);
        let versions = heard.primary.saturating_sub(version);
        let bytes = if versions == 0 { Some(0) } else { heard.behind_bytes };
        // Both times are whole seconds, so that the time between them may be two seconds longer.
        let seconds = heard.behind_ms.map(|ms| (ago + 2) as f64 + ms as f64 / 1e3);
        Loss { versions: Some(versions), bytes, seconds, source: Source::Heard(ago) }
    }

    /// The loss in words.
    fn text(&self) -> String {
        let or_unknown = |known: Option<String>, unit: &str| {
            known.unwrap_or(format!("an unknown number of {unit}"))
        };
        let versions =
            self.versions.map(|it| format!("{it} version{}", if it == 1 { "" } else { "s" }));
        let versions = or_unknown(versions, "versions");
        let bytes = or_unknown(self.bytes.map(|it| Size(it).to_string()), "bytes");
        let seconds = or_unknown(self.seconds.map(|it| format!("{it:.1} s")), "seconds");
        format!("{versions}, {bytes}, {seconds}")
    }

    fn json(&self) -> serde_json::Value {
        let heard = match self.source {
            Source::Heard(ago) => Some(ago),
            _ => None,
        };
        json!({
            "versions": self.versions,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "final": self.source == Source::Final,
            "heard_seconds_ago": heard,
        })
    }
}

impl Promote {
    /// Refuses a loss above a bound.
    fn check(&self, loss: &Loss) -> Outcome<()> {
        let above = |bound: Option<f64>, lost: Option<f64>| {
            bound.is_some_and(|bound| lost.is_none_or(|lost| lost > bound))
        };
        let refused =
            above(self.max_versions.map(|it| it as f64), loss.versions.map(|it| it as f64))
                || above(self.max_bytes.map(|it| it.0 as f64), loss.bytes.map(|it| it as f64))
                || above(self.max_seconds, loss.seconds);
        match refused {
            false => Ok(()),
            true => Err(Failure::new(format!("more would be lost than allowed: {}", loss.text()))
                .help("allow more, or let the replica catch up first")),
        }
    }
}

pub(super) async fn run(env: &Env, args: &Promote) -> Outcome<()> {
    let target = Target::volume(&args.volume)?.chained()?;
    let opened = Opened::open_to_follow(env, &target).await?;
    let promoted = promote(env, &opened, args).await;
    opened.close().await?;
    let (position, loss) = promoted?;
    if args.json {
        println!("{}", json!({ "position": position, "lost": loss.json() }));
        return Ok(());
    }
    println!("{position}");
    match loss.source {
        Source::Final | Source::Primary if loss.versions == Some(0) => println!("nothing is lost"),
        Source::Final | Source::Primary => println!("lost to this volume: {}", loss.text()),
        Source::Heard(ago) => {
            println!("lost to this volume at least: {} (heard {ago} s ago)", loss.text());
            println!("the old primary cannot be reached: end its server");
        }
        Source::Unknown => {
            println!("what the old primary has beyond this is not known: it cannot be reached");
        }
    }
    Ok(())
}

/// The way to the primary.
struct Way<'a> {
    env: &'a Env,
    primary: Remote,
    home: Home,
}

impl Way<'_> {
    async fn describe(&self, state: State) -> Outcome<Described> {
        let stream = self.primary.enter(self.env, &self.home, Service::Replica).await?;
        Ok(describe(self.env, stream, Some(state)).await?)
    }

    /// Has the primary end being one, for a replica that is about to have this term.
    async fn fence(&self, pool: &Pool, term: u32) -> Outcome<Described> {
        let stream = self.primary.enter(self.env, &self.home, Service::Replica).await?;
        Ok(announce(self.env, stream, pool.chain(), term).await?)
    }
}

/// Promotes a replica; returns its position, and what is lost.
async fn promote(env: &Env, opened: &Opened, args: &Promote) -> Outcome<(String, Loss)> {
    let pool = opened.chained().ok_or_else(|| opened.target.refused())?;
    let primary = followed(pool.follows().await)?;
    let way = Way { env, primary, home: key::home(args.keys.as_deref()) };
    let own = State::of(pool.chain());
    let (loss, term) = match way.describe(own.clone()).await {
        Ok(described) => {
            let fenced = described.fence.is_some();
            let loss = Loss::at_primary(described.behind, Source::Primary);
            if !args.force && !fenced {
                return Err(Failure::new(format!(
                    "the primary {} can be reached; this replica lacks {}",
                    way.primary,
                    loss.text()
                ))
                .help(
                    "stop its server first, or use --force, with which it ends being the primary",
                ));
            }
            args.check(&loss)?;
            let known = described.fence.map_or(described.term, |fence| fence.term - 1);
            let term = own.term.max(known).saturating_add(1);
            let told = way.fence(pool, term).await?;
            // Now nothing more comes.
            let loss = Loss::at_primary(told.behind, Source::Final);
            args.check(&loss)?;
            (loss, term)
        }
        Err(failure) => {
            tracing::info!(%failure, "the primary cannot be asked");
            let heard = Heard::read(opened.target.place());
            let loss = Loss::heard(env, heard, pool.chain().now().0);
            args.check(&loss)?;
            (loss, 0)
        }
    };
    let position = pool.promote(term).await?;
    if loss.source == Source::Final {
        pool.forget_replaced().await?;
    }
    Ok((position.to_string(), loss))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        promote: Promote,
    }

    #[test]
    fn a_loss_above_a_bound_or_one_that_is_not_known_is_refused() {
        let loss =
            |versions, bytes, seconds| Loss { versions, bytes, seconds, source: Source::Final };
        let checked = |args: &str, loss: &Loss| {
            let line = format!("promote /srv/copy {args}");
            let line = Line::try_parse_from(line.split_whitespace()).unwrap();
            line.promote.check(loss).is_ok()
        };
        let some = loss(Some(3), Some(4096), Some(1.5));
        for (args, expected) in [
            ("", true),
            ("--max-versions 3 --max-bytes 4k --max-seconds 1.5", true),
            ("--max-versions 2", false),
            ("--max-bytes 4095", false),
            ("--max-seconds 1", false),
        ] {
            assert_eq!(checked(args, &some), expected, "{args}");
        }
        let unknown = loss(None, None, None);
        assert!(checked("", &unknown));
        for args in ["--max-versions 9", "--max-bytes 9M", "--max-seconds 99"] {
            assert!(!checked(args, &unknown), "{args}");
        }
        assert_eq!(some.text(), "3 versions, 4 KiB, 1.5 s");
    }
}
