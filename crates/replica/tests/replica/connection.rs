//! Connections between machines.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_replica::{Stopped, announce};
use thalweg_sim::net::SimConnector;
use thalweg_store::chain::Chain;

/// The way to another machine.
pub(crate) struct Connection {
    pub(crate) to: SimConnector,
    pub(crate) name: String,
    pub(crate) met: Arc<Mutex<Vec<(String, u32)>>>,
}

impl Connection {
    /// Notes that the other machine has answered a node of this term.
    pub(crate) fn meet(&self, term: u32) {
        self.met.lock().push((self.name.clone(), term));
    }
}

/// Tells the old primary that it is one no longer.
pub(crate) async fn tell(env: Env, chain: Arc<Chain>, connection: Connection) {
    loop {
        if let Ok(stream) = connection.to.open().await {
            match announce(&env, stream, &chain, 0).await {
                Ok(_) => return connection.meet(chain.term()),
                Err(Stopped::Refused(_)) => connection.meet(chain.term()),
                Err(_) => {}
            }
        }
        env.sleep(Duration::from_millis(50)).await;
    }
}
