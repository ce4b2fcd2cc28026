//! Where the versions of a block would be read from.

use super::format::Entry;
use super::medium::Medium;
use crate::block::{Located, Locations, Residence, Version};

impl Medium {
    /// See [`crate::block::Versions::locate`].
    pub(super) fn locate(&self, lba: u64, within: (Version, Version)) -> Locations {
        let in_place = || Residence::Device {
            device: 0,
            offset: 0,
            size: self.data.geometry().size,
            is_rotational: self.data.is_rotational(),
            queue: self.data.queue_depth(),
        };
        let state = self.state.lock();
        let contents = match state.pages.get(lba) {
            Some(page) => page.places(),
            None => {
                // A page of the map that is not in memory has to be read as well.
                let is_empty = matches!(state.map.entry(lba), Ok(Some(Entry::Empty)));
                [(Version(0), is_empty)].into_iter().collect()
            }
        };
        let holds = &state.pages.holds;
        let readable = holds.readable(&contents, true, state.now, within);
        let located = readable.map(|(oldest, newest, in_memory)| {
            let residence = if in_memory { Residence::Memory } else { in_place() };
            Located { oldest, newest, residence }
        });
        located.collect()
    }
}
