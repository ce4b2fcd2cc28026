//! Files of sessions: what was read and written, for the next command.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thalweg_store::block::{Position, Version};
use thalweg_store::stale::{Guarantee, Session};
use thalweg_store::txn::Transact;

use crate::failure::{Failure, Outcome};

/// How long a replica may take to come to where a session is.
const PATIENCE: Duration = Duration::from_millis(1);

/// The content of a session's file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    /// The newest versions that were read and written.
    read: Version,
    written: Version,
    /// A state that has both, of a volume with replicas.
    position: Option<Position>,
}

/// The session of a file, or a new one if there is no such file.
pub(super) async fn load(
    file: &Path,
    volume: &dyn Transact,
    guarantee: Guarantee,
) -> Outcome<Session> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Session::new(guarantee)),
        Err(error) => return Err(Failure::new(format!("{}: {error}", file.display()))),
    };
    let saved: Saved = serde_json::from_str(&text).map_err(|error| {
        Failure::new(format!("{} is no session: {error}", file.display()))
            .help("name a file that --session made, or one that does not exist")
    })?;
    if let Some(position) = saved.position {
        // An error when the volume has gone another way: what the session has seen is not there.
        volume.reached(position, Some(PATIENCE)).await?;
    }
    Ok(Session::resumed(guarantee, saved.read, saved.written))
}

/// Saves a session, with all that it has seen durable: a crash of the volume cannot take it back.
pub(super) async fn save(file: &Path, volume: &dyn Transact, session: &Session) -> Outcome<()> {
    volume.sync().await?;
    let (read, written) = session.newest();
    let saved = Saved { read, written, position: volume.position().await? };
    let new = file.with_extension("new");
    let write = || {
        std::fs::write(&new, serde_json::to_string(&saved)?)?;
        std::fs::rename(&new, file)
    };
    write().map_err(|error| Failure::new(format!("{}: {error}", file.display())))
}
