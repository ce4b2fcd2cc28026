//! Ranges of bytes on objects of one size, under a fence.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use thalweg_store::device::AlignedBuf;

use crate::ObjectError;
use crate::fence::Fence;
use crate::format::{data_name, stripe_name};
use crate::object::{ObjectStore, Step};

/// Maximum number of objects that one request works on at once.
pub(crate) const AT_ONCE: usize = 64;

/// The names of objects by their numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Names<'a> {
    /// Data objects of an image.
    Image(&'a str),
    /// Stripes of a file.
    File {
        /// First part of the names.
        prefix: &'a str,
        /// The file's inode.
        inode: u64,
    },
}

impl Names<'_> {
    fn of(self, number: u64) -> String {
        match self {
            Names::Image(image) => data_name(image, number),
            Names::File { prefix, inode } => stripe_name(prefix, inode, number),
        }
    }
}

/// Objects of one size, one after the other.
pub(crate) struct Striped<'a> {
    pub(crate) store: &'a dyn ObjectStore,
    pub(crate) fence: &'a Fence,
    /// Bytes of an object.
    pub(crate) unit: u64,
    pub(crate) names: Names<'a>,
}

impl Striped<'_> {
    /// Writes buffer after buffer at `offset`.
    pub(crate) async fn write(&self, offset: u64, data: &[Bytes]) -> Result<(), ObjectError> {
        let len = data.iter().map(|buffer| buffer.len() as u64).sum();
        let requests = parts(self.unit, offset, len).map(|part| async move {
            let data = slice(data, part.start, part.len);
            self.write_one(part.object, &[Step::Write { offset: part.offset, data }], false).await
        });
        each(requests).await
    }

    /// Makes writes in their order, each an offset and buffers: those to one object in one change. Objects that begin at
    /// `absent_from` or behind are thought to be absent.
    pub(crate) async fn write_all(
        &self,
        writes: &[(u64, Vec<Bytes>)],
        absent_from: u64,
    ) -> Result<(), ObjectError> {
        let mut objects = BTreeMap::<u64, Vec<Step>>::new();
        for (offset, data) in writes {
            let len = data.iter().map(|buffer| buffer.len() as u64).sum();
            for part in parts(self.unit, *offset, len) {
                let data = slice(data, part.start, part.len);
                objects
                    .entry(part.object)
                    .or_default()
                    .push(Step::Write { offset: part.offset, data });
            }
        }
        let requests = objects.into_iter().map(|(object, steps)| async move {
            let absent = object.saturating_mul(self.unit) >= absent_from;
            self.write_one(object, &steps, absent).await
        });
        each(requests).await
    }

    /// Changes one object by `steps`, and makes it if it is absent, as it is thought to be or not.
    async fn write_one(
        &self,
        object: u64,
        steps: &[Step],
        absent: bool,
    ) -> Result<(), ObjectError> {
        // The fence keeps the numbers of an image, of which there are not too many.
        let number = matches!(self.names, Names::Image(_)).then_some(object);
        self.fence.write(self.store, &self.names.of(object), (number, absent), steps).await
    }

    /// Makes writes in their order, each an offset and buffers. The part for the object `last`, behind which nothing goes, is
    /// written together with the `other` step, after the rest.
    pub(crate) async fn write_with(
        &self,
        writes: &[(u64, Vec<Bytes>)],
        (last, other): (u64, Step),
    ) -> Result<(), ObjectError> {
        let start = last.saturating_mul(self.unit);
        let mut steps = Vec::new();
        for (offset, data) in writes {
            let len: usize = data.iter().map(Bytes::len).sum();
            let before = usize::try_from(start.saturating_sub(*offset)).unwrap_or(len).min(len);
            if before > 0 {
                self.write(*offset, &slice(data, 0, before)).await?;
            }
            if before < len {
                let offset = offset + before as u64 - start;
                steps.push(Step::Write { offset, data: slice(data, before, len - before) });
            }
        }
        steps.push(other);
        self.write_one(last, &steps, false).await
    }

    /// The `len` bytes at `offset`; absent ones are zeros.
    pub(crate) async fn read(&self, offset: u64, len: usize) -> Result<Bytes, ObjectError> {
        let mut reads = stream::iter(parts(self.unit, offset, len as u64))
            .map(|part| async move { (part.start, self.read_part(part).await) })
            .buffer_unordered(AT_ONCE);
        let mut whole = None;
        while let Some((start, bytes)) = reads.next().await {
            let bytes = bytes?;
            if bytes.len() == len {
                return Ok(bytes);
            }
            let whole = whole.get_or_insert_with(|| AlignedBuf::zeroed(len));
            whole[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(whole.map_or_else(Bytes::new, AlignedBuf::freeze))
    }

    /// The bytes of a part; fewer where the object ends.
    async fn read_part(&self, part: Part) -> Result<Bytes, ObjectError> {
        self.fence.admit()?;
        let read = self.store.read(&self.names.of(part.object), part.offset, part.len).await;
        match self.fence.learn(read) {
            Err(ObjectError::NotFound { .. }) => Ok(Bytes::new()),
            outcome => outcome,
        }
    }

    /// Makes a range read as zeros: removes whole objects.
    pub(crate) async fn discard(&self, offset: u64, len: u64) -> Result<(), ObjectError> {
        let requests = parts(self.unit, offset, len).map(|part| async move {
            let step = match part.len as u64 == self.unit {
                true => Step::Remove,
                false => Step::Zero { offset: part.offset, len: part.len as u64 },
            };
            self.change_present(part.object, &[step]).await
        });
        each(requests).await
    }

    /// Changes one object by `steps` if it is present.
    pub(crate) async fn change_present(
        &self,
        number: u64,
        steps: &[Step],
    ) -> Result<(), ObjectError> {
        self.fence.change_present(self.store, &self.names.of(number), steps).await
    }

    /// An attribute of one object: nothing if it has none; `None` if there is no such object.
    pub(crate) async fn attribute(
        &self,
        number: u64,
        attribute: &'static str,
    ) -> Result<Option<Bytes>, ObjectError> {
        self.fence.admit()?;
        let found = self.store.attribute(&self.names.of(number), attribute).await;
        match self.fence.learn(found) {
            Ok(value) => Ok(Some(value.unwrap_or_default())),
            Err(ObjectError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for the changes that were started before.
    pub(crate) async fn settle(&self) -> Result<(), ObjectError> {
        self.fence.learn(self.store.settle().await)
    }
}

/// Awaits all requests, some at once, whether one fails or not; returns the error of one that failed.
pub(crate) async fn each<F>(requests: impl Iterator<Item = F>) -> Result<(), ObjectError>
where
    F: Future<Output = Result<(), ObjectError>>,
{
    let outcomes = stream::iter(requests).buffer_unordered(AT_ONCE);
    outcomes.fold(Ok(()), |first, outcome| async move { first.and(outcome) }).await
}

/// The part of a request that one object serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// The object's number.
    object: u64,
    /// First byte in the object.
    offset: u64,
    /// First byte in the request.
    start: usize,
    /// Length in bytes.
    len: usize,
}

/// The parts of `[offset, offset + len)` on objects of `object_size` bytes, in order.
fn parts(object_size: u64, offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done;
        let inside = at % object_size;
        let take = (object_size - inside).min(len - done);
        if take == 0 {
            return None;
        }
        let part = Part {
            object: at / object_size,
            offset: inside,
            start: usize::try_from(done).unwrap_or(usize::MAX),
            len: usize::try_from(take).unwrap_or(usize::MAX),
        };
        done += take;
        Some(part)
    })
}

/// The buffers of `[start, start + len)` of a gathered write; copies nothing.
fn slice(data: &[Bytes], start: usize, len: usize) -> Vec<Bytes> {
    let (mut skip, mut left) = (start, len);
    let mut slices = Vec::new();
    for buffer in data {
        let first = skip.min(buffer.len());
        let take = left.min(buffer.len() - first);
        skip -= first;
        left -= take;
        if take > 0 {
            slices.push(buffer.slice(first..first + take));
        }
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_cut_at_the_ends_of_objects() {
        let all: Vec<Part> = parts(100, 150, 200).collect();
        let part = |object, offset, start, len| Part { object, offset, start, len };
        assert_eq!(all, [part(1, 50, 0, 50), part(2, 0, 50, 100), part(3, 0, 150, 50)]);
        assert_eq!(parts(100, 150, 0).count(), 0);
    }

    #[test]
    fn a_slice_of_buffers_has_the_bytes_between() {
        let data = [Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"defgh")];
        for start in 0..8 {
            for len in 0..=8 - start {
                let joined = slice(&data, start, len).concat();
                assert_eq!(joined, b"abcdefgh"[start..start + len]);
            }
        }
    }
}
