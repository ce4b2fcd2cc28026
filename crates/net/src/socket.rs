//! Sockets in the folder of a volume, accessible to the volume's user only.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// A socket's address is at most 107 bytes long, and the path of a folder may be longer: the address refers
/// to the folder by a descriptor.
struct Address {
    _folder: File,
    path: PathBuf,
}

fn address(folder: &Path, name: &str) -> io::Result<Address> {
    let file = File::open(folder)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", file.as_raw_fd()));
    Ok(Address { _folder: file, path })
}

/// Listens on the socket `name` in `folder`, made with mode 0600. The caller holds the lock on the volume: an
/// existing socket was left by a process that died.
///
/// # Errors
/// Those of the system.
pub fn listen(folder: &Path, name: &str, backlog: u32) -> io::Result<UnixListener> {
    match std::fs::remove_file(folder.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => {
            let address = address(folder, name)?;
            bind(&address.path, Permissions::from_mode(0o600))?.listen(backlog)
        }
    }
}

/// A socket with its file, whose mode is `mode` less the umask: it is created with the mode of the descriptor, so
/// at no moment can other users open it.
pub(crate) fn bind(path: &Path, mode: Permissions) -> io::Result<UnixSocket> {
    let socket = UnixSocket::new_stream()?;
    File::from(socket.as_fd().try_clone_to_owned()?).set_permissions(mode)?;
    socket.bind(path)?;
    Ok(socket)
}

/// Connects to the socket `name` in `folder`; `None` when no process listens there, or the listener ended
/// before it accepted this connection. The folder of a volume that is updated in place exists while the
/// volume is served.
///
/// # Errors
/// Errors of the system, such as a folder that this user may not enter.
pub async fn connect(folder: &Path, name: &str) -> io::Result<Option<UnixStream>> {
    let address = match address(folder, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        address => address?,
    };
    match UnixStream::connect(&address.path).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::ConnectionReset
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
