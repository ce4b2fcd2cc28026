//! Tokens that enrol a client once.
//!
//! The server keeps an [`Offer`] for each token: what the client will be allowed to do, and the hash of the token's
//! secret, so that its file enrols no one. The token itself has the hash of the server's key, so that the client knows
//! the server before it sends the secret.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use thalweg_env::Env;

use super::authorized::{take_squash, write_squash};
use super::{
    Access, Authorized, Client, KeyError, PublicKey, Squash, in_line, lock_folder, read_or_empty,
    replace,
};

/// What a token begins with.
const PREFIX: &str = "thwg1-";
/// Bytes of the server's key's hash, and of the secret.
const PART: usize = 16;

/// A token. Its secret is not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    server: [u8; PART],
    secret: [u8; PART],
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [self.server, self.secret].concat();
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for Token {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Token, KeyError> {
        let bytes = text.trim().strip_prefix(PREFIX);
        let bytes = bytes.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        let parts = bytes.as_deref().and_then(|bytes| match bytes.as_chunks::<PART>() {
            ([server, secret], []) => Some((*server, *secret)),
            _ => None,
        });
        let (server, secret) = parts.ok_or_else(|| {
            KeyError::invalid(format!("a token begins with `{PREFIX}` and is 49 characters long"))
        })?;
        Ok(Token { server, secret })
    }
}

fn hash(bytes: &[u8]) -> [u8; PART] {
    let mut part = [0; PART];
    part.copy_from_slice(&digest(&SHA256, bytes).as_ref()[..PART]);
    part
}

impl Token {
    /// A new token of the server with this key.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn generate(env: &Env, server: &PublicKey) -> Result<Token, KeyError> {
        let secret = env.secret().map_err(KeyError::file(Path::new("/dev/urandom")))?;
        Ok(Token { server: hash(server.bytes()), secret })
    }

    /// Whether it is a token of the server with this key.
    pub fn is_of(&self, server: &PublicKey) -> bool {
        self.server == hash(server.bytes())
    }

    /// What the client sends to enrol.
    pub fn secret(&self) -> [u8; PART] {
        self.secret
    }
}

/// What the server offers to the client that brings a token. In the file it is the line `HASH EXPIRES NAME PATH ACCESS`,
/// and the client's ` squash=` as in `authorized_clients`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    hash: [u8; PART],
    /// The time until which the token may be used, in seconds since 1970.
    expires: u64,
    name: String,
    path: String,
    access: Access,
    squash: Squash,
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Offer { hash, expires, name, path, access, squash } = self;
        write!(f, "{} {expires} {name} {path} {}", URL_SAFE_NO_PAD.encode(hash), access.word())?;
        write_squash(f, *squash)
    }
}

impl FromStr for Offer {
    type Err = KeyError;

    fn from_str(line: &str) -> Result<Offer, KeyError> {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let squash = take_squash(&mut words)?;
        let [hash, expires, name, path, access] = words[..] else {
            return Err(KeyError::invalid("an offer has five words"));
        };
        let hash = URL_SAFE_NO_PAD.decode(hash).ok().and_then(|hash| hash.try_into().ok());
        let hash = hash.ok_or_else(|| KeyError::invalid("an offer begins with a hash"))?;
        let expires = expires.parse().map_err(|_| KeyError::invalid("an offer has no time"))?;
        let (name, path) = (name.to_owned(), path.to_owned());
        Ok(Offer { hash, expires, name, path, access: access.parse()?, squash })
    }
}

impl Offer {
    /// What the client that brings `token` will be: as `client`, with its own key. Valid until `expires`, in seconds
    /// since 1970.
    pub fn new(token: &Token, client: &Client, expires: u64) -> Offer {
        let Client { name, path, access, squash, .. } = client.clone();
        Offer { hash: hash(&token.secret), expires, name, path, access, squash }
    }

    /// Adds it to those of a file, and drops those that have expired by `now`.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn add_to(self, path: &Path, now: u64) -> Result<(), KeyError> {
        let _lock = lock_folder(path)?;
        let mut offers = Offers::read(path)?;
        offers.offers.retain(|offer| offer.expires >= now);
        offers.offers.push(self);
        offers.write()
    }

    /// Removes the offers of a file for clients called `name`, whose tokens cannot be used any more; how many.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn withdraw(path: &Path, name: &str) -> Result<usize, KeyError> {
        let _lock = lock_folder(path)?;
        let mut offers = Offers::read(path)?;
        let before = offers.offers.len();
        offers.offers.retain(|offer| offer.name != name);
        let withdrawn = before - offers.offers.len();
        if withdrawn > 0 {
            offers.write()?;
        }
        Ok(withdrawn)
    }

    /// The client with this key that the offer for a secret would make. `None` for a secret that is unknown, was used, or has
    /// expired by `now`.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn find(
        path: &Path,
        secret: &[u8; PART],
        key: PublicKey,
        now: u64,
    ) -> Result<Option<Client>, KeyError> {
        let offers = Offers::read(path)?;
        Ok(offers.position(secret, now).map(|found| offers.offers[found].client(key)))
    }

    /// Adds the client of [`Offer::find`] to those that may connect, and removes the offer if that succeeds. Both files are in
    /// one folder.
    ///
    /// # Errors
    /// [`KeyError`], also when the client's key or name is there already.
    pub fn redeem(
        path: &Path,
        authorized: &Path,
        secret: &[u8; PART],
        key: PublicKey,
        now: u64,
    ) -> Result<Option<Client>, KeyError> {
        let _lock = lock_folder(path)?;
        let mut offers = Offers::read(path)?;
        let Some(found) = offers.position(secret, now) else { return Ok(None) };
        let client = offers.offers.remove(found).client(key);
        // Before the offer is gone: after a crash in between, the name is taken, and the token is of no use.
        Authorized::update_locked(authorized, |all| all.add(client.clone()))?;
        offers.write()?;
        Ok(Some(client))
    }

    fn client(&self, key: PublicKey) -> Client {
        let Offer { name, path, access, squash, .. } = self.clone();
        Client { key, name, path, access, squash }
    }
}

struct Offers {
    path: PathBuf,
    offers: Vec<Offer>,
}

impl Offers {
    fn read(path: &Path) -> Result<Offers, KeyError> {
        let text = read_or_empty(path)?;
        let read = |(number, line): (usize, &str)| line.parse().map_err(in_line(path, number));
        let offers = text.lines().enumerate().map(read).collect::<Result<_, _>>()?;
        Ok(Offers { path: path.to_owned(), offers })
    }

    /// Where the offer for a secret is, unless it has expired by `now`.
    fn position(&self, secret: &[u8; PART], now: u64) -> Option<usize> {
        let wanted = hash(secret);
        self.offers.iter().position(|offer| offer.hash == wanted && offer.expires >= now)
    }

    fn write(&self) -> Result<(), KeyError> {
        let text: String = self.offers.iter().map(|offer| format!("{offer}\n")).collect();
        replace(&self.path, &text)
    }
}
