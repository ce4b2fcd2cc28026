//! Listings of directories of this client's own, from what it has in memory: the server gets nothing of what waits.

use thalweg_fs::{Answer, Cookie, Entry, Ino, Kind, Validity};

use super::base::ClientBase;
use super::cached::NewName;
use super::delegated::GrantNumber;
use super::inodes::Node;
use super::listings::{Listing, MAX_NAMES, Order, Wanted, is_own, place_of};

/// The entries of a directory behind a place, if it is this client's alone and everything is known of it.
pub(super) fn list(base: &ClientBase, wanted: Wanted) -> Option<Vec<Entry>> {
    let Wanted { directory, from, most, attributes } = wanted;
    let is_start = from == Cookie::START;
    if !is_start && !is_own(from) {
        return None;
    }
    let valid = base.session.leased()?;
    let grant = base.inodes.with(directory, |node| node.delegation.grant_number()).flatten()?;
    let kept = if is_start { None } else { base.listings.find(directory, grant) };
    let order = match kept {
        Some(order) => order,
        None => {
            let order = order_of(base, directory, grant, is_start)?;
            base.listings.keep(Listing { directory, grant, order: order.clone() });
            order
        }
    };
    let mut entries = Vec::new();
    let mut rest = &order[order.partition_point(|(place, _)| *place <= from)..];
    while entries.len() < most && !rest.is_empty() {
        let (next, others) = rest.split_at(rest.len().min(most - entries.len()));
        rest = others;
        for (place, name, ino) in named(base, directory, grant, next)? {
            let (kind, answer) = shown_entry(base, ino, valid)?;
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
        base.listings.forget(directory);
    }
    Some(entries)
}

/// The names of a directory in the order of a listing, if that may begin, or go on, without the server.
fn order_of(
    base: &ClientBase,
    directory: Ino,
    grant: GrantNumber,
    is_start: bool,
) -> Option<Order> {
    let time = base.session.clocks().1;
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
    let mut order: Vec<(Cookie, Box<[u8]>)> = in_own_directory(base, directory, grant, look)?;
    order.sort_unstable_by_key(|(place, _)| *place);
    // Between names with the same place no listing could go on.
    let is_strict = order.is_sorted_by(|one, other| one.0 < other.0);
    is_strict.then(|| order.into())
}

/// The names of these that are in the directory now, with their inodes.
fn named<'a>(
    base: &ClientBase,
    directory: Ino,
    grant: GrantNumber,
    order: &'a [(Cookie, Box<[u8]>)],
) -> Option<Vec<(Cookie, &'a [u8], Ino)>> {
    in_own_directory(base, directory, grant, |node| {
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
    base: &ClientBase,
    directory: Ino,
    grant: GrantNumber,
    look: impl FnOnce(&mut Node) -> Option<T>,
) -> Option<T> {
    base.while_delegated(directory, |node, kind| {
        let is_same = node.delegation.grant_number() == Some(grant);
        if is_same && kind == Kind::Directory { look(node) } else { None }
    })
}

/// The kind and the attributes of an inode, if they are known.
fn shown_entry(base: &ClientBase, ino: Ino, valid: Validity) -> Option<(Kind, Answer)> {
    let look = |node: &mut Node| {
        node.cached.used = true;
        let attributes = node.cached.attributes?;
        let valid = if node.delegation.is_estimate { Validity::NONE } else { valid };
        Some((attributes.kind, Answer { attributes, valid }))
    };
    base.inodes.with(ino, look).flatten()
}
