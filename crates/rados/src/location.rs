//! Where the contents of a filesystem are, for its clients on other machines.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A location as the server of a filesystem tells it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Location {
    /// The identity of the cluster.
    pub(crate) cluster: String,
    /// The pool, and the namespace in it.
    pub(crate) pool: String,
    /// First part of the names of objects.
    pub(crate) prefix: String,
    /// Bytes of an object.
    pub(crate) stripe: u64,
    /// The server's epoch. Its clients write with that.
    pub(crate) epoch: u64,
}

impl Location {
    pub(crate) fn encode(&self) -> Bytes {
        postcard::to_allocvec(self).unwrap_or_default().into()
    }
}
