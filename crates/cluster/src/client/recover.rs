//! What follows when the server has ended the session of a client.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Shared;
use super::link::Link;

/// What a client does when the server has ended its session. Either way its open files are stale, its locks are lost, and the
/// next sync of each inode with changes that were not durable fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recover {
    /// It begins a new session by itself.
    #[default]
    Clean,
    /// All of its calls fail from then on.
    No,
}

/// It is neither `clean` nor `no`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither clean nor no")]
pub struct UnknownRecover;

impl FromStr for Recover {
    type Err = UnknownRecover;

    fn from_str(text: &str) -> Result<Recover, UnknownRecover> {
        match text {
            "clean" => Ok(Recover::Clean),
            "no" => Ok(Recover::No),
            _ => Err(UnknownRecover),
        }
    }
}

impl Shared {
    /// The session has ended: there is no other one, unless the client may begin it.
    pub(super) fn end_unless_clean(&self) {
        if self.options.recover == Recover::No && self.set_link(Link::Ended) {
            tracing::error!(
                "all calls fail until it is mounted again: recover=no lets this client begin no other session"
            );
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(*self.link.borrow(), Link::Ended)
    }
}
