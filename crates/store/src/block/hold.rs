//! Versions that are kept readable.

use std::fmt;

use super::version::Version;

/// Keeps a version readable; released when dropped.
pub struct Hold {
    version: Version,
    release: Option<Box<dyn FnOnce(Version) + Send + Sync>>,
}

impl Hold {
    /// A guard that calls `release` when dropped.
    pub fn new(version: Version, release: impl FnOnce(Version) + Send + Sync + 'static) -> Hold {
        Hold { version, release: Some(Box::new(release)) }
    }

    /// The version held.
    pub fn version(&self) -> Version {
        self.version
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release(self.version);
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hold").field(&self.version).finish()
    }
}
