//! A server of files in this process, behind TLS on loopback, and its clients.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_cluster::client::{self, Client};
use thalweg_cluster::server::{Server, Visitor};
use thalweg_env::connection::{BoxStream, Connecting, Connector, Listener, TcpConnector};
use thalweg_env::{Env, Task};
use thalweg_net::keys::{Access, Key, Squash};
use thalweg_net::tls::{TlsClient, TlsServer};
use tokio::net::TcpListener;

use crate::BenchError;
use crate::rig::failed;

/// The server, and the environment of its tasks; `None` while there is none.
type Served = Arc<Mutex<Option<(Env, Server)>>>;

/// A place where a server is, one after another.
pub(crate) struct Wire {
    env: Env,
    own: Key,
    theirs: Key,
    place: SocketAddr,
    served: Served,
    _accepting: Task<()>,
}

/// Makes connections to it.
struct Entrance {
    client: TlsClient,
    place: SocketAddr,
}

impl fmt::Debug for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place)
    }
}

impl Connector for Entrance {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async {
            let stream = TcpConnector(self.place).connect().await?;
            let (stream, _) = self.client.connect(stream).await?;
            Ok(Box::new(stream) as BoxStream)
        })
    }
}

impl Wire {
    /// A place without a server.
    pub(crate) async fn start(env: &Env) -> Result<Wire, BenchError> {
        let own = Key::generate(env).map_err(failed)?;
        let theirs = Key::generate(env).map_err(failed)?;
        let tls = Arc::new(TlsServer::new(&theirs).map_err(failed)?);
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let place = listener.local_addr().map_err(failed)?;
        let served = Served::default();
        let now = served.clone();
        let accept = async move {
            while let Ok(stream) = Listener::accept(&listener).await {
                let (tls, served) = (tls.clone(), now.lock().clone());
                let Some((on, server)) = served else { continue };
                on.spawn(async move {
                    let (stream, _) = tls.accept(stream).await?;
                    let (name, path) = ("client".to_owned(), "/".to_owned());
                    let visitor =
                        Visitor { name, path, access: Access::Write, squash: Squash::None };
                    server.serve(stream, visitor).await
                })
                .detach();
            }
        };
        let accepting = env.spawn(accept);
        Ok(Wire { env: env.clone(), own, theirs, place, served, _accepting: accepting })
    }

    /// From now on this server is there, or none.
    pub(crate) fn serve(&self, server: Option<(Env, Server)>) {
        *self.served.lock() = server;
    }

    /// A new client, which runs in `env` and makes each change by a call.
    pub(crate) async fn client_in(&self, env: &Env) -> Result<Client, BenchError> {
        let client = TlsClient::new(&self.own, Some(self.theirs.public())).map_err(failed)?;
        let entrance = Entrance { client, place: self.place };
        let options = client::Options { exclusive: None, ..client::Options::default() };
        Client::connect(env, Box::new(entrance), options).await.map_err(failed)
    }

    /// A new client that holds directories exclusively when it makes names in them.
    pub(crate) async fn client_alone(&self) -> Result<Client, BenchError> {
        let client = TlsClient::new(&self.own, Some(self.theirs.public())).map_err(failed)?;
        let entrance = Entrance { client, place: self.place };
        Client::connect(&self.env, Box::new(entrance), client::Options::default())
            .await
            .map_err(failed)
    }

    /// A new client.
    pub(crate) async fn client(&self) -> Result<Client, BenchError> {
        self.client_in(&self.env).await
    }
}
