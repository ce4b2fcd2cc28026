//! Calls about bytes of files, and reads past the server.

use bytes::Bytes;
use thalweg_fs::mutation::MutationKind;
use thalweg_fs::{Attributes, FsError, Ino, Kind, Statistics, WriteAt, WriteHow};

use super::delegation::MAX_WRITE;
use super::error::{expect_answer, unexpected};
use super::inode_changes::Step;
use super::inodes::Node;
use super::journaling::SpilledRecords;
use super::overlay::{OwnStep, lay};
use super::partial_pages::PageRead;
use super::stages::Stages;
use crate::protocol::{Answer, MAX_PAYLOAD, Reply, Request};

/// Cuts buffers where a write ends that begins at `start`: at multiples of `most` bytes, so that aligned writes stay whole.
fn cut(start: u64, data: Vec<Bytes>, most: usize) -> Vec<Vec<Bytes>> {
    let (mut pieces, mut piece, mut at) = (Vec::new(), Vec::new(), start);
    for mut buffer in data {
        while !buffer.is_empty() {
            let room = most as u64 - at % most as u64;
            let some = buffer.split_to((buffer.len() as u64).min(room) as usize);
            at += some.len() as u64;
            piece.push(some);
            if at.is_multiple_of(most as u64) {
                pieces.push(std::mem::take(&mut piece));
            }
        }
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

/// Reads bytes of a file; with `pages`, for the caller's cache. The server has to know of that before.
pub(super) async fn read(
    stages: &Stages,
    ino: Ino,
    offset: u64,
    len: usize,
    pages: bool,
) -> Result<Vec<Bytes>, FsError> {
    let inodes = &stages.base.inodes;
    let is_due = match stages.base.cache.read_partial_pages(ino, offset, len, pages) {
        PageRead::Found(read) => return Ok(vec![read]),
        PageRead::Due => true,
        PageRead::Missing => false,
    };
    let is_known = !pages || inodes.is(ino, |node| node.cached.content);
    if is_known
        && !is_due
        && let Some(read) = read_directly(stages, ino, offset, len).await
    {
        return Ok(read);
    }
    let request = Request::Read { ino, offset, len: 0, pages };
    // Before batches are kept from being sent: that may send some.
    stages.open_files.notify_before(&request).await?;
    if let Some(read) = read_own(stages, ino, offset, len, pages).await? {
        return Ok(read);
    }
    stages.writeback.send_before(&request).await?;
    read_from_server(stages, ino, offset, len, pages).await
}

/// Reads bytes of a file that is this client's own: what it has made of them by itself lies over what the server has, which gets
/// none of it for that. `None` if it has made nothing, or that cannot be told without the server.
async fn read_own(
    stages: &Stages,
    ino: Ino,
    offset: u64,
    len: usize,
    pages: bool,
) -> Result<Option<Vec<Bytes>>, FsError> {
    let base = &stages.base;
    let is_own =
        |node: &mut Node| node.delegation.unsent() > 0 && node.delegation.grant().is_some();
    if len == 0 || !base.inodes.is(ino, is_own) {
        return Ok(None);
    }
    // The server has the same of the file until it is read.
    let _turn = stages.writeback.hold().await;
    let size = base.inodes.with(ino, |node| {
        let is_file = |it: &Attributes| it.kind == Kind::File;
        node.cached.attributes.filter(|it| is_own(node) && is_file(it)).map(|it| it.size)
    });
    let Some(size) = size.flatten().filter(|_| base.session.is_leased()) else { return Ok(None) };
    let Some(own) = base.queue.steps_of(ino) else { return Ok(None) };
    // Of pages of a file that was opened without the server, that is told before another client may change them.
    let is_cached = |node: &mut Node| node.cached.content || node.cached.cached_under_delegation;
    let is_known = !pages || base.inodes.is(ino, is_cached);
    if own.is_made && !is_known {
        // The server is to know of the pages first.
        return Ok(None);
    }
    let end = offset.saturating_add(len as u64).min(size);
    if offset >= end {
        return Ok(Some(Vec::new()));
    }
    let len = (end - offset) as usize;
    // Then it needs no server, which may be away.
    let is_all_here = own.is_made || is_known && own.cover(&(offset..end));
    let mut bytes = match is_all_here {
        true => Vec::with_capacity(len),
        false => read_from_server(stages, ino, offset, len, pages).await?.concat(),
    };
    bytes.resize(len, 0);
    let mut spilled = SpilledRecords::new(base);
    for step in own.steps {
        let step = match step {
            OwnStep::Here(step) => step,
            OwnStep::Spilled { offset: at, len, .. } if at >= end || at + len <= offset => continue,
            OwnStep::Spilled { offset: at, number, place, .. } => {
                match spilled.get(number, place).await?.map(|it| &it.kind) {
                    Some(MutationKind::Write { data, .. }) => Step::Write(at, data.clone()),
                    _ => return Ok(None),
                }
            }
        };
        lay(&step, offset, &mut bytes);
    }
    Ok(Some(vec![bytes.into()]))
}

async fn read_from_server(
    stages: &Stages,
    ino: Ino,
    offset: u64,
    len: usize,
    pages: bool,
) -> Result<Vec<Bytes>, FsError> {
    let inodes = stages.base.inodes.clone();
    let then = move |reply: &Reply, _: &Bytes| {
        if pages && reply.answer == Answer::Bytes {
            inodes.with_new(ino, |node| node.cached.content = true);
        }
    };
    let mut read = Vec::new();
    let mut done = 0;
    // A read of no bytes needs a call too: it may fail.
    loop {
        let some = (len - done).min(MAX_PAYLOAD);
        let Some(offset) = offset.checked_add(done as u64) else { break };
        assert!(u32::try_from(some).is_ok(), "a payload is smaller than 4 GiB");
        let request = Request::Read { ino, offset, len: some as u32, pages };
        let (reply, bytes) = stages.rpc.call(request, Vec::new(), then.clone()).await?;
        if reply.answer != Answer::Bytes {
            return unexpected();
        }
        done += bytes.len();
        let is_end = bytes.len() < some || done >= len;
        if !bytes.is_empty() {
            read.push(bytes);
        }
        if is_end {
            break;
        }
    }
    Ok(read)
}

/// Reads bytes of a file past the server, if its attributes are known before and after that: nothing of the file has
/// changed in between.
async fn read_directly(stages: &Stages, ino: Ino, offset: u64, len: usize) -> Option<Vec<Bytes>> {
    let reached = stages.direct_io.contents().filter(|_| len > 0)?;
    if stages.base.inodes.is_unsent(ino) {
        stages.writeback.send_all().await.ok()?;
    }
    let before = stages.base.cache.before_read(ino)?;
    let end = offset.saturating_add(len as u64).min(before.size);
    if offset >= end {
        return Some(Vec::new());
    }
    assert!(end - offset <= len as u64, "more is read than was asked for");
    let read = reached.contents.read(ino, offset, (end - offset) as usize).await;
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) => {
            tracing::debug!(%error, "contents of a file could not be read from here");
            return None;
        }
    };
    let is_same = stages.base.cache.steady(ino) == Some(before);
    is_same.then(|| vec![bytes])
}

/// Changes bytes of a file by a call.
pub(super) async fn change(
    stages: &Stages,
    ino: Ino,
    request: Request,
    payload: Vec<Bytes>,
) -> Result<Answer, FsError> {
    // While the change is under way, the bytes of mutations would go to the server, too.
    stages.writeback.send_before(&request).await?;
    let begin = || {
        stages.base.bounds.stored_by_server(ino, stages.base.now());
        // Where it has holes is not known any more.
        stages.base.inodes.with(ino, |node| node.delegation.is_dense = false);
    };
    Ok(stages.change(request, payload, begin, |_| {}).await?.answer)
}

/// How full the filesystem is with what this client has made by itself.
pub(super) async fn statistics(stages: &Stages) -> Result<Statistics, FsError> {
    // Before the server looks: what it gets meanwhile counts twice, and nothing is left out.
    let blocks = stages.base.queue.growth_blocks();
    let inodes = stages.base.room.charged().inodes;
    let (answer, _) = stages.request(Request::Statistics).await?;
    let found = expect_answer!(answer, Answer::Statistics(found) => found)?;
    let (used, most) = found.inodes;
    Ok(Statistics {
        free: found.free.saturating_sub(blocks),
        inodes: (most.min(used.saturating_add(inodes)), most),
        ..found
    })
}

pub(super) async fn change_for_number(
    stages: &Stages,
    ino: Ino,
    request: Request,
    payload: Vec<Bytes>,
) -> Result<u64, FsError> {
    let answer = change(stages, ino, request, payload).await?;
    expect_answer!(answer, Answer::Number(number) => number)
}

pub(super) async fn write(
    stages: &Stages,
    ino: Ino,
    at: WriteAt,
    data: Vec<Bytes>,
    how: WriteHow,
) -> Result<u64, FsError> {
    let start = match at {
        WriteAt::Offset(offset) => offset,
        WriteAt::End => 0,
    };
    let (mut went, mut next) = (None, at);
    let whole = data.iter().map(Bytes::len).sum::<usize>();
    let is_direct = stages.is_direct(whole);
    let is_cut = whole > MAX_WRITE && !is_direct && stages.base.inodes.has_delegation(ino);
    let mut pieces = cut(start, data, if is_cut { MAX_WRITE } else { MAX_PAYLOAD });
    if pieces.is_empty() {
        pieces.push(Vec::new());
    }
    for piece in pieces {
        let len: usize = piece.iter().map(Bytes::len).sum();
        let write = || stages.write_now(ino, next, &piece, how);
        let local = if is_direct { None } else { stages.change_locally(ino, write).await? };
        let offset = match local {
            Some(offset) => {
                stages.writeback.throttle().await?;
                offset
            }
            None => {
                let request = Request::Write { ino, at: next, how };
                change_for_number(stages, ino, request, piece).await?
            }
        };
        went.get_or_insert(offset);
        next = WriteAt::Offset(offset + len as u64);
    }
    if is_direct {
        // The next small change of a file of the client's own is to need no server.
        stages.complete_attributes(ino).await?;
    }
    Ok(went.unwrap_or(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_cut_at_multiples_of_a_payload() {
        let most = MAX_PAYLOAD as u64;
        let lens = |start, data: &[usize]| -> Vec<usize> {
            let data = data.iter().map(|len| Bytes::from(vec![1; *len])).collect();
            cut(start, data, MAX_PAYLOAD)
                .iter()
                .map(|piece| piece.iter().map(Bytes::len).sum())
                .collect()
        };
        assert_eq!(lens(0, &[]), Vec::<usize>::new());
        assert_eq!(lens(7, &[5, 6]), [11]);
        assert_eq!(lens(most - 4, &[3, 3]), [4, 2]);
        assert_eq!(lens(0, &[2 * MAX_PAYLOAD]), [MAX_PAYLOAD, MAX_PAYLOAD]);
    }
}
