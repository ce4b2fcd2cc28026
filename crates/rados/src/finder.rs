//! Finds the contents of a filesystem that another machine serves.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use thalweg_fs::{Contents, ContentsFinder, FsError};

use crate::ObjectError;
use crate::fence::Fence;
use crate::files::FileObjects;
use crate::kind::Pools;
use crate::location::Location;

/// Makes a connection of its own to the cluster of this machine's configuration.
pub type Connect = Box<dyn Fn() -> Arc<dyn Pools> + Send + Sync>;

/// Finds contents in the cluster that this machine is configured for.
pub struct ObjectsFinder {
    connect: Connect,
    /// The last connection.
    connected: Mutex<Option<Arc<dyn Pools>>>,
}

impl std::fmt::Debug for ObjectsFinder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectsFinder").finish_non_exhaustive()
    }
}

impl ObjectsFinder {
    /// Connects when it is needed.
    pub fn new(connect: Connect) -> ObjectsFinder {
        ObjectsFinder { connect, connected: Mutex::default() }
    }

    fn pools(&self, is_fresh: bool) -> Arc<dyn Pools> {
        let mut connected = self.connected.lock();
        if is_fresh {
            *connected = None;
        }
        connected.get_or_insert_with(|| (self.connect)()).clone()
    }
}

#[async_trait]
impl ContentsFinder for ObjectsFinder {
    async fn find(&self, location: &[u8], is_fresh: bool) -> Result<Arc<dyn Contents>, FsError> {
        let Location { cluster, pool, prefix, stripe, epoch } =
            postcard::from_bytes(location).map_err(|_| FsError::Invalid("not a location"))?;
        let (name, namespace) = pool.split_once('/').unwrap_or((&pool, ""));
        let store = self.pools(is_fresh).pool(name, namespace).await?;
        let found = store.cluster().await?;
        if found != cluster {
            let reason =
                format!("this machine is configured for the cluster {found}, not {cluster}");
            return Err(ObjectError::NotConnected { reason }.into());
        }
        let files = FileObjects::new(store, &prefix, stripe, Arc::new(Fence::new(epoch)))?;
        Ok(Arc::new(files.located(cluster)))
    }
}
