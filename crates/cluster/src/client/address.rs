//! The address of a shared filesystem: `SERVER:/PATH`, as with NFS, or `SERVER,STANDBY:/PATH`.

use std::fmt;
use std::io;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use thalweg_env::Env;
use thalweg_env::connection::{BoxStream, Connecting, Connector};
use thalweg_ipc::remote::{Advice, RemoteError, Server};
use thalweg_net::entry::{Refusal, Service};
use thalweg_net::keys::{Home, Token};
use thalweg_net::visit::VisitError;

/// The port of a server of files, unless it is told another one.
pub const PORT: u16 = 7700;

/// The pause before a server is tried again while another one has not answered.
const AGAIN: Duration = Duration::from_millis(250);

/// A directory of a shared filesystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// One of them serves; the others may stand by.
    servers: Vec<Server>,
    path: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> = self.servers.iter().map(Server::to_string).collect();
        write!(f, "{}:{}", servers.join(","), self.path)
    }
}

impl Address {
    /// The directory with an address, which is `HOST:/PATH` or `HOST:PORT:/PATH`, or has several hosts with commas
    /// between; `None` for a text that is none, such as
    /// a path.
    pub fn of(text: &str) -> Option<Result<Address, RemoteError>> {
        let at = text.find(":/").filter(|_| !text.starts_with(['/', '.']))?;
        let (server, path) = (&text[..at], &text[at + 1..]);
        // A scheme, or a path with a colon in it.
        if path.starts_with("//") || server.contains('/') {
            return None;
        }
        let servers = server.split(',').map(|server| Server::with_port(server, PORT));
        let servers: Result<Vec<Server>, RemoteError> = servers.collect();
        Some(servers.map(|servers| Address { servers, path: path.to_owned() }))
    }

    /// Connects to it, with the keys in `home`.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn enter(&self, env: &Env, home: &Home) -> Result<BoxStream, RemoteError> {
        let mut failed: Vec<Option<RemoteError>> = self.servers.iter().map(|_| None).collect();
        let all = 0..self.servers.len();
        let mut attempts: FuturesUnordered<_> =
            all.map(|number| self.attempt(env, home, number, Duration::ZERO)).collect();
        while let Some((number, outcome)) = attempts.next().await {
            match outcome {
                Ok(entered) => return Ok(entered),
                Err(error) => failed[number] = Some(error),
            }
            if failed.iter().all(Option::is_some) {
                break;
            }
            // While one of them leaves its answer open, such as a server that stands still, another one may begin to serve.
            attempts.push(self.attempt(env, home, number, AGAIN));
        }
        Err(most_telling(failed.into_iter().flatten()))
    }

    /// Connects to one of the servers, after a pause.
    async fn attempt(
        &self,
        env: &Env,
        home: &Home,
        number: usize,
        pause: Duration,
    ) -> (usize, Result<BoxStream, RemoteError>) {
        env.sleep(pause).await;
        let server = &self.servers[number];
        (number, server.enter(env, home, (Service::Files, &self.path)).await)
    }

    /// Becomes a client of the server that serves, if there is a token, with this user's key, which is made if there is none. Then
    /// connects once, so that errors are told at once.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn join(
        &self,
        env: &Env,
        home: &Home,
        token: Option<&Token>,
    ) -> Result<(), RemoteError> {
        if let Some(token) = token
            && let Err(error) = self.enrol(env, home, token).await
        {
            // Its key may be known since an earlier attempt, which has used the token up.
            let is_used = matches!(
                &error,
                RemoteError::Visit {
                    source: VisitError::Refused(Refusal::UnknownToken | Refusal::Taken(_)),
                    ..
                }
            );
            if is_used && self.trust_all(home).is_ok() {
                return self.enter(env, home).await.map(drop).map_err(|_| error);
            }
            return Err(error);
        }
        self.trust_all(home)?;
        self.enter(env, home).await.map(drop)
    }

    /// Becomes a client of the server that serves, unless it has nothing for that client at this address.
    async fn enrol(&self, env: &Env, home: &Home, token: &Token) -> Result<(), RemoteError> {
        let key = home.own_key(env)?;
        let to_enter = Some((Service::Files, &*self.path));
        let enrolling = self.servers.iter();
        let mut enrolling: FuturesUnordered<_> =
            enrolling.map(|server| server.enrol(env, home, &key, token, to_enter)).collect();
        let mut failed = Vec::new();
        while let Some(outcome) = enrolling.next().await {
            match outcome {
                Ok(_) => return Ok(()),
                Err(error) => failed.push(error),
            }
        }
        Err(most_telling(failed.into_iter()))
    }

    /// The address of another directory there.
    #[must_use]
    pub fn with_path(&self, path: &str) -> Address {
        Address { path: path.to_owned(), ..self.clone() }
    }

    /// All servers of a filesystem have one key: a server whose key is not known has that of another one.
    fn trust_all(&self, home: &Home) -> Result<(), RemoteError> {
        let keys = self.servers.iter().map(|server| home.server(&server.to_string()));
        let keys: Vec<_> = keys.collect::<Result<_, _>>()?;
        let Some(known) = keys.iter().flatten().next() else { return Ok(()) };
        for (server, _) in self.servers.iter().zip(&keys).filter(|(_, key)| key.is_none()) {
            home.trust(&server.to_string(), known)?;
        }
        Ok(())
    }

    /// Connects to it each time that a client asks for a connection.
    pub fn connector(&self, env: &Env, home: Home) -> Box<dyn Connector> {
        Box::new(Entrance { address: self.clone(), env: env.clone(), home })
    }
}

/// A server that refuses tells more than one that is not there.
fn most_telling(failed: impl Iterator<Item = RemoteError>) -> RemoteError {
    let (refused, absent): (Vec<_>, Vec<_>) =
        failed.partition(|error| error.advice() != Advice::Retry);
    let most = refused.into_iter().chain(absent).next();
    most.unwrap_or_else(|| RemoteError::Address(String::new()))
}

/// Makes connections to a shared filesystem.
struct Entrance {
    address: Address,
    env: Env,
    home: Home,
}

impl fmt::Debug for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)
    }
}

impl Connector for Entrance {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async { self.address.enter(&self.env, &self.home).await.map_err(not_entered) })
    }
}

fn not_entered(error: RemoteError) -> io::Error {
    let kind = match error.advice() {
        Advice::Retry => io::ErrorKind::NotConnected,
        Advice::Invalid | Advice::NotPermitted => io::ErrorKind::PermissionDenied,
    };
    io::Error::new(kind, error)
}

/// The port of a keeper of copies of journals, unless it is told another one.
pub const KEEPER_PORT: u16 = 7701;

/// The port of a machine that waits for a mount, unless it is told another one.
pub const MOVE_PORT: u16 = 7702;

/// A keeper of copies of journals, or a machine that waits for a mount, to which a client has a key.
pub struct KeeperEntrance {
    keeper: Server,
    service: Service,
    env: Env,
    home: Home,
}

impl KeeperEntrance {
    /// The machine that waits for a mount at an address, `HOST:PORT` or `HOST`, with the keys in `home`.
    ///
    /// # Errors
    /// [`RemoteError::Address`].
    pub fn to_move(target: &str, env: &Env, home: Home) -> Result<KeeperEntrance, RemoteError> {
        let keeper = Server::with_port(target, MOVE_PORT)?;
        Ok(KeeperEntrance { keeper, service: Service::Moves, env: env.clone(), home })
    }

    /// The keeper with an address, `HOST:PORT` or `HOST`, with the keys in `home`.
    ///
    /// # Errors
    /// [`RemoteError::Address`].
    pub fn new(keeper: &str, env: &Env, home: Home) -> Result<KeeperEntrance, RemoteError> {
        let keeper = Server::with_port(keeper, KEEPER_PORT)?;
        Ok(KeeperEntrance { keeper, service: Service::Copies, env: env.clone(), home })
    }
}

impl fmt::Debug for KeeperEntrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.keeper)
    }
}

impl Connector for KeeperEntrance {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async {
            let entered = self.keeper.enter(&self.env, &self.home, (self.service, "")).await;
            entered.map_err(not_entered)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_server_and_a_path() {
        for text in ["server:8494:/home/alice", "[::1]:7700:/", "10.0.0.7:9:/a b", "a:1,[::1]:2:/x"]
        {
            assert_eq!(Address::of(text).unwrap().unwrap().to_string(), text);
        }
        assert_eq!(Address::of("server:/x").unwrap().unwrap().to_string(), "server:7700:/x");
        for text in ["/srv/vol", "./a:/b", "vol", "thalweg://host/vol", "a/b:/c", "/a:/b"] {
            assert!(Address::of(text).is_none(), "{text}");
        }
        assert_eq!(Address::of("a,b:9:/x").unwrap().unwrap().to_string(), "a:7700,b:9:/x");
        for text in ["serv er:/x", "a,:/x", ",:/x", ":/x"] {
            assert!(Address::of(text).unwrap().is_err(), "{text}");
        }
    }
}
