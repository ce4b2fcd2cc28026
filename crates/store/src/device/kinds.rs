//! Devices that have a name in place of a path: `KIND:NAME`.
//!
//! The names are known here, since manifests keep them; what opens the devices is supplied by the program. So the store
//! links to no client of a foreign service.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use super::{Access, DeviceError, DeviceRef, FileDevice, FileOptions, Operation};

/// The kinds that names may begin with.
pub const KINDS: [&str; 1] = ["rados"];

/// The kind of a device, and its name behind the colon; `None` for a path of this machine. A file whose name looks like
/// that is written as `./KIND:NAME`.
pub fn kind_of(device: &Path) -> Option<(&'static str, &str)> {
    let (kind, name) = device.to_str()?.split_once(':')?;
    KINDS.into_iter().find(|known| *known == kind).map(|kind| (kind, name))
}

/// An absolute path of a device on this machine; a name stays as it is.
///
/// # Errors
/// As [`std::path::absolute`].
pub fn absolute(device: &Path) -> io::Result<PathBuf> {
    match kind_of(device) {
        Some(_) => Ok(device.to_owned()),
        None => std::path::absolute(device),
    }
}

/// Opens devices of one kind, by their names behind the colon.
#[async_trait]
pub trait DeviceKind: Send + Sync + std::fmt::Debug {
    /// The kind, one of [`KINDS`].
    fn kind(&self) -> &'static str;

    /// Whether there is a device of that name.
    async fn exists(&self, name: &str) -> Result<bool, DeviceError>;

    /// Opens a device, with sectors of `sector` bytes if given. Openers that ask for [`Access::Shared`] need not
    /// get it: then the second one is refused.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] when it is in use; otherwise the kind's error.
    async fn open(
        &self,
        name: &str,
        access: Access,
        sector: Option<u32>,
    ) -> Result<DeviceRef, DeviceError>;

    /// Makes a device of `size` bytes, which must be absent. Its content is zeros.
    async fn create(&self, name: &str, size: u64, sector: Option<u32>) -> Result<(), DeviceError>;

    /// Removes a device that is not in use; it may be absent.
    async fn remove(&self, name: &str) -> Result<(), DeviceError>;

    /// Stops the client that has the device open, whether it has ended or not, so that it changes nothing more.
    /// Returns what was stopped.
    async fn break_lock(&self, name: &str) -> Result<Vec<String>, DeviceError>;

    /// Releases the devices that were opened; requests to them fail from then on.
    async fn close(&self) -> Result<(), DeviceError>;
}

/// The kinds of devices that a program can open. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct DeviceKinds(Arc<Vec<Arc<dyn DeviceKind>>>);

impl DeviceKinds {
    /// These kinds, beside files and block devices.
    pub fn new(kinds: Vec<Arc<dyn DeviceKind>>) -> DeviceKinds {
        DeviceKinds(Arc::new(kinds))
    }

    /// What opens `device`, and its name there; `None` for a path of this machine.
    ///
    /// # Errors
    /// [`DeviceError::UnknownKind`] when this program opens no devices of its kind.
    pub fn find<'a>(
        &self,
        device: &'a Path,
    ) -> Result<Option<(&dyn DeviceKind, &'a str)>, DeviceError> {
        let Some((kind, name)) = kind_of(device) else { return Ok(None) };
        match self.0.iter().find(|known| known.kind() == kind) {
            Some(known) => Ok(Some((&**known, name))),
            None => Err(DeviceError::UnknownKind { device: device.display().to_string(), kind }),
        }
    }

    /// Opens a device, a file or a block device.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] when it is in use; otherwise its error.
    pub async fn open(&self, device: &Path, access: Access) -> Result<DeviceRef, DeviceError> {
        match self.find(device)? {
            Some((kind, name)) => kind.open(name, access, None).await,
            None => {
                let options = FileOptions { access, ..FileOptions::default() };
                Ok(Arc::new(FileDevice::open(device, &options).await?))
            }
        }
    }

    /// Makes a device or a file of `size` bytes, which must be absent.
    ///
    /// # Errors
    /// The device's; after an error it is absent.
    pub async fn create(&self, device: &Path, size: u64) -> Result<(), DeviceError> {
        match self.find(device)? {
            Some((kind, name)) => kind.create(name, size, None).await,
            None => FileDevice::create(device, size, &FileOptions::default()).await.map(drop),
        }
    }

    /// Releases the devices that have names; files are released when they are dropped. Returns the first error.
    ///
    /// # Errors
    /// The kinds'.
    pub async fn close(&self) -> Result<(), DeviceError> {
        let mut outcome = Ok(());
        for kind in self.0.iter() {
            outcome = outcome.and(kind.close().await);
        }
        outcome
    }
}

/// An error for a device that is refused before any request.
pub fn refused(device: &str, operation: Operation, why: impl Into<String>) -> DeviceError {
    DeviceError::io(device, operation, io::Error::new(io::ErrorKind::InvalidInput, why.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_known_kind_and_everything_else_is_a_path() {
        assert_eq!(kind_of(Path::new("rados:pool/image")), Some(("rados", "pool/image")));
        for path in ["rados", "./rados:pool/image", "/rados:pool", "a:b", "radosx:p/i"] {
            assert_eq!(kind_of(Path::new(path)), None, "{path}");
        }
        assert_eq!(absolute(Path::new("rados:p/i")).unwrap(), Path::new("rados:p/i"));
        assert!(absolute(Path::new("p/i")).unwrap().is_absolute());
    }

    #[tokio::test]
    async fn a_program_without_a_kind_says_so() {
        let kinds = DeviceKinds::default();
        let opened = kinds.open(Path::new("rados:p/i"), Access::Exclusive).await;
        assert!(matches!(opened, Err(DeviceError::UnknownKind { kind: "rados", .. })));
        let made = kinds.create(Path::new("rados:p/i"), 1 << 20).await;
        assert!(matches!(made, Err(DeviceError::UnknownKind { kind: "rados", .. })));
    }
}
