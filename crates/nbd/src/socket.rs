//! Unix sockets that only the right people can open, and that leave nothing behind.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use thalweg_store::env::Env;
use tokio::net::{UnixListener, UnixSocket};

use crate::server::ServerError;

/// Connections that the kernel queues until they are accepted.
pub(crate) const BACKLOG: u32 = 128;

/// How a Unix socket is made.
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

/// A socket's place in the file system; removed when dropped, unless somebody else has taken it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            // Whoever removed it meanwhile did what was to be done.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Listens at `path`. A socket on which nobody listens any more is replaced.
///
/// The socket gets its name when it listens already, so that a name on which nobody listens is
/// a dead server's and no other's.
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
    // A socket's file is created with the mode of its descriptor, less the umask: there is no
    // moment at which others could open it.
    File::from(socket.as_fd().try_clone_to_owned()?).set_permissions(mode.clone())?;
    socket.bind(path)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
    // What the umask took away is given back.
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
    // Another server may replace the dead socket at this very moment. What is moved aside is
    // looked at again, and put back if it turns out to be alive.
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

/// Whether nobody listens. Any doubt counts as a listener.
fn is_dead(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}
