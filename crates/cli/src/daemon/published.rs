//! The name by which `thalweg umount` finds the server of a mount.

use std::path::PathBuf;

use thalweg_fuse::mounted::Mounted;
use thalweg_fuse::{mounts, state};

use crate::failure::Outcome;

/// A symbolic link in this user's folder by which `thalweg umount` finds this process: from the number
/// of a filesystem's device to the folder of the control socket. Dropping it removes it.
#[derive(Debug)]
pub(super) struct PublishedName {
    link: PathBuf,
    folder: PathBuf,
}

impl PublishedName {
    /// The name of a mount whose server listens in `folder`.
    pub(super) fn new(mounted: &Mounted, folder: PathBuf) -> Outcome<PublishedName> {
        let link = state::folder()?.join(mounts::name_of(mounted.device()));
        // Make the folder, so that the link is not taken for a killed server's.
        state::make(&folder)?;
        // Rename over a link that a killed server may have left.
        let new = link.with_extension(std::process::id().to_string());
        std::os::unix::fs::symlink(&folder, &new)?;
        std::fs::rename(new, &link)?;
        Ok(PublishedName { link, folder })
    }
}

impl Drop for PublishedName {
    fn drop(&mut self) {
        // By now the device number may belong to another filesystem.
        if std::fs::read_link(&self.link).is_ok_and(|folder| folder == self.folder) {
            let _ = std::fs::remove_file(&self.link);
        }
    }
}
