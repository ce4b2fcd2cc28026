//! The interface of a pool of objects: what devices and contents of files need of a cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_fs::contents::Space;

use crate::ObjectError;

/// A shared handle to a pool of objects.
pub type ObjectStoreRef = Arc<dyn ObjectStore>;

/// A pool of named objects, as one client of its cluster sees it.
///
/// An operation on one object is atomic and, once acknowledged, durable. Operations of one client on one object take
/// effect in the order in which they are started. One whose future is dropped after its first poll completes
/// nevertheless.
#[async_trait]
pub trait ObjectStore: Send + Sync + fmt::Debug {
    /// The pool's name for messages.
    fn name(&self) -> String;

    /// The identity of the cluster.
    async fn cluster(&self) -> Result<String, ObjectError>;

    /// The client's address, as [`LockHolder::address`] has it.
    async fn address(&self) -> Result<String, ObjectError>;

    /// The client's name in the cluster, as [`LockHolder::client`] has it. No other client ever has it.
    fn client(&self) -> String;

    /// Reads at most `len` bytes at `offset`: fewer where the object ends. The buffer is aligned to
    /// [`MEMORY_ALIGNMENT`](thalweg_store::device::MEMORY_ALIGNMENT).
    async fn read(&self, object: &str, offset: u64, len: usize) -> Result<Bytes, ObjectError>;

    /// An attribute of an object; `None` if it has none of that name.
    async fn attribute(
        &self,
        object: &str,
        attribute: &'static str,
    ) -> Result<Option<Bytes>, ObjectError>;

    /// Applies the steps of `change` to an object, all or none of them.
    async fn apply(&self, object: &str, change: Change) -> Result<(), ObjectError>;

    /// Waits for the end of every change that this handle started before, also of those whose futures were dropped.
    async fn settle(&self) -> Result<(), ObjectError>;

    /// The names of all objects. Every placement group answers for itself, with the map of the cluster that this
    /// client has, or a newer one.
    async fn list(&self) -> Result<Vec<String>, ObjectError>;

    /// How full the cluster is, as objects of this pool count.
    async fn space(&self) -> Result<Space, ObjectError>;

    /// Takes a lock on an object, which is made if it is absent. Other holders may have it too if all of them take it
    /// `shared`.
    ///
    /// # Errors
    /// [`ObjectError::Locked`] while another holder has it.
    async fn lock(
        &self,
        object: &str,
        lock: &LockName<'_>,
        shared: bool,
    ) -> Result<(), ObjectError>;

    /// Releases a lock of this client.
    async fn unlock(&self, object: &str, lock: &LockName<'_>) -> Result<(), ObjectError>;

    /// The holders of a lock.
    async fn holders(&self, object: &str, lock: &str) -> Result<Vec<LockHolder>, ObjectError>;

    /// Takes a lock away from its holder, which [`ObjectStore::blocklist`] stopped before.
    async fn break_lock(
        &self,
        object: &str,
        lock: &str,
        holder: &LockHolder,
    ) -> Result<(), ObjectError>;

    /// Makes the cluster refuse every request of `holder`, for `span`, and waits until this client has the map that
    /// says so. An object server learns the map at the latest with the next request of this client to it.
    async fn blocklist(&self, holder: &LockHolder, span: Duration) -> Result<(), ObjectError>;
}

/// A lock, and the cookie that tells its holder's openings apart.
#[derive(Clone, Copy, Debug)]
pub struct LockName<'a> {
    /// The lock's name.
    pub name: &'a str,
    /// The cookie.
    pub cookie: &'a str,
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The client's name.
    pub client: String,
    /// The cookie with which it took the lock.
    pub cookie: String,
    /// Its address, which the cluster can refuse.
    pub address: String,
}

/// A change of one object: guards, then what to do. It is applied whole or, if a guard does not hold, not at all.
/// A guard sees the object as it is before the change.
#[derive(Clone, Debug, Default)]
pub struct Change {
    pub(crate) steps: Vec<Step>,
}

/// A part of a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Guard: the object is absent, else [`ObjectError::Exists`]; makes it.
    CreateNew,
    /// Guard: the object is present, else [`ObjectError::NotFound`].
    AssertExists,
    /// Guard: the comparison holds, else [`ObjectError::Conflict`]. A present object without the attribute has an
    /// empty one; an absent object is [`ObjectError::NotFound`].
    Compare {
        /// The attribute's name.
        attribute: &'static str,
        /// How the value compares with the attribute.
        comparison: Comparison,
        /// The value.
        value: Bytes,
    },
    /// Guard: this client has the exclusive lock under this cookie, else [`ObjectError::Conflict`].
    AssertLocked {
        /// The lock's name.
        lock: String,
        /// The cookie.
        cookie: String,
    },
    /// Sets an attribute.
    SetAttribute {
        /// Its name.
        attribute: &'static str,
        /// Its value.
        value: Bytes,
    },
    /// Writes buffer after buffer at an offset, and makes the object if it is absent.
    Write {
        /// First byte.
        offset: u64,
        /// The buffers.
        data: Vec<Bytes>,
    },
    /// Replaces the whole content.
    Replace {
        /// The new content.
        data: Bytes,
    },
    /// Makes a range of a present object read as zeros.
    Zero {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Cuts the object, or extends it by zeros.
    Truncate {
        /// The new size in bytes.
        size: u64,
    },
    /// Removes the object.
    Remove,
}

/// How a value compares with an attribute, byte by byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// They are equal.
    Equal,
    /// The value is not less than the attribute.
    AtLeast,
}

impl Change {
    /// A change without steps.
    pub fn new() -> Change {
        Change::default()
    }

    /// The same, and then `step`.
    pub fn then(mut self, step: Step) -> Change {
        self.steps.push(step);
        self
    }

    /// Its steps, in the order in which they are applied.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}
