//! The volumes of a session as its clients see them: NBD exports, and sockets for transactions.

use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_env::Env;
use thalweg_nbd::{Export, Server, ServerConfig};

use crate::control::socket;
use crate::failure::{Failure, Outcome};
use crate::target::export;
use crate::volume::opened::Opened;

/// The NBD exports and the transaction sockets of a session.
#[derive(Debug)]
pub(crate) struct Exports {
    env: Env,
    server: Server,
    /// With a single volume, clients that name no export get the volume itself, not a snapshot.
    has_default: bool,
    /// Exports may be written although the volume has partitions.
    writable: AtomicBool,
    /// The servers of the sockets for transactions, each with its volume's name.
    transactions: parking_lot::Mutex<Vec<(String, thalweg_ipc::Server)>>,
}

impl Exports {
    /// No exports yet. `limits` are those of the NBD server; `volumes` is the number of volumes to export.
    pub(crate) fn new(env: &Env, limits: ServerConfig, volumes: usize) -> Exports {
        Exports {
            env: env.clone(),
            server: Server::new(env.clone(), limits),
            has_default: volumes == 1,
            writable: AtomicBool::new(false),
            transactions: parking_lot::Mutex::default(),
        }
    }

    /// The NBD server.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Makes later exports writable although their volume has partitions.
    pub(crate) fn allow_writes(&self) {
        self.writable.store(true, Ordering::Relaxed);
    }

    /// Exports a volume, or a snapshot of it, to NBD clients.
    pub(crate) fn export(&self, volume: &Opened, snapshot: Option<&str>) -> Outcome<()> {
        let name = export(&volume.target.name, snapshot);
        let place = volume.target.place().display();
        let is_fenced = snapshot.is_none() && volume.transactions().is_fenced();
        let bytes = match snapshot {
            Some(snapshot) => volume.snapshot(snapshot)?,
            None if is_fenced && self.writable.load(Ordering::Relaxed) => volume.unfenced(),
            None => volume.volume(),
        };
        if is_fenced {
            let is_read_only = bytes.is_read_only();
            tracing::info!(volume = %place, is_read_only, "exported; it has partitions");
        }
        let mut exported = Export::new(name, bytes).description(place.to_string());
        if snapshot.is_none() {
            let transactions = volume.transactions().clone();
            let why = format!(
                "an NBD client is connected to {place}, and could overwrite partitions; \
                 end its connection first"
            );
            exported = exported.on_use(move || Box::new(transactions.occupy(why.clone())));
        }
        if self.has_default && snapshot.is_none() {
            exported = exported.default_export();
        }
        Ok(self.server.add_export(exported)?)
    }

    /// Exports a volume and all its snapshots.
    pub(crate) fn export_all(&self, volume: &Opened) -> Outcome<()> {
        self.export(volume, None)?;
        volume.snapshots().iter().try_for_each(|name| self.export(volume, Some(name)))
    }

    /// Lets other processes run transactions on a volume, through the socket in its folder.
    pub(crate) fn serve_transactions(&self, volume: &Opened) -> Outcome<()> {
        let folder = &volume.target.folder;
        if volume.is_read_only() && socket::elsewhere(folder).is_some() {
            // Programs open a read-only volume themselves, beside this process.
            tracing::debug!(volume = volume.target.name, "no socket for transactions");
            return Ok(());
        }
        let manager = volume.transactions();
        let config = thalweg_ipc::Config::default();
        let server = thalweg_ipc::Server::start(&self.env, manager, folder, config);
        let server = server.map_err(|error| {
            let path = folder.join(thalweg_ipc::SOCKET);
            Failure::of(&error).while_doing(format!("cannot listen on {}", path.display()))
        })?;
        self.transactions.lock().push((volume.target.name.clone(), server));
        Ok(())
    }

    /// The transactions of the volume called `name`, for clients on other machines.
    pub(crate) fn transactions(&self, name: &str) -> Option<thalweg_ipc::server::Service> {
        let servers = self.transactions.lock();
        servers
            .iter()
            .find(|(served, _)| served == name)
            .map(|(_, server)| server.service().clone())
    }

    /// Ends other processes' transactions on a volume; returns whether its socket was served.
    pub(crate) fn withdraw_transactions(&self, volume: &Opened) -> bool {
        let mut servers = self.transactions.lock();
        let before = servers.len();
        servers.retain(|(name, _)| *name != volume.target.name);
        servers.len() < before
    }

    /// Removes the exports whose names satisfy `right`; their connections end.
    pub(crate) async fn withdraw(&self, right: impl Fn(&str) -> bool) -> Outcome<Vec<String>> {
        let mut names = self.server.exports();
        names.retain(|name| right(name));
        for name in &names {
            self.server.remove_export(name).await?;
        }
        Ok(names)
    }

    /// Ends all transactions, and then all NBD connections.
    pub(crate) async fn close(&self) -> Outcome<()> {
        self.transactions.lock().clear();
        Ok(self.server.shutdown().await?)
    }
}
