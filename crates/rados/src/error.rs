//! Why a request to objects failed.

use std::io;
use std::sync::Arc;

use thalweg_store::device::{DeviceError, Operation};

/// Why a request to an object, or to its cluster, failed. The kinds are named after what the caller must do.
#[derive(Debug, thiserror::Error, Clone)]
pub enum ObjectError {
    /// The object is absent.
    #[error("object {object} is absent")]
    NotFound {
        /// The object, after its pool.
        object: String,
    },
    /// The object, or the lock, is present already.
    #[error("object {object} is present already")]
    Exists {
        /// The object, after its pool.
        object: String,
    },
    /// A guard of the operation does not hold, and nothing was changed. Read the object again.
    #[error("a guard on object {object} does not hold; nothing was changed")]
    Conflict {
        /// The object, after its pool.
        object: String,
    },
    /// Another client has the lock. Give up, or take over from it.
    #[error("object {object} is locked by another client; stop that one, or take over from it")]
    Locked {
        /// The object, after its pool.
        object: String,
    },
    /// The cluster refuses this client: another one took over from it. Stop.
    #[error("the cluster refuses this client, because another one took over from it")]
    Fenced,
    /// No answer came in time: a change may be made or not, now or later. Retry, or stop.
    #[error("no answer from the cluster about {object} in time; see `ceph health`")]
    NoAnswer {
        /// The object after its pool, or the cluster.
        object: String,
    },
    /// No monitor can be reached, or the connection is closed. Retry.
    #[error("not connected to the cluster: {reason}")]
    NotConnected {
        /// What was tried, and how it failed.
        reason: String,
    },
    /// The pool, or the whole cluster, is full. Give up.
    #[error("pool of {object} is full; add space or raise its quota")]
    NoSpace {
        /// The object, after its pool.
        object: String,
    },
    /// The client's key does not permit the request. Give up.
    #[error("the client's key does not permit access to {object}; see `ceph auth get`")]
    NotPermitted {
        /// The object after its pool, or the cluster.
        object: String,
    },
    /// The request cannot be carried out by any cluster. Give up.
    #[error("{object}: {reason}")]
    Invalid {
        /// The object after its pool, or the cluster.
        object: String,
        /// The field, what was found, and what is expected.
        reason: String,
    },
    /// The cluster reports an error of the medium or of the system. Stop.
    #[error("request to {object} failed: {source}")]
    Io {
        /// The object after its pool, or the cluster.
        object: String,
        /// The error.
        source: Arc<io::Error>,
    },
}

impl ObjectError {
    /// The error of a device named `device` in `operation`.
    pub(crate) fn of_device(self, device: &str, operation: Operation) -> DeviceError {
        let device = device.to_owned();
        match self {
            ObjectError::Fenced => DeviceError::Fenced { device },
            ObjectError::Locked { .. } => DeviceError::Locked { device, holder: None },
            ObjectError::NoSpace { .. } => DeviceError::NoSpace { device },
            other => {
                let source = Arc::new(io::Error::new(other.io_kind(), other));
                DeviceError::Io { device, operation, source }
            }
        }
    }

    fn io_kind(&self) -> io::ErrorKind {
        match self {
            ObjectError::NotFound { .. } => io::ErrorKind::NotFound,
            ObjectError::Exists { .. } => io::ErrorKind::AlreadyExists,
            ObjectError::NoAnswer { .. } => io::ErrorKind::TimedOut,
            ObjectError::NotConnected { .. } => io::ErrorKind::NotConnected,
            ObjectError::NotPermitted { .. } => io::ErrorKind::PermissionDenied,
            ObjectError::Invalid { .. } => io::ErrorKind::InvalidInput,
            ObjectError::Io { source, .. } => source.kind(),
            _ => io::ErrorKind::Other,
        }
    }
}
