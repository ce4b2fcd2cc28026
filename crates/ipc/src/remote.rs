//! The address of a volume on another machine: `thalweg://HOST:PORT/VOLUME`.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_env::connection::{BoxStream, Connector, HostConnector};
use thalweg_net::entry::{Refusal, Service};
use thalweg_net::keys::{Home, Key, KeyError, Token};
use thalweg_net::visit::{self, VisitError};
use thalweg_store::txn::TxnError;

use crate::Connection;

/// What the address of a volume on another machine begins with.
const SCHEME: &str = "thalweg://";
/// The port of a server, unless it is told another one.
pub const PORT: u16 = 8494;
/// The time that a server has to accept a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a volume on another machine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// Give up: the address is invalid.
    #[error(
        "{0} is no address: a server is HOST:PORT or HOST, and a volume thalweg://HOST:PORT/NAME"
    )]
    Address(String),
    /// Give up: this user has no key, or a file with keys is invalid.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Give up: the key of the server is not known.
    #[error(
        "the key of the server {0} is not known here; `thalweg key enrol` with a token of the server, or \
         `thalweg key trust`, makes it known"
    )]
    UnknownServer(Server),
    /// The server cannot be entered.
    #[error("{server}: {source}")]
    Visit {
        /// The server.
        server: Server,
        /// Why.
        source: VisitError,
    },
    /// The connection is lost.
    #[error("{server}: {source}")]
    Lost {
        /// The server.
        server: Server,
        /// Why.
        source: TxnError,
    },
}

/// What the caller of a failed connection must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Give up: the address is invalid, or names nothing that is served.
    Invalid,
    /// Give up: keys are missing, or refused.
    NotPermitted,
    /// Retry: the server cannot be reached, or is busy.
    Retry,
}

impl RemoteError {
    /// What the caller must do.
    pub fn advice(&self) -> Advice {
        match self {
            RemoteError::Address(_) => Advice::Invalid,
            RemoteError::Key(_) | RemoteError::UnknownServer(_) => Advice::NotPermitted,
            RemoteError::Lost { .. } => Advice::Retry,
            RemoteError::Visit { source, .. } => match source {
                VisitError::Lost(_) | VisitError::Refused(Refusal::Busy) => Advice::Retry,
                VisitError::Refused(
                    Refusal::NoSuchName(_) | Refusal::Outside { .. } | Refusal::NoDirectory(_),
                ) => Advice::Invalid,
                VisitError::Refused(_) | VisitError::WrongServer => Advice::NotPermitted,
            },
        }
    }
}

/// The place of a server: a host and a port. Written `HOST:PORT`; an IPv6 address is in brackets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    host: String,
    port: u16,
}

impl FromStr for Server {
    type Err = RemoteError;

    fn from_str(text: &str) -> Result<Server, RemoteError> {
        Server::with_port(text, PORT)
    }
}

impl Server {
    /// Reads `HOST:PORT`, or `HOST` for a usual port.
    ///
    /// # Errors
    /// [`RemoteError::Address`].
    pub fn with_port(text: &str, usual: u16) -> Result<Server, RemoteError> {
        let invalid = || RemoteError::Address(text.to_owned());
        let is_port = |port: &str| port.parse().ok().filter(|port| *port != 0);
        let (host, port) = match (text.starts_with('['), text.rsplit_once(':')) {
            (true, _) if text.ends_with(']') => (text, usual),
            (_, Some((host, port))) => (host, is_port(port).ok_or_else(invalid)?),
            (_, None) => (text, usual),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = |it: &str| {
            !it.is_empty() && it.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
        };
        let is_address = |it: &str| it.parse::<std::net::Ipv6Addr>().is_ok();
        match bare.map_or_else(|| is_host(host), is_address) {
            true => Ok(Server { host: bare.unwrap_or(host).to_owned(), port }),
            false => Err(invalid()),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Server {
    /// Makes a connection, over TCP.
    async fn reach(&self, env: &Env) -> Result<BoxStream, RemoteError> {
        let connector = HostConnector { host: self.host.clone(), port: self.port };
        let reached = env.timeout(PATIENCE, connector.connect()).await;
        let reached = reached.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
        reached.map_err(|error| self.refused(error))
    }

    fn refused(&self, source: impl Into<VisitError>) -> RemoteError {
        RemoteError::Visit { server: self.clone(), source: source.into() }
    }

    /// Enters for a service of what the server calls `name`, with the keys in `home`: what is returned speaks the protocol
    /// of the service.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn enter(
        &self,
        env: &Env,
        home: &Home,
        (service, name): (Service, &str),
    ) -> Result<BoxStream, RemoteError> {
        let key = home.key()?;
        let known = home.server(&self.to_string())?;
        let known = known.ok_or_else(|| RemoteError::UnknownServer(self.clone()))?;
        let stream = self.reach(env).await?;
        let entered = visit::enter(env, stream, &key, known, (service, name)).await;
        let stream = entered.map_err(|error| self.refused(error))?;
        Ok(Box::new(stream))
    }

    /// Becomes a client of the server with a token, and notes its key in `home`: the client's name there. With `to_enter` only if it
    /// may use that service; otherwise the token stays valid.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn enrol(
        &self,
        env: &Env,
        home: &Home,
        key: &Key,
        token: &Token,
        to_enter: Option<(Service, &str)>,
    ) -> Result<String, RemoteError> {
        let stream = self.reach(env).await?;
        let enrolled = visit::enrol(env, stream, key, token, to_enter).await;
        let (server, name) = enrolled.map_err(|error| self.refused(error))?;
        home.trust(&self.to_string(), &server)?;
        Ok(name)
    }
}

/// A volume on another machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remote {
    server: Server,
    volume: String,
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.server, self.volume)
    }
}

impl Remote {
    /// The volume with an address; `None` for a text that is none, such as a path.
    pub fn of(text: &str) -> Option<Result<Remote, RemoteError>> {
        let place = text.strip_prefix(SCHEME)?;
        let invalid = || RemoteError::Address(text.to_owned());
        let read = |(server, volume): (&str, &str)| match volume.is_empty() || volume.contains('/')
        {
            true => Err(invalid()),
            false => {
                let server = server.parse().map_err(|_| invalid())?;
                Ok(Remote { server, volume: volume.to_owned() })
            }
        };
        Some(place.split_once('/').ok_or_else(invalid).and_then(read))
    }

    /// Connects with the keys in `home`.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn connect(&self, env: &Env, home: &Home) -> Result<Connection, RemoteError> {
        let stream = self.enter(env, home, Service::Transactions).await?;
        let lost = |source| RemoteError::Lost { server: self.server.clone(), source };
        Connection::over(env, stream).await.map_err(lost)
    }

    /// Enters the server for a service of the volume, with the keys in `home`: what is returned speaks the protocol of the
    /// service.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn enter(
        &self,
        env: &Env,
        home: &Home,
        service: Service,
    ) -> Result<BoxStream, RemoteError> {
        self.server.enter(env, home, (service, &self.volume)).await
    }
}
