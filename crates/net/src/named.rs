//! Unix sockets at a path of the user's choice: with permissions from the first moment on, and removed at the end.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use thalweg_env::Env;
use thalweg_env::connection::Listener;
use tokio::net::UnixListener;

use crate::socket;

/// Connections that the kernel queues until they are accepted.
const BACKLOG: u32 = 128;

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

/// Why a socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The system refuses.
    #[error("cannot listen on {}: {source}", path.display())]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another server listens there.
    #[error("another server listens on {}; stop it, or choose another path", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// A file that is not a socket has this path.
    #[error("{} exists and is not a socket; remove it, or choose another path", path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
}

/// Listens on a socket that has a name. The fields are dropped in this order: the name is removed while the
/// listener still listens. A name without a listener is a dead server's, and another server may replace it at
/// any moment.
#[derive(Debug)]
pub struct NamedListener {
    _file: SocketFile,
    listener: UnixListener,
}

impl Listener for NamedListener {
    type Stream = tokio::net::UnixStream;

    async fn accept(&self) -> io::Result<tokio::net::UnixStream> {
        Listener::accept(&self.listener).await
    }
}

/// A socket's file. Dropping this removes it, unless another server has replaced it.
#[derive(Debug)]
struct SocketFile {
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
///
/// # Errors
/// [`SocketError`].
pub fn bind(
    env: &Env,
    path: &Path,
    options: UnixSocketOptions,
) -> Result<NamedListener, SocketError> {
    let fail = |source| SocketError::Io { path: path.to_owned(), source };
    let unnamed = path.with_file_name(format!(".{}", env.uuid().simple()));
    clear_stale(path, &unnamed)?;
    let (listener, temporary) = listen(&unnamed, options).map_err(fail)?;
    fs::hard_link(&unnamed, path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => SocketError::InUse { path: path.to_owned() },
        _ => fail(error),
    })?;
    let file = SocketFile { path: path.to_owned(), identity: temporary.identity };
    Ok(NamedListener { _file: file, listener })
}

fn listen(path: &Path, options: UnixSocketOptions) -> io::Result<(UnixListener, SocketFile)> {
    let mode = Permissions::from_mode(options.mode & 0o777);
    let socket = socket::bind(path, mode.clone())?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
    // Restores the bits that the umask cleared.
    fs::set_permissions(path, mode)?;
    Ok((socket.listen(BACKLOG)?, file))
}

/// Removes a socket that a dead server left behind; `aside` is a free name.
fn clear_stale(path: &Path, aside: &Path) -> Result<(), SocketError> {
    let fail = |source| SocketError::Io { path: path.to_owned(), source };
    let in_use = || SocketError::InUse { path: path.to_owned() };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::NotASocket { path: path.to_owned() });
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
