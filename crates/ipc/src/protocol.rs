//! The messages and their layout.
//!
//! Both sides send a hello first: eight bytes of magic and a version (u32, little endian). A server that
//! speaks another version sends its hello and closes the connection. Frames follow:
//!
//! ```text
//! length    u32, little endian: bytes that follow
//! head      u16, little endian: bytes of the message
//! message   the request's number and the message, in postcard
//! payload   the rest: blocks
//! ```
//!
//! The first frame is the server's [`Welcome`]. Then the client sends requests, and the server answers in any
//! order; the requests of one transaction take effect in the order in which they were sent. Requests with the
//! number 0 are not answered: writes, marks and hints. If one fails, its error is the answer to the next
//! request of its transaction that has an answer, the commit at the latest.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thalweg_store::block::{BLOCK_SIZE, Class};
use thalweg_store::txn::{Begin, Durability, Handle};

use crate::failure::WireError;

/// The first bytes that each side sends.
pub const MAGIC: [u8; 8] = *b"thwg-txn";
/// The version of the messages.
pub const VERSION: u32 = 3;
/// Length of a hello in bytes.
pub const HELLO: usize = 12;
/// Maximum number of blocks in a read.
pub const MAX_RUN: u64 = 256;
/// Longest message in bytes, without the payload.
pub const MAX_HEAD: usize = 4096;
/// Longest payload of a request in bytes: the block that it writes.
pub const MAX_REQUEST_PAYLOAD: usize = BLOCK_SIZE;
/// Longest payload of an answer in bytes.
pub const MAX_ANSWER_PAYLOAD: usize = MAX_RUN as usize * BLOCK_SIZE;
/// The number of a request that is not answered.
pub const UNANSWERED: u64 = 0;

/// The server's first message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Welcome {
    /// Requests may come.
    Ready {
        /// Blocks of the volume.
        blocks: u64,
        /// Blocks that a transaction may write.
        max_writes: u64,
    },
    /// There are too many connections.
    Busy,
}

/// A client's request. The client numbers its transactions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Begins transaction `txn`. [`Answer::Begun`].
    Begin {
        /// A number that no running transaction of the connection has.
        txn: u64,
        /// How it begins.
        begin: Begin,
    },
    /// Takes over a released transaction, as `txn`. [`Answer::Begun`].
    Takeover {
        /// A number that no running transaction of the connection has.
        txn: u64,
        /// The handle that its release returned.
        handle: Handle,
    },
    /// Reads at most [`MAX_RUN`] blocks. [`Answer::Blocks`].
    Read {
        /// The transaction.
        txn: u64,
        /// The first block.
        lba: u64,
        /// How many.
        count: u64,
    },
    /// Writes the block that is the payload.
    Write {
        /// The transaction.
        txn: u64,
        /// The block.
        lba: u64,
        /// Data or metadata.
        class: Class,
    },
    /// Discards a block.
    Discard {
        /// The transaction.
        txn: u64,
        /// The block.
        lba: u64,
    },
    /// Narrows the last access of a block to some of its bytes.
    Mark {
        /// The transaction.
        txn: u64,
        /// The block.
        lba: u64,
        /// The first byte.
        start: u16,
        /// The byte after the last one.
        end: u16,
    },
    /// Declares that the commit depends on bytes of a block.
    Depend {
        /// The transaction.
        txn: u64,
        /// The block.
        lba: u64,
        /// The first byte.
        start: u16,
        /// The byte after the last one.
        end: u16,
    },
    /// Asks for a block to be kept in memory.
    PleaseCache {
        /// The transaction.
        txn: u64,
        /// The block.
        lba: u64,
    },
    /// Commits. [`Answer::Done`].
    Commit {
        /// The transaction.
        txn: u64,
        /// When to answer.
        durability: Durability,
    },
    /// Aborts. [`Answer::Done`], also when the transaction had ended already.
    Abort {
        /// The transaction.
        txn: u64,
    },
    /// Releases. [`Answer::Released`].
    Release {
        /// The transaction.
        txn: u64,
    },
}

/// A server's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Success.
    Done,
    /// The transaction runs.
    Begun {
        /// Blocks of the volume: it may have grown.
        blocks: u64,
    },
    /// The transaction waits for a takeover with this handle.
    Released(Handle),
    /// The blocks are the payload.
    Blocks,
    /// It failed.
    Failed(WireError),
}

/// Why a peer's bytes are invalid. The connection ends.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The peer speaks another protocol.
    #[error("the peer does not speak this protocol")]
    Foreign,
    /// The peer speaks another version.
    #[error("the peer speaks version {0} of the protocol, and this process version {VERSION}")]
    Version(u32),
    /// A frame exceeds the maximum length, or its lengths contradict each other.
    #[error("invalid frame: its length is {0} bytes, and that of its message {1} bytes")]
    Length(usize, usize),
    /// A message that does not decode.
    #[error("a message does not decode")]
    Message,
}

/// The bytes of a hello.
pub fn hello() -> [u8; HELLO] {
    let mut bytes = [0; HELLO];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Checks a peer's hello.
///
/// # Errors
/// [`ProtocolError::Foreign`], [`ProtocolError::Version`].
pub fn check_hello(bytes: &[u8; HELLO]) -> Result<(), ProtocolError> {
    let (magic, mut version) = bytes.split_at(8);
    match (magic == MAGIC, version.get_u32_le()) {
        (false, _) => Err(ProtocolError::Foreign),
        (true, VERSION) => Ok(()),
        (true, other) => Err(ProtocolError::Version(other)),
    }
}

/// Appends the beginning of a frame whose payload, `payload` bytes, follows.
pub fn encode<T: Serialize>(id: u64, message: &T, payload: usize, to: &mut BytesMut) {
    // Writing to memory does not fail, and postcard can encode every message.
    let head = postcard::to_allocvec(&(id, message)).unwrap_or_default();
    debug_assert!(head.len() <= MAX_HEAD);
    to.put_u32_le((2 + head.len() + payload) as u32);
    to.put_u16_le(head.len() as u16);
    to.extend_from_slice(&head);
}

/// A received message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame<T> {
    /// The request's number.
    pub id: u64,
    /// The message.
    pub message: T,
    /// The payload: a slice of the receive buffer.
    pub payload: Bytes,
}

/// Takes the first frame from `from`; `None` while it is incomplete. Its payload has at most `longest` bytes.
///
/// # Errors
/// [`ProtocolError::Length`], [`ProtocolError::Message`].
pub fn decode<T: DeserializeOwned>(
    from: &mut BytesMut,
    longest: usize,
) -> Result<Option<Frame<T>>, ProtocolError> {
    let Some((mut lengths, _)) = from.split_at_checked(6) else { return Ok(None) };
    let len = lengths.get_u32_le() as usize;
    let head = usize::from(lengths.get_u16_le());
    if head > MAX_HEAD || len < 2 + head || len - 2 - head > longest {
        return Err(ProtocolError::Length(len, head));
    }
    if from.len() < 4 + len {
        return Ok(None);
    }
    let mut frame = from.split_to(4 + len);
    frame.advance(6);
    let payload = frame.split_off(head).freeze();
    match postcard::take_from_bytes(&frame) {
        Ok(((id, message), [])) => Ok(Some(Frame { id, message, payload })),
        _ => Err(ProtocolError::Message),
    }
}
