//! Access to a volume with partitions.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_ipc::Connection;
use thalweg_store::txn::Transact;

use crate::control::socket::is_closed_to_us;
use crate::failure::Outcome;
use crate::target::Target;
use crate::volume::opened::Opened;

/// A volume, through its server or open in this process.
pub(super) struct Access {
    pub(super) volume: Arc<dyn Transact>,
    opened: Option<Opened>,
}

impl Access {
    /// Connects to the volume's server, or opens the volume.
    pub(super) async fn open(env: &Env, target: &Target, only_reads: bool) -> Outcome<Access> {
        // If the socket refuses this user, the server may be dead: try to open, and the locks on the devices
        // decide.
        let is_closed = only_reads && is_closed_to_us(&target.folder);
        if !is_closed && let Some(connection) = Connection::open(env, &target.folder).await? {
            return Ok(Access { volume: Arc::new(connection), opened: None });
        }
        let opened = match only_reads {
            true => Opened::open_read_only(env, target).await?,
            false => Opened::open(env, target).await?,
        };
        if let Some(recovery) = opened.recovery() {
            tracing::warn!(volume = target.name, "{recovery}");
        }
        Ok(Access { volume: Arc::new(opened.transactions().clone()), opened: Some(opened) })
    }

    /// Closes the volume if it is open in this process.
    pub(super) async fn close(self) -> Outcome<()> {
        match self.opened {
            Some(opened) => opened.close().await,
            None => Ok(()),
        }
    }
}
