//! Unix sockets with permissions from the first moment on, and removed at the end.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use thalweg_env::Env;
use tokio::net::{UnixListener, UnixSocket};

use crate::server::ServerError;

/// Connections that the kernel queues until they are accepted.
pub(crate) const BACKLOG: u32 = 128;

/// Options of a Unix socket.
#[derive(Clone, Copy, Debug)]
pub struct UnixSocketOptions {
    /// Permission bits of the socket, 0600 by default.
    pub mode: u32,
}

impl Default for UnixSocketOptions {
    fn default() -> UnixSocketOptions {
        UnixSocketOptions { mode: 0o600 }
    }
}

/// A socket's file. Dropping this removes it, unless another server has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            // It may have been removed meanwhile.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Listens at `path`. Replaces a socket that has no listener any more.
///
/// The socket gets its name after it listens, so that a name without a listener always belongs to a dead
/// server.
pub(crate) fn bind(
    env: &Env,
    path: &Path,
    options: UnixSocketOptions,
) -> Result<(UnixListener, SocketFile), ServerError> {
    let fail = |source| ServerError::Socket { path: path.to_owned(), source };
    let unnamed = path.with_file_name(format!(".{}", env.uuid().simple()));
    clear_stale(path, &unnamed)?;
    let (listener, temporary) = listen(&unnamed, options).map_err(fail)?;
    fs::hard_link(&unnamed, path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => ServerError::InUse { path: path.to_owned() },
        _ => fail(error),
    })?;
    let file = SocketFile { path: path.to_owned(), identity: temporary.identity };
    Ok((listener, file))
}

fn listen(path: &Path, options: UnixSocketOptions) -> io::Result<(UnixListener, SocketFile)> {
    let mode = Permissions::from_mode(options.mode & 0o777);
    let socket = UnixSocket::new_stream()?;
    // A socket's file is created with the mode of its descriptor, less the umask: at no moment can other
    // users open it.
    File::from(socket.as_fd().try_clone_to_owned()?).set_permissions(mode.clone())?;
    socket.bind(path)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
    // Restores the bits that the umask cleared.
    fs::set_permissions(path, mode)?;
    Ok((socket.listen(BACKLOG)?, file))
}

/// Removes a socket that a dead server left behind; `aside` is a free name.
fn clear_stale(path: &Path, aside: &Path) -> Result<(), ServerError> {
    let fail = |source| ServerError::Socket { path: path.to_owned(), source };
    let in_use = || ServerError::InUse { path: path.to_owned() };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ServerError::NotASocket { path: path.to_owned() });
        }
        Ok(_) if !is_dead(path) => return Err(in_use()),
        Ok(_) => {}
    }
    // Another server may replace the dead socket at this very moment. So the socket is checked again after it
    // was moved aside, and put back if it is alive.
    match fs::rename(path, aside) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        moved => moved.map_err(fail)?,
    }
    if is_dead(aside) {
        return fs::remove_file(aside).map_err(fail);
    }
    fs::hard_link(aside, path).map_err(fail)?;
    fs::remove_file(aside).map_err(fail)?;
    Err(in_use())
}

/// Whether the socket has no listener. In doubt, it has one.
fn is_dead(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}
