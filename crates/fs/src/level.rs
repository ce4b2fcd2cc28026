//! How far the changes of a file have come.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The crashes that the changes of a file survive: each level survives those of the levels before it, too.
///
/// Only a client of a shared filesystem that keeps a journal has the level [`Level::Journal`]. Elsewhere no file is ever at it, and
/// to wait for it is to wait for [`Level::Server`], the next one that survives the same crashes.
///
/// Levels are ordered by their numbers. Messages between clients and servers have the order of the lines here, which stays.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum Level {
    /// Some of them may be lost in a crash.
    #[default]
    Memory = 0,
    /// All of them are on the drives of the filesystem: those of its server, or of this machine if there is no server.
    Server = 2,
    /// They are also on the drives of the volume's replicas: of as many as its flushes wait for, or else of one.
    Replicas = 3,
    /// All of them are on this client's own drive, in its journal, or at the server. They survive crashes, and reach the server when
    /// it is there; other machines do not see all of them yet. They are lost if the drive is.
    Journal = 1,
}

impl Level {
    /// All of them, the first one first.
    pub const ALL: [Level; 4] = [Level::Memory, Level::Journal, Level::Server, Level::Replicas];

    /// Its number, for callers that have no types.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The level with a number.
    pub fn of_number(number: u32) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.number() == number)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Memory => "memory",
            Level::Journal => "journal",
            Level::Server => "server",
            Level::Replicas => "replicas",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(name: &str) -> Result<Level, UnknownLevel> {
        let found = Level::ALL.into_iter().find(|level| level.name() == name);
        found.ok_or_else(|| UnknownLevel(name.to_owned()))
    }
}

/// A name that no level has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no level `{0}`: the levels are memory, journal, server and replicas")]
pub struct UnknownLevel(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_order_agree() {
        for level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
            assert_eq!(Level::of_number(level.number()), Some(level));
        }
        assert!(Level::ALL.is_sorted() && Level::ALL.map(Level::number).is_sorted());
        assert_eq!(Level::ALL.map(Level::number), [0, 1, 2, 3]);
        assert_eq!(Level::of_number(4), None);
        let unknown = "disk".parse::<Level>().unwrap_err().to_string();
        assert!(unknown.contains("`disk`") && unknown.contains("replicas"), "{unknown}");
    }
}
