//! POSIX access control lists, as extended attributes carry them.
//!
//! The format is version 2 of the kernel's: a version word, then one entry each with a tag, permissions and
//! the id of a user or group. Little endian.

use crate::error::FsError;

const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// One entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct AclEntry {
    tag: u16,
    id: u32,
    perm: u16,
}

/// An access control list, in the order that the kernel wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// Decodes an attribute's value.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when the value is no valid list.
    pub fn decode(value: &[u8]) -> Result<Acl, FsError> {
        let refused = FsError::Invalid("it is no access control list");
        let (version, rest) = value.split_at_checked(HEADER).ok_or(refused.clone())?;
        if version != VERSION.to_le_bytes() || rest.len() % ENTRY != 0 {
            return Err(refused);
        }
        let entry = |bytes: &[u8]| AclEntry {
            tag: u16::from_le_bytes([bytes[0], bytes[1]]),
            perm: u16::from_le_bytes([bytes[2], bytes[3]]),
            id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        };
        let acl = Acl(rest.chunks_exact(ENTRY).map(entry).collect());
        if acl.0.is_empty() || acl.is_valid() { Ok(acl) } else { Err(refused) }
    }

    /// Whether it says nothing at all, which takes a list away.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let tags = self.0.iter().map(|entry| entry.tag);
        let rank = |entry: &AclEntry| {
            let named = entry.tag == USER || entry.tag == GROUP;
            (entry.tag, if named { entry.id } else { 0 })
        };
        count(USER_OBJ) == 1
            && count(GROUP_OBJ) == 1
            && count(OTHER) == 1
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
            && tags.into_iter().all(|tag| tag.is_power_of_two() && tag <= OTHER)
            && self.0.iter().all(|entry| entry.perm <= 7)
            && self.0.windows(2).all(|pair| rank(&pair[0]) < rank(&pair[1]))
    }

    /// The attribute's value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.perm.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    fn perm(&mut self, tag: u16) -> Option<&mut u16> {
        self.0.iter_mut().find(|entry| entry.tag == tag).map(|entry| &mut entry.perm)
    }

    fn get(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    /// Whether a user who does not own the inode may do all of `wanted`: bits 4 to read, 2 to write, 1 to execute or to
    /// search. `owning` is the inode's group, and `is_in` tells the user's groups.
    pub fn permits(&self, uid: u32, owning: u32, is_in: impl Fn(u32) -> bool, wanted: u16) -> bool {
        let mask = self.get(MASK).unwrap_or(7);
        let named = |entry: &&AclEntry| entry.tag == USER && entry.id == uid;
        if let Some(user) = self.0.iter().find(named) {
            return user.perm & mask & wanted == wanted;
        }
        let of_user = |entry: &&AclEntry| match entry.tag {
            GROUP_OBJ => is_in(owning),
            GROUP => is_in(entry.id),
            _ => false,
        };
        let mut groups = self.0.iter().filter(of_user).peekable();
        match groups.peek() {
            Some(_) => groups.any(|entry| entry.perm & wanted == wanted) && mask & wanted == wanted,
            None => self.get(OTHER).unwrap_or(0) & wanted == wanted,
        }
    }

    /// Whether the nine bits of a mode say as much.
    pub(crate) fn is_mode(&self) -> bool {
        self.0.iter().all(|entry| matches!(entry.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// The mode of an inode with this list: the group's bits are the mask's, if there is one.
    pub(crate) fn mode(&self, mode: u16) -> u16 {
        let user = self.get(USER_OBJ).unwrap_or(0);
        let group = self.get(MASK).or(self.get(GROUP_OBJ)).unwrap_or(0);
        let other = self.get(OTHER).unwrap_or(0);
        mode & !0o777 | user << 6 | group << 3 | other
    }

    /// The inode gets another mode.
    pub(crate) fn set_mode(&mut self, mode: u16) {
        let group = if self.get(MASK).is_some() { MASK } else { GROUP_OBJ };
        for (tag, shift) in [(USER_OBJ, 6), (group, 3), (OTHER, 0)] {
            if let Some(perm) = self.perm(tag) {
                *perm = mode >> shift & 7;
            }
        }
    }

    /// Turns a directory's default list into the access list of a new inode, and returns the inode's mode.
    /// The list grants nothing that the requested `mode` does not.
    pub(crate) fn inherit(&mut self, mode: u16) -> u16 {
        let group = if self.get(MASK).is_some() { MASK } else { GROUP_OBJ };
        for (tag, shift) in [(USER_OBJ, 6), (group, 3), (OTHER, 0)] {
            if let Some(perm) = self.perm(tag) {
                *perm &= mode >> shift & 7;
            }
        }
        self.mode(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, perm, id)| AclEntry { tag, id, perm }).collect())
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn a_list_is_read_and_written() {
        let list = acl(&[
            (USER_OBJ, 7, NONE),
            (USER, 5, 1000),
            (USER, 6, 1001),
            (GROUP_OBJ, 4, NONE),
            (MASK, 5, NONE),
            (OTHER, 1, NONE),
        ]);
        assert_eq!(Acl::decode(&list.encode()).unwrap(), list);
        assert_eq!(list.mode(0o4000), 0o4751);
        assert!(!list.is_mode());
        assert!(Acl::decode(&VERSION.to_le_bytes()).unwrap().is_empty());
    }

    #[test]
    fn lists_that_make_no_sense_are_refused() {
        let user = (USER_OBJ, 7, NONE);
        let (group, other) = ((GROUP_OBJ, 4, NONE), (OTHER, 1, NONE));
        for wrong in [
            acl(&[user, group]),
            acl(&[user, group, other, other]),
            acl(&[user, (USER, 7, 5), group, other]),
            acl(&[group, user, other]),
            acl(&[user, (USER, 7, 5), (USER, 7, 5), group, (MASK, 7, NONE), other]),
            acl(&[(USER_OBJ, 8, NONE), group, other]),
            acl(&[user, group, (0x40, 1, NONE), other]),
        ] {
            assert!(Acl::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
        assert!(Acl::decode(b"").is_err());
        assert!(Acl::decode(&[2, 0, 0, 0, 1]).is_err());
        assert!(Acl::decode(&[3, 0, 0, 0]).is_err());
    }

    #[test]
    fn a_list_permits_what_the_first_entries_of_a_user_say() {
        let list = acl(&[
            (USER_OBJ, 7, NONE),
            (USER, 4, 5),
            (USER, 7, 6),
            (GROUP_OBJ, 5, NONE),
            (GROUP, 6, 50),
            (GROUP, 1, 51),
            (MASK, 6, NONE),
            (OTHER, 7, NONE),
        ]);
        let may = |uid, groups: &[u32], wanted| {
            list.permits(uid, 40, |group| groups.contains(&group), wanted)
        };
        assert!(may(5, &[50], 4) && !may(5, &[50], 2), "a named user has that entry alone");
        assert!(may(6, &[], 6) && !may(6, &[], 1), "the mask bounds it");
        assert!(may(9, &[50], 6) && may(9, &[40], 4) && !may(9, &[40], 2));
        assert!(may(9, &[40, 50], 2) && !may(9, &[40, 50], 1), "one group has to permit all");
        assert!(!may(9, &[51], 4), "a user with a group is not one of the others");
        assert!(may(9, &[], 7), "the mask does not bound the others");
        assert!(acl(&[(USER_OBJ, 7, NONE), (GROUP_OBJ, 4, NONE), (OTHER, 1, NONE)]).permits(
            9,
            40,
            |group| group == 40,
            4
        ));
    }

    #[test]
    fn a_new_inode_has_no_more_than_was_asked_for() {
        let mut list = acl(&[
            (USER_OBJ, 7, NONE),
            (USER, 7, 5),
            (GROUP_OBJ, 7, NONE),
            (MASK, 7, NONE),
            (OTHER, 5, NONE),
        ]);
        assert_eq!(list.inherit(0o640), 0o640);
        assert_eq!(
            (list.get(MASK), list.get(GROUP_OBJ), list.get(OTHER)),
            (Some(4), Some(7), Some(0))
        );
        list.set_mode(0o751);
        assert_eq!(
            (list.get(USER_OBJ), list.get(MASK), list.get(OTHER)),
            (Some(7), Some(5), Some(1))
        );
    }
}
