//! A tap shows another task every change of a chain, in the order of versions.

use std::fmt;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use crate::block::{Lba, StoreError, Version, WriteList};

/// What one version changed.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The writes of a transaction.
    Writes(&'a WriteList),
    /// A discard.
    Discard {
        /// The first block.
        lba: Lba,
        /// The number of blocks.
        count: u32,
    },
}

/// Gets the changes of a chain: see [`Chain::attach`](super::Chain::attach). The calls come under the chain's lock,
/// so they neither wait nor call the chain, except for [`Tap::acknowledged`] and [`Tap::replicated`].
pub trait Tap: Send + Sync + fmt::Debug + 'static {
    /// `version` became visible. It is newer than every one before, and may still be lost in a crash.
    fn changed(&self, version: Version, change: Change<'_>);

    /// Every version up to this one survives a crash from now on.
    fn durable(&self, version: Version);

    /// The chain took versions back, or has another size, as of `version`: what changed is in no version.
    fn reshaped(&self, version: Version);

    /// No user's sync is acknowledged any more: the volume is fenced.
    fn fenced(&self) {}

    /// What a user's [`sync`](crate::block::Blocks::sync) of `version`, which survives a crash of this machine, still
    /// waits for; `None` for nothing. Called without the chain's lock.
    fn acknowledged(
        &self,
        _version: Version,
    ) -> Option<BoxFuture<'static, Result<(), StoreError>>> {
        None
    }

    /// See [`Lineage::replicated`](crate::block::Lineage::replicated). Called without the chain's lock.
    fn replicated(&self, _version: Version) -> BoxFuture<'static, bool> {
        ready(false).boxed()
    }
}
