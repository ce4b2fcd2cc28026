//! The logs that cleaning appends to, and the tail that leaves a link to be cleaned.

use super::super::format::NO_SEGMENT;
use super::super::segments::SegmentState;
use super::super::stream::{BODY, USERS};
use super::super::{State, StoreError};

impl State {
    /// The log that cleaning appends to. The log of compaction leaves a link that the tail has reached; while
    /// it cannot, cleaning appends to the users' log instead.
    pub(super) fn cleaning_log(&mut self) -> usize {
        let Some(open) = self.body.as_ref().map(|body| body.open().id) else { return USERS };
        if self.fits(BODY, open) {
            return BODY;
        }
        if self.choose(BODY, true).is_none() {
            return USERS;
        }
        self.close_segment(BODY);
        match self.roll(BODY, true) {
            Ok(()) => BODY,
            Err(_) => USERS,
        }
    }

    /// Whether the log of compaction can take `blocks` blocks without a new checkpoint.
    pub(super) fn body_has_room(&self, blocks: usize) -> bool {
        let Some(body) = &self.body else { return false };
        let next = body.open().next;
        body.room() as usize >= blocks
            || (next != NO_SEGMENT && self.fits(BODY, next))
            || self.choose(BODY, true).is_some()
    }

    /// Moves the tail to another link, so that its present link can be cleaned.
    pub(super) fn move_tail(&mut self) -> Result<(), StoreError> {
        let tail = self.tail_link();
        let links = self.segments.links.len();
        let mut others = (1..links).map(|step| (tail + step) % links);
        let next = others.find_map(|link| self.segments.next_on(link, 0, 0));
        let next = next.ok_or(StoreError::NoSpace)?;
        // Slots may count on the rest of the open segment.
        if self.owed() > 0 && self.appendable() < u64::from(self.users.room()) + self.owed() {
            return Err(StoreError::NoSpace);
        }
        self.seal_mini(true)?;
        if self.segments.get(next).state != SegmentState::Free {
            return Err(StoreError::NoSpace);
        }
        self.close_segment(USERS);
        if let Some(reserved) = self.users.forget_next() {
            self.segments.unreserve(reserved);
        }
        self.segments.open(next);
        self.users.set_next(next);
        self.roll(USERS, true)
    }
}
