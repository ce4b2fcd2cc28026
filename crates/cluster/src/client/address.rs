//! The address of a shared filesystem: `SERVER:/PATH`, as with NFS.

use std::fmt;
use std::io;

use thalweg_env::Env;
use thalweg_env::connection::{BoxStream, Connecting, Connector};
use thalweg_ipc::remote::{Advice, RemoteError, Server};
use thalweg_net::entry::Service;
use thalweg_net::keys::{Home, Token};

/// The port of a server of files, unless it is told another one.
pub const PORT: u16 = 7700;

/// A directory of a shared filesystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    server: Server,
    path: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.path)
    }
}

impl Address {
    /// The directory with an address, which is `HOST:/PATH` or `HOST:PORT:/PATH`; `None` for a text that is none, such as
    /// a path.
    pub fn of(text: &str) -> Option<Result<Address, RemoteError>> {
        let at = text.find(":/").filter(|_| !text.starts_with(['/', '.']))?;
        let (server, path) = (&text[..at], &text[at + 1..]);
        // A scheme, or a path with a colon in it.
        if path.starts_with("//") || server.contains('/') {
            return None;
        }
        let server = Server::with_port(server, PORT);
        Some(server.map(|server| Address { server, path: path.to_owned() }))
    }

    /// Connects to it, with the keys in `home`.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn enter(&self, env: &Env, home: &Home) -> Result<BoxStream, RemoteError> {
        self.server.enter(env, home, (Service::Files, &self.path)).await
    }

    /// Becomes a client of the server, if there is a token, with this user's key, which is made if there is none. Then
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
        if let Some(token) = token {
            self.server.enrol(env, home, &home.own_key(env)?, token).await?;
        }
        self.enter(env, home).await.map(drop)
    }

    /// Connects to it each time that a client asks for a connection.
    pub fn connector(&self, env: &Env, home: Home) -> Box<dyn Connector> {
        Box::new(Entrance { address: self.clone(), env: env.clone(), home })
    }
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
        Box::pin(async {
            let entered = self.address.enter(&self.env, &self.home).await;
            entered.map_err(|error| {
                let kind = match error.advice() {
                    Advice::Retry => io::ErrorKind::NotConnected,
                    Advice::Invalid | Advice::NotPermitted => io::ErrorKind::PermissionDenied,
                };
                io::Error::new(kind, error)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_server_and_a_path() {
        for text in ["server:8494:/home/alice", "[::1]:7700:/", "10.0.0.7:9:/a b"] {
            assert_eq!(Address::of(text).unwrap().unwrap().to_string(), text);
        }
        assert_eq!(Address::of("server:/x").unwrap().unwrap().to_string(), "server:7700:/x");
        for text in ["/srv/vol", "./a:/b", "vol", "thalweg://host/vol", "a/b:/c", "/a:/b"] {
            assert!(Address::of(text).is_none(), "{text}");
        }
        assert!(Address::of("serv er:/x").unwrap().is_err());
    }
}
