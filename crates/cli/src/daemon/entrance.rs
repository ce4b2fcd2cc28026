//! The entrance for clients on other machines: they need a key.

use std::net::SocketAddr;
use std::sync::Arc;

use thalweg_env::connection::Stream;
use thalweg_env::{Env, Task, watch};
use thalweg_net::entry::{Refusal, Service};
use thalweg_net::gate::{Gate, Guest, Services};
use thalweg_net::keys::{Client, Home};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::Outcome;
use crate::listen::{ListenAddress, is_absent};

/// Maximum number of clients.
const MAX_CLIENTS: usize = 1024;
/// Maximum number of connections that have not entered yet; further ones are closed at once.
const MAX_ENTERING: usize = 1024;

/// What is behind the entrance.
pub(crate) trait Host: Send + Sync + 'static {
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

    /// Serves a client that was let in, until it leaves or its permission ends.
    fn serve<S: Stream>(&self, guest: Guest<S>) -> impl Future<Output = ()> + Send;
}

/// Listens for clients on other machines. Dropping it ends their sessions.
#[derive(Debug)]
pub(crate) struct Entrance {
    addresses: Vec<SocketAddr>,
    _tasks: Vec<Task<()>>,
    _stop: watch::Sender<bool>,
}

impl Entrance {
    /// Listens on every address of a host.
    pub(crate) async fn open<H: Host>(
        env: &Env,
        address: &ListenAddress,
        home: Home,
        host: H,
    ) -> Outcome<Entrance> {
        let authorized = home.authorized_clients();
        let door = Arc::new(Door {
            gate: Gate::new(env, home)?,
            host,
            seats: Arc::new(Semaphore::new(MAX_CLIENTS)),
            entering: Arc::new(Semaphore::new(MAX_ENTERING)),
        });
        let (stop, stopped) = watch::channel(false);
        let (mut addresses, mut tasks) = (Vec::new(), Vec::new());
        for (place, listener) in address.open_all(listen, is_absent).await? {
            addresses.push(place);
            let (door, stopped, own) = (door.clone(), stopped.clone(), env.clone());
            tasks.push(env.spawn(async move {
                thalweg_net::accept(&own, listener, stopped, |stream| {
                    let entering = door.entering.clone().try_acquire_owned().ok()?;
                    let door = door.clone();
                    Some(own.spawn(async move { door.receive(stream, entering).await }))
                })
                .await;
            }));
        }
        tracing::info!(clients = %authorized.display(), "clients with keys may connect");
        Ok(Entrance { addresses, _tasks: tasks, _stop: stop })
    }

    /// The addresses that it listens on.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

async fn listen(place: SocketAddr) -> std::io::Result<(SocketAddr, TcpListener)> {
    let listener = TcpListener::bind(place).await?;
    Ok((listener.local_addr()?, listener))
}

/// What the connections share.
struct Door<H> {
    gate: Gate,
    host: H,
    seats: Arc<Semaphore>,
    entering: Arc<Semaphore>,
}

impl<H: Host> Services for &Door<H> {
    async fn allow(&self, client: &Client, service: Service, name: &str) -> Result<(), Refusal> {
        self.host.allow(client, service, name).await
    }
}

impl<H: Host> Door<H> {
    /// A connection from its first byte to its last.
    async fn receive(&self, stream: impl Stream, entering: OwnedSemaphorePermit) {
        let admitted = self.gate.admit(stream, &self.seats, self).await;
        drop(entering);
        match admitted {
            Ok(Some(guest)) => self.host.serve(guest).await,
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "a client did not enter"),
        }
    }
}
