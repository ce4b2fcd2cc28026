//! Counters of a chain's work.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::damage::DamageNote;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What happened since the chain was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct CountStatus { $($(#[$doc])* pub $name: u64,)* }

        /// The live counters behind [`CountStatus`].
        #[derive(Debug, Default)]
        pub(super) struct Counts {
            $(pub(super) $name: AtomicU64,)*
            /// Whether there is damage, also from earlier openings.
            pub(super) damage: DamageNote,
        }

        impl Counts {
            /// Their present values.
            pub(super) fn status(&self) -> CountStatus {
                CountStatus { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Blocks that users wrote.
    user_blocks_written,
    /// Blocks that users read.
    user_blocks_read,
    /// Calls of `sync`.
    syncs,
    /// Rounds of group commit.
    rounds,
    /// Rounds that wrote data and map at once.
    short_rounds,
    /// Blocks that cleaning moved.
    blocks_moved,
    /// Segments that cleaning went through.
    segments_cleaned,
    /// Checkpoints written, bases among them.
    checkpoints,
    /// Bases written.
    bases,
    /// Blocks read from the tail link because no cache held them.
    tail_reads,
    /// Copies of blocks that were overwritten with the right bytes.
    repaired,
    /// Blocks of which no copy was right, counted at each read.
    damaged,
    /// How often cleaning made the tail go to another link early.
    tail_switches,
    /// Blocks read from memory because of `please_cache`.
    wish_hits,
}

impl Counts {
    /// Those of a chain whose label says whether it has damage.
    pub(super) fn new(damaged: bool) -> Counts {
        Counts { damage: DamageNote::new(damaged), ..Counts::default() }
    }

    pub(super) fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}
