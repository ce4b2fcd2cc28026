//! Cleanup in this user's folder of sockets and mountpoints. Each process removes its own files there; a
//! starting process also removes those of killed ones.

use std::path::Path;

use thalweg_fuse::{mounts, state};

use crate::places::{NAME, SERVED, SERVER_FILES, STANDBY, VIEW};

/// Removes a folder for sockets, unless it holds other files.
pub(crate) fn clear(folder: &Path) {
    for file in SERVER_FILES {
        let _ = std::fs::remove_file(folder.join(file));
    }
    if let Err(error) = std::fs::remove_dir(folder) {
        tracing::debug!(%error, folder = %folder.display(), "it stays");
    }
}

/// Removes the files of killed processes: dead mounts of transactions' views, folders for sockets, names of
/// mounts.
pub(crate) fn remove_all() {
    let Ok(folder) = state::folder() else { return };
    let Ok(entries) = std::fs::read_dir(&folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let place = entry.path();
        if let Some(rest) = name.strip_prefix(VIEW) {
            if has_ended(rest.split('-').next()) {
                remove_view(&place);
            }
        } else if let Some(rest) = name.strip_prefix(SERVED) {
            if has_ended(rest.split('-').next()) {
                clear(&place);
            }
        } else if let Some(rest) = name.strip_prefix(STANDBY) {
            if has_ended(Some(rest)) {
                let _ = std::fs::remove_file(&place);
            }
        } else if name.starts_with(mounts::NAME) && !place.exists() {
            let _ = std::fs::remove_file(&place);
        }
    }
}

/// Whether no process of this user and this program has this number.
pub(super) fn has_ended(number: Option<&str>) -> bool {
    let Some(number) = number.and_then(|number| number.parse::<u32>().ok()) else { return false };
    // A zombie still has a name in `comm`, but no program.
    let runs = std::fs::read_link(format!("/proc/{number}/exe")).is_ok();
    let name = std::fs::read_to_string(format!("/proc/{number}/comm"));
    !(runs && name.is_ok_and(|name| name.contains(NAME)))
}

fn remove_view(place: &Path) {
    let removed = match mounts::at(place) {
        Ok(Some(mount)) => mounts::unmount(&mount, libc::MNT_DETACH),
        result => result.map(drop),
    };
    if let Err(error) = removed.and_then(|()| std::fs::remove_dir(place)) {
        tracing::debug!(%error, place = %place.display(), "a dead view stays");
    }
}
