//! Chains that grow and shrink while in use (Gecko 3.1.4).

use std::sync::Arc;

use super::clean::clean_segment;
use super::format::LinkRecord;
use super::index::Content;
use super::label::{MAX_LINKS, Shrink, Void};
use super::recovery::{clear_maps, link_record};
use super::segments::SegmentState;
use super::snapshot::{Freeze, check_voids};
use super::state::reserved_segments;
use super::stream::{BODY, USERS};
use super::{Chain, ChainError, Inner, Link, Speed, State, checkpoint, write};
use crate::block::{Lba, Version};
use async_recursion::async_recursion;

fn invalid(why: impl Into<String>) -> ChainError {
    ChainError::Invalid(why.into())
}

impl Chain {
    /// Changes the number of logical blocks.
    ///
    /// # Errors
    /// [`ChainError::Invalid`] when the links cannot hold so many, or when a block is stored, now or in a
    /// snapshot, beyond the new end.
    #[async_recursion]
    pub async fn resize(&self, blocks: u64) -> Result<(), ChainError> {
        let inner = &self.inner;
        let _label = inner.label_lock.lock().await;
        let discarded = self.discard_end(blocks).await?;
        let _frozen = Freeze::new(inner);
        let old = {
            let mut state = inner.state.lock();
            state.poison_check()?;
            let most = state.capacity();
            if blocks == 0 || blocks > most {
                return Err(invalid(format!(
                    "the links hold up to {most} blocks besides what cleaning needs, not \
                     {blocks}; add a link first"
                )));
            }
            check_end(&state, blocks)?;
            check_voids(&mut state)?;
            state.index.blocks()
        };
        if blocks < old {
            // A replay must not meet entries beyond the new end.
            checkpoint::write(inner).await?;
            let mut state = inner.state.lock();
            inner.set_blocks(&mut state, blocks);
            state.reap();
        }
        let gone = {
            let state = inner.state.lock();
            // If the volume grows again, the former content of its blocks must not come back.
            let (from, to) = (Version(0), state.version);
            (blocks < old).then_some(Void { from, to, seq: state.next_seq, first: blocks })
        };
        inner
            .change_label(|label| {
                label.blocks = blocks;
                if let Some(gone) = gone {
                    label.voids.retain(|void| void.first < gone.first);
                    label.voids.push(gone);
                }
                if let Some((version, versions)) = discarded {
                    let blocks = label.shrink.map_or(blocks, |last| last.blocks.min(blocks));
                    label.shrink = Some(Shrink { version, versions, blocks });
                }
            })
            .await?;
        let mut state = inner.state.lock();
        inner.set_blocks(&mut state, blocks);
        state.wishes.forget_all();
        state.tell_reshaped();
        Ok(())
    }

    /// Discards the end of a volume that becomes smaller and has followers, so that this is in versions that they may have
    /// missed; returns the last of these versions, and their number.
    async fn discard_end(&self, blocks: u64) -> Result<Option<(Version, u64)>, ChainError> {
        let label = self.label();
        if blocks >= label.blocks || blocks == 0 || label.history.is_empty() || label.follows {
            return Ok(None);
        }
        let check = |state: &State| check_end(state, blocks);
        write::discard_end(&self.inner, Lba(blocks), check).await.map(Some)
    }

    /// Whether [`Chain::add_link`] has segment numbers for the link, and room for them in the map area.
    pub fn can_add(&self, link: &Link) -> bool {
        new_record(&self.inner.state.lock(), link).is_ok()
    }

    /// Adds a link at the end of the chain; its segments may be written at once.
    ///
    /// # Errors
    /// [`ChainError::Invalid`] when the link is too small or already part of the chain, or the map area has
    /// no room for it.
    pub async fn add_link(&self, link: Link) -> Result<(), ChainError> {
        let inner = &self.inner;
        let _label = inner.label_lock.lock().await;
        let record = {
            let state = inner.state.lock();
            state.poison_check()?;
            new_record(&state, &link)?
        };
        // A former link may have left sectors there.
        let base = record.base.get();
        let segments: Vec<u32> = (base..base + record.segments.get()).collect();
        clear_maps(inner, &segments).await?;
        inner.change_label(|label| label.links.push(record)).await?;
        {
            let mut state = inner.state.lock();
            state.segments.add_link(&record, link.device);
            state.add_body();
        }
        inner.room.notify_waiters();
        checkpoint::write(inner).await?;
        Ok(())
    }

    /// Moves everything off a link and takes it out of the chain. Calls `progress` with the number of blocks
    /// moved and of all. A crash meanwhile leaves the link in the chain; another call continues.
    ///
    /// # Errors
    /// [`ChainError::Invalid`] when the other links cannot hold everything; [`ChainError::Damaged`] when the
    /// link holds blocks of which no copy is whole.
    pub async fn remove_link(
        &self,
        id: uuid::Uuid,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Result<(), ChainError> {
        let inner = &self.inner;
        let _label = inner.label_lock.lock().await;
        {
            let state = inner.state.lock();
            state.poison_check()?;
            check_removal(&state, id)?;
        }
        inner.change_label(|label| set_leaving(&mut label.links, id)).await?;
        {
            let _frozen = Freeze::new(inner);
            // The logs leave behind room on which slots count, and the pads that fill it must not come
            // between a transaction and its fragments in memory.
            if inner.state.lock().owed() > 0 {
                checkpoint::write(inner).await?;
            }
            self.leave(id)?;
        }
        self.empty(id, progress).await?;
        self.take_out(id).await
    }

    /// Moves both logs off a link.
    pub(super) fn leave(&self, id: uuid::Uuid) -> Result<(), ChainError> {
        let mut state = self.inner.state.lock();
        let Some(link) = link_number(&state, id) else { return Ok(()) };
        state.segments.links[link].leaving = true;
        for log in [USERS, BODY] {
            if log == BODY && state.body.is_none() {
                continue;
            }
            let on_link =
                |state: &State, segment: u32| usize::from(state.segments.get(segment).link) == link;
            let next = state.stream(log).open().next;
            if state.segments.exists(next) && on_link(&state, next) {
                state.stream(log).forget_next();
                state.segments.unreserve(next);
            }
            let open = state.stream(log).open().id;
            if on_link(&state, open) {
                state.close_segment(log);
                state.roll(log, true)?;
            }
        }
        Ok(())
    }

    async fn empty(
        &self,
        id: uuid::Uuid,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Result<(), ChainError> {
        let inner = &self.inner;
        let total = on_link(inner, id).1;
        loop {
            let (victim, live) = on_link(inner, id);
            progress(total.saturating_sub(live), total);
            if live == 0 {
                return Ok(());
            }
            let Some(victim) = victim else {
                return Err(ChainError::Damaged(format!(
                    "{live} blocks of the link cannot be read from any copy; scrub lists them"
                )));
            };
            // Entries that are not durable yet cannot be cleaned, and a checkpoint frees emptied segments.
            checkpoint::write(inner).await?;
            let _cleaning = inner.cleaning_lock.lock().await;
            // Also on the drive of the tail: nothing else could empty the link.
            let ready = inner.state.lock().is_closed_for_good(victim);
            if ready {
                clean_segment(inner, victim, Speed::Full).await?;
            }
        }
    }

    /// The last step: nothing refers to the link any more.
    async fn take_out(&self, id: uuid::Uuid) -> Result<(), ChainError> {
        let inner = &self.inner;
        let _cleaning = inner.cleaning_lock.lock().await;
        let _frozen = Freeze::new(inner);
        checkpoint::write(inner).await?;
        let ends = {
            let state = inner.state.lock();
            [USERS, BODY].map(|log| match (log, &state.body) {
                (BODY, Some(body)) => body.tail().seq(),
                (BODY, None) => 0,
                _ => state.users.tail().seq(),
            })
        };
        inner
            .change_label(|label| {
                label.links.retain(|link| link.id != *id.as_bytes());
                // The map will not show the part of the logs on this link.
                label.note_ends(ends);
            })
            .await?;
        let mut state = inner.state.lock();
        debug_assert!(state.unwritten == 0 && state.users.unflushed.is_empty());
        if let Some(link) = link_number(&state, id) {
            state.segments.remove_link(link);
        }
        Ok(())
    }
}

pub(super) fn link_number(state: &State, id: uuid::Uuid) -> Option<usize> {
    state.segments.links.iter().position(|link| link.id == id)
}

fn set_leaving(links: &mut [LinkRecord], id: uuid::Uuid) {
    for link in links.iter_mut().filter(|link| link.id == *id.as_bytes()) {
        link.leaving = 1;
    }
}

/// A segment of the link that can be emptied, and the link's live blocks.
fn on_link(inner: &Arc<Inner>, id: uuid::Uuid) -> (Option<u32>, u64) {
    let state = inner.state.lock();
    let Some(link) = link_number(&state, id) else { return (None, 0) };
    let of_link = state.segments.ids(|segment| usize::from(segment.link) == link);
    let live = of_link.iter().map(|id| u64::from(state.segments.get(*id).live)).sum();
    let victim = of_link.into_iter().find(|id| {
        let segment = state.segments.get(*id);
        segment.state == SegmentState::Used && segment.live > 0 && !segment.damaged
    });
    (victim, live)
}

/// Checks that no version of any block at or beyond `blocks` is stored.
fn check_end(state: &State, blocks: u64) -> Result<(), ChainError> {
    let mut lba = blocks;
    while lba < state.index.blocks() {
        match state.index.empty_until(lba as u32) {
            Some(next) => lba = u64::from(next),
            None if matches!(
                state.index.content(lba as u32),
                Content::Absent | Content::Hole(_)
            ) =>
            {
                lba += 1;
            }
            None => {
                let now = state.index.get(lba as u32, Version(u64::MAX)).is_some();
                let (what, advice) = match now {
                    true => ("the volume", "discard it first (fstrim, blkdiscard)"),
                    false => ("a snapshot", "delete the snapshot first"),
                };
                return Err(invalid(format!(
                    "block {lba} is stored in {what} and lies beyond {blocks} blocks; {advice}"
                )));
            }
        }
    }
    Ok(())
}

/// The record of a link to be added, in the first gap of segment numbers that it fits.
fn new_record(state: &State, link: &Link) -> Result<LinkRecord, ChainError> {
    if link_number(state, link.id).is_some() {
        return Err(invalid(format!("link {} is already part of the chain", link.id)));
    }
    if state.label.links.len() >= MAX_LINKS {
        return Err(invalid(format!("a chain has at most {MAX_LINKS} links")));
    }
    let mut record = link_record(link, 0, state.label.segment_blocks)?;
    let mut taken: Vec<(u32, u32)> = state
        .label
        .links
        .iter()
        .map(|link| (link.base.get(), link.base.get() + link.segments.get()))
        .collect();
    taken.sort_unstable();
    let mut base = 0;
    for (first, end) in taken {
        if base + record.segments.get() <= first {
            break;
        }
        base = end;
    }
    if base + record.segments.get() > state.label.max_segments {
        return Err(invalid(format!(
            "the map area has room for {} segments, and the new link would need up to {}; make \
             the volume with more growth, or add a smaller link",
            state.label.max_segments,
            base + record.segments.get()
        )));
    }
    record.base = base.into();
    Ok(record)
}

/// Checks that the other links can hold everything stored, and the volume's blocks.
pub(super) fn check_removal(state: &State, id: uuid::Uuid) -> Result<(), ChainError> {
    let Some(link) = link_number(state, id) else {
        return Err(invalid(format!("the chain has no link {id}")));
    };
    let others = state.segments.links.iter().enumerate();
    let others = others.filter(|(number, other)| *number != link && !other.leaving);
    let (links, segments) =
        others.fold((0, 0), |(links, sum), (_, other)| (links + 1, sum + other.count));
    let reserve = reserved_segments(links, state.body.is_some());
    let most = u64::from(segments.saturating_sub(reserve)) * u64::from(state.segments.per());
    let live = state.segments.live() + state.slots.len() as u64;
    let need = state.index.blocks().max(live);
    match links > 0 && need <= most {
        true => Ok(()),
        false => Err(invalid(format!(
            "the other links hold up to {most} blocks, and the volume needs {need}; shrink it, \
             delete snapshots, or add a link first"
        ))),
    }
}
