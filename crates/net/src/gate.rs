//! The entrance of a server on a network: TLS, and the client's key.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_env::connection::Stream;
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsStream;

use crate::entry::{self, HELLO, Refusal, Service, Verdict, Wish};
use crate::frame;
use crate::keys::{
    Authorized, Client, Home, KeyError, Offer, Permission, PublicKey, WatchedClients,
};
use crate::tls::TlsServer;

/// The time that a client has to say what it wants, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lets clients into a server.
#[derive(Debug)]
pub struct Gate {
    env: Env,
    tls: TlsServer,
    home: Home,
    clients: WatchedClients,
}

/// A client that was let in.
#[derive(Debug)]
pub struct Guest<S> {
    /// The stream, on which the protocol of the service begins.
    pub stream: TlsStream<S>,
    /// The service that it wants.
    pub service: Service,
    /// What the service is to be of.
    pub name: String,
    /// The permission, with the client: its session ends with it.
    pub permission: Permission,
    /// Its share of the server's connections.
    pub seat: OwnedSemaphorePermit,
}

impl Gate {
    /// A gate with the keys in `home`.
    ///
    /// # Errors
    /// [`KeyError`]: there is no key, or the file `authorized_clients` is invalid.
    pub fn new(env: &Env, home: Home) -> Result<Gate, KeyError> {
        let tls = TlsServer::new(&home.key()?).map_err(KeyError::file(&home.key_file()))?;
        let clients = WatchedClients::new(env, &home.authorized_clients())?;
        Ok(Gate { env: env.clone(), tls, home, clients })
    }

    /// Lets a client in, if its key is known and `serves` says that what it names is there for it; or enrols it.
    /// `None` when the connection is over then: the client was enrolled, or it was told why it may not enter. It may not
    /// when `seats` has no permit left; the guest has one. A peer takes no seat before it has proved that it has a key.
    ///
    /// # Errors
    /// Errors of the connection, a client that breaks the protocol or takes too long, and errors of the files with keys.
    pub async fn admit<S: Stream>(
        &self,
        stream: S,
        seats: &Arc<Semaphore>,
        serves: impl Fn(&Client, Service, &str) -> bool,
    ) -> io::Result<Option<Guest<S>>> {
        let (mut stream, key, wish) = self.in_time(self.hear(stream)).await?;
        let verdict = match wish {
            Wish::Enrol { secret } => self.enrol(&secret, key)?,
            Wish::Enter { service, name } => {
                let seat = || seats.clone().try_acquire_owned().map_err(|_| Refusal::Busy);
                let welcome = self.welcome(&key, service, &name, serves);
                match welcome.and_then(|permission| Ok((permission, seat()?))) {
                    Ok((permission, seat)) => {
                        self.in_time(entry::send(&mut stream, &Verdict::Entered)).await?;
                        return Ok(Some(Guest { stream, service, name, permission, seat }));
                    }
                    Err(refusal) => Verdict::Refused(refusal),
                }
            }
        };
        if let Verdict::Refused(refusal) = &verdict {
            tracing::info!(client = %key.fingerprint(), %refusal, "a client was refused");
        }
        let dismissing = async {
            entry::send(&mut stream, &verdict).await?;
            stream.shutdown().await
        };
        self.in_time(dismissing).await.map(|()| None)
    }

    /// Does what a client has to take part in, and gives up when it takes too long.
    async fn in_time<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let done = self.env.timeout(PATIENCE, work).await;
        done.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))
    }

    async fn hear<S: Stream>(&self, stream: S) -> io::Result<(TlsStream<S>, PublicKey, Wish)> {
        let (mut stream, key) = self.tls.accept(stream).await?;
        HELLO.exchange(&mut stream).await?;
        match frame::read(&mut stream, 0).await? {
            Some(frame) => Ok((stream, key, frame.message)),
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    fn welcome(
        &self,
        key: &PublicKey,
        service: Service,
        name: &str,
        serves: impl Fn(&Client, Service, &str) -> bool,
    ) -> Result<Permission, Refusal> {
        let permission = self.clients.permission(key).ok_or(Refusal::UnknownKey)?;
        match serves(permission.client(), service, name) {
            true => Ok(permission),
            false => Err(Refusal::NoSuchName(name.to_owned())),
        }
    }

    /// Makes a client of the one that brings a token's secret.
    fn enrol(&self, secret: &[u8; 16], key: PublicKey) -> io::Result<Verdict> {
        let now = self.env.wall_clock();
        let taken = Offer::take(&self.home.offers(), secret, key, now).map_err(io::Error::other)?;
        let Some(client) = taken else {
            return Ok(Verdict::Refused(Refusal::UnknownToken));
        };
        let name = client.name.clone();
        let added = Authorized::update(&self.home.authorized_clients(), |all| all.add(client));
        match added {
            Ok(()) => {
                tracing::info!(client = name, key = %key.fingerprint(), "a client was enrolled");
                Ok(Verdict::Enrolled { name })
            }
            Err(KeyError::Invalid(why)) => Ok(Verdict::Refused(Refusal::Taken(why))),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

#[cfg(test)]
mod tests;
