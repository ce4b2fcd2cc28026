//! A keeper: second copies of the journals of clients, in a folder.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde_json::json;
use thalweg_cluster::keeper::{Keeper, Shelf};
use thalweg_env::Env;
use thalweg_env::connection::Stream;
use thalweg_net::entry::{Refusal, Service};
use thalweg_net::gate::Guest;
use thalweg_net::keys::{Access, Client};
use thalweg_store::device::{self, DeviceError, DeviceRef};

use super::control::Handler;
use super::entrance::Host;
use crate::devices;
use crate::failure::{Failure, Outcome};
use crate::progress::Report;
use crate::request::{Answer, Request};

/// What the files of copies end with.
const SUFFIX: &str = ".journal";
/// The file that a keeper locks.
const LOCK: &str = "keeper.lock";

/// The copies in a folder.
#[derive(Clone)]
pub(crate) struct Folder {
    env: Env,
    folder: PathBuf,
}

impl Folder {
    pub(crate) fn new(env: &Env, folder: &Path) -> Folder {
        Folder { env: env.clone(), folder: folder.to_owned() }
    }

    /// The file of a copy.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{SUFFIX}"))
    }

    /// Makes the folder, and locks it for this process, until the file is closed.
    pub(crate) fn lock(&self) -> Outcome<File> {
        let shown = self.folder.display();
        let failed = |error: io::Error| {
            Failure::of(&error).while_doing(format!("cannot keep copies in {shown}"))
        };
        fs::create_dir_all(&self.folder).map_err(failed)?;
        let lock = File::create(self.folder.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::new(format!("another keeper has {shown}")).help("stop it first"))
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}

fn device_failed(error: DeviceError) -> io::Error {
    io::Error::other(error)
}

#[async_trait]
impl Shelf for Folder {
    async fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            names.extend(name.to_str().and_then(|it| it.strip_suffix(SUFFIX)).map(str::to_owned));
        }
        Ok(names)
    }

    async fn open(&self, name: &str) -> io::Result<Option<DeviceRef>> {
        let path = self.file(name);
        if !path.try_exists()? {
            return Ok(None);
        }
        let opened = devices::known(&self.env).open(&path, device::Access::Exclusive).await;
        opened.map(Some).map_err(device_failed)
    }

    async fn create(&self, name: &str, size: u64) -> io::Result<DeviceRef> {
        self.remove(name).await?;
        let (path, kinds) = (self.file(name), devices::known(&self.env));
        kinds.create(&path, size).await.map_err(device_failed)?;
        kinds.open(&path, device::Access::Exclusive).await.map_err(device_failed)
    }

    async fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.file(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => File::open(&self.folder)?.sync_all(),
        }
    }
}

/// A keeper, for clients on other machines and for its control socket.
pub(crate) struct Keeping {
    pub(crate) keeper: Keeper,
}

impl Host for Keeping {
    async fn allow(&self, client: &Client, service: Service, name: &str) -> Result<(), Refusal> {
        match service {
            Service::Copies if client.access == Access::Write && name.is_empty() => Ok(()),
            Service::Copies => Err(Refusal::NoSuchName("a copy".to_owned())),
            Service::Files | Service::Transactions | Service::Replica | Service::Moves => {
                Err(Refusal::NoSuchName(name.to_owned()))
            }
        }
    }

    async fn serve<S: Stream>(&self, guest: Guest<S>) {
        let Guest { stream, permission, seat: _seat, .. } = guest;
        let client = &*permission.client().name.clone();
        tracing::info!(client, "a client connected");
        tokio::select! {
            biased;
            () = permission.ended() => tracing::info!(client, "a client's permission ended"),
            served = self.keeper.serve(stream, client) => match served {
                Ok(()) => tracing::info!(client, "a client left"),
                Err(error) => tracing::info!(client, %error, "a client was lost"),
            },
        }
    }
}

impl Handler for Keeping {
    async fn handle(&self, request: Request, _report: &dyn Report) -> Outcome<Answer> {
        match &request {
            Request::Status => Ok(Answer::Json(json!({ "copies": self.keeper.copies().await }))),
            Request::SealCopies { client } => {
                let sealed = self.keeper.seal(client).await.map_err(|error| {
                    Failure::of(&error).while_doing(format!("cannot end the copies of {client}"))
                })?;
                Ok(Answer::Json(json!(sealed)))
            }
            _ => Err(Failure::new("a keeper of copies has no volume")),
        }
    }

    async fn gone(&self, _answer: &Answer) {}
}
