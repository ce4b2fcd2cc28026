//! Mutations as a record has them with `data=data`: the pages that writes touch, as a whole (as in Arion's paper).
//!
//! Writes of a record share a page unless they overlap: then the later one begins it anew, so that each has the bytes that it has written, and a batch may
//! end between them. The rest of a page is not known here, and is zeros, which nothing reads.
//!
//! ```text
//! runs     as in other records, without bytes of files
//! writes   of each write: how many bytes it has, and its pages by their numbers here
//! pages    each of 4 KiB
//! ```

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_env::HashMap;
use thalweg_fs::Ino;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::ranges::Ranges;

use super::journal_runs::{JournaledMutation, Run};

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;

/// Where the bytes of a write are.
#[derive(Serialize, Deserialize)]
struct PagedWrite {
    len: u32,
    pages: Vec<u32>,
}

/// The pages of a range: of each its number in the file, and the bytes of the range there.
fn pages_of(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let end = offset + len as u64;
    let first = if len == 0 { end.div_ceil(PAGE) } else { offset / PAGE };
    (first..end.div_ceil(PAGE)).map(move |page| {
        let start = page * PAGE;
        let from = offset.max(start) - start;
        (page, from as usize..(end - start).min(PAGE) as usize)
    })
}

/// How many bytes pages take that a range touches.
pub(super) fn paged_bytes(offset: u64, len: usize) -> usize {
    pages_of(offset, len).count() * PAGE as usize
}

/// The last image of a page.
struct Image {
    number: u32,
    /// What writes have of it.
    written: Ranges,
}

/// Pages of a record.
#[derive(Default)]
struct Pages {
    images: HashMap<(Ino, u64), Image>,
    bytes: Vec<u8>,
}

impl Pages {
    fn put(&mut self, ino: Ino, offset: u64, data: &[u8]) -> PagedWrite {
        let (mut pages, mut rest) = (Vec::new(), data);
        for (page, range) in pages_of(offset, data.len()) {
            let (some, others) = rest.split_at(range.len());
            rest = others;
            let number = self.image(ino, page, range.start as u64..range.end as u64);
            let at = number as usize * PAGE as usize;
            self.bytes[at..][range].copy_from_slice(some);
            pages.push(number);
        }
        let len = u32::try_from(data.len()).expect("a write is no longer than a message");
        PagedWrite { len, pages }
    }

    /// The number of an image of this page where nothing is written in a range, which gets that.
    fn image(&mut self, ino: Ino, page: u64, range: std::ops::Range<u64>) -> u32 {
        let bytes = range.end - range.start;
        if let Some(image) = self.images.get_mut(&(ino, page)) {
            let mut written = image.written.clone();
            if written.add(range.clone()) == bytes {
                image.written = written;
                return image.number;
            }
        }
        let number = (self.bytes.len() / PAGE as usize) as u32;
        self.bytes.resize(self.bytes.len() + PAGE as usize, 0);
        let image = Image { number, written: Ranges::from_iter([range]) };
        self.images.insert((ino, page), image);
        number
    }
}

/// These runs, with pages for the bytes of files.
pub(super) fn encode(runs: &[Run]) -> Vec<u8> {
    let (mut pages, mut writes) = (Pages::default(), Vec::new());
    let mut without = |it: &JournaledMutation| match &it.mutation.kind {
        MutationKind::Write { ino, offset, data, clear_suid } => {
            writes.push(pages.put(*ino, *offset, data));
            let (ino, offset, clear_suid) = (*ino, *offset, *clear_suid);
            let kind = MutationKind::Write { ino, offset, data: Bytes::new(), clear_suid };
            let mutation = Mutation { time: it.mutation.time, kind };
            JournaledMutation { mutation, ..*it }
        }
        _ => it.clone(),
    };
    let runs: Vec<Run> = runs
        .iter()
        .map(|run| Run {
            user: run.user.clone(),
            mutations: run.mutations.iter().map(&mut without).collect(),
        })
        .collect();
    let head = postcard::to_allocvec(&(runs, writes)).expect("memory takes any mutation");
    [head, pages.bytes].concat()
}

/// The runs of a record; `None` for one that no client has written.
pub(super) fn decode(body: &Bytes) -> Option<Vec<Run>> {
    let ((mut runs, writes), rest): ((Vec<Run>, Vec<PagedWrite>), _) =
        postcard::take_from_bytes(body).ok()?;
    let pages = body.slice_ref(rest);
    if !pages.len().is_multiple_of(PAGE as usize) {
        return None;
    }
    let mut writes = writes.into_iter();
    for it in runs.iter_mut().flat_map(|run| &mut run.mutations) {
        if let MutationKind::Write { offset, data, .. } = &mut it.mutation.kind {
            if !data.is_empty() {
                return None;
            }
            *data = bytes_of(*offset, &writes.next()?, &pages)?;
        }
    }
    writes.next().is_none().then_some(runs)
}

fn bytes_of(offset: u64, write: &PagedWrite, pages: &Bytes) -> Option<Bytes> {
    let len = write.len as usize;
    offset.checked_add(u64::from(write.len))?;
    if pages_of(offset, len).count() != write.pages.len() {
        return None;
    }
    let mut parts = Vec::with_capacity(write.pages.len());
    for (number, (_, range)) in write.pages.iter().zip(pages_of(offset, len)) {
        let start = (*number as usize).checked_mul(PAGE as usize)?;
        let range = start.checked_add(range.start)?..start.checked_add(range.end)?;
        if range.end > pages.len() {
            return None;
        }
        parts.push(range);
    }
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
        return Some(Bytes::new());
    };
    // Most are one string of bytes.
    if parts.windows(2).all(|two| two[0].end == two[1].start) {
        return Some(pages.slice(first.start..last.end));
    }
    Some(parts.into_iter().flat_map(|it| pages.slice(it)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thalweg_fs::Timestamp;

    use super::*;

    fn run(writes: &[(u64, u64, Vec<u8>)]) -> Vec<Run> {
        let mutations = writes.iter().map(|(ino, offset, data)| {
            let (ino, offset, data) = (Ino(*ino), *offset, data.clone().into());
            let kind = MutationKind::Write { ino, offset, data, clear_suid: false };
            let mutation = Mutation { time: Timestamp::default(), kind };
            JournaledMutation { mutation, blocks: 1, quota: 0 }
        });
        vec![Run { user: None, mutations: mutations.collect() }]
    }

    fn pages_in(runs: &[Run]) -> usize {
        let body = Bytes::from(encode(runs));
        assert_eq!(decode(&body).as_deref(), Some(runs));
        let ((..), rest): ((Vec<Run>, Vec<PagedWrite>), &[u8]) =
            postcard::take_from_bytes(&body).unwrap();
        rest.len() / PAGE as usize
    }

    #[test]
    fn writes_of_a_page_share_it_unless_they_overlap() {
        let part = |offset: u64, len: usize| (1, offset, vec![offset as u8 + 1; len]);
        assert_eq!(pages_in(&run(&[])), 0);
        assert_eq!(pages_in(&run(&[part(0, 128), part(128, 128), part(4000, 96)])), 1);
        assert_eq!(pages_in(&run(&[part(4000, 200), part(0, 1)])), 2);
        assert_eq!(pages_in(&run(&[part(0, 128), part(127, 128), part(500, 1), part(200, 9)])), 3);
        assert_eq!(pages_in(&run(&[part(0, 128), (2, 0, vec![7; 4096])])), 2);
        assert_eq!(pages_in(&run(&[part(100, 3 * 4096)])), 4);
        assert_eq!([paged_bytes(4095, 2), paged_bytes(4096, 4096)], [8192, 4096]);
    }

    proptest! {
        #[test]
        fn what_was_written_is_decoded(
            writes in prop::collection::vec(
                (1..3_u64, 0..20_000_u64, prop::collection::vec(any::<u8>(), 0..9000)),
                0..12,
            ),
        ) {
            let runs = run(&writes);
            prop_assert_eq!(decode(&Bytes::from(encode(&runs))), Some(runs));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(body: Vec<u8>, at: usize, byte: u8) {
            let _ = decode(&body.into());
            let mut encoded = encode(&run(&[(1, 5000, vec![3; 9000]), (1, 9, vec![4; 90])]));
            let at = at % 64;
            encoded[at] = byte;
            let _ = decode(&encoded.into());
        }
    }
}
