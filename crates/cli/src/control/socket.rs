//! The place of a control socket.

use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thalweg_store::open::unique;

use crate::places::CONTROL;

/// Characters of a volume's name in the name of a socket outside of its folder.
const NAME_SHOWN: usize = 16;

/// Whether this user may write to the file or folder at `path`.
fn check_writable(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a terminated string, alive for the call.
    match unsafe { libc::access(path.as_ptr(), libc::W_OK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The directory and the name of a volume's socket if this user cannot write to the volume's folder; `None`
/// if it is in that folder.
pub(crate) fn elsewhere(folder: &Path) -> Option<(PathBuf, String)> {
    if check_writable(folder).is_ok() {
        return None;
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    // A socket's path has to fit into an address (108 bytes).
    let name: String = name.chars().take(NAME_SHOWN).collect();
    let directory = thalweg_fuse::state::directory("read-only");
    match directory {
        Ok(directory) => Some((directory, format!("{}.sock", unique(&name, folder)))),
        Err(error) => {
            tracing::debug!(%error, "no directory for sockets");
            None
        }
    }
}

/// Whether the control socket in a volume's folder refuses this user: it belongs to another user's server,
/// which may be dead.
pub(crate) fn is_closed_to_us(folder: &Path) -> bool {
    let refused = |error: io::Error| error.kind() == ErrorKind::PermissionDenied;
    check_writable(&folder.join(CONTROL)).is_err_and(refused)
}
