//! The kinds of devices that this program opens, beside files and block devices.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use thalweg_env::{Env, Tenure};
use thalweg_fs::{Contents, ContentsFinder, ContentsKind};
use thalweg_store::device::DeviceKinds;
use thalweg_store::device::kinds::kind_of;

use crate::failure::{Failure, Outcome};

/// The kinds of devices that this program opens, and of the contents of files beside them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kinds {
    pub(crate) devices: DeviceKinds,
    contents: Option<Arc<dyn ContentsKind>>,
}

impl Kinds {
    /// The contents of the files of a filesystem beside `device`, which is open; `None` where there can be none.
    pub(crate) async fn contents(
        &self,
        device: &Path,
        filesystem: &str,
    ) -> Outcome<Option<Arc<dyn Contents>>> {
        match &self.contents {
            Some(kind) => Ok(kind.beside(device, filesystem).await?),
            None => Ok(None),
        }
    }
}

/// A server that opens devices.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// A standby takes over when the server was silent for so long.
    pub(crate) lease: Duration,
    /// Time in addition for a client with a journal that does not answer.
    pub(crate) hold: Duration,
    /// How long the server may answer.
    pub(crate) tenure: Tenure,
    /// Whether it waits for another server, and takes over.
    pub(crate) stands_by: bool,
}

/// The kinds that this program was built with. Nothing is connected before a device is opened. A command that
/// opens devices calls [`close`] at its end, so that their locks are released before the process ends.
pub(crate) fn all(env: &Env) -> Kinds {
    with(env, None)
}

/// As [`all`], for a server of the volume.
pub(crate) fn all_served(env: &Env, service: &Service) -> Kinds {
    with(env, Some(service))
}

fn with(env: &Env, service: Option<&Service>) -> Kinds {
    #[cfg(feature = "librados")]
    let kinds = {
        use thalweg_rados::{ClusterOptions, ClusterPools, Opener, RadosKind, Serving};
        let pools = Arc::new(ClusterPools::new(env, ClusterOptions::of_environment()));
        let rados = RadosKind::new(env, pools, Opener::this_process());
        let rados = Arc::new(match service.cloned() {
            Some(Service { lease, tenure, stands_by, .. }) => {
                rados.serving(Serving { lease, tenure, stands_by })
            }
            None => rados,
        });
        Kinds { devices: DeviceKinds::new(vec![rados.clone()]), contents: Some(rados) }
    };
    #[cfg(not(feature = "librados"))]
    let kinds = {
        let _ = (env, service);
        Kinds::default()
    };
    kinds
}

/// Finds contents of files whose filesystem another machine serves; `None` if this program was built without any.
pub(crate) fn finder(env: &Env) -> Option<Arc<dyn ContentsFinder>> {
    #[cfg(feature = "librados")]
    {
        use thalweg_rados::{ClusterOptions, ClusterPools, ObjectsFinder};
        let env = env.clone();
        let connect =
            move || Arc::new(ClusterPools::new(&env, ClusterOptions::of_environment())) as Arc<_>;
        Some(Arc::new(ObjectsFinder::new(Box::new(connect))))
    }
    #[cfg(not(feature = "librados"))]
    {
        let _ = env;
        None
    }
}

/// As [`all`], for a command that opens devices only.
pub(crate) fn known(env: &Env) -> DeviceKinds {
    all(env).devices
}

/// Releases the devices of `kinds`, whatever the outcome of the work on them. Its failure goes first.
pub(crate) async fn close<T>(kinds: &DeviceKinds, outcome: Outcome<T>) -> Outcome<T> {
    let closed = kinds.close().await;
    let value = outcome?;
    closed.map_err(thalweg_store::pool::PoolError::from)?;
    Ok(value)
}

/// The name of a device that has a kind, for a command that takes no other.
pub(crate) fn image(text: &str) -> Outcome<&Path> {
    match kind_of(Path::new(text)) {
        Some(_) => Ok(Path::new(text)),
        None => Err(Failure::new(format!("{text} is no image")).help("write rados:POOL/IMAGE")),
    }
}
