//! Clients on other machines: they need a key, and get transactions and changes of volumes, or files.

use std::net::SocketAddr;
use std::sync::Arc;

use thalweg_env::connection::Stream;
use thalweg_env::{Task, watch};
use thalweg_net::entry::{Refusal, Service};
use thalweg_net::gate::{Gate, Guest, Services};
use thalweg_net::keys::{Client, Home};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::session::Session;
use crate::failure::Outcome;
use crate::listen::{ListenAddress, is_absent};
use crate::volume::opened::Opened;

/// Maximum number of clients.
const MAX_CLIENTS: usize = 1024;
/// Maximum number of connections that have not entered yet; further ones are closed at once.
const MAX_ENTERING: usize = 1024;

/// Listens for clients on other machines. Dropping it ends their sessions.
#[derive(Debug)]
pub(crate) struct Network {
    addresses: Vec<SocketAddr>,
    _tasks: Vec<Task<()>>,
    _stop: watch::Sender<bool>,
}

impl Network {
    /// Listens on every address of a host.
    pub(crate) async fn start(
        session: &Arc<Session>,
        address: &ListenAddress,
        home: Home,
    ) -> Outcome<Network> {
        let authorized = home.authorized_clients();
        for volume in &session.volumes {
            session.replicas.resume(&session.env, volume).await?;
        }
        let gate = Gate::new(&session.env, home)?;
        let host = Arc::new(Host {
            session: session.clone(),
            gate,
            seats: Arc::new(Semaphore::new(MAX_CLIENTS)),
            entering: Arc::new(Semaphore::new(MAX_ENTERING)),
        });
        let (stop, stopped) = watch::channel(false);
        let (mut addresses, mut tasks) = (Vec::new(), Vec::new());
        for (place, listener) in address.open_all(listen, is_absent).await? {
            addresses.push(place);
            let (host, stopped) = (host.clone(), stopped.clone());
            tasks.push(session.env.spawn(async move {
                let env = &host.session.env;
                thalweg_net::accept(env, listener, stopped, |stream| {
                    let entering = host.entering.clone().try_acquire_owned().ok()?;
                    let host = host.clone();
                    Some(env.spawn(async move { host.receive(stream, entering).await }))
                })
                .await;
            }));
        }
        tracing::info!(clients = %authorized.display(), "clients with keys may connect");
        Ok(Network { addresses, _tasks: tasks, _stop: stop })
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
struct Host {
    session: Arc<Session>,
    gate: Gate,
    seats: Arc<Semaphore>,
    entering: Arc<Semaphore>,
}

/// Whether a client may see a volume.
fn sees(client: &Client, volume: &str) -> bool {
    client.path == "/" || client.path.strip_prefix('/') == Some(volume)
}

impl Services for &Host {
    async fn allow(&self, client: &Client, service: Service, name: &str) -> Result<(), Refusal> {
        let shared = self.session.shared.get();
        let has = match (service, shared) {
            (Service::Files, Some(shared)) => return shared.allow(client, name).await,
            (Service::Files, None) => false,
            // Paths are directories then, and a raw write would go past the clients' caches.
            (Service::Transactions, Some(_)) => false,
            (Service::Transactions, None) => {
                sees(client, name) && self.session.exports.transactions(name).is_some()
            }
            (Service::Replica, Some(_)) => client.path == "/" && self.chained(name).is_some(),
            (Service::Replica, None) => sees(client, name) && self.chained(name).is_some(),
        };
        if has { Ok(()) } else { Err(Refusal::NoSuchName(name.to_owned())) }
    }
}

impl Host {
    /// A connection from its first byte to its last.
    async fn receive(&self, stream: impl Stream, entering: OwnedSemaphorePermit) {
        let admitted = self.gate.admit(stream, &self.seats, self).await;
        drop(entering);
        match admitted {
            Ok(Some(guest)) => self.serve(guest).await,
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "a client did not enter"),
        }
    }

    async fn serve<S: Stream>(&self, guest: Guest<S>) {
        let Guest { stream, service, name, permission, seat: _seat } = guest;
        let client = permission.client().clone();
        tracing::info!(client = client.name, volume = name, ?service, "a client connected");
        tokio::select! {
            biased;
            () = permission.ended() => {
                tracing::info!(client = client.name, volume = name, "a client's permission ended");
                // It cannot come back to end its sessions.
                if let (Service::Files, Some(shared)) = (service, self.session.shared.get()) {
                    shared.evict(&client.name);
                }
            }
            result = self.serve_service(stream, service, &name, &client) => match result {
                Ok(()) => tracing::info!(client = client.name, volume = name, "a client left"),
                Err(error) => {
                    tracing::info!(client = client.name, volume = name, %error, "a client was lost");
                }
            },
        }
    }

    async fn serve_service(
        &self,
        stream: impl Stream,
        service: Service,
        name: &str,
        client: &Client,
    ) -> Outcome<()> {
        // The volume may be gone since the client was let in.
        match service {
            Service::Files => match self.session.shared.get() {
                Some(shared) => shared.serve(stream, client, name).await,
                None => Ok(()),
            },
            Service::Transactions => match self.session.exports.transactions(name) {
                Some(transactions) => Ok(transactions.serve(stream, client.access).await?),
                None => Ok(()),
            },
            Service::Replica => match self.chained(name) {
                Some(volume) => {
                    let Session { env, replicas, .. } = &*self.session;
                    replicas.serve(env, volume, stream, &client.name).await
                }
                None => Ok(()),
            },
        }
    }

    /// The chained volume called `name`.
    fn chained(&self, name: &str) -> Option<&Opened> {
        let volumes = self.session.volumes.iter();
        let mut volumes = volumes.filter(|volume| volume.chained().is_some());
        volumes.find(|volume| volume.target.name == name).map(|volume| &**volume)
    }
}

#[cfg(test)]
mod tests {
    use thalweg_env::Env;
    use thalweg_net::keys::Key;

    use super::*;

    #[tokio::test]
    async fn a_path_is_one_volume_or_all() {
        let key = Key::generate(&Env::real()).unwrap().public();
        let client = |path: &str| {
            let all = Client::new(key, "client").unwrap();
            Client { path: path.to_owned(), ..all }
        };
        assert!(sees(&client("/"), "vol") && sees(&client("/vol"), "vol"));
        assert!(!sees(&client("/vol"), "volume") && !sees(&client("/vol/"), "vol"));
    }
}
