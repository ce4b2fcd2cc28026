//! The space that changes need, and whether it is free.

/// The space that a change needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// Blocks that will be live because of it, at once or when they are settled.
    pub(super) live: u32,
    /// Blocks of the users' log that it takes at once.
    pub(super) blocks: u32,
    /// How many of the blocks become slots.
    pub(super) slots: u32,
}

impl Need {
    /// The need of whole blocks, or records.
    pub(super) fn whole(blocks: u32) -> Need {
        Need { live: blocks, blocks, slots: 0 }
    }
}

/// Whether the log has room for a change.
pub(super) enum Room {
    /// There is room for the blocks.
    Yes,
    /// Cleaning or a checkpoint will make room.
    Wait,
    /// There is none, and cleaning cannot make any.
    Full,
}
