//! The frames of a control socket.

use std::io::{self, ErrorKind};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::failure::Failure;
use crate::progress::Step;
use crate::request::Answer;

/// Longest frame; a status with the maximum number of snapshots is many times smaller.
const MAX_FRAME: u32 = 16 << 20;

/// A frame from the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Frame {
    Step(Step),
    Done(Box<Answer>),
    Failed(Failure),
}

/// Sends one message.
pub(crate) async fn send<S: AsyncWrite + Unpin, T: Serialize>(
    stream: &mut S,
    message: &T,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let len = u32::try_from(bytes.len()).ok().filter(|len| *len <= MAX_FRAME);
    let len = len.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a message is too long"))?;
    stream.write_all(&len.to_le_bytes()).await?;
    stream.write_all(&bytes).await
}

/// Receives one message.
pub(crate) async fn receive<S: AsyncRead + Unpin, T: DeserializeOwned>(
    stream: &mut S,
) -> io::Result<T> {
    let len = stream.read_u32_le().await?;
    if len > MAX_FRAME {
        return Err(io::Error::new(ErrorKind::InvalidData, "a message is too long"));
    }
    let mut bytes = Vec::new();
    stream.take(u64::from(len)).read_to_end(&mut bytes).await?;
    if bytes.len() < len as usize {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&bytes)?)
}
