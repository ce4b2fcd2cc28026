//! Errors of the server.

use std::io;
use std::net::SocketAddr;

use thalweg_net::named::SocketError;
use thalweg_store::block::StoreError;

/// Errors of a server. Clients get their own errors in replies.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An export cannot be served as asked.
    #[error("cannot serve export {name:?}: {reason}")]
    Export {
        /// The export.
        name: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// No such export.
    #[error("there is no export {0:?}; list the exports")]
    NoExport(String),
    /// A Unix socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A TCP port cannot be opened.
    #[error("cannot listen on {address}: {source}; choose a free port of this machine")]
    Tcp {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The final flush of a removed export failed.
    #[error("flushing export {name:?} failed: {source}; its last writes may be lost in a crash")]
    Flush {
        /// The export.
        name: String,
        /// What the volume said.
        source: StoreError,
    },
}
