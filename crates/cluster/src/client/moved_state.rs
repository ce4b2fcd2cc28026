//! What a client holds in memory of its session, as it is sent to the machine that its mount moves to. There it may be used at once: what
//! is delegated stays delegated, and the server is asked for none of it.
//!
//! Of an inode that is delegated to the client that is what the client knows of it. Of each other one it is only that the server counts it as known, so
//! that the client which goes on can forget it.

use serde::{Deserialize, Serialize};
use thalweg_env::{HashMap, HashSet};
use thalweg_fs::{Attributes, Ino};

use super::base::ClientBase;
use super::cached::{MovedNames, Names};
use super::inodes::{Inodes, Node};
use super::known_xattrs::KnownXattrs;
use super::numbers::ReservedNumbers;
use crate::protocol::RoomGrant;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MovedState {
    /// Roots of grants, and the quotas that these count for.
    grants: Vec<(Ino, u64)>,
    inodes: Vec<MovedInode>,
    numbers: Vec<ReservedNumbers>,
    pub(super) room: RoomGrant,
}

#[derive(Debug, Serialize, Deserialize)]
struct MovedInode {
    ino: Ino,
    stamp: u64,
    inode_token: u64,
    is_removed: bool,
    own: Option<OwnInode>,
}

/// An inode that is delegated.
#[derive(Debug, Serialize, Deserialize)]
struct OwnInode {
    /// Which of the grants it has.
    grant: u32,
    attributes: Option<Attributes>,
    names: Option<MovedNames>,
    is_dense: bool,
    is_estimate: bool,
    xattrs: KnownXattrs,
}

impl MovedState {
    /// What this client holds. No change is under way.
    pub(super) fn export(base: &ClientBase) -> MovedState {
        let (mut grants, mut inodes) = (Vec::new(), Vec::new());
        let mut known = HashMap::default();
        for mut stripe in base.inodes.stripes() {
            for (ino, node) in stripe.nodes() {
                let own = node.delegation.grant().map(|grant| {
                    let number = node.delegation.grant_number();
                    let grant = *known.entry(number).or_insert_with(|| {
                        grants.push((grant.root(), grant.quota));
                        (grants.len() - 1) as u32
                    });
                    OwnInode {
                        grant,
                        attributes: node.cached.attributes,
                        names: node.cached.names.as_ref().map(|names| names.export()),
                        is_dense: node.delegation.is_dense,
                        is_estimate: node.delegation.is_estimate,
                        xattrs: node.delegation.xattrs().clone(),
                    }
                });
                let (stamp, inode_token) = (node.cached.stamp, node.cached.inode_token);
                let is_removed = node.cached.is_removed;
                inodes.push(MovedInode { ino, stamp, inode_token, is_removed, own });
            }
        }
        MovedState { grants, inodes, numbers: base.numbers.export(), room: base.room.left() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("memory takes what memory has")
    }

    /// `None` for one that no client has sent.
    pub(super) fn decode(encoded: &[u8]) -> Option<MovedState> {
        let state: MovedState = postcard::from_bytes(encoded).ok()?;
        let is_whole =
            |own: &OwnInode| (own.grant as usize) < state.grants.len() && own.xattrs.is_valid();
        let are_whole = state.inodes.iter().filter_map(|it| it.own.as_ref()).all(is_whole);
        let mut inodes = HashSet::default();
        let are_once = state.inodes.iter().all(|it| inodes.insert(it.ino));
        (are_whole && are_once).then_some(state)
    }

    /// A client that goes on with the session holds this. It has recovered the mutations that the server does not have, and made no call.
    pub(super) fn import(self, base: &ClientBase) -> RoomGrant {
        let inodes: &Inodes = &base.inodes;
        let new = |(root, quota): (Ino, u64)| inodes.new_grant(root, quota);
        let grants: Vec<_> = self.grants.into_iter().map(new).collect();
        // Those with mutations that the other client had sent before it forgot the inode.
        for mut stripe in inodes.stripes() {
            stripe.retain(|_, node| node.delegation.unsent() > 0);
        }
        for MovedInode { ino, stamp, inode_token, is_removed, own } in self.inodes {
            let take = |node: &mut Node| {
                node.cached.named(stamp, inode_token);
                node.cached.is_removed = is_removed;
                let Some(own) = own else { return };
                let grant = grants[own.grant as usize].clone();
                node.delegation.import(grant, (own.is_dense, own.is_estimate), own.xattrs);
                node.cached.attributes = own.attributes;
                node.cached.names = own.names.map(|names| Box::new(Names::import(names)));
            };
            inodes.with_new(ino, take);
        }
        base.numbers.import(self.numbers);
        self.room
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state(inodes: &[(u64, Option<u32>)]) -> Vec<u8> {
        let inodes = inodes.iter().map(|(ino, grant)| MovedInode {
            ino: Ino(*ino),
            stamp: 7,
            inode_token: 9,
            is_removed: false,
            own: grant.map(|grant| OwnInode {
                grant,
                attributes: None,
                names: None,
                is_dense: true,
                is_estimate: false,
                xattrs: KnownXattrs::default(),
            }),
        });
        let (grants, inodes) = (vec![(Ino(1), 0)], inodes.collect());
        MovedState { grants, inodes, numbers: Vec::new(), room: RoomGrant::default() }.encode()
    }

    #[test]
    fn the_layout_stays_and_what_no_client_sends_is_refused() {
        let encoded = state(&[(1, Some(0)), (300, None)]);
        let hex = encoded.iter().map(|it| format!("{it:02x}")).collect::<String>();
        assert_eq!(hex, "010100020107090001000000010000ac0207090000000000");
        assert!(MovedState::decode(&encoded).is_some());
        for wrong in [&[(1, Some(1))][..], &[(1, None), (1, Some(0))]] {
            assert!(MovedState::decode(&state(wrong)).is_none(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(encoded: Vec<u8>) {
            let _ = MovedState::decode(&encoded);
        }
    }
}
