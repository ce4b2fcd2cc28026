//! A volume's filesystem, served to clients on other machines.

use serde_json::Value;
use thalweg_cluster::server::{KNOWN_BYTES, Options, Server, ServerStatus, Visitor};
use thalweg_env::Env;
use thalweg_env::connection::Stream;
use thalweg_fs::Statistics;
use thalweg_net::entry::Refusal;
use thalweg_net::keys::Client;

use crate::devices::Service;
use crate::failure::{Failure, Outcome};
use crate::size::Size;
use crate::volume::files::Files;
use crate::volume::opened::Opened;

/// A filesystem with its server.
#[derive(Debug)]
pub(crate) struct SharedFiles {
    volume: String,
    files: Files,
    server: Server,
}

impl SharedFiles {
    /// Opens the filesystem of a volume, and a server for it that takes so much memory for what clients know.
    pub(crate) async fn open(
        env: &Env,
        volume: &Opened,
        service: &Service,
        memory: Size,
    ) -> Outcome<SharedFiles> {
        let files = Files::open_served(env, volume).await?;
        let known = usize::try_from(memory.0).unwrap_or(usize::MAX) / KNOWN_BYTES;
        let Service { lease, hold, .. } = *service;
        let tenure = Some(service.tenure.clone());
        let expire = 6 * lease;
        let options = Options { lease, hold, expire, known, tenure, ..Options::default() };
        let server = Server::start(env, files.filesystem(), options).await?;
        Ok(SharedFiles { volume: volume.target.name.clone(), files, server })
    }

    /// Whether it is the filesystem of this volume.
    pub(crate) fn is_of(&self, volume: &Opened) -> bool {
        self.volume == volume.target.name
    }

    /// Whether a client may mount the directory `path`.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) async fn allow(&self, client: &Client, path: &str) -> Result<(), Refusal> {
        if !client.contains(path) {
            let (asked, allowed) = (path.to_owned(), client.path.clone());
            return Err(Refusal::Outside { asked, allowed });
        }
        match self.server.has_directory(path).await {
            Ok(false) => Err(Refusal::NoDirectory(path.to_owned())),
            // An error is told by the call that attaches the session.
            Ok(true) | Err(_) => Ok(()),
        }
    }

    /// Serves a client that sees the directory `path`.
    pub(crate) async fn serve(
        &self,
        stream: impl Stream,
        client: &Client,
        path: &str,
    ) -> Outcome<()> {
        let Client { name, access, squash, .. } = client.clone();
        let visitor = Visitor { name, path: path.to_owned(), access, squash };
        Ok(self.server.serve(stream, visitor).await?)
    }

    /// How full the filesystem is.
    pub(crate) async fn statistics(&self) -> Option<Statistics> {
        self.files.filesystem().statistics().await.ok()
    }

    /// The server and its clients.
    pub(crate) fn server_status(&self) -> ServerStatus {
        self.server.status()
    }

    /// The server and its clients, as JSON.
    pub(crate) fn status(&self) -> Outcome<Value> {
        let mut status = serde_json::to_value(self.server_status())?;
        status["volume"] = self.volume.clone().into();
        status["role"] = "serves".into();
        Ok(status)
    }

    /// The holders of the inode of a path, as JSON.
    pub(crate) async fn capabilities(&self, path: &str) -> Outcome<Value> {
        let found = self.server.inode(path).await;
        let found = found.map_err(|error| {
            Failure::of(&error)
                .while_doing(format!("cannot look up {path:?}"))
                .help("name the file by its path from the root of the served filesystem: /home/alice/notes, say")
        })?;
        Ok(serde_json::to_value(found)?)
    }

    /// Ends the sessions of a client; how many.
    pub(crate) fn evict(&self, client: &str) -> usize {
        self.server.evict(client)
    }

    /// Gives up the journals of a client that have lapsed; how many.
    pub(crate) fn forget_journals(&self, client: &str) -> usize {
        self.server.forget_journals(client)
    }

    /// Makes everything durable and finishes background work.
    pub(crate) async fn close(&self) -> Outcome<()> {
        self.files.close().await
    }
}
