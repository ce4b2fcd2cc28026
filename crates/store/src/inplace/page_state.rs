//! The state of a block between memory, journal and device.
//!
//! Its versions are at different stages: the newest content may belong to the running transaction, older
//! content to the transaction under commit, and still older content may be dirty or under writeback. So a state
//! is a set of stages. [`PageEvent::transition`] is the table of what may happen in which state.

use std::fmt;

/// The stages that a block is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct PageState(u8);

impl PageState {
    /// In no stage: memory holds nothing that is not in place.
    pub(super) const CLEAN: PageState = PageState(0);
    /// The running transaction changes it.
    pub(super) const RUNNING: PageState = PageState(1);
    /// The transaction under commit changes it.
    pub(super) const COMMITTING: PageState = PageState(1 << 1);
    /// Committed content is not in place.
    pub(super) const DIRTY: PageState = PageState(1 << 2);
    /// It is being written in place.
    pub(super) const WRITEBACK: PageState = PageState(1 << 3);
    /// It is being read from the device.
    pub(super) const READING: PageState = PageState(1 << 4);

    /// Both sets together.
    pub(super) const fn and(self, other: PageState) -> PageState {
        PageState(self.0 | other.0)
    }

    const fn without(self, other: PageState) -> PageState {
        PageState(self.0 & !other.0)
    }

    /// Whether it is in all of these stages.
    pub(super) const fn is(self, stages: PageState) -> bool {
        self.0 & stages.0 == stages.0
    }

    /// Whether it is in one of these stages.
    pub(super) const fn is_any(self, stages: PageState) -> bool {
        self.0 & stages.0 != 0
    }

    /// Whether an event may happen now.
    pub(super) const fn allows(self, event: PageEvent) -> bool {
        let Transition { needs, excludes, .. } = event.transition();
        self.is(needs) && !self.is_any(excludes)
    }

    /// The state after an event, which must be allowed.
    pub(super) fn after(self, event: PageEvent) -> PageState {
        debug_assert!(self.allows(event), "{event:?} of a block that is {self:?}");
        let Transition { clears, sets, .. } = event.transition();
        self.without(clears).and(sets)
    }
}

impl fmt::Debug for PageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["RUNNING", "COMMITTING", "DIRTY", "WRITEBACK", "READING"];
        let stages = names.iter().enumerate().filter(|(nth, _)| self.0 & 1 << nth != 0);
        let stages: Vec<&str> = stages.map(|(_, name)| *name).collect();
        f.write_str(if stages.is_empty() { "CLEAN" } else { "" })?;
        f.write_str(&stages.join("+"))
    }
}

/// What happens to a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum PageEvent {
    /// The running transaction changes it.
    Change,
    /// The running transaction is closed, for its commit.
    Close,
    /// The commit is done, and leaves the block to be written in place.
    Commit,
    /// The commit is done, and the block was written in place before.
    CommitInPlace,
    /// Writeback of dirty content begins.
    BeginWriteback,
    /// A write of a direct change begins, before its transaction commits.
    BeginDirect,
    /// A write of unchanged content begins, which closes a gap.
    BeginFill,
    /// A write in place has ended, and changed nothing about what is dirty, or has failed.
    EndWrite,
    /// A write in place has ended, and was of the newest dirty content or of newer content.
    EndLastWrite,
    /// A read of the in-place content begins; there may be several.
    BeginRead,
    /// The last read has ended.
    EndRead,
}

impl PageEvent {
    /// Every event.
    #[cfg(test)]
    pub(super) const ALL: [PageEvent; 11] = [
        PageEvent::Change,
        PageEvent::Close,
        PageEvent::Commit,
        PageEvent::CommitInPlace,
        PageEvent::BeginWriteback,
        PageEvent::BeginDirect,
        PageEvent::BeginFill,
        PageEvent::EndWrite,
        PageEvent::EndLastWrite,
        PageEvent::BeginRead,
        PageEvent::EndRead,
    ];
}

/// When an event may happen, and what it does.
#[derive(Clone, Copy)]
pub(super) struct Transition {
    /// Stages that the block must be in.
    needs: PageState,
    /// Stages that it must not be in.
    excludes: PageState,
    /// Stages that it leaves.
    clears: PageState,
    /// Stages that it enters.
    sets: PageState,
}

const fn row(
    needs: PageState,
    excludes: PageState,
    clears: PageState,
    sets: PageState,
) -> Transition {
    Transition { needs, excludes, clears, sets }
}

impl PageEvent {
    /// The table: stages that the event needs, that it excludes, that it clears, and that it sets.
    const fn transition(self) -> Transition {
        const NONE: PageState = PageState::CLEAN;
        const R: PageState = PageState::RUNNING;
        const C: PageState = PageState::COMMITTING;
        const D: PageState = PageState::DIRTY;
        const W: PageState = PageState::WRITEBACK;
        const RD: PageState = PageState::READING;
        const ALL: PageState = R.and(C).and(D).and(W).and(RD);
        match self {
            PageEvent::Change => row(NONE, NONE, NONE, R),
            PageEvent::Close => row(R, C, R, C),
            PageEvent::Commit => row(C, NONE, C, D),
            PageEvent::CommitInPlace => row(C, W, C.and(D), NONE),
            PageEvent::BeginWriteback => row(D, W.and(RD), NONE, W),
            PageEvent::BeginDirect => row(C, W.and(RD), NONE, W),
            PageEvent::BeginFill => row(NONE, ALL, NONE, W),
            PageEvent::EndWrite => row(W, NONE, W, NONE),
            PageEvent::EndLastWrite => row(W.and(D), NONE, W.and(D), NONE),
            PageEvent::BeginRead => row(NONE, W, NONE, RD),
            PageEvent::EndRead => row(RD, NONE, RD, NONE),
        }
    }
}

/// Every state that a clean block can come to, each with the shortest way there.
#[cfg(test)]
pub(super) fn reachable() -> Vec<(PageState, Vec<PageEvent>)> {
    let mut found = vec![(PageState::CLEAN, Vec::new())];
    let mut at = 0;
    while let Some((state, way)) = found.get(at).cloned() {
        for event in PageEvent::ALL.into_iter().filter(|event| state.allows(*event)) {
            let next = state.after(event);
            if found.iter().all(|(state, _)| *state != next) {
                found.push((next, [way.as_slice(), &[event]].concat()));
            }
        }
        at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_never_read_and_written_at_once() {
        let states = reachable();
        let both = PageState::WRITEBACK.and(PageState::READING);
        assert!(states.iter().all(|(state, _)| !state.is(both)));
        // Every other set of stages occurs.
        assert_eq!(states.len(), 32 - 8);
    }

    #[test]
    fn content_is_in_place_before_a_block_is_clean() {
        for (state, _) in reachable() {
            for event in PageEvent::ALL.into_iter().filter(|event| state.allows(*event)) {
                let next = state.after(event);
                let leaves = |stage| state.is(stage) && !next.is(stage);
                if leaves(PageState::RUNNING) {
                    assert!(next.is(PageState::COMMITTING), "{event:?} of {state:?}");
                }
                if leaves(PageState::COMMITTING) && event != PageEvent::CommitInPlace {
                    assert!(next.is(PageState::DIRTY), "{event:?} of {state:?}");
                }
                if leaves(PageState::DIRTY) && event != PageEvent::CommitInPlace {
                    assert!(leaves(PageState::WRITEBACK), "{event:?} of {state:?}");
                }
            }
        }
    }

    #[test]
    fn every_block_can_become_clean() {
        let mut clean = vec![PageState::CLEAN];
        let states = reachable();
        while let Some((state, _)) = states.iter().find(|(state, _)| {
            let leads =
                |event: &PageEvent| state.allows(*event) && clean.contains(&state.after(*event));
            !clean.contains(state) && PageEvent::ALL.iter().any(leads)
        }) {
            clean.push(*state);
        }
        assert_eq!(clean.len(), states.len());
    }
}
