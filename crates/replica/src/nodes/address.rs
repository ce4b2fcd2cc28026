//! Nodes by their addresses.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use thalweg_env::Env;
use thalweg_ipc::remote::RemoteError;
use thalweg_ipc::{Connection, Remote};
use thalweg_net::keys::Home;
use thalweg_store::txn::{Transact, TxnError};

use super::Reach;

/// A volume on another machine.
#[derive(Debug)]
struct Far {
    env: Env,
    home: Home,
    remote: Remote,
}

#[async_trait]
impl Reach for Far {
    fn name(&self) -> String {
        self.remote.to_string()
    }

    async fn reach(&self) -> Result<Arc<dyn Transact>, TxnError> {
        let connection = self.remote.connect(&self.env, &self.home).await;
        Ok(Arc::new(connection.map_err(|error| TxnError::Disconnected(error.to_string()))?))
    }
}

/// A volume that a process of this machine serves.
#[derive(Debug)]
struct Near {
    env: Env,
    folder: PathBuf,
}

#[async_trait]
impl Reach for Near {
    fn name(&self) -> String {
        self.folder.display().to_string()
    }

    async fn reach(&self) -> Result<Arc<dyn Transact>, TxnError> {
        let unserved = || TxnError::Disconnected(format!("no process serves {}", self.name()));
        let connection = Connection::open(&self.env, &self.folder).await?;
        Ok(Arc::new(connection.ok_or_else(unserved)?))
    }
}

/// The node with an address: `thalweg://HOST:PORT/VOLUME`, which is entered with the keys in `home`, or the folder of a volume
/// that a process of this machine serves.
///
/// # Errors
/// [`RemoteError::Address`].
pub fn node_at(env: &Env, home: &Home, address: &str) -> Result<Box<dyn Reach>, RemoteError> {
    let env = env.clone();
    Ok(match Remote::of(address) {
        Some(remote) => Box::new(Far { env, home: home.clone(), remote: remote? }),
        None => Box::new(Near { env, folder: Path::new(address).to_owned() }),
    })
}

/// The addresses of several nodes in a text, with commas between them. `None` for one volume: without a comma, or the name
/// of a file that exists.
pub fn several(text: &str) -> Option<Vec<&str>> {
    let is_one = !text.contains(',') || Path::new(text).exists();
    (!is_one).then(|| text.split(',').collect())
}
