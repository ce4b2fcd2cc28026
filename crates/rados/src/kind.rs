//! Devices by name: `rados:POOL/IMAGE`, or `rados:POOL/NAMESPACE/IMAGE`.

use std::path::Path;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use parking_lot::Mutex;
use thalweg_env::{Env, HashMap};
use thalweg_fs::{Contents, ContentsKind, FsError};
use thalweg_store::device::{Access, Device, DeviceError, DeviceKind, DeviceRef, Operation, kinds};

use crate::ObjectError;
use crate::device::{How, Opening, RadosDevice, RadosOptions, Released};
use crate::heartbeat::{Serving, Watch};
use crate::object::ObjectStoreRef;
use crate::opener::Opener;

/// What the names of these devices begin with.
pub const KIND: &str = "rados";

/// The pools of a cluster, by name.
#[async_trait]
pub trait Pools: Send + Sync + std::fmt::Debug {
    /// Connects to the cluster if that was not done before, and opens a pool, and in it a namespace; the empty one is the
    /// default.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`] when there is no such pool; [`ObjectError::NotConnected`].
    async fn pool(&self, name: &str, namespace: &str) -> Result<ObjectStoreRef, ObjectError>;
}

/// Opens images in the pools of a cluster as devices. Each image is locked while it is open. The lock of a process of this
/// machine that has ended is taken over; any other one is refused.
#[derive(Debug)]
pub struct RadosKind {
    env: Env,
    pools: Arc<dyn Pools>,
    opener: Opener,
    /// For a server of what is opened for writing.
    serving: Option<Serving>,
    /// The beats of images that this program waits for.
    watch: Watch,
    /// By name, what was opened and may still be open.
    opened: Mutex<HashMap<String, Opened>>,
}

#[derive(Clone, Debug)]
struct Opened {
    device: Weak<RadosDevice>,
    access: Access,
    released: Released,
}

/// The parts of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageName<'a> {
    /// The pool.
    pub pool: &'a str,
    /// The namespace in it; empty for the default.
    pub namespace: &'a str,
    /// The image.
    pub image: &'a str,
}

impl<'a> ImageName<'a> {
    /// Reads a name, without what stands for its kind.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(name: &'a str) -> Result<ImageName<'a>, String> {
        let parts: Vec<&str> = name.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return Err("write rados:POOL/IMAGE, or rados:POOL/NAMESPACE/IMAGE".to_owned()),
        };
        match () {
            () if pool.is_empty() => Err("the pool is missing; write rados:POOL/IMAGE".to_owned()),
            () if image.is_empty() => {
                Err("the image is missing; write rados:POOL/IMAGE".to_owned())
            }
            () if image.contains('@') => {
                Err("an image has no snapshots; leave out the part from the @ on".to_owned())
            }
            () => Ok(ImageName { pool, namespace, image }),
        }
    }
}

fn full(name: &str) -> String {
    format!("{KIND}:{name}")
}

impl RadosKind {
    /// Opens images in `pools` as the process `opener`.
    pub fn new(env: &Env, pools: Arc<dyn Pools>, opener: Opener) -> RadosKind {
        let (opened, watch) = Default::default();
        RadosKind { env: env.clone(), pools, opener, serving: None, watch, opened }
    }

    /// The same for a server of what is opened for writing: it writes beats. One that stands by takes over from a server
    /// without a beat for seven eighths of a lease, in the call of [`DeviceKind::open`] that notices it: so it has to call that often.
    #[must_use]
    pub fn serving(self, serving: Serving) -> RadosKind {
        RadosKind { serving: Some(serving), ..self }
    }

    /// Opens an image, also one whose holder is silent if this server stands by.
    async fn open_image(
        &self,
        store: ObjectStoreRef,
        image: &str,
        opening: Opening,
    ) -> Result<RadosDevice, DeviceError> {
        let serving = self.serving.as_ref();
        let how = How { opening, opener: Some(&self.opener), silent: None, serving };
        let opened = RadosDevice::open_how(&self.env, store.clone(), image, &how).await;
        match opened {
            Err(DeviceError::Locked { .. })
                if opening == Opening::Exclusive && serving.is_some_and(|it| it.stands_by) =>
            {
                let silent = self.watch.silent(&self.env, &*store, image).await;
                let holder = match silent {
                    Ok(Some(holder)) => holder,
                    Ok(None) => return opened,
                    Err(error @ ObjectError::NotPermitted { .. }) => {
                        return Err(error.of_device(&full(image), Operation::Lock));
                    }
                    Err(error) => {
                        tracing::warn!(image, %error, "looking for beats failed; it is tried again");
                        return opened;
                    }
                };
                let how = How { silent: Some(&holder), ..how };
                RadosDevice::open_how(&self.env, store, image, &how).await
            }
            opened => opened,
        }
    }

    /// The pool of a name, and the image in it.
    async fn pool<'a>(
        &self,
        name: &'a str,
        operation: Operation,
    ) -> Result<(ObjectStoreRef, &'a str), DeviceError> {
        let ImageName { pool, namespace, image } =
            ImageName::parse(name).map_err(|why| kinds::refused(&full(name), operation, why))?;
        match self.pools.pool(pool, namespace).await {
            Ok(store) => Ok((store, image)),
            Err(ObjectError::NotFound { .. }) => {
                let why = format!("there is no pool {pool}; make one: ceph osd pool create {pool}");
                Err(kinds::refused(&full(name), operation, why))
            }
            Err(error) => Err(error.of_device(&full(name), operation)),
        }
    }

    /// The device of this name that this program has open. If it was dropped, waits until its lock is released.
    async fn own(&self, name: &str) -> Option<(Arc<RadosDevice>, Access)> {
        let opened = self.opened.lock().get(name).cloned()?;
        if let Some(device) = opened.device.upgrade().filter(|device| !device.is_closed()) {
            return Some((device, opened.access));
        }
        if opened.device.strong_count() == 0 {
            opened.released.wait().await;
        }
        None
    }

    /// Refuses the name of an image that is absent.
    async fn present(
        &self,
        store: &ObjectStoreRef,
        name: &str,
        image: &str,
    ) -> Result<(), DeviceError> {
        match RadosDevice::exists(store, image).await? {
            true => Ok(()),
            false => {
                let why = "there is no such image; a command that makes a volume makes it, given its size";
                Err(kinds::refused(&full(name), Operation::Open, why))
            }
        }
    }

    fn locked(&self, name: &str) -> DeviceError {
        DeviceError::Locked { device: full(name), holder: Some(format!("{}", self.opener)) }
    }
}

#[async_trait]
impl DeviceKind for RadosKind {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn exists(&self, name: &str) -> Result<bool, DeviceError> {
        let (store, image) = self.pool(name, Operation::Open).await?;
        RadosDevice::exists(&store, image).await
    }

    async fn open(
        &self,
        name: &str,
        access: Access,
        sector: Option<u32>,
    ) -> Result<DeviceRef, DeviceError> {
        let opening = match access {
            Access::Exclusive | Access::Shared => Opening::Exclusive,
            Access::ReadOnly => Opening::ReadOnly,
            Access::Reading => Opening::Unlocked,
        };
        if access != Access::Reading
            && let Some((device, others)) = self.own(name).await
        {
            return match (access, others) {
                (Access::Shared, Access::Shared) | (Access::ReadOnly, Access::ReadOnly) => {
                    Ok(device)
                }
                _ => Err(self.locked(name)),
            };
        }
        let (store, image) = self.pool(name, Operation::Open).await?;
        self.present(&store, name, image).await?;
        let device = self.open_image(store, image, opening).await?;
        let found = device.geometry().sector;
        if let Some(sector) = sector.filter(|sector| *sector != found) {
            let why = format!("its sector has {found} bytes, not {sector}; leave the sector out");
            return Err(kinds::refused(&full(name), Operation::Open, why));
        }
        let device = Arc::new(device);
        if access != Access::Reading {
            let released = device.released();
            let opened = Opened { device: Arc::downgrade(&device), access, released };
            self.opened.lock().insert(name.to_owned(), opened);
        }
        Ok(device)
    }

    async fn create(&self, name: &str, size: u64, sector: Option<u32>) -> Result<(), DeviceError> {
        let (store, image) = self.pool(name, Operation::Create).await?;
        let default = RadosOptions::default();
        let options = RadosOptions { sector: sector.unwrap_or(default.sector), ..default };
        if RadosDevice::exists(&store, image).await? {
            let why = "there is such an image already; leave its size out to use that one, or name another one";
            return Err(kinds::refused(&full(name), Operation::Create, why));
        }
        RadosDevice::make(&self.env, &store, image, size, &options).await
    }

    async fn remove(&self, name: &str) -> Result<(), DeviceError> {
        if self.own(name).await.is_some() {
            return Err(self.locked(name));
        }
        let (store, image) = self.pool(name, Operation::Discard).await?;
        match RadosDevice::exists(&store, image).await? {
            true => RadosDevice::remove_as(&self.env, store, image, Some(&self.opener)).await,
            false => Ok(()),
        }
    }

    async fn break_lock(&self, name: &str) -> Result<Vec<String>, DeviceError> {
        if self.own(name).await.is_some() {
            return Err(self.locked(name));
        }
        let (store, image) = self.pool(name, Operation::Lock).await?;
        self.present(&store, name, image).await?;
        let stopped = RadosDevice::holders(&store, image).await?;
        if !stopped.is_empty() {
            let opener = Some(&self.opener);
            let taken =
                RadosDevice::open_as(&self.env, store, image, Opening::TakeOver, opener).await?;
            taken.close().await?;
        }
        Ok(stopped)
    }

    async fn close(&self) -> Result<(), DeviceError> {
        let opened: Vec<Opened> = self.opened.lock().drain().map(|(_, opened)| opened).collect();
        let mut outcome = Ok(());
        for Opened { device, released, .. } in opened {
            match device.upgrade() {
                Some(device) => outcome = outcome.and(device.close().await),
                None => released.wait().await,
            }
        }
        outcome
    }
}

#[async_trait]
impl ContentsKind for RadosKind {
    async fn beside(
        &self,
        device: &Path,
        filesystem: &str,
    ) -> Result<Option<Arc<dyn Contents>>, FsError> {
        let Some((KIND, name)) = kinds::kind_of(device) else { return Ok(None) };
        match self.own(name).await {
            Some((device, _)) => {
                let files = device.files(filesystem)?;
                Ok(Some(Arc::new(files.located(device.cluster().await?))))
            }
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_pool_and_an_image() {
        let name = |pool, namespace, image| Ok(ImageName { pool, namespace, image });
        assert_eq!(ImageName::parse("p/i"), name("p", "", "i"));
        assert_eq!(ImageName::parse("p/n/i.2:x"), name("p", "n", "i.2:x"));
        for wrong in ["", "p", "/i", "p/", "p//i", "p/n/i/j", "p/i@monday"] {
            assert!(ImageName::parse(wrong).is_err(), "{wrong}");
        }
    }
}
