//! What becomes of the users of a client.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::KeyError;

/// The user and the group that stand for those which a client may not act as.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Nobody {
    /// The user, not 0.
    pub uid: u32,
    /// The group, not 0.
    pub gid: u32,
}

impl Default for Nobody {
    fn default() -> Nobody {
        Nobody { uid: 65534, gid: 65534 }
    }
}

impl fmt::Display for Nobody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl FromStr for Nobody {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Nobody, KeyError> {
        let id = |text: &str| text.parse().ok().filter(|id| (1..u32::MAX).contains(id));
        let ids = text.split_once(':').and_then(|(uid, gid)| id(uid).zip(id(gid)));
        let (uid, gid) = ids.ok_or_else(|| {
            KeyError::invalid(format!(
                "`{text}` is not UID:GID, two numbers that are not 0, such as 65534:65534"
            ))
        })?;
        Ok(Nobody { uid, gid })
    }
}

/// The users of a client that act as the user nobody, as with NFS.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Squash {
    /// None: root there is root here, and the client alone checks permissions.
    None,
    /// Root.
    Root(Nobody),
    /// All.
    All(Nobody),
}

impl Default for Squash {
    fn default() -> Squash {
        Squash::Root(Nobody::default())
    }
}

impl Squash {
    /// The users of [`Squash::word`], with this one as the user nobody.
    ///
    /// # Errors
    /// [`KeyError::Invalid`] for another word.
    pub fn of(word: &str, nobody: Nobody) -> Result<Squash, KeyError> {
        match word {
            "none" => Ok(Squash::None),
            "root" => Ok(Squash::Root(nobody)),
            "all" => Ok(Squash::All(nobody)),
            _ => Err(KeyError::invalid(format!("`{word}` is none of `root`, `all` and `none`"))),
        }
    }

    /// The word for the users that are squashed.
    pub fn word(self) -> &'static str {
        match self {
            Squash::None => "none",
            Squash::Root(_) => "root",
            Squash::All(_) => "all",
        }
    }

    /// The user that squashed ones act as.
    pub fn nobody(self) -> Option<Nobody> {
        match self {
            Squash::None => None,
            Squash::Root(nobody) | Squash::All(nobody) => Some(nobody),
        }
    }
}

/// As in a file: `root`, `all`, `none`, and the user nobody if it is not the usual one: `root:1000:1000`.
impl fmt::Display for Squash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self.nobody().filter(|nobody| *nobody != Nobody::default()) {
            Some(nobody) => write!(f, ":{nobody}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Squash {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Squash, KeyError> {
        match text.split_once(':') {
            Some(("none", _)) => {
                Err(KeyError::invalid(format!("`{text}`: without squashing there is no nobody")))
            }
            Some((word, nobody)) => Squash::of(word, nobody.parse()?),
            None => Squash::of(text, Nobody::default()),
        }
    }
}
