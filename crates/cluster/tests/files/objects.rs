//! Contents of files as objects of a simulated Ceph cluster, which the server and its clients reach.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_fs::{Contents, ContentsFinder};
use thalweg_rados::fence::Fence;
use thalweg_rados::{FileObjects, ObjectError, ObjectStoreRef, ObjectsFinder, Pools};
use thalweg_sim::rados::{RadosSpec, SimPool, SimRados};

/// Bytes of an object.
const STRIPE: u64 = 64 << 10;

/// A request without an answer for so long has failed, as far as its client knows.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// The cluster.
#[derive(Clone)]
pub(crate) struct Objects(Arc<State>);

struct State {
    cluster: SimRados,
    /// The openings of the filesystem so far, and the last one.
    opened: Mutex<(u64, Option<Arc<SimPool>>)>,
    /// The last connection of each client.
    pools: Mutex<BTreeMap<String, Arc<SimPool>>>,
}

/// A new connection of a client.
struct Connection {
    objects: Objects,
    name: String,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl Pools for Connection {
    async fn pool(&self, _: &str, _: &str) -> Result<ObjectStoreRef, ObjectError> {
        let mut pools = self.objects.0.pools.lock();
        let pool =
            pools.entry(self.name.clone()).or_insert_with(|| self.objects.0.cluster.client());
        Ok(pool.store())
    }
}

impl Objects {
    pub(crate) fn new(env: &Env) -> Objects {
        let spec = RadosSpec {
            servers: 1,
            copies: 1,
            least: 1,
            groups: 4,
            map_delay: Duration::from_millis(200),
            request_timeout: TIMEOUT,
            ..RadosSpec::default()
        };
        let cluster = SimRados::new(env, spec);
        Objects(Arc::new(State { cluster, opened: Mutex::default(), pools: Mutex::default() }))
    }

    /// The contents for a server that starts. The one before it is shut out.
    pub(crate) async fn serve(&self) -> Arc<dyn Contents> {
        let pool = self.0.cluster.client();
        let (epoch, before) = {
            let mut opened = self.0.opened.lock();
            opened.0 += 1;
            (opened.0, opened.1.replace(pool.clone()))
        };
        let files = FileObjects::new(pool.store(), "files", STRIPE, Arc::new(Fence::new(epoch)));
        let files = files.unwrap().located("simulated".to_owned());
        if let Some(before) = before {
            let address = before.store().address().await.unwrap();
            files.shut_out(&address).await.unwrap();
        }
        Arc::new(files)
    }

    /// The address of the server that runs.
    pub(crate) async fn server(&self) -> String {
        let pool = self.0.opened.lock().1.clone().unwrap();
        pool.store().address().await.unwrap()
    }

    /// Finds them for a client.
    pub(crate) fn finder(&self, name: &str) -> Arc<dyn ContentsFinder> {
        let (objects, name) = (self.clone(), name.to_owned());
        Arc::new(ObjectsFinder::new(Box::new(move || {
            objects.0.pools.lock().remove(&name);
            Arc::new(Connection { objects: objects.clone(), name: name.clone() })
        })))
    }

    /// Messages of a client to the cluster take so much longer from now on.
    pub(crate) fn delay(&self, client: &str, span: Duration) {
        self.0.pools.lock()[client].delay(span);
    }

    /// The cluster has no space, or has some again.
    pub(crate) fn fill(&self, is_full: bool) {
        self.0.cluster.fill(is_full);
    }
}
