//! Files of sessions: what was read and written, for the next command.

use std::io::ErrorKind;
use std::path::Path;

use thalweg_store::stale::{Guarantee, Session, SessionToken};
use thalweg_store::txn::Transact;

use crate::failure::{Failure, Outcome};

/// The session of a file, or a new one if there is no such file.
pub(super) fn load(file: &Path, guarantee: Guarantee) -> Outcome<Session> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Session::new(guarantee)),
        Err(error) => return Err(Failure::new(format!("{}: {error}", file.display()))),
    };
    let token: SessionToken = text.trim_end().parse().map_err(|error| {
        Failure::new(format!("{}: {error}", file.display()))
            .help("name a file that --session made, or one that does not exist")
    })?;
    Ok(Session::resumed(guarantee, &token))
}

/// Saves a session. Where a state has no name, all that the session has seen is made durable: a crash that took it back
/// would go unnoticed.
pub(super) async fn save(file: &Path, volume: &dyn Transact, session: &Session) -> Outcome<()> {
    if session.position().is_none() {
        volume.sync().await?;
    }
    let new = file.with_extension("new");
    let write = || {
        std::fs::write(&new, format!("{}\n", session.token()))?;
        std::fs::rename(&new, file)
    };
    write().map_err(|error| Failure::new(format!("{}: {error}", file.display())))
}
