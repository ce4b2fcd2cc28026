//! `thalweg mount -o receive`: waits for a mount that moves here from another machine.

use std::time::Duration;

use thalweg_cluster::client::address::Address;
use thalweg_cluster::client::{Arrival, Options, Receiver};
use thalweg_env::Env;
use thalweg_env::connection::Stream;
use thalweg_net::entry::{Refusal, Service};
use thalweg_net::gate::Guest;
use thalweg_net::keys::{Access, Client, Home};

use crate::daemon::entrance::{Entrance, Host};
use crate::failure::{Failure, Outcome};
use crate::listen::ListenAddress;
use crate::output;

/// Time for the last answer to the other machine.
const FAREWELL: Duration = Duration::from_secs(5);

/// Lets clients in that have keys here.
struct Door(Receiver);

impl Host for Door {
    async fn allow(&self, client: &Client, service: Service, name: &str) -> Result<(), Refusal> {
        match service {
            Service::Moves if client.access == Access::Write && name.is_empty() => Ok(()),
            _ => Err(Refusal::NoSuchName(name.to_owned())),
        }
    }

    async fn serve<S: Stream>(&self, guest: Guest<S>) {
        let Guest { stream, permission, seat: _seat, .. } = guest;
        let client = &*permission.client().name.clone();
        tracing::info!(client, "a client connected that may move its mount here");
        tokio::select! {
            biased;
            () = permission.ended() => tracing::info!(client, "a client's permission ended"),
            served = self.0.serve(stream) => match served {
                Ok(()) => tracing::info!(client, "a client left"),
                Err(error) => tracing::info!(client, %error, "a client was lost"),
            },
        }
    }
}

/// Waits for a mount.
pub(super) struct Receiving {
    receiver: Receiver,
    entrance: Entrance,
}

impl Receiving {
    /// Listens for clients that move their mounts here.
    pub(super) async fn begin(
        env: &Env,
        address: &Address,
        (place, home): (&str, Home),
        options: Options,
    ) -> Outcome<Receiving> {
        let place: ListenAddress = place.parse().map_err(Failure::new)?;
        let connector = address.connector(env, home.clone());
        let receiver = Receiver::begin(env, connector, options).await?;
        let entrance = Entrance::open(env, &place, home, Door(receiver.clone())).await?;
        Ok(Receiving { receiver, entrance })
    }

    /// Says where it waits.
    pub(super) fn show(&self) {
        for place in self.entrance.addresses() {
            println!("waits for a mount at {place}");
        }
        output::flush();
    }

    /// The mount, when it is here.
    pub(super) async fn arrived(&self) -> Outcome<Arrival> {
        let arrived = self.receiver.arrived().await;
        arrived.ok_or_else(|| Failure::new("the mount that has moved here is gone"))
    }

    /// Lets clients in no more, once the one that has moved its mount here has heard of that.
    pub(super) fn end(self, env: &Env) {
        let own = env.clone();
        let ending = async move {
            own.sleep(FAREWELL).await;
            drop(self);
        };
        env.spawn(ending).detach();
    }
}
