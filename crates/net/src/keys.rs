//! Keys of nodes and clients, and the list of clients that may connect, as with ssh.
//!
//! Every node and every client has an ed25519 key of its own. A server has a file `authorized_clients` with the public
//! keys that may connect ([`Authorized`]); a client knows the server's key. There is no authority that issues
//! certificates, and no date on which a key expires.
//!
//! - [`Key`]: a private key, in a file with mode 0600 as PKCS #8 in PEM;
//! - [`PublicKey`]: written `ed25519 BASE64`;
//! - [`Authorized`]: the file `authorized_clients`; [`Squash`]: what becomes of the users of a client;
//! - [`Token`]: enrols a client once;
//! - [`Home`]: the folder with all of these;
//! - [`WatchedClients`]: the clients that may connect now, and the end of a client's [`Permission`].

mod authorized;
mod home;
mod squash;
mod token;
mod watched;

use std::fmt;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use ring::digest::{SHA256, digest};
use ring::signature::{Ed25519KeyPair, KeyPair};
use thalweg_env::Env;

pub use authorized::{Access, Authorized, Client};
pub use home::{Home, VARIABLE};
pub use squash::{Nobody, Squash};
pub use token::{Offer, Token};
pub use watched::{Permission, WatchedClients};

/// The word before a public key.
const KIND: &str = "ed25519";
/// What comes before the seed in PKCS #8 (RFC 8410).
const PKCS8: [u8; 16] = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
/// What comes before the key in a SubjectPublicKeyInfo (RFC 8410).
const SPKI: [u8; 12] = *b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
/// The first and the last line of a private key's file.
const PEM: [&str; 2] = ["-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"];
/// Longest file that is read as a key or a list of clients, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Why a key, a list of clients or a token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Give up: it is not what it should be.
    #[error("{0}")]
    Invalid(String),
    /// Give up: there is no private key yet.
    #[error("there is no key {}; `thalweg key new` makes one", path.display())]
    NoKey {
        /// The file that a key would be in.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl KeyError {
    fn invalid(why: impl Into<String>) -> KeyError {
        KeyError::Invalid(why.into())
    }

    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> KeyError {
        let path = path.to_owned();
        |source| KeyError::File { path, source }
    }
}

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Its 32 bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key as a SubjectPublicKeyInfo, as TLS sends it (RFC 7250).
    pub fn to_spki(self) -> Vec<u8> {
        [&SPKI[..], &self.0].concat()
    }

    /// The key in a SubjectPublicKeyInfo; `None` for another kind of key.
    pub fn from_spki(spki: &[u8]) -> Option<PublicKey> {
        let key = spki.strip_prefix(&SPKI[..])?;
        Some(PublicKey(key.try_into().ok()?))
    }

    /// A short name that no other key has: `SHA256:` and its hash, as ssh shows it.
    pub fn fingerprint(&self) -> String {
        let hash = digest(&SHA256, &self.0);
        format!("SHA256:{}", STANDARD_NO_PAD.encode(hash))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KIND} {}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fingerprint())
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    /// Reads `ed25519 BASE64`, and ignores the rest.
    fn from_str(text: &str) -> Result<PublicKey, KeyError> {
        let mut words = text.split_whitespace();
        let (kind, key) = (words.next(), words.next());
        if kind != Some(KIND) {
            let kind = kind.unwrap_or_default();
            return Err(KeyError::invalid(format!(
                "a public key begins with `{KIND}`, not with `{kind}`"
            )));
        }
        let bytes = STANDARD.decode(key.unwrap_or_default()).ok();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(PublicKey).ok_or_else(|| {
            KeyError::invalid(format!(
                "`{KIND}` is not followed by the 32 bytes of a key in base64"
            ))
        })
    }
}

/// A private key. It is not shown by `Debug`.
#[derive(Clone)]
pub struct Key {
    seed: [u8; 32],
    public: PublicKey,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("public", &self.public).finish_non_exhaustive()
    }
}

impl Key {
    /// A new key.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn generate(env: &Env) -> Result<Key, KeyError> {
        let seed = env.secret().map_err(KeyError::file(Path::new("/dev/urandom")))?;
        Key::from_seed(seed)
    }

    fn from_seed(seed: [u8; 32]) -> Result<Key, KeyError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed)
            .map_err(|error| KeyError::invalid(format!("it is not a key: {error}")))?;
        let public = pair.public_key().as_ref().try_into();
        let public =
            public.map_err(|_| KeyError::invalid("its public key is not 32 bytes long"))?;
        Ok(Key { seed, public: PublicKey(public) })
    }

    /// Its public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// The key in PKCS #8.
    pub(crate) fn to_pkcs8(&self) -> Vec<u8> {
        [&PKCS8[..], &self.seed].concat()
    }

    /// Reads a private key.
    ///
    /// # Errors
    /// [`KeyError`]: the file cannot be read, other users may read it, or it is not an ed25519 key in PKCS #8.
    pub fn read(path: &Path) -> Result<Key, KeyError> {
        let file = File::open(path).map_err(KeyError::file(path))?;
        let mode = file.metadata().map_err(KeyError::file(path))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(KeyError::invalid(format!(
                "{}: other users may read this private key (mode {:o}); chmod 600 it, or make a new key",
                path.display(),
                mode & 0o777
            )));
        }
        let text = read_text(file, path)?;
        Key::from_pem(&text)
            .map_err(|error| KeyError::invalid(format!("{}: {error}", path.display())))
    }

    /// Reads the text of a private key's file.
    ///
    /// # Errors
    /// [`KeyError::Invalid`].
    pub fn from_pem(text: &str) -> Result<Key, KeyError> {
        let body = text.trim().strip_prefix(PEM[0]).and_then(|text| text.strip_suffix(PEM[1]));
        let body = body
            .ok_or_else(|| KeyError::invalid(format!("a private key begins with `{}`", PEM[0])))?;
        let body: String = body.split_whitespace().collect();
        let bytes = STANDARD.decode(body).ok();
        let seed = bytes.as_deref().and_then(|bytes| bytes.strip_prefix(&PKCS8[..]));
        let seed = seed.and_then(|seed| seed.try_into().ok());
        Key::from_seed(
            seed.ok_or_else(|| KeyError::invalid("it is not an ed25519 key in PKCS #8"))?,
        )
    }

    /// Writes the private key to a new file with mode 0600, durably.
    ///
    /// # Errors
    /// [`KeyError::File`], also when the file exists.
    pub fn write_new(&self, path: &Path) -> Result<(), KeyError> {
        let body = STANDARD.encode(self.to_pkcs8());
        let text = format!("{}\n{body}\n{}\n", PEM[0], PEM[1]);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(path);
        let write = |mut file: File| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        file.and_then(write).map_err(KeyError::file(path))?;
        sync_folder(path)
    }
}

/// The text of a file, empty when there is none.
fn read_or_empty(path: &Path) -> Result<String, KeyError> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        file => read_text(file.map_err(KeyError::file(path))?, path),
    }
}

/// An error in a line of a file; lines count from 0.
fn in_line(path: &Path, number: usize) -> impl FnOnce(KeyError) -> KeyError {
    move |error| KeyError::invalid(format!("{}, line {}: {error}", path.display(), number + 1))
}

/// The text of a file that is not too long.
fn read_text(file: File, path: &Path) -> Result<String, KeyError> {
    let mut text = String::new();
    let read = io::Read::read_to_string(&mut io::Read::take(file, MAX_FILE + 1), &mut text);
    match read.map_err(KeyError::file(path))? as u64 {
        0..=MAX_FILE => Ok(text),
        _ => Err(KeyError::invalid(format!("{} is longer than a megabyte", path.display()))),
    }
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn sync_folder(path: &Path) -> Result<(), KeyError> {
    let folder = folder_of(path);
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(KeyError::file(folder))
}

/// Keeps other processes and threads from changing files in the folder of `path` until it is dropped.
fn lock_folder(path: &Path) -> Result<File, KeyError> {
    let folder = folder_of(path);
    let lock = |folder: File| folder.lock().map(|()| folder);
    File::open(folder).and_then(lock).map_err(KeyError::file(folder))
}

/// Replaces a file, durably and at once: readers find the old text or the new one. The caller holds the folder's lock.
fn replace(path: &Path, text: &str) -> Result<(), KeyError> {
    let mut next = path.as_os_str().to_owned();
    next.push(".new");
    let next = PathBuf::from(next);
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&next)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&next, path)
    };
    write().map_err(KeyError::file(path))?;
    sync_folder(path)
}
