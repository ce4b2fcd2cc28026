//! Storage that programs reserve for their files.
//!
//! A reservation of a file of this client's own is a mutation, or a few of them: so a database makes its files longer without the
//! server. Holes, zeros and large reservations are calls, and so is each reservation where contents are kept elsewhere.

use std::ops::Range;

use thalweg_fs::filesystem::MAX_FILE;
use thalweg_fs::mutation::{MAX_RESERVED, Mutation, MutationKind};
use thalweg_fs::room::{Room, blocks_of};
use thalweg_fs::{Allocation, Attributes, FsError, Ino, Kind};

use super::base::ClientBase;
use super::content;
use super::delegated::Delegation;
use super::delegation::{BLOCK, Local};
use super::record::{Parts, Record};
use super::room::Charge;
use super::stages::Stages;
use crate::protocol::Request;

/// Bytes that are reserved by mutations at most.
const MOST: u64 = 16 * MAX_RESERVED;

/// The blocks that a file gets at most for a range.
fn missing_blocks(own: &Delegation, it: &Attributes, bytes: &Range<u64>) -> u64 {
    let known = if own.is_dense { it.size.next_multiple_of(BLOCK) } else { 0 };
    blocks_of(bytes.clone()) - blocks_of(bytes.start..known.clamp(bytes.start, bytes.end))
}

/// How much of the file is stored then, which has this size, and whether that is exact.
fn stored(own: &Delegation, it: &Attributes, bytes: &Range<u64>) -> (u64, bool) {
    let end = bytes.end.next_multiple_of(BLOCK);
    // A dense file has all blocks up to what is stored.
    if own.is_dense && bytes.start <= it.stored {
        return (it.stored.max(end), true);
    }
    let more = blocks_of(bytes.clone()) * BLOCK;
    let most = it.size.next_multiple_of(BLOCK).max(end);
    (most.min(it.stored + more).max(it.stored), false)
}

/// Reserves a range of a file, if that is possible without the server.
fn reserve_delegated(base: &ClientBase, ino: Ino, bytes: Range<u64>, keep_size: bool) -> Local<()> {
    let (now, time) = base.session.clocks();
    let mut stripe = base.inodes.lock(ino);
    let squash = stripe.rules.squash;
    let Some(node) = stripe.node(ino) else { return Local::NeedsCall };
    let Some(mut attributes) = base.changeable(node, squash, now) else {
        return Local::NeedsCall;
    };
    let is_possible = attributes.kind == Kind::File;
    let own = &mut node.delegation;
    let Some(quota) = own.grant().filter(|_| is_possible).map(|grant| grant.quota) else {
        return Local::NeedsCall;
    };
    let blocks = missing_blocks(own, &attributes, &bytes);
    // Under the lock: when room is recalled, what was taken before has its number behind a barrier.
    if !base.room.charge(Charge { quota, room: Room::of_bytes(blocks) }) {
        return Local::NoRoom(quota);
    }
    let is_exact;
    (attributes.stored, is_exact) = stored(own, &attributes, &bytes);
    own.is_dense &= is_exact;
    own.is_estimate |= !is_exact;
    attributes.reserved(bytes.end, keep_size, time);
    own.changed();
    node.cached.set_attributes(attributes);
    let (offset, len) = (bytes.start, bytes.end - bytes.start);
    let kind = MutationKind::Reserve { ino, offset, len, keep_size };
    let parts = Parts { mutation: Mutation { time, kind }, blocks, grows: true };
    base.queue.append(&mut stripe, Record::Bytes(Box::new(parts)), quota, now);
    Local::Made(())
}

/// Reserves a range of a file by mutations; whether all of it is.
async fn reserve(
    stages: &Stages,
    ino: Ino,
    bytes: Range<u64>,
    keep_size: bool,
) -> Result<bool, FsError> {
    let mut at = bytes.start;
    while at < bytes.end {
        let end = bytes.end.min((at / MAX_RESERVED + 1) * MAX_RESERVED);
        let reserve = || reserve_delegated(&stages.base, ino, at..end, keep_size);
        if stages.change_locally(ino, reserve).await?.is_none() {
            return Ok(false);
        }
        stages.writeback.throttle().await?;
        at = end;
    }
    Ok(true)
}

pub(super) async fn allocate(
    stages: &Stages,
    ino: Ino,
    (offset, len): (u64, u64),
    how: Allocation,
) -> Result<(), FsError> {
    let end = offset.checked_add(len).filter(|end| *end <= MAX_FILE);
    // Contents that are kept elsewhere have no storage but by their size.
    let is_mutation = stages.base.inodes.lock(ino).rules.bytes.sizes && (1..=MOST).contains(&len);
    if let Allocation::Reserve { keep_size } = how
        && let Some(end) = end.filter(|_| is_mutation)
        && reserve(stages, ino, offset..end, keep_size).await?
    {
        return Ok(());
    }
    // What was reserved already stays so.
    let request = Request::Allocate { ino, offset, len, how };
    content::change(stages, ino, request, Vec::new()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thalweg_fs::Timestamp;

    use super::*;

    fn file(size: u64, stored: u64) -> Attributes {
        let time = Timestamp::default();
        Attributes {
            ino: Ino(2),
            kind: Kind::File,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            stored,
            accessed: time,
            modified: time,
            changed: time,
            created: time,
        }
    }

    proptest! {
        /// A file has blocks up to one, and some behind that of which nothing is known unless there are none.
        #[test]
        fn no_more_blocks_are_taken_than_were_foreseen(
            size in 0..50_000_u64,
            reserved in 0..4_u64,
            holes in proptest::collection::btree_set(0..20_u64, 0..5),
            start in 0..60_000_u64,
            len in 1..60_000_u64,
        ) {
            let whole = size.div_ceil(BLOCK) + reserved;
            let mut blocks: std::collections::BTreeSet<u64> = (0..whole).collect();
            blocks.retain(|block| !holes.contains(block));
            let it = file(size, blocks.len() as u64 * BLOCK);
            let is_dense = blocks.len() as u64 == whole;
            let mut own = Delegation::default();
            own.is_dense = is_dense;
            let bytes = start..start + len;
            let missing = missing_blocks(&own, &it, &bytes);
            let (stored, is_exact) = stored(&own, &it, &bytes);
            let before = blocks.len() as u64;
            blocks.extend(bytes.start / BLOCK..bytes.end.div_ceil(BLOCK));
            let after = blocks.len() as u64;
            prop_assert!(after - before <= missing);
            prop_assert!(it.stored <= stored);
            if is_exact {
                prop_assert_eq!(stored, after * BLOCK);
                prop_assert!(blocks.iter().copied().eq(0..after));
            }
            // A reservation at the end of a file costs what it takes.
            if is_dense && reserved == 0 && start == size {
                prop_assert_eq!(missing, after - before);
                prop_assert!(is_exact);
            }
        }
    }
}
