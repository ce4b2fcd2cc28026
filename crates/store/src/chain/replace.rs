//! Replaces a link's device: the new device takes the link's segments, under their numbers.
//!
//! The map and the index name segments, so nothing in them changes, and the map area needs no room for a
//! second link. Until the label names the new device, the old one is the link.

use std::sync::Arc;

use async_recursion::async_recursion;
use uuid::Uuid;

use super::format::block_checksum;
use super::index::is_slot;
use super::resize::{check_removal, link_number};
use super::scrub::{Check, runs};
use super::snapshot::Freeze;
use super::{Chain, ChainError, Inner, Link, checkpoint};
use crate::block::{BLOCK_SIZE, Lba};
use crate::device::{DeviceRef, Purpose};

fn invalid(why: impl Into<String>) -> ChainError {
    ChainError::Invalid(why.into())
}

/// Keeps both logs off a link while it lives.
struct Aside<'a> {
    inner: &'a Inner,
    id: Uuid,
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        if let Some(link) = link_number(&state, self.id) {
            state.segments.links[link].leaving = false;
        }
        drop(state);
        self.inner.room.notify_waiters();
    }
}

impl Chain {
    /// Copies the live blocks of the link `old` to the device of `new`, which takes over its segments; calls
    /// `progress` with the number of blocks copied and of all. Users write to the other links meanwhile, or
    /// wait when those are too small. A crash meanwhile leaves the old link in the chain.
    ///
    /// # Errors
    /// [`ChainError::Invalid`] when the new device is smaller, or the chain has no other link;
    /// [`ChainError::Damaged`] when the link holds blocks of which no copy is whole.
    #[async_recursion]
    pub async fn replace_link(
        &self,
        old: Uuid,
        new: Link,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Result<(), ChainError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let _label = inner.label_lock.lock().await;
        // Cleaning must not write to the link either.
        let _cleaning = inner.cleaning_lock.lock().await;
        let (from, is_tight) = inner.check_replacement(old, &new)?;
        let mut frozen = Some(Freeze::new(inner));
        // As when a link is removed: slots count on the room that the logs leave behind.
        if inner.state.lock().owed() > 0 {
            checkpoint::write(inner).await?;
        }
        let aside = Aside { inner, id: old };
        self.leave(old)?;
        // Writes the blocks appended to the link so far; no more come.
        checkpoint::write(inner).await?;
        if !is_tight {
            frozen.take();
        }
        copy_live(inner, old, (&from, &new.device), progress).await?;
        inner
            .change_label(|label| {
                let records = label.links.iter_mut();
                for record in records.filter(|record| record.id == *old.as_bytes()) {
                    record.id = *new.id.as_bytes();
                    record.leaving = 0;
                }
            })
            .await?;
        {
            let mut state = inner.state.lock();
            if let Some(link) = link_number(&state, old) {
                let link = &mut state.segments.links[link];
                (link.id, link.device, link.leaving) = (new.id, new.device, false);
            }
        }
        drop(aside);
        Ok(())
    }
}

impl Inner {
    /// The device of the link `old`, if `new` can replace it; and whether the other links cannot hold
    /// everything meanwhile.
    fn check_replacement(&self, old: Uuid, new: &Link) -> Result<(DeviceRef, bool), ChainError> {
        let state = self.state.lock();
        state.poison_check()?;
        let link = link_number(&state, old);
        let link = link.ok_or_else(|| invalid(format!("the chain has no link {old}")))?;
        if link_number(&state, new.id).is_some() {
            return Err(invalid(format!("link {} is already part of the chain", new.id)));
        }
        if state.segments.links.iter().filter(|other| !other.leaving).count() < 2 {
            return Err(invalid(
                "the chain has no other link to write to meanwhile; add one first",
            ));
        }
        let found = &state.segments.links[link];
        let need = u64::from(found.count) * u64::from(self.segment_blocks) * BLOCK_SIZE as u64;
        let have = new.device.geometry().size;
        if have < need {
            return Err(invalid(format!(
                "{} is too small for the link: it has {have} bytes, and the link {need}; use a larger one",
                new.device.name()
            )));
        }
        Ok((found.device.clone(), check_removal(&state, old).is_err()))
    }
}

/// Copies the live blocks of a link without writers, each verified, and makes them durable.
async fn copy_live(
    inner: &Arc<Inner>,
    id: Uuid,
    (from, to): (&DeviceRef, &DeviceRef),
    progress: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<(), ChainError> {
    let mut checks = {
        let state = inner.state.lock();
        let old = link_number(&state, id);
        let on_link = |block: u32| {
            !is_slot(block) && state.segments.place(block).map(|(link, _)| link) == old
        };
        let mut checks = Vec::new();
        state.index.for_each(|lba, at| {
            if on_link(at.block) {
                checks.push(Check { lba, at });
            }
        });
        checks
    };
    checks.sort_unstable_by_key(|check| check.at.block);
    let (total, mut done) = (checks.len() as u64, 0);
    for run in runs(&checks, inner.segment_blocks) {
        progress(done, total);
        copy_run(inner, run, (from, to)).await?;
        done += run.len() as u64;
    }
    to.flush(Purpose::Repair).await?;
    progress(total, total);
    Ok(())
}

/// Copies neighbouring blocks: together, or one by one where the checksums do not match.
async fn copy_run(
    inner: &Inner,
    run: &[Check],
    (from, to): (&DeviceRef, &DeviceRef),
) -> Result<(), ChainError> {
    let Some(offset) = inner.state.lock().segments.place(run[0].at.block).map(|(_, at)| at) else {
        return Ok(());
    };
    let holds = |check: &Check, content: &[u8]| {
        block_checksum(Lba(u64::from(check.lba)), content) == check.at.check
    };
    if let Ok(bytes) = from.read(offset, run.len() * BLOCK_SIZE, Purpose::Repair).await
        && run.iter().zip(bytes.chunks(BLOCK_SIZE)).all(|(check, content)| holds(check, content))
    {
        return Ok(to.write(offset, vec![bytes], Purpose::Repair).await?);
    }
    for (check, nth) in run.iter().zip(0..) {
        let at = offset + nth * BLOCK_SIZE as u64;
        let content = from.read(at, BLOCK_SIZE, Purpose::Repair).await.ok();
        let Some(content) = content.filter(|content| holds(check, content)) else {
            return Err(ChainError::Damaged(format!(
                "block {} of the volume cannot be read from the old device; scrub lists all of them",
                check.lba
            )));
        };
        to.write(at, vec![content], Purpose::Repair).await?;
    }
    Ok(())
}
