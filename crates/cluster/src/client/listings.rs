//! The orders of names in which a client lists directories of its own.
//!
//! Entries have places of their own, above those that a server gives: hashes of the names. So a place stays valid while entries come
//! and go, and also when the directory is not this client's alone any more: then it picks the rest out of what the server lists.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_fs::{Cookie, Ino};

use super::delegated::GrantNumber;

/// The first place that no server gives.
const FIRST: u64 = 1 << 62;
/// Names of a directory that are listed here at most: longer orders would take much memory.
pub(super) const MAX_NAMES: usize = 1 << 16;
/// Directories with a kept order.
const KEPT: usize = 4;

/// What is wanted of a directory: so many entries at most behind a place, with their attributes or without.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) directory: Ino,
    pub(super) from: Cookie,
    pub(super) most: usize,
    pub(super) attributes: bool,
}

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

/// Names with their places, in the order of these.
pub(super) type Order = Arc<[(Cookie, Box<[u8]>)]>;

/// The names of a directory at the beginning of a listing.
pub(super) struct Listing {
    pub(super) directory: Ino,
    pub(super) grant: GrantNumber,
    pub(super) order: Order,
}

/// The last orders of names.
#[derive(Default)]
pub(super) struct Listings(Mutex<VecDeque<Listing>>);

impl Listings {
    pub(super) fn find(&self, directory: Ino, grant: GrantNumber) -> Option<Order> {
        let listings = self.0.lock();
        let same = |it: &&Listing| it.directory == directory && it.grant == grant;
        listings.iter().find(same).map(|found| found.order.clone())
    }

    pub(super) fn keep(&self, listing: Listing) {
        let mut listings = self.0.lock();
        listings.retain(|it| it.directory != listing.directory);
        listings.truncate(KEPT - 1);
        listings.push_front(listing);
    }

    /// The order of a directory is not needed any more.
    pub(super) fn forget(&self, directory: Ino) {
        self.0.lock().retain(|it| it.directory != directory);
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
