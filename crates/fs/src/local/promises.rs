//! Promises of room to sessions, and the room that calls take beside them.

use async_trait::async_trait;
use thalweg_store::txn::Begin;

use super::LocalFs;
use super::content::BLOCK;
use super::effects::{Earlier, Effects};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use super::rooms::{Accounts, Cover, Taken, Ticket, VOLUME};
use crate::attributes::Ino;
use crate::error::FsError;
use crate::room::{Promises, Refill, Room, RoomShare};

/// What a session is promised at most, where the shares below let it: so much may wait at its client, in a journal, before the next change needs a call.
const MOST: Room = Room { blocks: 1 << 18, inodes: 1 << 16, places: 3 << 16, bytes: 1 << 24 };
/// A promise takes at most one in so many of the free blocks, or of what a quota leaves.
const SHARE: u64 = 4;
/// The same for blocks of metadata, of which a promise needs far more than its changes will take.
const SHARE_OF_PAGES: u64 = 2;
/// The smallest part of [`MOST`] that is promised.
const LEAST_PART: u64 = 1 << 14;
/// Blocks of metadata that no promise takes: for records of sessions, of removals, and for changes that are made again.
const SPARE_PAGES: u64 = 16;

/// What is wanted beside what a session has, to come to this: nothing of what it has enough of.
fn wanted(own: Room, most: Room, refill: Refill) -> Room {
    let enough = |most: u64| match refill {
        Refill::Half => most / 2,
        Refill::Some => most - most / 64,
    };
    let wants = |own: u64, most: u64| if own < enough(most) { most - own } else { 0 };
    Room {
        blocks: wants(own.blocks, most.blocks),
        inodes: wants(own.inodes, most.inodes),
        places: wants(own.places, most.places),
        bytes: wants(own.bytes, most.bytes),
    }
}

#[async_trait]
impl Promises for LocalFs {
    async fn promise(
        &self,
        session: u64,
        quota: u64,
        refill: Refill,
    ) -> Result<Vec<RoomShare>, FsError> {
        if self.inner.options.read_only {
            Ok(Vec::new())
        } else {
            self.inner.promise(session, quota, refill).await
        }
    }

    fn reclaim_room(&self, session: u64, shares: &[RoomShare]) {
        self.inner.rooms.claim(session, shares);
    }

    fn return_room(&self, session: u64, shares: &[RoomShare]) {
        self.inner.rooms.spend(session, shares);
    }

    fn release_room(&self, session: u64) {
        self.inner.rooms.release(session);
    }

    fn sessions_with_room(&self) -> Vec<u64> {
        self.inner.rooms.sessions()
    }

    async fn path_of(&self, ino: Ino) -> Result<String, FsError> {
        self.inner.path_of(ino.0).await
    }

    async fn quota_of(&self, ino: Ino) -> Result<u64, FsError> {
        self.look(async |txn| Ok(self.op(&txn).inode(ino.0).await?.quota.get())).await
    }
}

impl FsState {
    /// Whether a call that has found no room may find some when work that calls have left is done.
    pub(super) fn may_have_more_room(&self) -> bool {
        self.is_freeing() || self.rooms.has_freed()
    }

    /// Frees everything that is to be freed, so that other calls may use it.
    pub(super) async fn free_room(&self) -> Result<(), FsError> {
        self.run_deferred_work().await?;
        self.finish_freed().await?;
        if self.rooms.has_freed() {
            self.sync_volume().await?;
        }
        Ok(())
    }

    /// Counts the free blocks of metadata, if that was not done.
    pub(super) async fn count_rooms(&self) -> Result<(), FsError> {
        if self.rooms.are_counted() {
            return Ok(());
        }
        self.recount_pages().await
    }

    /// Counts the free blocks of metadata, while calls may be under way.
    pub(super) async fn recount_pages(&self) -> Result<(), FsError> {
        let before = self.rooms.accounts.lock().free_pages.replace(0);
        let counted = async {
            let txn = self.volume.begin(Begin::SNAPSHOT).await?;
            Ok::<_, FsError>(self.tree.free_blocks(&*txn).await?)
        };
        let counted = counted.await;
        let mut accounts = self.rooms.accounts.lock();
        match counted {
            // Those that have ended since are counted from zero on. One that committed before the count, and was settled after
            // it began, counts twice: on the safe side, unless it freed blocks.
            Ok(free) => {
                let since = accounts.free_pages.unwrap_or(0).min(0);
                accounts.free_pages = Some(free.0 as i64 + since);
                accounts.all_pages = free.1;
                Ok(())
            }
            Err(error) => {
                accounts.free_pages = before;
                Err(error)
            }
        }
    }

    /// Promises a session more room: of the volume, and of a quota if there is one. Returns the addition.
    pub(super) async fn promise(
        &self,
        session: u64,
        quota: u64,
        refill: Refill,
    ) -> Result<Vec<RoomShare>, FsError> {
        self.count_rooms().await?;
        let mut granted = Vec::new();
        let wanted = wanted(self.rooms.promised(session, VOLUME), MOST, refill);
        let room = match wanted.is_none() {
            true => Room::NONE,
            false => self.promise_of_volume(session, refill).await?,
        };
        if !room.is_none() {
            granted.push(RoomShare { quota: VOLUME, room });
        }
        if quota != VOLUME {
            let room = self.promise_of_quota(session, quota, refill).await?;
            if !room.is_none() {
                granted.push(RoomShare { quota, room });
            }
        }
        Ok(granted)
    }

    async fn promise_of_volume(&self, session: u64, refill: Refill) -> Result<Room, FsError> {
        // Beside snapshots an overwrite takes room as well, and that is charged to no promise.
        if self.volume.room().is_some() {
            return Ok(Room::NONE);
        }
        let external_contents = match &self.external_contents {
            // Where contents are is not counted exactly.
            Some(external_contents) => Some(self.external_blocks(external_contents).await?.1),
            None => None,
        };
        let own = self.rooms.promised(session, VOLUME);
        let mut accounts = self.rooms.accounts.lock();
        let (sum, taken) = (accounts.sum(VOLUME), accounts.taken(VOLUME));
        let freed = accounts.freed(VOLUME);
        let blocks =
            external_contents.unwrap_or_else(|| self.space.free().saturating_sub(freed.blocks));
        // What it has counts for its share: otherwise it would come to have almost all, part by part.
        let others = sum.blocks.saturating_sub(own.blocks) + taken.blocks;
        let blocks = (blocks.saturating_sub(others) / SHARE).saturating_sub(own.blocks);
        let (free, _) = accounts.metadata();
        let others = accounts.pages_without(own);
        let share = free.saturating_sub(others + SPARE_PAGES) / SHARE_OF_PAGES;
        let fits = |room: &Room| accounts.pages_of_others(*room).saturating_sub(others) <= share;
        let parts = std::iter::successors(Some(1), |part| Some(2 * part));
        let parts = parts.take_while(|part| *part <= LEAST_PART);
        // What it has too much of for a smaller part leaves room for what it lacks.
        let mut parts = parts.map(|part| wanted(own, MOST.part(part), refill));
        let room = parts.find(fits).unwrap_or_default();
        let room = Room { blocks: wanted(own, MOST, refill).blocks.min(blocks), ..room };
        accounts.add((VOLUME, session), room);
        Ok(room)
    }

    async fn promise_of_quota(
        &self,
        session: u64,
        quota: u64,
        refill: Refill,
    ) -> Result<Room, FsError> {
        let own = self.rooms.promised(session, quota);
        let wanted = wanted(own, MOST, refill).of_quota();
        if wanted.is_none() {
            return Ok(Room::NONE);
        }
        // Entered before the usage is read: a call that this read does not see sees the promise, or is under way.
        let (sum, taken) = {
            let mut accounts = self.rooms.accounts.lock();
            let mut taken = accounts.taken(quota);
            taken.add(accounts.freed(quota));
            let before = (accounts.sum(quota), taken);
            accounts.add((quota, session), wanted);
            before
        };
        let found = self.room_of_quota(quota).await;
        let room = match &found {
            Ok(Some(left)) => {
                let blocks = left.0.map_or(u64::MAX, |left| {
                    left.saturating_sub(sum.blocks + taken.blocks) / SHARE
                });
                let inodes = left.1.map_or(u64::MAX, |left| {
                    left.saturating_sub(sum.inodes + taken.inodes) / SHARE
                });
                wanted.min(Room { blocks, inodes, ..Room::NONE })
            }
            // The root of the quota was removed: nothing limits what is left below it.
            Ok(None) => wanted,
            Err(_) => Room::NONE,
        };
        if let Some(rest) = wanted.checked_sub(room) {
            self.rooms.accounts.lock().remove((quota, session), rest);
        }
        found.map(|_| room)
    }

    /// The blocks and inodes that a quota leaves, where it limits them.
    async fn room_of_quota(
        &self,
        quota: u64,
    ) -> Result<Option<(Option<u64>, Option<u64>)>, FsError> {
        let txn = self.look().await?;
        let mut op = FsCall::new(self, &txn, false);
        let Some(found) = op.find_quota(quota).await? else { return Ok(None) };
        let left = |limit: u64, used: u64| (limit > 0).then(|| limit.saturating_sub(used));
        let blocks = left(found.max_bytes.div_ceil(BLOCK), found.bytes.div_ceil(BLOCK));
        Ok(Some((blocks, left(found.max_inodes, found.inodes))))
    }
}

impl FsCall<'_> {
    /// Earlier calls of the transaction have had these effects.
    pub(super) fn after(mut self, effects: &Effects) -> Self {
        self.earlier = effects.earlier();
        self
    }

    pub(super) fn earlier(&self, quota: u64) -> Earlier {
        self.earlier.get(&quota).copied().unwrap_or_default()
    }

    /// The call's changes are those of a session that was promised room for them.
    pub(super) fn covered(mut self, cover: Cover) -> Self {
        self.effects.cover = cover;
        self
    }

    /// Takes blocks of data.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]: they are promised to sessions, other calls take them, or they may be in use again after a crash.
    pub(super) fn charge_blocks(&mut self, blocks: u64) -> Result<(), FsError> {
        let inner = self.inner;
        if !inner.rooms.are_counted() {
            return Ok(());
        }
        let (blocks, _) = self.effects.cover.take(VOLUME, blocks, 0);
        if blocks == 0 {
            return Ok(());
        }
        let more = Taken { blocks, ..Taken::default() };
        let fits = |accounts: &Accounts| {
            let others = accounts.sum(VOLUME).blocks + accounts.taken(VOLUME).blocks;
            inner.space.free() >= others + accounts.freed(VOLUME).blocks
        };
        if self.ticket().enter(VOLUME, more, fits) { Ok(()) } else { Err(FsError::NoSpace) }
    }

    /// Takes blocks of metadata, of which the call has allocated so many.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]
    pub(super) fn charge_pages(&mut self, allocated: i64) -> Result<(), FsError> {
        self.effects.tree_blocks += allocated;
        let inner = self.inner;
        // A repair, and a call that adds nothing, may take what is spare.
        let is_free = self.is_repair || !self.grows || self.effects.cover.pages;
        if is_free || !inner.rooms.are_counted() {
            return Ok(());
        }
        // Also a call that allocates nothing: it may fill blocks, and a promised change then splits one.
        let pages = u64::try_from(allocated).unwrap_or(0);
        let more = Taken { pages, ..Taken::default() };
        let fits =
            |accounts: &Accounts| accounts.metadata().0 >= accounts.pages_of_others(Room::NONE);
        if self.ticket().enter(VOLUME, more, fits) { Ok(()) } else { Err(FsError::NoSpace) }
    }

    /// Takes blocks and inodes below the root of a quota. Returns those that the promise of the session does not cover.
    pub(super) fn charge_quota(&mut self, quota: u64, blocks: u64, inodes: u64) -> (u64, u64) {
        let (blocks, inodes) = self.effects.cover.take(quota, blocks, inodes);
        if (blocks, inodes) != (0, 0) && self.inner.rooms.are_counted() {
            let more = Taken { blocks, inodes, pages: 0 };
            self.ticket().enter(quota, more, |_| true);
        }
        (blocks, inodes)
    }

    /// Blocks and inodes of a quota that sessions are promised, that other calls under way take, or that may be in use again
    /// after a crash.
    pub(super) fn others_of_quota(&self, quota: u64) -> (i64, i64) {
        let accounts = self.inner.rooms.accounts.lock();
        let (sum, mut taken) = (accounts.sum(quota), accounts.taken(quota));
        taken.add(accounts.freed(quota));
        let mut own = self.effects.ticket.as_ref().map_or(Taken::default(), |it| it.taken(quota));
        own.add(self.earlier(quota).taken);
        let (blocks, inodes) = (sum.blocks + taken.blocks, sum.inodes + taken.inodes);
        let is_counted = own.blocks <= blocks && own.inodes <= inodes;
        assert!(is_counted, "a transaction takes more of a quota than all together");
        ((blocks - own.blocks) as i64, (inodes - own.inodes) as i64)
    }

    fn ticket(&mut self) -> &mut Ticket {
        let rooms = &self.inner.rooms;
        self.effects.ticket.get_or_insert_with(|| Ticket::new(rooms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_batch_has_used_is_promised_again() {
        for refill in [Refill::Half, Refill::Some] {
            assert_eq!(wanted(Room::NONE, MOST, refill), MOST);
            assert_eq!(wanted(MOST, MOST, refill), Room::NONE);
            // Not with each small answer.
            let left = MOST.checked_sub(MOST.part(128)).unwrap();
            assert_eq!(wanted(left, MOST, refill), Room::NONE);
        }
        let used = MOST.part(16);
        let left = MOST.checked_sub(used).unwrap();
        assert_eq!(wanted(left, MOST, Refill::Some), used);
        assert_eq!(wanted(left, MOST, Refill::Half), Room::NONE);
    }
}
