//! `thalweg kv get`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};
use thalweg_store::stale::{Guarantee, Session};
use thalweg_store::tree::Store;

use super::text::{self, text};
use super::{OnKey, no_key, session};
use crate::failure::Outcome;
use crate::output;

/// Show the value of a key
///
/// With --read the value may be an older one, if that is cheaper to read: of the versions that the volume keeps (see
/// --keep-time of `thalweg volume set`), the cheapest that the guarantee allows.
#[derive(Debug, Args)]
pub(super) struct Get {
    #[command(flatten)]
    pub(super) key: OnKey,
    /// What the read needs: strong, eventual, read-my-writes, monotonic-reads, monotonic-writes, writes-follow-reads,
    /// causal, bounded=TIME (as 5s or 300ms), updates=NUMBER (commits of the volume), at=VERSION; several with commas
    #[arg(long, value_name = "GUARANTEE")]
    read: Option<Guarantee>,
    /// The file of a session, which remembers what was read and written
    #[arg(long, value_name = "FILE", requires = "read")]
    session: Option<PathBuf>,
}

pub(super) async fn get(
    store: &Store,
    Get { key: args, read, session: file }: &Get,
) -> Outcome<()> {
    let key = text::bytes(&args.key, args.hex)?;
    let (value, about) = match read {
        None => (store.get(&key).await?, json!({})),
        Some(guarantee) => get_old(store, &key, *guarantee, file.as_deref()).await?,
    };
    let value = value.ok_or_else(|| no_key(&args.key))?;
    if args.json {
        let mut shown = json!({"key": text(&key), "value": text(&value)});
        shown
            .as_object_mut()
            .into_iter()
            .for_each(|all| all.extend(about.as_object().cloned().into_iter().flatten()));
        println!("{shown}");
        return Ok(());
    }
    output::bytes(&value);
    if std::io::stdout().is_terminal() {
        println!();
    }
    Ok(())
}

/// The value of a key that a guarantee allows, and what is known of it.
async fn get_old(
    store: &Store,
    key: &[u8],
    guarantee: Guarantee,
    file: Option<&Path>,
) -> Outcome<(Option<Bytes>, Value)> {
    let volume = store.volume();
    let mut session = match file {
        Some(file) => session::load(file, guarantee)?,
        None => Session::new(guarantee),
    };
    let got = store.get_for(&mut session, key).await?;
    if let Some(file) = file {
        session::save(file, &**volume, &session).await?;
    }
    let about = json!({
        "guarantee": guarantee.to_string(),
        "versions": [got.range.low, got.range.up],
        "age_ms": got.age.map(|age| age.as_millis() as u64),
        "node": got.node.as_deref(),
    });
    Ok((got.value, about))
}
