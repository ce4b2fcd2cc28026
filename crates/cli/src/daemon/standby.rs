//! Servers of this machine that stand by: each has a file with the folder of its volume in this user's folder of sockets.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use thalweg_fuse::state;

use super::leftover::has_ended;
use crate::failure::Outcome;
use crate::places::STANDBY;
use crate::target::Target;

/// This process stands by, until this is dropped.
#[derive(Debug)]
pub(crate) struct Standby(PathBuf);

impl Drop for Standby {
    fn drop(&mut self) {
        // A file that stays is that of a process that has ended.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Standby {
    /// This process stands by for the server of a volume.
    pub(crate) fn begin(target: &Target) -> Outcome<Standby> {
        let place = state::folder()?.join(format!("{STANDBY}{}", std::process::id()));
        std::fs::write(&place, target.folder.as_os_str().as_bytes())?;
        Ok(Standby(place))
    }
}

/// The processes of this user that stand by for the server of a volume.
pub(crate) fn standing_by(target: &Target) -> Vec<u32> {
    let Some(entries) = state::folder().ok().and_then(|folder| std::fs::read_dir(folder).ok())
    else {
        return Vec::new();
    };
    let of = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix(STANDBY)?;
        let folder = std::fs::read(entry.path()).ok()?;
        let is_it = folder == target.folder.as_os_str().as_bytes() && !has_ended(Some(number));
        number.parse().ok().filter(|_| is_it)
    };
    let mut found: Vec<u32> = entries.flatten().filter_map(of).collect();
    found.sort_unstable();
    found
}
