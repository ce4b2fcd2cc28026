//! How far the changes of a file have come.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The crashes that the changes of a file survive: each level survives those of the levels before it, too.
///
/// A level between the first and the second, a journal on a client's own drive, has its place in the order: its number is 1.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Some of them may be lost in a crash.
    #[default]
    Memory,
    /// All of them are on the drives of the filesystem: those of its server, or of this machine if there is no server.
    Server,
    /// They are also on the drives of the volume's replicas: of as many as its flushes wait for, or else of one.
    Replicas,
}

impl Level {
    /// All of them, the first one first.
    pub const ALL: [Level; 3] = [Level::Memory, Level::Server, Level::Replicas];

    /// Its number, for callers that have no types.
    pub const fn number(self) -> u32 {
        match self {
            Level::Memory => 0,
            Level::Server => 2,
            Level::Replicas => 3,
        }
    }

    /// The level with a number.
    pub fn of_number(number: u32) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.number() == number)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Memory => "memory",
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
#[error("there is no level `{0}`: the levels are memory, server and replicas")]
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
        // The place of a client's journal.
        assert_eq!(Level::of_number(1), None);
        let unknown = "disk".parse::<Level>().unwrap_err().to_string();
        assert!(unknown.contains("`disk`") && unknown.contains("replicas"), "{unknown}");
    }
}
