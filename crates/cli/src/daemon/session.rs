//! The volumes that this process has open, with their clients.
//!
//! # Lock order
//!
//! 1. the list of [`Mounts`];
//! 2. the list of [`Attachments`];
//! 3. the changes of an [`Opened`];
//! 4. all others, none of which is held while another is taken or anything is awaited.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use thalweg_cluster::client::Client;
use thalweg_cluster::server::ServerStatus;
use thalweg_env::Env;
use thalweg_fs::Statistics;
use thalweg_nbd::{ServerConfig, ServerStats};

use super::attachments::Attachments;
use super::exports::Exports;
use super::lifetime::Lifetime;
use super::metrics;
use super::mounts::Mounts;
use super::replicas::Replicas;
use super::shared_files::SharedFiles;
use crate::attention::{self, Attention};
use crate::failure::Outcome;
use crate::volume::numbers::Numbers;
use crate::volume::opened::Opened;

/// How long the end of a session waits for replicas to acknowledge the last flushes.
const GRACE: Duration = Duration::from_secs(5);

/// The open volumes of a process, with their clients.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) env: Env,
    pub(crate) volumes: Vec<Arc<Opened>>,
    pub(crate) exports: Exports,
    pub(crate) replicas: Replicas,
    pub(crate) attachments: Arc<Attachments>,
    pub(crate) mounts: Arc<Mounts>,
    pub(crate) lifetime: Arc<Lifetime>,
    /// The filesystem that is served to clients on other machines, if one is.
    pub(crate) shared: OnceLock<SharedFiles>,
    /// Whether new snapshots are exported.
    pub(crate) exports_snapshots: bool,
}

/// The purpose of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// One request on an idle volume.
    Request,
    /// Clients that connect.
    Serve,
    /// Block devices and mounts; the session ends with the last of them.
    Attach,
}

impl Session {
    /// A session over volumes that are open.
    pub(crate) fn new(env: &Env, volumes: Vec<Opened>, purpose: Purpose) -> Session {
        Session::with(env, volumes, purpose, ServerConfig::default())
    }

    /// As [`Session::new`], with limits for the NBD server.
    pub(crate) fn with(
        env: &Env,
        volumes: Vec<Opened>,
        purpose: Purpose,
        limits: ServerConfig,
    ) -> Session {
        let lifetime = Arc::new(Lifetime::new(purpose == Purpose::Attach));
        Session {
            env: env.clone(),
            exports: Exports::new(env, limits, volumes.len()),
            replicas: Replicas::default(),
            volumes: volumes.into_iter().map(Arc::new).collect(),
            attachments: Arc::new(Attachments::new(env, lifetime.clone())),
            mounts: Arc::new(Mounts::new(env, lifetime.clone())),
            lifetime,
            shared: OnceLock::new(),
            exports_snapshots: purpose == Purpose::Serve,
        }
    }

    /// Ends everything in order: clients, mounts, block devices, volumes. Goes on after a failure, and returns
    /// the first.
    pub(crate) async fn close(&self) -> Outcome<()> {
        let closing = self.close_all();
        let limit = async {
            // Clients that end may flush, which waits for replicas.
            self.env.sleep(GRACE).await;
            self.replicas.end_acknowledging().await;
            std::future::pending().await
        };
        tokio::select! {
            biased;
            closed = closing => closed,
            never = limit => never,
        }
    }

    async fn close_all(&self) -> Outcome<()> {
        let mut result = self.exports.close().await;
        self.mounts.unmount_all().await;
        self.attachments.detach_all().await;
        if let Some(shared) = self.shared.get() {
            result = result.and(shared.close().await);
        }
        self.replicas.close().await;
        for volume in &self.volumes {
            result = result.and(volume.close().await);
        }
        result
    }
}

impl Session {
    /// What needs attention of a volume.
    pub(crate) async fn attention(&self, volume: &Opened) -> Vec<Attention> {
        let place = volume.target.place().display().to_string();
        let mut found = volume.attention();
        if let Some(followers) = self.replicas.followers(volume).await {
            found.extend(attention::of_followers(&followers));
        }
        if let Some(upstream) = self.replicas.upstream(volume).await {
            found.extend(attention::of_upstream(&upstream, &place));
        }
        found.extend(attention::of_failures(self.mounts.failures_of(volume).await, &place));
        if let Some(files) = self.statistics_of(volume).await {
            found.extend(attention::of_files(&files));
        }
        if let Some(shared) = self.shared.get().filter(|shared| shared.is_of(volume)) {
            found.extend(attention::of_server(&shared.server_status()));
        }
        found
    }

    /// How full the filesystem of a volume is, if it is mounted or served.
    pub(crate) async fn statistics_of(&self, volume: &Opened) -> Option<Statistics> {
        match self.shared.get().filter(|shared| shared.is_of(volume)) {
            Some(shared) => shared.statistics().await,
            None => self.mounts.statistics_of(volume).await,
        }
    }
}

impl metrics::Source for Session {
    async fn volumes(&self) -> Vec<Numbers> {
        let mut all = Vec::with_capacity(self.volumes.len());
        for volume in &self.volumes {
            all.push(Numbers {
                files: self.statistics_of(volume).await,
                mount_stages: self.mounts.mount_stages(volume).await,
                attention: self.attention(volume).await,
                followers: self.replicas.followers(volume).await,
                upstream: self.replicas.upstream(volume).await,
                ..volume.numbers()
            });
        }
        all
    }

    fn shared(&self) -> Option<ServerStatus> {
        self.shared.get().map(SharedFiles::server_status)
    }

    async fn client(&self) -> Option<(String, Client)> {
        self.mounts.shared_client().await
    }

    fn server(&self) -> Option<&ServerStats> {
        Some(self.exports.server().stats())
    }
}
