//! What a reader needs of a read: client-centric guarantees (appendix B.2.2), bounds, or an exact version.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::block::Version;

/// What a reader needs. The default is any version at all.
///
/// It is written as in `read-my-writes,bounded=5s`; several parts hold together.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Guarantee {
    /// All writes that were acknowledged before the read.
    pub strong: bool,
    /// The session's own writes.
    pub read_my_writes: bool,
    /// Of each item no older content than the session has read.
    pub monotonic_reads: bool,
    /// The session's writes are ordered.
    pub monotonic_writes: bool,
    /// A write of the session is ordered after all that the session has read before.
    pub writes_follow_reads: bool,
    /// Everything that the session's reads and writes may depend on, whatever the item: a read's state includes every write
    /// that an earlier read saw.
    pub causal: bool,
    /// A state of this age at most.
    pub max_age: Option<Duration>,
    /// A content that at most so many later updates of the block have replaced; of a key, a state that at most so many
    /// later commits have replaced.
    pub max_updates: Option<u64>,
    /// This state alone.
    pub at: Option<Version>,
}

/// A guarantee that cannot be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuaranteeError {
    /// Two parts exclude each other.
    #[error("`{0}` and `{1}` exclude each other")]
    Contradiction(&'static str, &'static str),
    /// A part that is not known.
    #[error(
        "`{0}` is no guarantee; there are strong, eventual, read-my-writes, monotonic-reads, monotonic-writes, \
         writes-follow-reads, causal, bounded=TIME (as 5s or 300ms), updates=NUMBER and at=VERSION"
    )]
    Unknown(String),
}

impl Guarantee {
    /// Any version.
    pub const EVENTUAL: Guarantee = Guarantee {
        strong: false,
        read_my_writes: false,
        monotonic_reads: false,
        monotonic_writes: false,
        writes_follow_reads: false,
        causal: false,
        max_age: None,
        max_updates: None,
        at: None,
    };
    /// See [`Guarantee::strong`].
    pub const STRONG: Guarantee = Guarantee { strong: true, ..Guarantee::EVENTUAL };
    /// See [`Guarantee::read_my_writes`].
    pub const READ_MY_WRITES: Guarantee = Guarantee { read_my_writes: true, ..Guarantee::EVENTUAL };
    /// See [`Guarantee::monotonic_reads`].
    pub const MONOTONIC_READS: Guarantee =
        Guarantee { monotonic_reads: true, ..Guarantee::EVENTUAL };
    /// See [`Guarantee::causal`].
    pub const CAUSAL: Guarantee = Guarantee { causal: true, ..Guarantee::EVENTUAL };

    /// See [`Guarantee::max_age`].
    pub const fn bounded(age: Duration) -> Guarantee {
        Guarantee { max_age: Some(age), ..Guarantee::EVENTUAL }
    }

    /// See [`Guarantee::max_updates`].
    pub const fn updates(most: u64) -> Guarantee {
        Guarantee { max_updates: Some(most), ..Guarantee::EVENTUAL }
    }

    /// See [`Guarantee::at`].
    pub const fn at(version: Version) -> Guarantee {
        Guarantee { at: Some(version), ..Guarantee::EVENTUAL }
    }

    /// The names of its parts.
    fn parts(&self) -> impl Iterator<Item = &'static str> {
        let parts = [
            (self.strong, "strong"),
            (self.read_my_writes, "read-my-writes"),
            (self.monotonic_reads, "monotonic-reads"),
            (self.monotonic_writes, "monotonic-writes"),
            (self.writes_follow_reads, "writes-follow-reads"),
            (self.causal, "causal"),
            (self.max_age.is_some(), "bounded"),
            (self.max_updates.is_some(), "updates"),
            (self.at.is_some(), "at"),
        ];
        parts.into_iter().filter_map(|(is, name)| is.then_some(name))
    }

    /// The guarantee, if its parts can hold together.
    ///
    /// # Errors
    /// [`GuaranteeError::Contradiction`]: a given state cannot be promised anything else.
    pub fn checked(self) -> Result<Guarantee, GuaranteeError> {
        match self.parts().find(|part| *part != "at") {
            Some(other) if self.at.is_some() => Err(GuaranteeError::Contradiction("at", other)),
            _ => Ok(self),
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.parts().peekable();
        if parts.peek().is_none() {
            return f.write_str("eventual");
        }
        let mut comma = "";
        for part in parts {
            write!(f, "{comma}{part}")?;
            comma = ",";
            match part {
                "bounded" => write!(f, "={}", Millis(self.max_age.unwrap_or_default()))?,
                "updates" => write!(f, "={}", self.max_updates.unwrap_or_default())?,
                "at" => write!(f, "={}", self.at.unwrap_or_default())?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// A time as it is read: in seconds if it is a whole number of them.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            millis if millis % 1000 == 0 => write!(f, "{}s", millis / 1000),
            millis => write!(f, "{millis}ms"),
        }
    }
}

/// Reads `5s`, `300ms`, `2m` or `1h`.
fn time(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_secs(number.checked_mul(60)?)),
        "h" => Some(Duration::from_secs(number.checked_mul(60 * 60)?)),
        _ => None,
    }
}

impl FromStr for Guarantee {
    type Err = GuaranteeError;

    fn from_str(text: &str) -> Result<Guarantee, GuaranteeError> {
        let mut all = Guarantee::EVENTUAL;
        let mut is_eventual = false;
        for part in text.split(',') {
            let unknown = || GuaranteeError::Unknown(part.to_owned());
            match part.split_once('=') {
                None => match part {
                    "strong" => all.strong = true,
                    "eventual" => is_eventual = true,
                    "read-my-writes" => all.read_my_writes = true,
                    "monotonic-reads" => all.monotonic_reads = true,
                    "monotonic-writes" => all.monotonic_writes = true,
                    "writes-follow-reads" => all.writes_follow_reads = true,
                    "causal" => all.causal = true,
                    _ => return Err(unknown()),
                },
                Some(("bounded", age)) => all.max_age = Some(time(age).ok_or_else(unknown)?),
                Some(("updates", most)) => {
                    all.max_updates = Some(most.parse().map_err(|_| unknown())?);
                }
                Some(("at", version)) => {
                    all.at = Some(Version(version.parse().map_err(|_| unknown())?));
                }
                _ => return Err(unknown()),
            }
        }
        match all.parts().next() {
            Some(other) if is_eventual => Err(GuaranteeError::Contradiction("eventual", other)),
            _ => all.checked(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guarantee_is_read_as_it_is_written() {
        for text in [
            "eventual",
            "strong",
            "read-my-writes,monotonic-reads",
            "monotonic-writes,writes-follow-reads,bounded=5s,updates=3",
            "causal,bounded=300ms",
            "at=77",
        ] {
            assert_eq!(text.parse::<Guarantee>().unwrap().to_string(), text);
        }
        assert_eq!("bounded=2m".parse(), Ok(Guarantee::bounded(Duration::from_secs(120))));
        assert_eq!("bounded=1h".parse(), Ok(Guarantee::bounded(Duration::from_secs(3600))));
        assert_eq!("updates=0".parse(), Ok(Guarantee::updates(0)));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (text, parts) in [
            ("eventual,strong", ("eventual", "strong")),
            ("at=7,bounded=5s", ("at", "bounded")),
            ("at=7,strong", ("at", "strong")),
        ] {
            let expected = Err(GuaranteeError::Contradiction(parts.0, parts.1));
            assert_eq!(text.parse::<Guarantee>(), expected);
        }
        for text in [
            "",
            "bounded",
            "bounded=5",
            "bounded=s",
            "bounded=-1s",
            "at=x",
            "at",
            "Strong",
            "updates=",
        ] {
            assert!(matches!(text.parse::<Guarantee>(), Err(GuaranteeError::Unknown(_))), "{text}");
        }
    }
}
