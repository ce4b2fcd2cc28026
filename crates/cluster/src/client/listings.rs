//! Listings of directories of this client's own, from what it has in memory: the server gets nothing of what waits.
//!
//! Their entries have places of their own, above those that a server gives: hashes of the names. So a place stays valid while entries come
//! and go, and also when the directory is not this client's alone any more: then it picks the rest out of what the server lists.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_fs::{Answer, Cookie, Entry, Ino, Kind, Validity};

use super::base::ClientBase;
use super::cached::NewName;
use super::delegated::GrantNumber;
use super::inodes::Node;

/// The first place that no server gives.
const FIRST: u64 = 1 << 62;
/// Names of a directory that are listed here at most: longer orders would take much memory.
const MAX_NAMES: usize = 1 << 16;
/// Directories whose order is kept.
const KEPT: usize = 4;

/// The place of a name in listings by this client.
pub(super) fn place_of(name: &[u8]) -> Cookie {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    // The places of a kernel are two more, and below 2⁶³.
    Cookie(FIRST + 1 + (hasher.finish() >> 2) % (FIRST - 8))
}

/// Whether it is a place in a listing by this client, and not the start.
pub(super) fn is_own(place: Cookie) -> bool {
    place.0 >= FIRST
}

type Order = Arc<[(Cookie, Box<[u8]>)]>;

/// The names of a directory at the beginning of a listing.
struct Listing {
    directory: Ino,
    grant: GrantNumber,
    order: Order,
}

/// The last orders of names.
#[derive(Default)]
pub(super) struct Listings(Mutex<VecDeque<Listing>>);

impl Listings {
    fn find(&self, directory: Ino, grant: GrantNumber) -> Option<Order> {
        let listings = self.0.lock();
        let same = |it: &&Listing| it.directory == directory && it.grant == grant;
        listings.iter().find(same).map(|found| found.order.clone())
    }

    fn keep(&self, listing: Listing) {
        let mut listings = self.0.lock();
        listings.retain(|it| it.directory != listing.directory);
        listings.truncate(KEPT - 1);
        listings.push_front(listing);
    }

    /// The order of a directory is not needed any more.
    fn forget(&self, directory: Ino) {
        self.0.lock().retain(|it| it.directory != directory);
    }
}

impl ClientBase {
    /// The entries of a directory behind a place, if it is this client's alone and everything is known of it.
    pub(super) fn list_delegated(
        &self,
        directory: Ino,
        from: Cookie,
        most: usize,
        attributes: bool,
    ) -> Option<Vec<Entry>> {
        let is_start = from == Cookie::START;
        if !is_start && !is_own(from) {
            return None;
        }
        let valid = self.session.leased()?;
        let grant = self.inodes.with(directory, |node| node.delegation.grant_number()).flatten()?;
        let kept = if is_start { None } else { self.listings.find(directory, grant) };
        let order = match kept {
            Some(order) => order,
            None => {
                let order = self.order_of(directory, grant, is_start)?;
                self.listings.keep(Listing { directory, grant, order: order.clone() });
                order
            }
        };
        let mut entries = Vec::new();
        let mut rest = &order[order.partition_point(|(place, _)| *place <= from)..];
        while entries.len() < most && !rest.is_empty() {
            let (next, others) = rest.split_at(rest.len().min(most - entries.len()));
            rest = others;
            for (place, name, ino) in self.named(directory, grant, next)? {
                let (kind, answer) = self.shown_entry(ino, valid)?;
                let attributes = attributes.then_some(answer);
                entries.push(Entry {
                    name: name.to_vec().into(),
                    ino,
                    kind,
                    cookie: place,
                    attributes,
                });
            }
        }
        if entries.is_empty() {
            self.listings.forget(directory);
        }
        Some(entries)
    }

    /// The names of a directory in the order of a listing, if that may begin, or go on, without the server.
    fn order_of(&self, directory: Ino, grant: GrantNumber, is_start: bool) -> Option<Order> {
        let time = self.session.clocks().1;
        let look = |node: &mut Node| {
            let found = node.cached.attributes?;
            // What the server does not have will be newer than any read.
            let is_noted = node.delegation.unsent() > 0
                || node.cached.read_again(found.changed)
                || !found.is_read_due(time);
            let names = node.cached.names.as_ref().filter(|_| is_noted || !is_start)?;
            let present = names.all_present(MAX_NAMES)?;
            Some(present.map(|name| (place_of(name), Box::from(name))).collect())
        };
        let mut order: Vec<(Cookie, Box<[u8]>)> = self.in_own_directory(directory, grant, look)?;
        order.sort_unstable_by_key(|(place, _)| *place);
        // Between names with the same place no listing could go on.
        let is_strict = order.is_sorted_by(|one, other| one.0 < other.0);
        is_strict.then(|| order.into())
    }

    /// The names of these that are in the directory now, with their inodes.
    fn named<'a>(
        &self,
        directory: Ino,
        grant: GrantNumber,
        order: &'a [(Cookie, Box<[u8]>)],
    ) -> Option<Vec<(Cookie, &'a [u8], Ino)>> {
        self.in_own_directory(directory, grant, |node| {
            let names = node.cached.names.as_ref()?;
            let mut found = Vec::with_capacity(order.len());
            for (place, name) in order {
                match names.known(name)? {
                    NewName::Present(ino) => found.push((*place, &**name, ino)),
                    NewName::Absent => {}
                }
            }
            Some(found)
        })
    }

    /// Looks at a directory that is this client's alone by this grant.
    fn in_own_directory<T>(
        &self,
        directory: Ino,
        grant: GrantNumber,
        look: impl FnOnce(&mut Node) -> Option<T>,
    ) -> Option<T> {
        self.while_delegated(directory, |node, kind| {
            let is_same = node.delegation.grant_number() == Some(grant);
            if is_same && kind == Kind::Directory { look(node) } else { None }
        })
    }

    /// The kind and the attributes of an inode, if they are known.
    fn shown_entry(&self, ino: Ino, valid: Validity) -> Option<(Kind, Answer)> {
        let look = |node: &mut Node| {
            node.cached.used = true;
            let attributes = node.cached.attributes?;
            let valid = if node.delegation.is_estimate { Validity::NONE } else { valid };
            Some((attributes.kind, Answer { attributes, valid }))
        };
        self.inodes.with(ino, look).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_no_server_and_fit_into_a_kernels() {
        for number in 0..10_000_u32 {
            let place = place_of(&number.to_le_bytes());
            assert!(is_own(place) && place.0 < (1 << 63) - 4, "{place:?}");
        }
        assert!(!is_own(Cookie::START) && !is_own(Cookie(FIRST - 1)));
    }
}
