//! The file `authorized_clients` while a server runs.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::{Env, Task, watch};

use super::{Authorized, Client, KeyError, PublicKey};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The clients that may connect now. A change of the file is seen within about a second, and by the next client that
/// connects. While the file is invalid, the clients of before may connect.
#[derive(Debug)]
pub struct WatchedClients {
    file: Arc<WatchedFile>,
    _watcher: Task<()>,
}

#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    /// The state of the file when it was last read.
    seen: Mutex<Mark>,
    clients: watch::Sender<Arc<Authorized>>,
}

/// What tells one state of a file from another; `None` for a file that does not exist.
type Mark = Option<(u64, u64, i64, i64)>;

fn mark(path: &Path) -> Mark {
    let of = |it: Metadata| (it.ino(), it.len(), it.mtime(), it.mtime_nsec());
    std::fs::metadata(path).ok().map(of)
}

impl WatchedFile {
    /// Reads the file if it has changed.
    fn look(&self) {
        let mut seen = self.seen.lock();
        let now = mark(&self.path);
        if now == *seen {
            return;
        }
        *seen = now;
        match Authorized::read(&self.path) {
            Ok(clients) => drop(self.clients.send_replace(Arc::new(clients))),
            Err(error) => tracing::warn!(%error, "the clients stay those of before"),
        }
    }
}

impl WatchedClients {
    /// The clients in the file `path`.
    ///
    /// # Errors
    /// Those of [`Authorized::read`].
    pub fn new(env: &Env, path: &Path) -> Result<WatchedClients, KeyError> {
        let seen = Mutex::new(mark(path));
        let (clients, _) = watch::channel(Arc::new(Authorized::read(path)?));
        let file = Arc::new(WatchedFile { path: path.to_owned(), seen, clients });
        let (clock, watched) = (env.clone(), file.clone());
        let _watcher = env.spawn(async move {
            loop {
                clock.sleep(LOOK).await;
                watched.look();
            }
        });
        Ok(WatchedClients { file, _watcher })
    }

    /// The permission of the client with a key; `None` if there is no such client.
    pub fn permission(&self, key: &PublicKey) -> Option<Permission> {
        self.file.look();
        let clients = self.file.clients.subscribe();
        let client = clients.borrow().client(key)?.clone();
        Some(Permission { client, clients })
    }
}

/// The permission of a client to be connected.
#[derive(Debug)]
pub struct Permission {
    client: Client,
    clients: watch::Receiver<Arc<Authorized>>,
}

impl Permission {
    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits for its end: the client's line was removed or changed, or the server ends.
    pub async fn ended(mut self) {
        let Permission { client, clients } = &mut self;
        // An error says that the sender is gone.
        let _ = clients.wait_for(|all| all.client(&client.key) != Some(client)).await;
    }
}
