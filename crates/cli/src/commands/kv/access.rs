//! Access to a volume with partitions.

use std::path::Path;
use std::sync::Arc;

use thalweg_env::Env;
use thalweg_ipc::{Connection, Remote};
use thalweg_net::keys::Home;
use thalweg_replica::nodes::{Nodes, NodesOptions, Reach, node_at, several};
use thalweg_store::tree::{TreeError, catalogue};
use thalweg_store::txn::Transact;

use crate::control::Client;
use crate::control::socket::is_closed_to_us;
use crate::failure::{Failure, Outcome};
use crate::progress::Silent;
use crate::request::{Answer, Request};
use crate::target::Target;
use crate::volume::opened::Opened;

/// A volume, through its server or open in this process.
pub(super) struct Access {
    pub(super) volume: Arc<dyn Transact>,
    /// The volume on this machine.
    pub(super) target: Option<Target>,
    opened: Option<Opened>,
}

impl Access {
    /// Connects to the server of a volume, on this machine or on another one, or opens the volume.
    pub(super) async fn open(
        env: &Env,
        volume: &str,
        journal: Option<&Path>,
        only_reads: bool,
    ) -> Outcome<Access> {
        if let Some(nodes) = several(volume) {
            return Access::at_nodes(env, &nodes, journal).await;
        }
        if let Some(remote) = Remote::of(volume) {
            return Access::over_network(env, remote?, journal).await;
        }
        let target = Target::volume(volume)?.with_journal(journal);
        // If the socket refuses this user, the server may be dead: try to open, and the locks on the devices
        // decide.
        let is_closed = only_reads && is_closed_to_us(&target.folder);
        if !is_closed && let Some(connection) = Connection::open(env, &target.folder).await? {
            return Ok(Access { volume: Arc::new(connection), target: Some(target), opened: None });
        }
        let opened = match only_reads {
            true => Opened::open_read_only(env, &target).await?,
            false => Opened::open(env, &target).await?,
        };
        if let Some(recovery) = opened.recovery() {
            tracing::warn!(volume = target.name, "{recovery}");
        }
        let volume = Arc::new(opened.transactions().clone());
        Ok(Access { volume, target: Some(target), opened: Some(opened) })
    }

    async fn over_network(env: &Env, remote: Remote, journal: Option<&Path>) -> Outcome<Access> {
        if journal.is_some() {
            return Err(Failure::new(format!("{remote} is on another machine"))
                .help("name its journal device there, with `thalweg serve --journal-dev`"));
        }
        let connection = remote.connect(env, &Home::of_user()).await?;
        Ok(Access { volume: Arc::new(connection), target: None, opened: None })
    }

    /// Connects to a primary and its replicas.
    async fn at_nodes(env: &Env, nodes: &[&str], journal: Option<&Path>) -> Outcome<Access> {
        if journal.is_some() {
            return Err(Failure::new("a volume on several nodes has a server for each")
                .help("name its journal device with `thalweg serve --journal-dev`"));
        }
        let home = Home::of_user();
        let reach = |node: &&str| -> Outcome<Box<dyn Reach>> {
            let place = match Remote::of(node) {
                Some(_) => (*node).to_owned(),
                None => Target::volume(node)?.folder.display().to_string(),
            };
            Ok(node_at(env, &home, &place)?)
        };
        let reached = nodes.iter().map(reach).collect::<Outcome<Vec<_>>>()?;
        let nodes = Nodes::connect(env, reached, NodesOptions::default()).await?;
        Ok(Access { volume: Arc::new(nodes), target: None, opened: None })
    }

    /// Refuses to drop a partition of a filesystem that is mounted.
    pub(super) async fn refuse_mounted(&self, name: &str) -> Outcome<()> {
        let is_files = match catalogue::refuse_filesystem(&*self.volume, name).await {
            Err(TreeError::OfFilesystem(_)) => true,
            // Any other error is reported by the removal itself.
            _ => false,
        };
        if !is_files {
            return Ok(());
        }
        let Some(target) = &self.target else {
            return Err(Failure::new(format!(
                "{name} is a part of a filesystem, which may be mounted"
            ))
            .help("drop it on the machine of the volume's server"));
        };
        let Some(mut client) = Client::connect(&target.folder).await? else { return Ok(()) };
        match client.ask(&Request::Status, &Silent).await? {
            Answer::Json(status) if status["mounted"].is_string() => {
                let place = status["mounted"].as_str().unwrap_or_default();
                Err(Failure::new(format!("{name} is a part of the filesystem mounted on {place}"))
                    .help("unmount it first: thalweg umount DIRECTORY"))
            }
            _ => Ok(()),
        }
    }

    /// Closes the volume if it is open in this process.
    pub(super) async fn close(self) -> Outcome<()> {
        match self.opened {
            Some(opened) => opened.close().await,
            None => Ok(()),
        }
    }
}
