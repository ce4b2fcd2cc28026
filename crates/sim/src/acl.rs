//! Access control lists of POSIX.1e, as the kernel encodes them in extended attributes.

use bytes::{BufMut, Bytes, BytesMut};

const VERSION: u32 = 2;
/// The id field of an entry that names neither a user nor a group.
const NOBODY: u32 = u32::MAX;
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// An access control list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// Decodes a list. Entries stand in the order owner, named users, owning group, named groups, mask,
    /// others; a list with named entries has a mask.
    pub(crate) fn decode(value: &[u8]) -> Option<Acl> {
        let (version, entries) = value.split_first_chunk::<4>()?;
        let (entries, []) = entries.as_chunks::<8>() else { return None };
        let entry = |bytes: &[u8; 8]| Entry {
            tag: u16::from_le_bytes([bytes[0], bytes[1]]),
            permissions: u16::from_le_bytes([bytes[2], bytes[3]]),
            id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        };
        let acl = Acl(entries.iter().map(entry).collect());
        (u32::from_le_bytes(*version) == VERSION && acl.is_valid()).then_some(acl)
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let total = named + count(MASK) + 3;
        [OWNER, OWNING_GROUP, OTHERS].into_iter().all(|tag| count(tag) == 1)
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
            && total == self.0.len()
            && self.0.is_sorted_by_key(|entry| entry.tag)
            && self.0.iter().all(|entry| entry.permissions <= 7)
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_u32_le(VERSION);
        for entry in &self.0 {
            bytes.put_u16_le(entry.tag);
            bytes.put_u16_le(entry.permissions);
            bytes.put_u32_le(if matches!(entry.tag, USER | GROUP) { entry.id } else { NOBODY });
        }
        bytes.freeze()
    }

    /// The entries that the mode bits mirror, each with its shift in the mode: others, then the mask or
    /// else the owning group, then the owner.
    fn classes(&mut self) -> impl Iterator<Item = (&mut u16, u16)> {
        let is_masked = self.0.iter().any(|entry| entry.tag == MASK);
        self.0.iter_mut().filter_map(move |entry| {
            let shift = match entry.tag {
                OWNER => 6,
                MASK => 3,
                OWNING_GROUP if !is_masked => 3,
                OTHERS => 0,
                _ => return None,
            };
            Some((&mut entry.permissions, shift))
        })
    }

    /// The permission bits that the list is equivalent to.
    pub(crate) fn mode(&self) -> u16 {
        self.clone().classes().fold(0, |mode, (permissions, shift)| mode | *permissions << shift)
    }

    /// Whether the mode alone expresses the list.
    pub(crate) fn is_only_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// Updates the entries after a change of the mode.
    pub(crate) fn set_mode(&mut self, mode: u16) {
        self.classes().for_each(|(permissions, shift)| *permissions = mode >> shift & 7);
    }

    /// Restricts the list to the permissions of a newly created file's mode.
    pub(crate) fn mask_with(&mut self, mode: u16) {
        self.classes().for_each(|(permissions, shift)| *permissions &= mode >> shift);
    }
}
