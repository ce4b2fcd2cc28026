//! Reads and writes for sessions. Each is a transaction of its own, so none is made inside of this thread's transaction.

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use thalweg_store::block::{BLOCK_SIZE, Lba, Version};
use thalweg_store::device::FrameBuf;
use thalweg_store::stale::{Got, Guarantee, GuaranteeError, NoSession, Session, SessionToken};
use thalweg_store::tree::{Raw, Store, TreeError};
use thalweg_store::txn::{TxnError, read_block_for};

use super::Volume;

/// Why a session cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Its guarantee is unknown, or contradicts itself.
    #[error(transparent)]
    Guarantee(#[from] GuaranteeError),
    /// Another session cannot be resumed from this text.
    #[error(transparent)]
    Token(#[from] NoSession),
    /// Another thread is in a call with it.
    #[error("another thread uses the session now; a session belongs to one client at a time")]
    Busy,
}

/// A session that belongs to one thread at a time: a second one is refused while the first is in a call.
#[derive(Debug)]
pub struct SessionCell(Mutex<Session>);

impl SessionCell {
    /// A new session with a guarantee, as in `read-my-writes,bounded=5s`.
    ///
    /// # Errors
    /// [`SessionError::Guarantee`].
    pub fn new(guarantee: &str) -> Result<SessionCell, SessionError> {
        Ok(SessionCell(Mutex::new(Session::new(guarantee.parse()?))))
    }

    /// A session that goes on where another was when it was saved ([`Volume::save_session`]), with a guarantee of its own.
    ///
    /// # Errors
    /// [`SessionError::Guarantee`] and [`SessionError::Token`].
    pub fn resumed(guarantee: &str, token: &str) -> Result<SessionCell, SessionError> {
        let guarantee: Guarantee = guarantee.parse()?;
        let token: SessionToken = token.parse()?;
        Ok(SessionCell(Mutex::new(Session::resumed(guarantee, &token))))
    }

    /// The session, for one call.
    ///
    /// # Errors
    /// [`SessionError::Busy`].
    pub fn lock(&self) -> Result<MutexGuard<'_, Session>, SessionError> {
        self.0.try_lock().ok_or(SessionError::Busy)
    }
}

/// A block's content.
fn block(content: &[u8]) -> Result<Bytes, TreeError> {
    match content.len() {
        BLOCK_SIZE => Ok(FrameBuf::copy_block(content)),
        _ => Err(TreeError::Invalid(format!("a block has {BLOCK_SIZE} bytes"))),
    }
}

impl Volume {
    /// Checks that this thread has no transaction: what follows would not be part of it.
    pub(super) fn check_alone(&self) -> Result<(), TxnError> {
        match self.depth() {
            0 => Ok(()),
            _ => Err(TxnError::Invalid(
                "this is no part of the transaction that this thread has begun; end that first"
                    .to_owned(),
            )),
        }
    }

    /// A text for [`SessionCell::resumed`]. The volume makes durable what the session has seen, so that a crash does not
    /// take it back.
    ///
    /// # Errors
    /// As [`Transact::sync`](thalweg_store::txn::Transact::sync).
    pub fn save_session(&self, session: &Session) -> Result<SessionToken, TxnError> {
        self.run(self.transact.sync())?;
        Ok(session.token())
    }

    /// Reads a block of the volume for a session: the cheapest content that its guarantee allows.
    ///
    /// # Errors
    /// As [`read_block_for`], and [`TxnError::Invalid`] inside of this thread's transaction.
    pub fn read_for(&self, session: &mut Session, lba: Lba) -> Result<Got<Bytes>, TxnError> {
        self.check_alone()?;
        self.run(read_block_for(&*self.transact, session, lba))
    }

    /// Writes a block for a session, on a volume without partitions; durable when it returns. `None` discards the block.
    /// Returns the version.
    ///
    /// # Errors
    /// [`TreeError::Partitioned`], and as [`Volume::write_raw_for`].
    pub fn write_for(
        &self,
        session: &mut Session,
        lba: Lba,
        content: Option<&[u8]>,
    ) -> Result<Version, TreeError> {
        self.explain(lba, self.write_raw_for(session, &self.whole, lba.0, content))
    }

    /// [`Volume::read_for`], of a raw partition.
    ///
    /// # Errors
    /// As [`Raw::read_for`], and [`TxnError::Invalid`] inside of this thread's transaction.
    pub fn read_raw_for(
        &self,
        session: &mut Session,
        raw: &Raw,
        block: u64,
    ) -> Result<Got<Bytes>, TreeError> {
        self.check_alone()?;
        self.run(raw.read_for(session, block))
    }

    /// [`Volume::write_for`], of a raw partition.
    ///
    /// # Errors
    /// As [`Raw::write_for`], and [`TxnError::Invalid`] inside of this thread's transaction.
    pub fn write_raw_for(
        &self,
        session: &mut Session,
        raw: &Raw,
        block: u64,
        content: Option<&[u8]>,
    ) -> Result<Version, TreeError> {
        self.check_alone()?;
        let content = content.map(self::block).transpose()?;
        self.run(raw.write_for(session, block, content))
    }

    /// Reads a key for a session.
    ///
    /// # Errors
    /// As [`Store::get_for`], and [`TxnError::Invalid`] inside of this thread's transaction.
    pub fn get_for(
        &self,
        session: &mut Session,
        store: &Store,
        key: &[u8],
    ) -> Result<Got<Option<Bytes>>, TreeError> {
        self.check_alone()?;
        self.run(store.get_for(session, key))
    }

    /// Sets the value of a key for a session; durable when it returns. Returns the version.
    ///
    /// # Errors
    /// As [`Store::put_for`], and [`TxnError::Invalid`] inside of this thread's transaction.
    pub fn put_for(
        &self,
        session: &mut Session,
        store: &Store,
        key: &[u8],
        value: &[u8],
    ) -> Result<Version, TreeError> {
        self.check_alone()?;
        self.run(store.put_for(session, key, Bytes::copy_from_slice(value)))
    }
}
