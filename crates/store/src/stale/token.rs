//! Sessions as text, to be carried to another process or machine.

use std::fmt;
use std::str::FromStr;

use crate::block::{Position, Version};

/// How far a session has come: the newest versions that it has read and written, and a state that has both. It is
/// written `READ:WRITTEN`, or `READ:WRITTEN@POSITION` where the volume has replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionToken {
    /// The newest version that it has read.
    pub read: Version,
    /// The newest version that it has written.
    pub written: Version,
    /// The newest state that it knows.
    pub position: Option<Position>,
}

/// A text that is no token of a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no session: expected READ:WRITTEN or READ:WRITTEN@POSITION")]
pub struct NoSession(String);

impl fmt::Display for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.read, self.written)?;
        match self.position {
            Some(position) => write!(f, "@{position}"),
            None => Ok(()),
        }
    }
}

impl FromStr for SessionToken {
    type Err = NoSession;

    fn from_str(text: &str) -> Result<SessionToken, NoSession> {
        let parse = || {
            let (versions, position) = match text.split_once('@') {
                Some((versions, position)) => (versions, Some(position.parse().ok()?)),
                None => (text, None),
            };
            let (read, written) = versions.split_once(':')?;
            let version = |text: &str| text.parse().ok().map(Version);
            Some(SessionToken { read: version(read)?, written: version(written)?, position })
        };
        // The form that is written, and no other.
        let token = parse().filter(|token| token.to_string() == text);
        token.ok_or_else(|| NoSession(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_token_is_read_in_the_form_in_which_it_is_written() {
        let (read, written) = (Version(5), Version(7));
        let (volume, timeline) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let position = Some(Position { volume, timeline, version: Version(9) });
        for token in [
            SessionToken::default(),
            SessionToken { read, written, position: None },
            SessionToken { read, written, position },
        ] {
            assert_eq!(token.to_string().parse(), Ok(token));
        }
        let text = SessionToken { read, written, position }.to_string();
        for wrong in [
            "",
            "5",
            "5:",
            ":7",
            "5:7@",
            "5:7:9",
            "+5:7",
            "05:7",
            &text[..text.len() - 2],
            &format!("{text}@"),
        ] {
            assert!(wrong.parse::<SessionToken>().is_err(), "{wrong}");
        }
    }
}
