//! Where a keeper has its copies, and what they are called.

use std::io;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thalweg_store::device::DeviceRef;
use uuid::Uuid;

/// Where a keeper has its copies: devices by their names.
#[async_trait]
pub trait Shelf: Send + Sync + 'static {
    /// The names of all.
    ///
    /// # Errors
    /// The system's.
    async fn names(&self) -> io::Result<Vec<String>>;

    /// Opens one; `None` if it is absent.
    ///
    /// # Errors
    /// The system's, also if another program has it open.
    async fn open(&self, name: &str) -> io::Result<Option<DeviceRef>>;

    /// Makes one, which must be absent or hold no journal.
    ///
    /// # Errors
    /// The system's.
    async fn create(&self, name: &str, size: u64) -> io::Result<DeviceRef>;

    /// Removes one, which is not open.
    ///
    /// # Errors
    /// The system's.
    async fn remove(&self, name: &str) -> io::Result<()>;
}

/// What a keeper knows of a copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptCopy {
    /// Its name: the client's, and the session's.
    pub name: String,
    /// The position behind the last change that it has.
    pub next: u64,
    /// Changes that the server has not made durable, as far as the client has said.
    pub changes: u64,
    /// On the drive, or in memory alone.
    pub is_durable: bool,
    /// It was taken over.
    pub is_sealed: bool,
}

/// The name of the copy of a session's journal.
pub(super) fn name_of(client: &str, session: Uuid) -> String {
    format!("{client}-{}", session.simple())
}

/// Whether the copy with this name is one of this client.
pub fn is_of(name: &str, client: &str) -> bool {
    let session = name.strip_prefix(client).and_then(|rest| rest.strip_prefix('-'));
    session.is_some_and(|it| it.len() == 32 && Uuid::try_parse(it).is_ok())
}
