//! The kinds of devices that this program opens, beside files and block devices.

use std::path::Path;

use thalweg_env::Env;
use thalweg_store::device::DeviceKinds;
use thalweg_store::device::kinds::kind_of;

use crate::failure::{Failure, Outcome};

/// The kinds that this program was built with. Nothing is connected before a device is opened. A command that
/// opens devices calls [`close`] at its end, so that their locks are released before the process ends.
pub(crate) fn known(env: &Env) -> DeviceKinds {
    #[cfg(feature = "librados")]
    let kinds = {
        use std::sync::Arc;
        use thalweg_rados::{ClusterOptions, ClusterPools, Opener, RadosKind};
        let pools = Arc::new(ClusterPools::new(env, ClusterOptions::of_environment()));
        DeviceKinds::new(vec![Arc::new(RadosKind::new(env, pools, Opener::this_process()))])
    };
    #[cfg(not(feature = "librados"))]
    let kinds = {
        let _ = env;
        DeviceKinds::default()
    };
    kinds
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
