//! The folder with the keys of a node or a client.
//!
//! - `key`: its private key ([`Key`]);
//! - `authorized_clients`: the clients that may connect to its servers ([`Authorized`]);
//! - `offers`: the tokens that enrol further clients ([`Offer`](super::Offer));
//! - `known_servers`: the keys of the servers that it connects to, a line `HOST:PORT ed25519 BASE64` for each.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use thalweg_env::Env;

use super::{
    Authorized, Key, KeyError, PublicKey, in_line, lock_folder, read_or_empty, replace, sync_folder,
};

/// The variable that names the folder.
pub const VARIABLE: &str = "THALWEG_KEYS";

/// The folder with the keys of a node or a client. It need not exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Home {
    folder: PathBuf,
}

impl Home {
    /// The keys in `folder`.
    pub fn at(folder: impl Into<PathBuf>) -> Home {
        Home { folder: folder.into() }
    }

    /// The folder that the variable `THALWEG_KEYS` names. Without it, `/etc/thalweg` for root, and `thalweg` in the
    /// configuration folder of another user: `$XDG_CONFIG_HOME`, or `~/.config`.
    pub fn of_user() -> Home {
        let named = |variable: &str| {
            std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        if let Some(folder) = named(VARIABLE) {
            return Home::at(folder);
        }
        let is_root = File::open("/proc/self").and_then(|it| it.metadata());
        if is_root.is_ok_and(|it| it.uid() == 0) {
            return Home::at("/etc/thalweg");
        }
        let home = || named("HOME").unwrap_or_else(|| PathBuf::from("/")).join(".config");
        Home::at(named("XDG_CONFIG_HOME").unwrap_or_else(home).join("thalweg"))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file with the private key.
    pub fn key_file(&self) -> PathBuf {
        self.folder.join("key")
    }

    /// The file with the clients that may connect.
    pub fn authorized_clients(&self) -> PathBuf {
        self.folder.join("authorized_clients")
    }

    /// The file with the offers of tokens.
    pub fn offers(&self) -> PathBuf {
        self.folder.join("offers")
    }

    fn known_servers(&self) -> PathBuf {
        self.folder.join("known_servers")
    }

    /// The private key.
    ///
    /// # Errors
    /// [`KeyError::NoKey`], and those of [`Key::read`].
    pub fn key(&self) -> Result<Key, KeyError> {
        let path = self.key_file();
        match path.try_exists() {
            Ok(false) => Err(KeyError::NoKey { path }),
            _ => Key::read(&path),
        }
    }

    /// The private key, which is made if there is none.
    ///
    /// # Errors
    /// Those of [`Home::add_key`] and of [`Key::read`].
    pub fn own_key(&self, env: &Env) -> Result<Key, KeyError> {
        let path = self.key_file();
        if matches!(path.try_exists(), Ok(false)) {
            self.add_key(&Key::generate(env)?)?;
        }
        Key::read(&path)
    }

    /// Writes a new key, and makes the folder, with mode 0700, if it does not exist.
    ///
    /// # Errors
    /// [`KeyError::File`], also when there is a key already.
    pub fn add_key(&self, key: &Key) -> Result<(), KeyError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.map_err(KeyError::file(&self.folder))?;
        sync_folder(&self.folder)?;
        key.write_new(&self.key_file())
    }

    /// The clients that may connect.
    ///
    /// # Errors
    /// Those of [`Authorized::read`].
    pub fn authorized(&self) -> Result<Authorized, KeyError> {
        Authorized::read(&self.authorized_clients())
    }

    /// The key of the server at an address, `HOST:PORT`; `None` if it is not known.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn server(&self, address: &str) -> Result<Option<PublicKey>, KeyError> {
        let path = self.known_servers();
        let text = read_or_empty(&path)?;
        for (number, line) in text.lines().enumerate() {
            if let Some((_, key)) =
                line.split_once(char::is_whitespace).filter(|it| it.0 == address)
            {
                return key.trim_start().parse().map(Some).map_err(in_line(&path, number));
            }
        }
        Ok(None)
    }

    /// Makes `key` the one of the server at an address, in place of the one that was known.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn trust(&self, address: &str, key: &PublicKey) -> Result<(), KeyError> {
        let path = self.known_servers();
        let _lock = lock_folder(&path)?;
        let text = read_or_empty(&path)?;
        let others = text.lines().filter(|line| line.split_whitespace().next() != Some(address));
        let others: String = others.map(|line| format!("{line}\n")).collect();
        replace(&path, &format!("{others}{address} {key}\n"))
    }
}
