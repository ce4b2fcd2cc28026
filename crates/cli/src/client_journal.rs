//! The journal of a client of a shared filesystem: a file or a device of this machine.

use std::path::Path;

use thalweg_cluster::client::journal;
use thalweg_env::Env;
use thalweg_store::device::{Access, DeviceRef};
use thalweg_store::pool::PoolError;

use crate::devices;
use crate::failure::{Failure, Outcome, explain_journal};

/// Bytes of a new journal.
pub(crate) const USUAL_SIZE: u64 = 2 << 30;

/// Opens a journal for a mount; a file that is absent is made. The size is that of a new one: a mount in fstab names it each time.
pub(crate) async fn open(env: &Env, path: &Path, size: Option<u64>) -> Outcome<DeviceRef> {
    if !path.exists() {
        return create(env, path, size.unwrap_or(USUAL_SIZE)).await;
    }
    let device = device(env, path, Access::Exclusive).await?;
    let there = device.geometry().size;
    if size.is_some_and(|size| size != there) {
        tracing::warn!(
            bytes = there,
            "journal_size= is about a new journal; this one keeps its size"
        );
    }
    Ok(device)
}

/// Makes a journal of a new file, or of the device that is there; all content of that is lost.
pub(crate) async fn create(env: &Env, path: &Path, size: u64) -> Outcome<DeviceRef> {
    let is_new = !path.exists();
    let made = make(env, path, is_new.then_some(size)).await;
    if made.is_err() && is_new {
        // Otherwise the next mount would find a file that is no journal.
        let _ = std::fs::remove_file(path);
    }
    made.map_err(|it| it.while_doing(format!("cannot make the journal {}", path.display())))
}

async fn make(env: &Env, path: &Path, size: Option<u64>) -> Outcome<DeviceRef> {
    if let Some(size) = size {
        devices::known(env).create(path, size).await.map_err(PoolError::from)?;
    }
    let device = device(env, path, Access::Exclusive).await?;
    journal::create(env, &device).await.map_err(|error| explain_journal(&error))?;
    Ok(device)
}

/// The file or device of a journal, which no other program may open meanwhile.
pub(crate) async fn device(env: &Env, path: &Path, access: Access) -> Outcome<DeviceRef> {
    let opened = devices::known(env).open(path, access).await.map_err(PoolError::from);
    opened.map_err(|error| {
        Failure::from(error).while_doing(format!("cannot open the journal {}", path.display()))
    })
}
