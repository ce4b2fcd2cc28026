//! A disk's volatile write cache: acknowledged writes that are not on the medium.

use std::collections::BTreeMap;

use bytes::Bytes;
use thalweg_store::device::Purpose;

/// A run of bytes to be written.
#[derive(Clone, Debug)]
pub(super) struct Dirty {
    pub(super) data: Bytes,
    pub(super) purpose: Purpose,
    /// The oldest write whose durability depends on this run.
    seq: u64,
    /// Distinguishes the run from a later one at the same offset.
    id: u64,
}

/// A run that the arm is writing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Destaging {
    pub(super) offset: u64,
    seq: u64,
    id: u64,
}

/// Runs that do not overlap, by offset. A later write replaces the bytes that it covers.
#[derive(Debug, Default)]
pub(super) struct WriteCache {
    runs: BTreeMap<u64, Dirty>,
    bytes: u64,
    /// Number of separate ranges: runs that touch count as one.
    segments: usize,
    /// Number of runs with each `seq`.
    seqs: BTreeMap<u64, usize>,
    destaging: Option<Destaging>,
    next_seq: u64,
    next_id: u64,
}

impl WriteCache {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of separate ranges of the disk in the cache.
    pub(super) fn segments(&self) -> usize {
        self.segments
    }

    /// Whether a write extends a range, or adds one without exceeding `most`.
    pub(super) fn has_segment(&self, offset: u64, len: u64, most: usize) -> bool {
        self.segments < most
            || self.ends_at(offset)
            || self.runs.contains_key(&(offset + len))
            || !self.overlapping(offset, len).is_empty()
    }

    /// Whether a run ends at `offset`.
    fn ends_at(&self, offset: u64) -> bool {
        let before = self.runs.range(..offset).next_back();
        before.is_some_and(|(start, run)| start + run.data.len() as u64 == offset)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The number of the newest write.
    pub(super) fn newest(&self) -> u64 {
        self.next_seq
    }

    /// Whether every byte of the writes up to `seq` is on the medium.
    pub(super) fn is_durable(&self, seq: u64) -> bool {
        let waiting = self.seqs.first_key_value().is_some_and(|(oldest, _)| *oldest <= seq);
        !waiting && self.destaging.is_none_or(|run| run.seq > seq)
    }

    /// Adds a write. Where it covers a part of an older write that a pending flush covers, that part
    /// must be durable or superseded before the flush returns: the covering bytes inherit the older
    /// number, unless the arm is already writing the older bytes.
    pub(super) fn insert(&mut self, offset: u64, data: &[Bytes], purpose: Purpose) {
        self.next_seq += 1;
        let mut at = offset;
        for buffer in data.iter().filter(|buffer| !buffer.is_empty()) {
            let replaced = self.remove(at, buffer.len() as u64);
            let seq = replaced.unwrap_or(self.next_seq).min(self.next_seq);
            self.put(at, Dirty { data: buffer.clone(), purpose, seq, id: 0 });
            at += buffer.len() as u64;
        }
    }

    fn put(&mut self, offset: u64, mut run: Dirty) {
        self.next_id += 1;
        run.id = self.next_id;
        self.bytes += run.data.len() as u64;
        let end = offset + run.data.len() as u64;
        self.segments += usize::from(!self.ends_at(offset));
        self.segments -= usize::from(self.runs.contains_key(&end));
        *self.seqs.entry(run.seq).or_default() += 1;
        self.runs.insert(offset, run);
    }

    fn take(&mut self, offset: u64) -> Option<Dirty> {
        let run = self.runs.remove(&offset)?;
        self.bytes -= run.data.len() as u64;
        let end = offset + run.data.len() as u64;
        self.segments += usize::from(self.runs.contains_key(&end));
        self.segments -= usize::from(!self.ends_at(offset));
        if let Some(count) = self.seqs.get_mut(&run.seq) {
            *count -= 1;
            if *count == 0 {
                self.seqs.remove(&run.seq);
            }
        }
        Some(run)
    }

    /// The offsets of the runs that overlap `len` bytes at `offset`.
    fn overlapping(&self, offset: u64, len: u64) -> Vec<u64> {
        let before = self.runs.range(..offset).next_back();
        let reaching = before.filter(|(start, run)| *start + run.data.len() as u64 > offset);
        let inside = self.runs.range(offset..offset.saturating_add(len));
        reaching.into_iter().chain(inside).map(|(start, _)| *start).collect()
    }

    /// Drops `len` cached bytes at `offset`. Returns the oldest number among them, apart from the run
    /// under writeback.
    pub(super) fn remove(&mut self, offset: u64, len: u64) -> Option<u64> {
        let end = offset + len;
        let mut oldest = None;
        for start in self.overlapping(offset, len) {
            let Some(run) = self.take(start) else { continue };
            if self.destaging.is_none_or(|destaging| destaging.id != run.id) {
                oldest = Some(oldest.unwrap_or(run.seq).min(run.seq));
            }
            let run_end = start + run.data.len() as u64;
            if start < offset {
                let data = run.data.slice(..(offset - start) as usize);
                self.put(start, Dirty { data, ..run.clone() });
            }
            if run_end > end {
                let data = run.data.slice((end - start) as usize..);
                self.put(end, Dirty { data, ..run });
            }
        }
        oldest
    }

    /// Copies the cached bytes of the range at `offset` over `into`. Returns whether they were all of it.
    pub(super) fn overlay(&self, offset: u64, into: &mut [u8]) -> bool {
        let end = offset + into.len() as u64;
        let mut covered = 0;
        for start in self.overlapping(offset, into.len() as u64) {
            let data = &self.runs[&start].data;
            let (from, to) = (start.max(offset), (start + data.len() as u64).min(end));
            let source = &data[(from - start) as usize..(to - start) as usize];
            into[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            covered += to - from;
        }
        covered == into.len() as u64
    }

    /// The next run for an arm that sweeps upwards; after the highest run, the lowest.
    pub(super) fn next_after(&self, head: u64) -> Option<(u64, &Dirty)> {
        let ahead = self.runs.range(head..).next();
        ahead.or_else(|| self.runs.first_key_value()).map(|(offset, run)| (*offset, run))
    }

    /// Starts writeback of the run at `offset`, and returns its bytes.
    pub(super) fn begin(&mut self, offset: u64) -> Option<Bytes> {
        let run = self.runs.get(&offset)?;
        self.destaging = Some(Destaging { offset, seq: run.seq, id: run.id });
        Some(run.data.clone())
    }

    /// Ends the writeback: the run is on the medium.
    pub(super) fn end(&mut self) {
        let Some(done) = self.destaging.take() else { return };
        if self.runs.get(&done.offset).is_some_and(|run| run.id == done.id) {
            self.take(done.offset);
        }
    }

    /// Drops everything, as a power cut does.
    pub(super) fn clear(&mut self) {
        let (next_seq, next_id) = (self.next_seq, self.next_id);
        *self = WriteCache { next_seq, next_id, ..WriteCache::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(byte: u8, len: usize) -> Bytes {
        Bytes::from(vec![byte; len])
    }

    #[test]
    fn the_newest_bytes_win_and_parts_remain() {
        let mut cache = WriteCache::default();
        cache.insert(0, &[buffer(1, 10)], Purpose::Map);
        cache.insert(3, &[buffer(2, 2), buffer(3, 2)], Purpose::Map);
        let mut read = [9; 12];
        assert!(!cache.overlay(0, &mut read));
        assert_eq!(read, [1, 1, 1, 2, 2, 3, 3, 1, 1, 1, 9, 9]);
        assert!(cache.overlay(2, &mut read[..8]));
        assert_eq!(cache.bytes(), 10);
        assert_eq!(cache.next_after(4).map(|(offset, _)| offset), Some(5));
        assert_eq!(cache.next_after(100).map(|(offset, _)| offset), Some(0));
    }

    #[test]
    fn runs_beside_each_other_are_one_segment() {
        let mut cache = WriteCache::default();
        for at in [10, 30, 20, 50, 12] {
            cache.insert(at, &[buffer(1, 10)], Purpose::Map);
        }
        assert_eq!(cache.segments(), 2);
        assert!(cache.has_segment(60, 5, 2) && cache.has_segment(45, 5, 2));
        assert!(!cache.has_segment(70, 5, 2) && cache.has_segment(70, 5, 3));
        cache.remove(25, 2);
        assert_eq!(cache.segments(), 3);
        cache.remove(0, 100);
        assert_eq!((cache.segments(), cache.bytes()), (0, 0));
    }

    #[test]
    fn an_overwrite_inherits_the_duty_to_become_durable() {
        let mut cache = WriteCache::default();
        cache.insert(0, &[buffer(1, 10)], Purpose::Map);
        let first = cache.newest();
        cache.insert(0, &[buffer(2, 10)], Purpose::Map);
        assert!(!cache.is_durable(first));
        cache.begin(0).unwrap();
        assert!(!cache.is_durable(first));
        cache.end();
        assert!(cache.is_durable(cache.newest()) && cache.is_empty());
    }

    #[test]
    fn an_overwrite_of_what_is_being_written_does_not() {
        let mut cache = WriteCache::default();
        cache.insert(0, &[buffer(1, 10)], Purpose::Map);
        let first = cache.newest();
        cache.begin(0).unwrap();
        cache.insert(0, &[buffer(2, 10)], Purpose::Map);
        cache.end();
        assert!(cache.is_durable(first) && !cache.is_durable(cache.newest()));
        let mut read = [0; 10];
        assert!(cache.overlay(0, &mut read));
        assert_eq!(read, [2; 10]);
    }
}
