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
use crate::keys::{Client, Home, KeyError, Offer, Permission, PublicKey, WatchedClients};
use crate::tls::TlsServer;

/// The time that a client has to say what it wants, and to read the answer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What a server has for its clients.
pub trait Services: Sync {
    /// Whether a client may use a service of what it names.
    ///
    /// # Errors
    /// Why it may not.
    fn allow(
        &self,
        client: &Client,
        service: Service,
        name: &str,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;
}

impl<F: Fn(&Client, Service, &str) -> bool + Sync> Services for F {
    async fn allow(&self, client: &Client, service: Service, name: &str) -> Result<(), Refusal> {
        match self(client, service, name) {
            true => Ok(()),
            false => Err(Refusal::NoSuchName(name.to_owned())),
        }
    }
}

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

    /// Lets a client in, if its key is known and `services` has what it names for it; or enrols it.
    /// `None` when the connection is over then: the client was enrolled, or it was told why it may not enter. It may not
    /// when `seats` has no permit left; the guest has one. A peer takes no seat before it has proved that it has a key.
    ///
    /// # Errors
    /// Errors of the connection, a client that breaks the protocol or takes too long, and errors of the files with keys.
    pub async fn admit<S: Stream>(
        &self,
        stream: S,
        seats: &Arc<Semaphore>,
        services: impl Services,
    ) -> io::Result<Option<Guest<S>>> {
        let (mut stream, key, wish) = self.in_time(self.hear(stream)).await?;
        let verdict = match wish {
            Wish::Enrol { secret } => self.enrol(&secret, key)?,
            Wish::EnrolToEnter { secret, service, name } => {
                match self.may_enter_later(&secret, key, (service, &name), &services).await? {
                    Ok(()) => self.enrol(&secret, key)?,
                    Err(refusal) => Verdict::Refused(refusal),
                }
            }
            Wish::Enter { service, name } => {
                let seat = || seats.clone().try_acquire_owned().map_err(|_| Refusal::Busy);
                let welcome = self.welcome(&key, service, &name, &services).await;
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

    async fn welcome(
        &self,
        key: &PublicKey,
        service: Service,
        name: &str,
        services: &impl Services,
    ) -> Result<Permission, Refusal> {
        let permission = self.clients.permission(key).ok_or(Refusal::UnknownKey)?;
        services.allow(permission.client(), service, name).await?;
        Ok(permission)
    }

    /// Whether the client that a token's secret makes could enter.
    async fn may_enter_later(
        &self,
        secret: &[u8; 16],
        key: PublicKey,
        (service, name): (Service, &str),
        services: &impl Services,
    ) -> io::Result<Result<(), Refusal>> {
        let now = self.env.wall_clock();
        let offered = Offer::find(&self.home.offers(), secret, key, now);
        Ok(match offered.map_err(io::Error::other)? {
            Some(client) => services.allow(&client, service, name).await,
            None => Err(Refusal::UnknownToken),
        })
    }

    /// Makes a client of the one that brings a token's secret. The token is used up only if that succeeds.
    fn enrol(&self, secret: &[u8; 16], key: PublicKey) -> io::Result<Verdict> {
        let now = self.env.wall_clock();
        let (offers, authorized) = (self.home.offers(), self.home.authorized_clients());
        match Offer::redeem(&offers, &authorized, secret, key, now) {
            Ok(Some(client)) => {
                let name = client.name;
                tracing::info!(client = name, key = %key.fingerprint(), "a client was enrolled");
                Ok(Verdict::Enrolled { name })
            }
            Ok(None) => Ok(Verdict::Refused(Refusal::UnknownToken)),
            Err(KeyError::Invalid(why)) => Ok(Verdict::Refused(Refusal::Taken(why))),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}
