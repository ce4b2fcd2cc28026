//! Runs a request: one call to the volume, with its result translated to the protocol.

use bytes::Bytes;
use thalweg_store::block::StoreError;
use thalweg_store::device::DeviceError;
use thalweg_store::volume::{Extent, Volume};

use crate::protocol::{Command, Errno, Request, command_flag};

/// Reads of at least this many bytes are checked for holes, which then cost no transfer.
const HOLE_SCAN: u32 = 64 * 1024;
/// A read with more extents than this is sent in one piece: many small chunks cost more than zeros.
const MAX_PIECES: usize = 64;
/// Maximum number of extents in a block status reply; a client asks again for the rest.
const MAX_EXTENTS: usize = 8192;
/// Block status looks at this many bytes at a time, so that a short answer needs no long search.
const STATUS_WINDOW: u64 = 256 << 20;
/// Read-ahead is done in steps of this many bytes.
const CACHE_STEP: u64 = 1 << 20;

/// A part of a read's result.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Bytes.
    Data { offset: u64, len: u32, buffers: Vec<Bytes> },
    /// Zeros, which are not transferred.
    Hole { offset: u64, len: u32 },
}

/// The result of a request.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Success without a payload.
    Done,
    /// The result of a read.
    Data(Vec<Piece>),
    /// (Length in bytes, stored) from the request's offset on.
    Extents(Vec<(u32, bool)>),
    /// Failure, with a text for people.
    Error(Errno, String),
}

impl Answer {
    pub(crate) fn is_error(&self) -> bool {
        matches!(self, Answer::Error(..))
    }
}

/// The error number that tells a client what to do: free space, correct itself, or give up.
///
/// A poisoned store is an input/output error: the protocol knows no number for a file system that
/// has turned read-only, and `EPERM` would say that the export had been read-only all along.
fn errno(error: &StoreError) -> Errno {
    match error {
        StoreError::Invalid(_) => Errno::Inval,
        StoreError::ReadOnly => Errno::Perm,
        StoreError::NoSpace | StoreError::Device(DeviceError::NoSpace { .. }) => Errno::NoSpace,
        _ => Errno::Io,
    }
}

/// Why a request failed.
struct Failure(Errno, String);

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure(errno(&error), error.to_string())
    }
}

/// Runs a request that [`crate::protocol::Limits::check`] has accepted.
pub(crate) async fn execute(
    volume: &dyn Volume,
    request: Request,
    payload: Vec<Bytes>,
    structured: bool,
) -> Answer {
    let result = call(volume, request, payload, structured).await;
    result.unwrap_or_else(|Failure(errno, text)| {
        tracing::debug!(%text, ?request, "request failed");
        Answer::Error(errno, text)
    })
}

async fn call(
    volume: &dyn Volume,
    request: Request,
    payload: Vec<Bytes>,
    structured: bool,
) -> Result<Answer, Failure> {
    let offset = request.offset;
    let len = u64::from(request.len);
    let fua = request.has(command_flag::FUA);
    match request.command {
        Command::Read => return read(volume, request, structured).await.map(Answer::Data),
        Command::Write => volume.write_vectored(offset, payload, fua).await?,
        Command::Flush => volume.flush().await?,
        Command::Trim => volume.trim(offset, len, fua).await?,
        Command::WriteZeroes => {
            let keep = request.has(command_flag::NO_HOLE);
            volume.write_zeroes(offset, len, keep, fua).await?;
        }
        Command::Cache => cache(volume, offset, len).await?,
        Command::BlockStatus => return block_status(volume, request).await.map(Answer::Extents),
        // Neither comes here: one ends the session, and the other is refused on arrival.
        Command::Disconnect | Command::Unknown(_) => {
            return Err(Failure(Errno::Inval, "no such command".to_owned()));
        }
    }
    Ok(Answer::Done)
}

async fn read(
    volume: &dyn Volume,
    request: Request,
    structured: bool,
) -> Result<Vec<Piece>, Failure> {
    let Request { offset, len, .. } = request;
    let may_split = structured && !request.has(command_flag::DF) && len >= HOLE_SCAN;
    if !may_split {
        return Ok(vec![read_piece(volume, offset, len).await?]);
    }
    let extents = merge(volume.extents(offset, u64::from(len)).await?, u64::from(len));
    let whole = extents.iter().map(|(len, _)| u64::from(*len)).sum::<u64>() == u64::from(len);
    if !whole || extents.len() > MAX_PIECES {
        return Ok(vec![read_piece(volume, offset, len).await?]);
    }
    let mut pieces = Vec::with_capacity(extents.len());
    let mut at = offset;
    for (len, stored) in extents {
        pieces.push(match stored {
            true => read_piece(volume, at, len).await?,
            false => Piece::Hole { offset: at, len },
        });
        at += u64::from(len);
    }
    Ok(pieces)
}

async fn read_piece(volume: &dyn Volume, offset: u64, len: u32) -> Result<Piece, Failure> {
    let buffers = volume.read(offset, len as usize).await?;
    // The header announces `len` bytes; fewer or more would put the stream out of step.
    let count: usize = buffers.iter().map(Bytes::len).sum();
    if count != len as usize {
        let detail = format!("the volume returned {count} bytes instead of {len} at {offset}");
        return Err(Failure(Errno::Io, detail));
    }
    Ok(Piece::Data { offset, len, buffers })
}

async fn cache(volume: &dyn Volume, offset: u64, len: u64) -> Result<(), StoreError> {
    let end = offset + len;
    let mut at = offset;
    while at < end {
        let step = CACHE_STEP.min(end - at);
        volume.read(at, step as usize).await?;
        at += step;
    }
    Ok(())
}

async fn block_status(volume: &dyn Volume, request: Request) -> Result<Vec<(u32, bool)>, Failure> {
    let end = request.offset + u64::from(request.len);
    let wanted = if request.has(command_flag::REQ_ONE) { 1 } else { MAX_EXTENTS };
    let mut found: Vec<(u32, bool)> = Vec::new();
    let mut at = request.offset;
    // One run more than wanted shows that the last wanted one has ended.
    while at < end && found.len() <= wanted {
        let window = STATUS_WINDOW.min(end - at);
        let extents = merge(volume.extents(at, window).await?, window);
        if extents.is_empty() {
            break;
        }
        for (len, stored) in extents {
            at += u64::from(len);
            push_merged(&mut found, len, stored);
        }
    }
    found.truncate(wanted);
    if found.is_empty() {
        return Err(Failure(Errno::Io, "the volume knows no extents there".to_owned()));
    }
    Ok(found)
}

/// Runs with neighbours of one kind merged, empty ones left out, and cut at `limit` bytes.
fn merge(extents: Vec<Extent>, limit: u64) -> Vec<(u32, bool)> {
    let mut merged = Vec::new();
    let mut left = limit;
    for extent in extents {
        let len = extent.len.min(left);
        left -= len;
        // `limit` comes from a 32-bit length.
        push_merged(&mut merged, len as u32, extent.stored);
    }
    merged
}

fn push_merged(runs: &mut Vec<(u32, bool)>, len: u32, stored: bool) {
    match runs.last_mut() {
        _ if len == 0 => {}
        Some((last, kind)) if *kind == stored => *last += len,
        _ => runs.push((len, stored)),
    }
}
