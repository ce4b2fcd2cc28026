//! The room that the server has promised: what mutations may take of it, and have taken.

use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::Time;
use thalweg_fs::room::{Room, RoomShare, add_share};

use crate::protocol::RoomGrant;

/// After the server has promised too little room it is not asked for more within this time.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

/// What a mutation takes of what was promised, and the root of the quota that it counts for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Charge {
    pub(super) quota: u64,
    pub(super) room: Room,
}

impl Charge {
    fn shares(self) -> impl Iterator<Item = RoomShare> {
        let volume = RoomShare { quota: 0, room: self.room };
        let quota = RoomShare { quota: self.quota, room: self.room.of_quota() };
        [Some(volume), (self.quota != 0).then_some(quota)].into_iter().flatten()
    }
}

/// What mutations take together.
pub(super) fn shares_of(charges: &[Charge]) -> Vec<RoomShare> {
    let mut shares = Vec::new();
    for share in charges.iter().flat_map(|charge| charge.shares()) {
        add_share(&mut shares, share.quota, share.room);
    }
    shares
}

/// What mutations have taken that a new server may not have.
#[derive(Clone, Debug, Default)]
pub(super) struct Claim {
    pub(super) shares: Vec<RoomShare>,
    /// The number of their batch, if one was sent: if that has survived, so has what they have taken.
    pub(super) batch: Option<u64>,
}

/// Takes a share from the others; whether it was among them, which it is not after the session has ended.
fn take_share(shares: &mut Vec<RoomShare>, share: &RoomShare) -> bool {
    let Some(at) = shares.iter().position(|own| own.quota == share.quota) else { return false };
    shares[at].room = shares[at].room.checked_sub(share.room).unwrap_or_default();
    if shares[at].room.is_none() {
        shares.swap_remove(at);
    }
    true
}

#[derive(Debug, Default)]
struct Ledger {
    /// What the server has promised, less what the mutations have taken of it.
    left: Vec<RoomShare>,
    /// What the mutations have taken that the server is not known to have.
    charged: Vec<RoomShare>,
    /// What those of the batch under way have taken of it, and its number.
    under_way: Option<Claim>,
    /// Room that was promised before this recall does not count.
    recalls: u64,
    /// Before this time the server is not asked for more room.
    no_room_until: Time,
}

/// The room that the server has promised. Its lock is taken under that of a stripe by changes that take some.
#[derive(Debug, Default)]
pub(super) struct PromisedRoom(Mutex<Ledger>);

impl PromisedRoom {
    /// Takes room for a change; whether there is enough.
    pub(super) fn charge(&self, charge: Charge) -> bool {
        if charge.room.is_none() {
            return true;
        }
        let ledger = &mut *self.0.lock();
        let mut rests: [Option<(usize, Room)>; 2] = [None; 2];
        for (share, rest) in charge.shares().zip(&mut rests) {
            let at = ledger.left.iter().position(|it| it.quota == share.quota);
            *rest = at.and_then(|at| Some((at, ledger.left[at].room.checked_sub(share.room)?)));
            if rest.is_none() && !share.room.is_none() {
                return false;
            }
        }
        rests.into_iter().flatten().for_each(|(at, rest)| ledger.left[at].room = rest);
        charge.shares().for_each(|it| add_share(&mut ledger.charged, it.quota, it.room));
        true
    }

    /// Whether the server is to be asked for more now.
    pub(super) fn begin_request(&self, now: Time) -> bool {
        let mut ledger = self.0.lock();
        let is_due = ledger.no_room_until <= now;
        if is_due {
            ledger.no_room_until = now + ROOM_PAUSE;
        }
        is_due
    }

    /// What the server has promised was enough.
    pub(super) fn request_helped(&self) {
        self.0.lock().no_room_until = Time::default();
    }

    pub(super) fn add(&self, grant: &RoomGrant) {
        let mut ledger = self.0.lock();
        if grant.recalls >= ledger.recalls {
            grant.shares.iter().for_each(|it| add_share(&mut ledger.left, it.quota, it.room));
        }
    }

    /// The server has taken back what it has promised before this recall, beside what the mutations have taken.
    pub(super) fn recall(&self, recalls: u64) {
        let mut ledger = self.0.lock();
        if recalls > ledger.recalls {
            ledger.recalls = recalls;
            ledger.left.clear();
        }
    }

    /// A new server promises nothing but what the mutations have taken.
    pub(super) fn reclaim(&self) -> Vec<Claim> {
        let mut ledger = self.0.lock();
        ledger.recalls = 0;
        ledger.left.clear();
        let mut unsent = Claim { shares: ledger.charged.clone(), batch: None };
        let claims = match ledger.under_way.clone() {
            Some(under_way) => {
                for share in &under_way.shares {
                    take_share(&mut unsent.shares, share);
                }
                vec![under_way, unsent]
            }
            None => vec![unsent],
        };
        claims.into_iter().filter(|claim| !claim.shares.is_empty()).collect()
    }

    /// A batch of mutations that have taken this is about to be sent.
    pub(super) fn begin_batch(&self, batch: u64, shares: &[RoomShare]) {
        let mut ledger = self.0.lock();
        ledger.under_way = Some(Claim { shares: shares.to_vec(), batch: Some(batch) });
    }

    /// Mutations that have taken this are at the server. If they are lost, other mutations may take it.
    pub(super) fn discharge(&self, charges: &[Charge], lost: bool) {
        let mut ledger = self.0.lock();
        ledger.under_way = None;
        for share in shares_of(charges) {
            let is_charged = take_share(&mut ledger.charged, &share);
            if lost && is_charged {
                add_share(&mut ledger.left, share.quota, share.room);
            }
        }
    }

    /// The mutations of a journal have taken this, and the server does not have them.
    pub(super) fn recover(&self, charges: &[Charge]) {
        self.0.lock().charged = shares_of(charges);
    }

    /// What mutations have taken of the volume that the server is not known to have.
    pub(super) fn charged(&self) -> Room {
        let ledger = self.0.lock();
        ledger.charged.iter().find(|share| share.quota == 0).map_or(Room::NONE, |share| share.room)
    }

    /// Whether mutations that the server is not known to have take most of what it has promised: it promises more when it has them.
    pub(super) fn is_short(&self) -> bool {
        let ledger = self.0.lock();
        ledger.charged.iter().any(|charged| {
            let left = ledger.left.iter().find(|it| it.quota == charged.quota);
            left.map_or(Room::NONE, |it| it.room).is_below_third(charged.room)
        })
    }

    /// What the server has promised, and mutations have not taken.
    pub(super) fn left(&self) -> RoomGrant {
        let ledger = self.0.lock();
        RoomGrant { recalls: ledger.recalls, shares: ledger.left.clone() }
    }

    pub(super) fn end_session(&self) {
        let no_room_until = self.0.lock().no_room_until;
        *self.0.lock() = Ledger { no_room_until, ..Ledger::default() };
    }
}
