//! Where the versions of a block would be read from.

use smallvec::SmallVec;

use super::cache::{Cache, Tier};
use super::index::{Place, Places, Versioned};
use super::{Inner, State};
use crate::block::{Located, Locations, Residence, Version};
use crate::device::DeviceRef;

/// The device numbers of the caches' SSDs; those of the links begin at 0.
const TAIL_CACHE: u16 = u16::MAX;
const BODY_CACHE: u16 = u16::MAX - 1;

/// See [`crate::block::BlockStore::locate`].
pub(super) fn locate(inner: &Inner, lba: u32, within: (Version, Version)) -> Locations {
    let mut on_links: SmallVec<[(usize, u32); 4]> = SmallVec::new();
    let mut located: Locations = {
        let state = inner.state.lock();
        let readable = state.readable(lba, within);
        let located = readable.iter().enumerate().map(|(nth, (oldest, newest, place))| {
            let residence = state.residence(*place).unwrap_or_else(|(block, link)| {
                on_links.push((nth, block));
                link
            });
            Located { oldest: *oldest, newest: *newest, residence }
        });
        located.collect()
    };
    for (nth, block) in on_links {
        if let (Some(cached), Some(content)) = (in_caches(inner, block), located.get_mut(nth)) {
            content.residence = cached;
        }
    }
    located
}

impl State {
    /// The contents of a block that can be read within these versions.
    fn readable(
        &self,
        lba: u32,
        within: (Version, Version),
    ) -> SmallVec<[(Version, Version, Place); 4]> {
        let one;
        let contents: &[Versioned] = match self.index.places(lba) {
            Places::Absent => &[],
            Places::One(place) => {
                one = [(Version(0), place)];
                &one
            }
            Places::Several(versions) => versions,
        };
        self.holds.readable(contents, Place::Hole(0), self.version, within)
    }

    /// Memory, or else the physical block and its link.
    fn residence(&self, place: Place) -> Result<Residence, (u32, Residence)> {
        let Place::At(at) = place else { return Ok(Residence::Memory) };
        if self.unwritten_content(at.block).is_some() {
            return Ok(Residence::Memory);
        }
        // The content of a link that has left was copied elsewhere; the next look finds it there.
        let Some((link, offset)) = self.segments.place(at.block) else {
            return Ok(Residence::Memory);
        };
        let mut residence = on(link as u16, offset, &self.segments.links[link].device);
        if let Residence::Device { queue, .. } = &mut residence
            && link == self.tail_link()
        {
            // The log's next write is always due there, and reads wait for their turn beside it.
            queue.writes = queue.writes.max(1);
        }
        Err((at.block, residence))
    }
}

fn on(number: u16, offset: u64, device: &DeviceRef) -> Residence {
    Residence::Device {
        device: number,
        offset,
        size: device.geometry().size,
        is_rotational: device.is_rotational(),
        queue: device.queue_depth(),
    }
}

/// Where the caches have a physical block.
fn in_caches(inner: &Inner, block: u32) -> Option<Residence> {
    let find = |cache: &Cache, number: u16| match cache.contains(u64::from(block))? {
        Tier::Ram => Some(Residence::Memory),
        Tier::Ssd => cache.ssd().map(|ssd| on(number, 0, ssd)),
    };
    let body = || find(inner.body_cache.as_deref()?, BODY_CACHE);
    find(&inner.tail_cache, TAIL_CACHE).or_else(body)
}
