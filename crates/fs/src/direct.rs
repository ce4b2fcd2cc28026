//! Clients of a server that read and write the contents of files themselves, where those are kept elsewhere.
//!
//! The server tells a client where the contents are, and the client tells the server its address at their store. The address is
//! on record before the client writes: so the server, or the next one, can shut the client out of the store before
//! anything that the client had to itself is another one's.

use bytes::Bytes;

use async_trait::async_trait;

use crate::attributes::Ino;
use crate::error::FsError;

/// What a server needs for such clients.
#[async_trait]
pub trait DirectContents: Send + Sync {
    /// Where clients find the contents.
    fn location(&self) -> Bytes;

    /// A session reaches contents at this address from now on; with an empty one, it does not any more. If it had another address,
    /// that one is shut out. Returns when all of that survives a crash.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for an address that is too long, or that of this program; [`FsError::Stale`] when the session is
    /// not on record; those of the store and the transaction.
    async fn admit(&self, session: u64, address: &str) -> Result<(), FsError>;

    /// Shuts sessions out whose clients may still be running. Nothing of theirs changes contents after this has returned, and files
    /// end where they have stored size records.
    ///
    /// # Errors
    /// Those of the store and the transaction.
    async fn shut_out(&self, sessions: &[u64]) -> Result<(), FsError>;

    /// The bytes of a file below this one may be written by a client that has the file to itself; 0 if none may.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::IsDirectory`]; those of the transaction.
    async fn write_bound(&self, ino: Ino) -> Result<u64, FsError>;

    /// Raises the write bound of a file to this byte or further; returns the new one when that survives a crash. 0 as before.
    ///
    /// # Errors
    /// As for [`DirectContents::write_bound`]; [`FsError::FileTooLarge`].
    async fn extend_write_bound(&self, ino: Ino, end: u64) -> Result<u64, FsError>;

    /// A session stores [size records](crate::contents::SizeRecord) of a file that it has to itself from now on, and no more of another file
    /// `instead_of` which it does. Whether it may; that survives a crash.
    ///
    /// A size record counts if it is further than the size of the file, which has no quota. So the session stores one only while all but
    /// later bytes and times of the file are durable.
    ///
    /// # Errors
    /// [`FsError::Stale`] when the session is not on record, or the file; those of the transaction.
    async fn keep_size_record(
        &self,
        session: u64,
        ino: Ino,
        instead_of: Option<Ino>,
    ) -> Result<bool, FsError>;
}
