//! A page of records in the order of their keys. It tracks which bytes a change touches.
//!
//! Every change is as narrow as the layout permits: an overwrite touches its record alone, a new record
//! touches itself, its slot and those behind, and the count. Nothing read from the page is trusted: an
//! inconsistent page is an error.

use std::ops::Range;

use bytes::Bytes;
use zerocopy::{FromBytes, IntoBytes};

use super::error::TreeError;
use super::format::{
    BODY, LARGE, LIVE, PageHeader, PageKind, RECORD_HEAD, RecordHead, UNIT, UNITS,
};
use super::record::{Entry, Record};
use super::units::{Used, fits, head_units};
use crate::block::{BLOCK_SIZE, ByteRanges};

/// A page that was read, and possibly changed.
#[derive(Clone, Debug)]
pub(super) struct Page {
    /// Its place in the partition.
    pub(super) block: u32,
    content: Content,
    changed: ByteRanges,
    /// The units of its records, if they were counted since the last change.
    used: Option<Used>,
}

#[derive(Clone, Debug)]
enum Content {
    Read(Bytes),
    Own(Vec<u8>),
}

impl Page {
    /// A page as it was read.
    pub(super) fn read(block: u32, content: Bytes) -> Page {
        Page { block, content: Content::Read(content), changed: ByteRanges::none(), used: None }
    }

    /// A new page over the block's former content `there`. Over zeros only its own bytes count as changed.
    pub(super) fn fresh(block: u32, there: &[u8], header: &PageHeader) -> Page {
        let zeros = there.iter().all(|byte| *byte == 0);
        let changed = if zeros { ByteRanges::none() } else { ByteRanges::whole() };
        let mut page =
            Page { block, content: Content::Own(vec![0; BLOCK_SIZE]), changed, used: None };
        page.put(0, header.as_bytes());
        page
    }

    /// All its bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Read(bytes) => bytes,
            Content::Own(bytes) => bytes,
        }
    }

    /// A part of it, shared where possible.
    pub(super) fn slice(&self, range: Range<usize>) -> Bytes {
        match &self.content {
            Content::Read(bytes) => bytes.slice(range),
            Content::Own(bytes) => Bytes::copy_from_slice(&bytes[range]),
        }
    }

    /// Whether it was changed.
    pub(super) fn is_changed(&self) -> bool {
        matches!(self.content, Content::Own(_))
    }

    /// The changed bytes, and the content; `None` when nothing was changed.
    pub(super) fn into_changed(self) -> Option<(ByteRanges, Bytes)> {
        match self.content {
            Content::Own(bytes) if !self.changed.is_empty() => {
                Some((self.changed, Bytes::from(bytes)))
            }
            _ => None,
        }
    }

    /// Writes `bytes` at `at`.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.change(at..at + bytes.len()).copy_from_slice(bytes);
    }

    /// Copies bytes within the page.
    fn shift(&mut self, from: Range<usize>, to: usize) {
        let len = from.len();
        self.change(to..to + len);
        self.own().copy_within(from, to);
    }

    /// Bytes that are about to change.
    fn change(&mut self, range: Range<usize>) -> &mut [u8] {
        self.changed.add(range.clone());
        self.used = None;
        &mut self.own()[range]
    }

    /// The page's own copy of its bytes.
    fn own(&mut self) -> &mut [u8] {
        if let Content::Read(read) = &self.content {
            self.content = Content::Own(read.to_vec());
        }
        match &mut self.content {
            Content::Own(content) => content,
            // Replaced above.
            Content::Read(_) => &mut [],
        }
    }

    /// Marks the whole page as changed.
    pub(super) fn touch_all(&mut self) {
        self.change(0..BLOCK_SIZE);
    }

    /// An error that names the page.
    pub(super) fn damaged(&self, detail: &str) -> TreeError {
        damaged(self.block, detail)
    }

    /// Its header.
    pub(super) fn header(&self) -> PageHeader {
        // A page has a block's length, which is more than a header's.
        PageHeader::read_from_prefix(self.bytes())
            .map_or_else(|_| PageHeader::new(PageKind::Header, 0, 0, 0), |(header, _)| header)
    }

    /// Height above the leaves.
    pub(super) fn level(&self) -> u8 {
        self.bytes()[5]
    }

    /// Changes the height above the leaves.
    pub(super) fn set_level(&mut self, level: u8) {
        self.put(5, &[level]);
    }

    /// The block in which a bucket continues.
    pub(super) fn next(&self) -> Option<u32> {
        Some(self.u32_at(16)).filter(|next| *next != 0)
    }

    /// Sets the block in which a bucket continues.
    pub(super) fn set_next(&mut self, next: Option<u32>) {
        self.put(16, &next.unwrap_or(0).to_le_bytes());
    }

    /// The directory entries that a bucket serves.
    pub(super) fn entries_served(&self) -> Range<u32> {
        u32::from(self.u16_at(20))..u32::from(self.u16_at(22))
    }

    /// Sets the directory entries that a bucket serves.
    pub(super) fn set_entries_served(&mut self, entries: Range<u32>) {
        self.put(20, &(entries.start as u16).to_le_bytes());
        self.put(22, &(entries.end as u16).to_le_bytes());
    }

    pub(super) fn u32_at(&self, at: usize) -> u32 {
        let bytes = self.bytes();
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }

    fn u16_at(&self, at: usize) -> u16 {
        let bytes = self.bytes();
        u16::from_le_bytes([bytes[at], bytes[at + 1]])
    }

    /// The number of records.
    pub(super) fn count(&self) -> usize {
        // A count beyond the maximum fails when the first slot beyond it is read.
        usize::from(self.u16_at(BODY - 2))
    }

    fn set_count(&mut self, count: usize) {
        self.put(BODY - 2, &(count as u16).to_le_bytes());
    }

    /// Marks its membership as changed, for transactions that depend on it: a record joins or leaves the keys that
    /// the page is responsible for, though no record of the page itself changes.
    pub(super) fn touch_membership(&mut self) {
        self.set_count(self.count());
    }

    /// Record `index`.
    pub(super) fn record(&self, index: usize) -> Result<Record<'_>, TreeError> {
        self.find_record(index).ok_or_else(|| self.no_record(index))
    }

    #[inline]
    fn find_record(&self, index: usize) -> Option<Record<'_>> {
        let slot = BODY + 2 * index;
        let slot = self.bytes().get(slot..slot + 2)?;
        self.record_at(usize::from(u16::from_le_bytes([slot[0], slot[1]])) * UNIT)
    }

    #[cold]
    fn no_record(&self, index: usize) -> TreeError {
        match BODY + 2 * index + 2 > BLOCK_SIZE {
            true => self.damaged("it has more slots than room for them"),
            false => self.damaged(&format!("slot {index} leads to no record")),
        }
    }

    #[inline]
    fn record_at(&self, at: usize) -> Option<Record<'_>> {
        let rest = self.bytes().get(at..).filter(|_| at >= BODY)?;
        let (head, body) = RecordHead::read_from_prefix(rest).ok()?;
        let (value, room) = (usize::from(head.value_len.get()), usize::from(head.room.get()));
        let key = usize::from(head.key_len.get());
        let len = RECORD_HEAD + room + key;
        let sound = head.flags & LIVE != 0
            && head.flags & !(LIVE | LARGE) == 0
            && value <= room
            && len.is_multiple_of(UNIT)
            && room + key <= body.len();
        sound.then(|| Record {
            at,
            len,
            flags: head.flags,
            key: &body[room..room + key],
            value: &body[..value],
            room,
        })
    }

    /// Every record.
    pub(super) fn records(&self) -> impl Iterator<Item = Result<Record<'_>, TreeError>> {
        (0..self.count()).map(|index| self.record(index))
    }

    /// Copies of all records, to move to another page.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, TreeError> {
        (0..self.count()).map(|index| self.entry(index)).collect()
    }

    /// A copy of record `index`, to move to another page.
    pub(super) fn entry(&self, index: usize) -> Result<Entry, TreeError> {
        let record = self.record(index)?;
        let value = record.at + RECORD_HEAD;
        let key = value + record.room;
        Ok(Entry {
            flags: record.flags,
            key: self.slice(key..key + record.key.len()),
            value: self.slice(value..value + record.value.len()),
        })
    }

    /// Where record `index` is, its flags, and a copy of its value.
    pub(super) fn value(&self, index: usize) -> Result<(Range<usize>, u8, Bytes), TreeError> {
        let record = self.record(index)?;
        let value = record.at + RECORD_HEAD;
        Ok((record.range(), record.flags, self.slice(value..value + record.value.len())))
    }

    /// The record with this key, or the index at which it would be inserted. The first child of an inner node
    /// is below all separators, whatever its own key.
    pub(super) fn search(&self, key: &[u8]) -> Result<Result<usize, usize>, TreeError> {
        let (mut low, mut high) = (self.unordered(), self.count());
        while low < high {
            let middle = low.midpoint(high);
            let Some(record) = self.find_record(middle) else {
                return Err(self.no_record(middle));
            };
            match record.key.cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(Ok(middle)),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(Err(low))
    }

    /// The number of first records whose keys are not compared.
    fn unordered(&self) -> usize {
        usize::from(self.level() > 0).min(self.count())
    }

    /// Units that its records would take with no more room than their values need.
    pub(super) fn needed_units(&self) -> Result<usize, TreeError> {
        let mut sum = 0;
        for record in self.records() {
            sum += record?.needed_units();
        }
        Ok(sum)
    }

    /// The units of its records, all of them behind the slots.
    fn used_by_records(&self) -> Result<Used, TreeError> {
        if let Some(used) = self.used {
            return Ok(used);
        }
        let mut used = Used::default();
        let slots = head_units(self.count());
        for record in self.records() {
            let record = record?;
            let first = record.at / UNIT;
            if first < slots || !used.take(first..first + record.units()) {
                return Err(self.damaged("two records, or a record and slots, overlap"));
            }
        }
        Ok(used)
    }

    /// The units in use with `count` slots; `None` when the slots run into a record.
    fn used(&self, count: usize) -> Result<Option<Used>, TreeError> {
        let mut used = self.used_by_records()?;
        let head = head_units(count);
        Ok((head <= UNITS && used.take(0..head)).then_some(used))
    }

    /// Adds a record at `index`; false, and nothing changed, when there is no room.
    pub(super) fn insert(&mut self, index: usize, entry: &Entry) -> Result<bool, TreeError> {
        let (count, units) = (self.count(), entry.units());
        self.used = Some(self.used_by_records()?);
        let used = self.used(count + 1)?;
        let place = match used.and_then(|used| used.find(units)) {
            Some(place) => place,
            None if fits(count + 1, self.needed_units()? + units) => {
                self.compact()?;
                let used = self.used(count + 1)?.and_then(|used| used.find(units));
                used.ok_or_else(|| self.damaged("its free space is not where it should be"))?
            }
            None => return Ok(false),
        };
        let mut used = self.used_by_records()?;
        self.put_record(place, entry);
        let slots = BODY + 2 * index..BODY + 2 * count;
        let at = slots.start;
        self.shift(slots, at + 2);
        self.put(at, &(place as u16).to_le_bytes());
        self.set_count(count + 1);
        self.used = used.take(place..place + units).then_some(used);
        Ok(true)
    }

    /// Writes a record, all bytes of its units.
    fn put_record(&mut self, place: usize, entry: &Entry) {
        let len = entry.units() * UNIT;
        let room = len - RECORD_HEAD - entry.key.len();
        let head = RecordHead {
            flags: entry.flags,
            spare: 0,
            key_len: (entry.key.len() as u16).into(),
            value_len: (entry.value.len() as u16).into(),
            room: (room as u16).into(),
        };
        let at = place * UNIT;
        let page = self.change(at..at + len);
        page[..RECORD_HEAD].copy_from_slice(head.as_bytes());
        let (value, key) = page[RECORD_HEAD..].split_at_mut(room);
        value[..entry.value.len()].copy_from_slice(&entry.value);
        value[entry.value.len()..].fill(0);
        key.copy_from_slice(&entry.key);
    }

    /// Clears the flags of a removed record, so that transactions which depend on it conflict.
    fn kill(&mut self, at: usize) {
        self.put(at, &[0]);
    }

    /// Removes record `index`. The slot that becomes free is written too: another transaction may move the record
    /// that it led to, and must conflict.
    pub(super) fn remove(&mut self, index: usize) -> Result<(), TreeError> {
        let at = self.record(index)?.at;
        self.kill(at);
        let count = self.count();
        self.shift(BODY + 2 * (index + 1)..BODY + 2 * count, BODY + 2 * index);
        self.put(BODY + 2 * (count - 1), &[0; 2]);
        self.set_count(count - 1);
        Ok(())
    }

    /// Removes the records for which `keep` is false. Writes the slots that become free, as [`Page::remove`].
    pub(super) fn retain(
        &mut self,
        keep: impl Fn(usize, &Record<'_>) -> bool,
    ) -> Result<(), TreeError> {
        let (mut slots, mut gone, mut first) = (Vec::new(), Vec::new(), None);
        for (index, record) in self.records().enumerate() {
            let record = record?;
            if keep(index, &record) {
                slots.extend_from_slice(&((record.at / UNIT) as u16).to_le_bytes());
            } else {
                gone.push(record.at);
                first.get_or_insert(index);
            }
        }
        let Some(first) = first else { return Ok(()) };
        let count = slots.len() / 2;
        slots.resize(2 * (count + gone.len()), 0);
        gone.into_iter().for_each(|at| self.kill(at));
        self.put(BODY + 2 * first, &slots[2 * first..]);
        self.set_count(count);
        Ok(())
    }

    /// Gives record `index` another value: in place if there is room, elsewhere in the page otherwise. False,
    /// with the page unchanged, when the page has no room.
    pub(super) fn replace(
        &mut self,
        index: usize,
        flags: u8,
        value: &Bytes,
    ) -> Result<bool, TreeError> {
        let record = self.record(index)?;
        if value.len() <= record.room {
            let at = record.at;
            self.overwrite(at, flags, value);
            return Ok(true);
        }
        let (at, units) = (record.at, record.needed_units());
        let entry = Entry { flags, value: value.clone(), ..self.entry(index)? };
        let (count, more) = (self.count(), entry.units());
        let place = self.used(count)?.and_then(|used| used.find(more));
        if let Some(place) = place {
            self.kill(at);
            self.put_record(place, &entry);
            self.put(BODY + 2 * index, &(place as u16).to_le_bytes());
            return Ok(true);
        }
        if !fits(count, self.needed_units()? - units + more) {
            return Ok(false);
        }
        self.remove(index)?;
        self.insert(index, &entry)
    }

    /// Overwrites the value of the record at `at` in place. Its first bytes are always written, so that two
    /// changes of it conflict; of the rest only units with new content.
    fn overwrite(&mut self, at: usize, flags: u8, value: &Bytes) {
        let (bytes, len) = (self.bytes(), (value.len() as u16).to_le_bytes());
        let head = [flags, 0, bytes[at + 2], bytes[at + 3], len[0], len[1]];
        let changed = if bytes[at + 4..at + 6] == head[4..] { 1 } else { head.len() };
        self.put(at, &head[..changed]);
        let start = at + RECORD_HEAD;
        let mut from = 0;
        while from < value.len() {
            let to = (from + UNIT - (start + from) % UNIT).min(value.len());
            if self.bytes()[start + from..start + to] != value[from..to] {
                self.put(start + from, &value[from..to]);
            }
            from = to;
        }
    }

    /// Moves all records together; the whole page changes.
    fn compact(&mut self) -> Result<(), TreeError> {
        let entries = self.entries()?;
        self.fill(&entries)
    }

    /// Replaces all records by `entries`; the whole page changes.
    pub(super) fn fill(&mut self, entries: &[Entry]) -> Result<(), TreeError> {
        self.put(BODY, &[0; BLOCK_SIZE - BODY]);
        self.touch_all();
        let mut end = UNITS;
        for (index, entry) in entries.iter().enumerate() {
            let place = end.checked_sub(entry.units());
            end = place.ok_or_else(|| self.damaged("its records do not fit"))?;
            self.put_record(end, entry);
            self.put(BODY + 2 * index, &(end as u16).to_le_bytes());
        }
        if end < head_units(entries.len()) {
            return Err(self.damaged("its records do not fit"));
        }
        self.set_count(entries.len());
        Ok(())
    }

    /// Checks all that the page alone can show: its records are sound, apart, and in order.
    pub(super) fn check(&self) -> Result<(), TreeError> {
        let mut before: Option<&[u8]> = None;
        for record in self.records().skip(self.unordered()) {
            let key = record?.key;
            if before.is_some_and(|before| before >= key) {
                return Err(self.damaged("its keys are not in order"));
            }
            before = Some(key);
        }
        match self.used(self.count())? {
            Some(_) => Ok(()),
            None => Err(self.damaged("its slots run into a record")),
        }
    }
}

/// An error that names a block of the partition.
pub(super) fn damaged(block: u32, detail: &str) -> TreeError {
    TreeError::Damaged { what: format!("block {block} of the store"), detail: detail.to_owned() }
}
