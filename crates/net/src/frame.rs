//! The layout of a frame.
//!
//! ```text
//! length    u32, little endian: bytes that follow
//! head      u16, little endian: bytes of the call's number and the message
//! number    the number of a call, in postcard
//! message   the call or the answer, in postcard
//! payload   the rest: bytes that are not copied
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest number and message in bytes.
pub const MAX_HEAD: usize = 4096;
/// Bytes before the head.
const LENGTHS: usize = 6;

/// Why a peer's bytes are not a frame. The connection ends.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// A frame exceeds the maximum length, or its lengths contradict each other.
    #[error("invalid frame: its length is {0} bytes, and that of its message {1} bytes")]
    Length(usize, usize),
    /// A message that does not decode.
    #[error("a message does not decode")]
    Message,
    /// A message that cannot be sent: no receiver would take the frame.
    #[error("a message of {0} bytes with a payload of {1} bytes does not fit into a frame")]
    TooLarge(usize, usize),
}

/// Appends the beginning of a frame whose payload, `payload` bytes, follows.
///
/// # Errors
/// [`FrameError::TooLarge`]; then nothing is appended.
pub fn encode<T: Serialize>(
    id: u64,
    message: &T,
    payload: usize,
    to: &mut BytesMut,
) -> Result<(), FrameError> {
    let head =
        postcard::to_allocvec(&(id, message)).map_err(|_| FrameError::TooLarge(0, payload))?;
    let too_large = FrameError::TooLarge(head.len(), payload);
    let len = u32::try_from(2 + head.len() + payload).map_err(|_| too_large.clone())?;
    let head_len = u16::try_from(head.len()).ok().filter(|_| head.len() <= MAX_HEAD);
    let head_len = head_len.ok_or(too_large)?;
    to.put_u32_le(len);
    to.put_u16_le(head_len);
    to.extend_from_slice(&head);
    Ok(())
}

/// A received frame with its message still encoded. Both parts are slices of the receive buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawFrame {
    /// The call's number.
    pub id: u64,
    /// The message, in postcard.
    pub message: Bytes,
    /// The payload.
    pub payload: Bytes,
}

/// A received frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame<T> {
    /// The call's number.
    pub id: u64,
    /// The call or the answer.
    pub message: T,
    /// The payload: a slice of the receive buffer.
    pub payload: Bytes,
}

/// The lengths of a frame's head and payload, checked before anything is allocated for it; `None` while
/// they are incomplete.
fn lengths(mut from: &[u8], longest: usize) -> Result<Option<(usize, usize)>, FrameError> {
    if from.len() < LENGTHS {
        return Ok(None);
    }
    let len = from.get_u32_le() as usize;
    let head = usize::from(from.get_u16_le());
    match len.checked_sub(2 + head) {
        Some(payload) if head <= MAX_HEAD && payload <= longest => Ok(Some((head, payload))),
        _ => Err(FrameError::Length(len, head)),
    }
}

/// Takes the first frame from `from`; `None` while it is incomplete. Its payload has at most `longest` bytes.
///
/// # Errors
/// [`FrameError`].
pub fn decode_raw(from: &mut BytesMut, longest: usize) -> Result<Option<RawFrame>, FrameError> {
    let Some((head, payload)) = lengths(from, longest)? else { return Ok(None) };
    if from.len() < LENGTHS + head + payload {
        return Ok(None);
    }
    let mut frame = from.split_to(LENGTHS + head + payload);
    frame.advance(LENGTHS);
    let mut message = frame.split_to(head).freeze();
    let (id, rest) = postcard::take_from_bytes(&message).map_err(|_| FrameError::Message)?;
    message.advance(head - rest.len());
    Ok(Some(RawFrame { id, message, payload: frame.freeze() }))
}

/// As [`decode_raw`], with the message decoded.
///
/// # Errors
/// [`FrameError`].
pub fn decode<T: DeserializeOwned>(
    from: &mut BytesMut,
    longest: usize,
) -> Result<Option<Frame<T>>, FrameError> {
    let Some(RawFrame { id, message, payload }) = decode_raw(from, longest)? else {
        return Ok(None);
    };
    Ok(Some(Frame { id, message: message_of(&message)?, payload }))
}

/// Decodes a message, all of its bytes.
///
/// # Errors
/// [`FrameError::Message`].
pub fn message_of<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FrameError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Message),
    }
}

/// Reads one frame, and no byte behind it. `None` when the peer closed the connection before it.
///
/// # Errors
/// [`FrameError`] as an error of I/O, and errors of the connection.
pub async fn read<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    longest: usize,
) -> std::io::Result<Option<Frame<T>>> {
    let mut input = BytesMut::with_capacity(LENGTHS);
    loop {
        // `lengths` bounds the rest.
        let wanted = match lengths(&input, longest).map_err(std::io::Error::other)? {
            None => LENGTHS,
            Some((head, payload)) => LENGTHS + head + payload,
        };
        if input.len() == wanted {
            return decode(&mut input, longest).map_err(std::io::Error::other);
        }
        let missing = (wanted - input.len()) as u64;
        if (&mut *stream).take(missing).read_buf(&mut input).await? == 0 {
            return match input.is_empty() {
                true => Ok(None),
                false => Err(std::io::ErrorKind::UnexpectedEof.into()),
            };
        }
    }
}
