//! Where a filesystem is: in a volume that this process opens, or behind a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_cluster::client::address::Address;
use thalweg_cluster::client::{self, Client};
use thalweg_cluster::server::use_without_server;
use thalweg_env::Env;
use thalweg_fs::local::{self, Format, LocalFs};
use thalweg_fs::{Filesystem, FsError};
use thalweg_ipc::Connection;
use thalweg_net::keys::{Home, Token};
use thalweg_store::open::{self, AnyVolume, VolumePath};
use thalweg_store::txn::Transact;

use super::user::User;
use crate::OpenError;

/// How a filesystem is opened.
#[derive(Clone, Debug, Default)]
pub struct FilesOptions {
    /// The name of the filesystem on its volume; `None` for the one that `thalweg mkfs` makes.
    pub name: Option<String>,
    /// Changes are refused, and no byte of the volume changes.
    pub read_only: bool,
    /// The journal's device, if the journal is outside of a volume that is updated in place.
    pub journal: Option<PathBuf>,
    /// For a shared filesystem, the first time: the token of `thalweg cluster client add`.
    pub token: Option<Token>,
    /// For a shared filesystem: the folder with the keys; `None` for this user's.
    pub keys: Option<PathBuf>,
    /// The user that calls act for; `None` for that of the process.
    pub user: Option<User>,
}

/// An open filesystem.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) env: Env,
    pub(super) files: Arc<dyn Filesystem>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Local { local: LocalFs, volume: AnyVolume },
    Shared(Client),
}

/// Opens a filesystem that no server has.
async fn open_alone(
    env: &Env,
    volume: Arc<dyn Transact>,
    name: &str,
    read_only: bool,
) -> Result<LocalFs, FsError> {
    let options = local::Options { read_only, ..local::Options::default() };
    let local = LocalFs::open(env, volume, name, options).await?;
    if let Some(session_table) = local.session_table() {
        use_without_server(session_table).await?;
    }
    Ok(local)
}

impl Opened {
    pub(super) async fn open(place: &str, options: &FilesOptions) -> Result<Opened, OpenError> {
        let env = Env::real();
        match Address::of(place) {
            Some(address) => Opened::shared(&env, &address?, options).await,
            None if options.token.is_some() || options.keys.is_some() => {
                Err(OpenError::Invalid("a token and keys are for shared filesystems: SERVER:/PATH"))
            }
            None => Opened::local(&env, Path::new(place), options).await,
        }
    }

    async fn shared(
        env: &Env,
        address: &Address,
        options: &FilesOptions,
    ) -> Result<Opened, OpenError> {
        if options.name.is_some() || options.journal.is_some() || options.read_only {
            return Err(OpenError::Invalid(
                "a name, a journal and read-only are for filesystems of volumes, not of servers",
            ));
        }
        let home = options.keys.as_deref().map_or_else(Home::of_user, Home::at);
        address.join(env, &home, options.token.as_ref()).await?;
        let connector = address.connector(env, home);
        let client = Client::connect(env, connector, client::Options::default()).await?;
        let (env, files) = (env.clone(), Arc::new(client.clone()));
        Ok(Opened { env, files, source: Source::Shared(client) })
    }

    async fn local(env: &Env, place: &Path, options: &FilesOptions) -> Result<Opened, OpenError> {
        let path = VolumePath::find(place)?;
        for folder in path.sockets().iter().filter(|it| it.is_dir()) {
            if Connection::open(env, folder).await?.is_some() {
                return Err(OpenError::Served { path: place.to_owned() });
            }
        }
        let read_only = options.read_only;
        let how =
            open::Options { read_only, journal: options.journal.clone(), ..Default::default() };
        let volume = AnyVolume::open(env, &path, &how).await?;
        let transact: Arc<dyn Transact> = Arc::new(volume.transactions().clone());
        let name = options.name.clone().unwrap_or_else(|| Format::default().name);
        match open_alone(env, transact, &name, read_only).await {
            Ok(local) => {
                let (env, files) = (env.clone(), Arc::new(local.clone()));
                Ok(Opened { env, files, source: Source::Local { local, volume } })
            }
            Err(error) => {
                volume.close().await?;
                Err(error.into())
            }
        }
    }

    /// Makes everything durable, and closes it.
    pub(super) async fn close(&self) -> Result<(), OpenError> {
        match &self.source {
            Source::Shared(client) => {
                let synced = match client.status().connected && !self.files.is_read_only() {
                    true => self.files.sync_all().await,
                    false => Ok(()),
                };
                client.close().await;
                Ok(synced?)
            }
            Source::Local { local, volume } => {
                let closed = local.close().await;
                volume.close().await?;
                Ok(closed?)
            }
        }
    }
}
