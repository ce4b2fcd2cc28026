//! Clients on other machines: they need a key, and get transactions and changes of volumes, or files.

use std::sync::Arc;

use thalweg_env::connection::Stream;
use thalweg_net::entry::{Refusal, Service};
use thalweg_net::gate::Guest;
use thalweg_net::keys::{Client, Home};

use super::entrance::{Entrance, Host};
use super::session::Session;
use crate::failure::Outcome;
use crate::listen::ListenAddress;
use crate::volume::opened::Opened;

/// Listens for clients of a session's volumes on every address of a host.
pub(crate) async fn start(
    session: &Arc<Session>,
    address: &ListenAddress,
    home: Home,
) -> Outcome<Entrance> {
    for volume in &session.volumes {
        session.replicas.resume(&session.env, volume).await?;
    }
    Entrance::open(&session.env, address, home, Volumes { session: session.clone() }).await
}

/// The volumes of a session.
struct Volumes {
    session: Arc<Session>,
}

/// Whether a client may see a volume.
fn sees(client: &Client, volume: &str) -> bool {
    client.path == "/" || client.path.strip_prefix('/') == Some(volume)
}

impl Host for Volumes {
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
            (Service::Copies | Service::Moves, _) => false,
        };
        if has { Ok(()) } else { Err(Refusal::NoSuchName(name.to_owned())) }
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
}

impl Volumes {
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
            // None is let in for these: a keeper has them, or a mount that waits.
            Service::Copies | Service::Moves => Ok(()),
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
