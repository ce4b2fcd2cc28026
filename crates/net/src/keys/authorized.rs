//! The file `authorized_clients`: the clients that may connect, and what each may do.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{KeyError, PublicKey, Squash, in_line, lock_folder, read_or_empty, replace};

/// What a client may do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// It reads.
    Read,
    /// It reads and writes.
    Write,
}

impl Access {
    /// The word in the file.
    pub fn word(self) -> &'static str {
        match self {
            Access::Read => "ro",
            Access::Write => "rw",
        }
    }
}

impl FromStr for Access {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Access, KeyError> {
        match text {
            "ro" => Ok(Access::Read),
            "rw" => Ok(Access::Write),
            _ => Err(KeyError::invalid(format!("`{text}` is neither ro nor rw"))),
        }
    }
}

/// What comes before [`Squash`] in the file.
const SQUASH: &str = "squash=";

/// A client that may connect. In the file it is the line `ed25519 BASE64 NAME PATH ACCESS`, and ` squash=` with the
/// [`Squash`] unless that is the default.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Client {
    /// Its key.
    pub key: PublicKey,
    /// Its name, for people. No two clients have the same.
    pub name: String,
    /// The part of what is served that it sees: `/` for all.
    pub path: String,
    /// What it may do there.
    pub access: Access,
    /// Its users that act as the user nobody in a shared filesystem.
    pub squash: Squash,
}

impl Client {
    /// A client that may do everything; its root acts as the user nobody.
    ///
    /// # Errors
    /// [`KeyError::Invalid`]: a name is 1 to 64 bytes long, of letters, digits, `.`, `_`, `-` and `@`.
    pub fn new(key: PublicKey, name: &str) -> Result<Client, KeyError> {
        Client::with(key, name, "/", Access::Write)
    }

    /// A client that may do some things.
    ///
    /// # Errors
    /// [`KeyError::Invalid`]: as [`Client::new`], and a path begins with `/` and has no spaces.
    pub fn with(
        key: PublicKey,
        name: &str,
        path: &str,
        access: Access,
    ) -> Result<Client, KeyError> {
        check_name(name)?;
        check_path(path)?;
        let squash = Squash::default();
        Ok(Client { key, name: name.to_owned(), path: path.to_owned(), access, squash })
    }
}

impl Client {
    /// Whether a path is the client's own or below it. Parts of it that are `.` or `..` are refused.
    pub fn contains(&self, path: &str) -> bool {
        let parts = |path: &str| -> Vec<String> {
            path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        let (own, asked) = (parts(&self.path), parts(path));
        asked.starts_with(&own) && !asked.iter().any(|part| part == "." || part == "..")
    }
}

fn check_name(name: &str) -> Result<(), KeyError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    match (1..=64).contains(&name.len()) && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(KeyError::invalid(format!(
            "`{name}` is no name for a client: it has 1 to 64 letters, digits and `.`, `_`, `-` or `@`"
        ))),
    }
}

fn check_path(path: &str) -> Result<(), KeyError> {
    match path.starts_with('/') && !path.chars().any(char::is_whitespace) {
        true => Ok(()),
        false => Err(KeyError::invalid(format!(
            "`{path}` is no path: it begins with `/` and has no spaces"
        ))),
    }
}

/// Writes the last word of a line, unless it is the default.
pub(super) fn write_squash(f: &mut fmt::Formatter<'_>, squash: Squash) -> fmt::Result {
    if squash == Squash::default() { Ok(()) } else { write!(f, " {SQUASH}{squash}") }
}

/// Takes the last word of a line away, if it names the users that are squashed.
pub(super) fn take_squash(words: &mut Vec<&str>) -> Result<Squash, KeyError> {
    match words.last().and_then(|last| last.strip_prefix(SQUASH)) {
        Some(squash) => {
            words.pop();
            squash.parse()
        }
        None => Ok(Squash::default()),
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.key, self.name, self.path, self.access.word())?;
        write_squash(f, self.squash)
    }
}

impl FromStr for Client {
    type Err = KeyError;

    fn from_str(line: &str) -> Result<Client, KeyError> {
        let key = line.parse()?;
        let mut words: Vec<&str> = line.split_whitespace().skip(2).collect();
        let squash = take_squash(&mut words)?;
        let (name, path, access) = match words[..] {
            [name] => (name, "/", "rw"),
            [name, path] => (name, path, "rw"),
            [name, path, access] => (name, path, access),
            [] => return Err(KeyError::invalid("a key is followed by the client's name")),
            _ => {
                return Err(KeyError::invalid(
                    "a key is followed by name, path, ro or rw, and squash=root, all or none",
                ));
            }
        };
        Ok(Client { squash, ..Client::with(key, name, path, access.parse()?)? })
    }
}

/// The clients that may connect: the lines of a file. Empty lines and those that begin with `#` stay as they are.
#[derive(Clone, Debug, Default)]
pub struct Authorized {
    path: PathBuf,
    lines: Vec<Line>,
}

#[derive(Clone, Debug)]
enum Line {
    Note(String),
    Client(Client),
}

impl Authorized {
    /// Reads the file. One that does not exist has no clients.
    ///
    /// # Errors
    /// [`KeyError`], with the number of the line that is wrong: also for a key or a name that comes twice.
    pub fn read(path: &Path) -> Result<Authorized, KeyError> {
        let text = read_or_empty(path)?;
        let mut authorized = Authorized { path: path.to_owned(), lines: Vec::new() };
        for (number, line) in text.lines().enumerate() {
            authorized.take(line).map_err(in_line(path, number))?;
        }
        Ok(authorized)
    }

    /// Changes the file, durably and at once. Changes by several processes and threads come one after the other, so that
    /// none is lost. After an error of `change` the file is as it was.
    ///
    /// # Errors
    /// As [`Authorized::read`], those of `change`, and [`KeyError::File`].
    pub fn update<T>(
        path: &Path,
        change: impl FnOnce(&mut Authorized) -> Result<T, KeyError>,
    ) -> Result<T, KeyError> {
        let _lock = lock_folder(path)?;
        Authorized::update_locked(path, change)
    }

    /// As [`Authorized::update`], for a caller that has locked the folder.
    pub(super) fn update_locked<T>(
        path: &Path,
        change: impl FnOnce(&mut Authorized) -> Result<T, KeyError>,
    ) -> Result<T, KeyError> {
        let mut authorized = Authorized::read(path)?;
        let changed = change(&mut authorized)?;
        authorized.write()?;
        Ok(changed)
    }

    fn take(&mut self, line: &str) -> Result<(), KeyError> {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            self.lines.push(Line::Note(line.to_owned()));
            return Ok(());
        }
        self.add(line.parse()?)
    }

    /// Its clients, in the order of the file.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        self.lines.iter().filter_map(|line| match line {
            Line::Client(client) => Some(client),
            Line::Note(_) => None,
        })
    }

    /// The client with a key.
    pub fn client(&self, key: &PublicKey) -> Option<&Client> {
        self.clients().find(|client| client.key == *key)
    }

    /// Adds a client.
    ///
    /// # Errors
    /// [`KeyError::Invalid`] when its key or its name is there already.
    pub fn add(&mut self, client: Client) -> Result<(), KeyError> {
        if let Some(known) = self.client(&client.key) {
            return Err(KeyError::invalid(format!("{} has this key already", known.name)));
        }
        if self.clients().any(|known| known.name == client.name) {
            return Err(KeyError::invalid(format!("there is a client {} already", client.name)));
        }
        self.lines.push(Line::Client(client));
        Ok(())
    }

    /// Removes a client by its name, its key or its fingerprint; `None` when there is none.
    pub fn remove(&mut self, client: &str) -> Option<Client> {
        let (name, key) = (client, client.parse().ok());
        let found = self.lines.iter().position(|line| match line {
            Line::Client(client) => {
                client.name == name || Some(client.key) == key || client.key.fingerprint() == name
            }
            Line::Note(_) => false,
        })?;
        match self.lines.remove(found) {
            Line::Client(client) => Some(client),
            Line::Note(_) => None,
        }
    }

    fn write(&self) -> Result<(), KeyError> {
        let text = |line: &Line| match line {
            Line::Note(note) => format!("{note}\n"),
            Line::Client(client) => format!("{client}\n"),
        };
        let text: String = self.lines.iter().map(text).collect();
        replace(&self.path, &text)
    }
}
