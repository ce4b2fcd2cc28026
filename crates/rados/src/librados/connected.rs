//! The pools of a cluster that is connected to when it is needed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thalweg_env::{Env, Time};

use super::{Cluster, ClusterOptions};
use crate::ObjectError;
use crate::kind::Pools;
use crate::object::ObjectStoreRef;

/// How long a failure to connect is remembered, so that a command on several devices fails once.
const REMEMBERED: Duration = Duration::from_secs(10);

/// The pools of one cluster, over one connection.
#[derive(Debug)]
pub struct ClusterPools {
    env: Env,
    options: ClusterOptions,
    /// Held while the connection is made.
    connection: tokio::sync::Mutex<Option<Result<Cluster, (Time, ObjectError)>>>,
}

impl ClusterPools {
    /// The pools of the cluster that `options` name; nothing is connected yet.
    pub fn new(env: &Env, options: ClusterOptions) -> ClusterPools {
        ClusterPools { env: env.clone(), options, connection: tokio::sync::Mutex::default() }
    }

    async fn cluster(&self) -> Result<Cluster, ObjectError> {
        let mut connection = self.connection.lock().await;
        match &*connection {
            Some(Ok(cluster)) => return Ok(cluster.clone()),
            Some(Err((at, error))) if self.env.now().since(*at) < REMEMBERED => {
                return Err(error.clone());
            }
            _ => {}
        }
        let connected = Cluster::connect(&self.options).await;
        let kept = connected.clone().map_err(|error| (self.env.now(), error));
        *connection = Some(kept);
        connected
    }
}

#[async_trait]
impl Pools for ClusterPools {
    async fn pool(&self, name: &str, namespace: &str) -> Result<ObjectStoreRef, ObjectError> {
        Ok(Arc::new(self.cluster().await?.pool(name, namespace).await?))
    }
}
