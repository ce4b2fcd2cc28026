//! How versions follow one another, and how they are read.

use super::error::StoreError;
use super::version::{Epoch, EpochVersion, Version};

impl Version {
    /// The version that follows this one: `given`, or else the next.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] unless it is newer, and below 2⁴⁸, as the formats store it.
    pub(crate) fn or_next(self, given: Option<Version>) -> Result<Version, StoreError> {
        match given.unwrap_or(self.next()) {
            version if version > self && version.0 < 1 << 48 => Ok(version),
            version => Err(StoreError::Invalid(format!(
                "version {version} cannot follow version {self} of this store"
            ))),
        }
    }
}

impl std::str::FromStr for EpochVersion {
    type Err = StoreError;

    /// Reads `EPOCH.VERSION`.
    fn from_str(text: &str) -> Result<EpochVersion, StoreError> {
        // The form that is written, and no other: a sign or a leading zero would give a name twice.
        let parsed = text.split_once('.').and_then(|(epoch, version)| {
            let (epoch, version) = (epoch.parse().ok()?, version.parse().ok()?);
            Some(EpochVersion { epoch: Epoch(epoch), version: Version(version) })
        });
        parsed.filter(|parsed| parsed.to_string() == text).ok_or_else(|| {
            let why = format!("`{text}` is no version: expected EPOCH.VERSION, as in 7.1234");
            StoreError::Invalid(why)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_as_it_is_written() {
        let last = EpochVersion { epoch: Epoch(u64::MAX), version: Version(u64::MAX) };
        let version = EpochVersion { epoch: Epoch(7), version: Version(1234) };
        assert_eq!(version.to_string(), "7.1234");
        for version in [EpochVersion::default(), version, last] {
            assert_eq!(version.to_string().parse::<EpochVersion>().unwrap(), version);
        }
        for wrong in ["", "7", ".", "7.", ".7", "7.1.2", "+7.1", "7.01", " 7.1", "7.-1", "a.b"] {
            let refused = wrong.parse::<EpochVersion>();
            assert!(matches!(refused, Err(StoreError::Invalid(_))), "{wrong}: {refused:?}");
        }
        assert!("7.18446744073709551616".parse::<EpochVersion>().is_err());
    }
}
