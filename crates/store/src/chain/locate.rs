//! Where the versions of a block would be read from.

use smallvec::SmallVec;

use super::cache::{Cache, Tier, Wanted};
use super::index::{Place, Places, Versioned};
use super::{Inner, State};
use crate::block::{Located, Locations, Residence, Version};
use crate::device::DeviceRef;

/// The device numbers of the caches' SSDs; those of the links begin at 0.
const TAIL_CACHE: u16 = u16::MAX;
const BODY_CACHE: u16 = u16::MAX - 1;

/// See [`crate::block::Versions::locate`]. Each lock is taken once, and each device asked once, however many versions there
/// are.
pub(super) fn locate(inner: &Inner, lba: u32, within: (Version, Version)) -> Locations {
    let (mut located, mut wanted) = inner.state.lock().locate(lba, within);
    find_in(&inner.tail_cache, TAIL_CACHE, &mut located, &mut wanted);
    if let Some(body) = &inner.body_cache {
        find_in(body, BODY_CACHE, &mut located, &mut wanted);
    }
    located
}

/// Corrects the residences of blocks that a cache has, and removes these from `wanted`.
fn find_in(cache: &Cache, number: u16, located: &mut Locations, wanted: &mut Wanted) {
    if wanted.is_empty() {
        return;
    }
    let ssd = cache.ssd().map(|ssd| on(number, ssd));
    cache.find_all(wanted, |nth, tier| {
        let residence = match tier {
            Tier::Ram => Some(Residence::Memory),
            Tier::Ssd => ssd,
        };
        if let (Some(content), Some(residence)) = (located.get_mut(nth), residence) {
            content.residence = residence;
        }
    });
}

impl State {
    /// The contents of a block that can be read within these versions, and which of them may be in the caches.
    fn locate(&self, lba: u32, within: (Version, Version)) -> (Locations, Wanted) {
        let one;
        let contents: &[Versioned] = match self.index.places(lba) {
            Places::Absent => &[],
            Places::One(place) => {
                one = [(Version(0), place)];
                &one
            }
            Places::Several(versions) => versions,
        };
        let readable = self.holds.readable(contents, Place::Hole(0), self.version, within);
        let most = readable.size_hint().1.unwrap_or(0);
        let mut located = Locations::with_capacity(most);
        let mut wanted = Wanted::with_capacity(most);
        let mut links = Links::default();
        for (oldest, newest, place) in readable {
            let on_link = place
                .location()
                .and_then(|at| Some((at.block, self.on_link(at.block, &mut links)?)));
            if let Some((block, _)) = on_link {
                wanted.push((located.len(), u64::from(block)));
            }
            let residence = on_link.map_or(Residence::Memory, |(_, residence)| residence);
            located.push(Located { oldest, newest, residence });
        }
        (located, wanted)
    }

    /// Where a physical block would be read from a link; `None` if it is in memory.
    fn on_link(&self, block: u32, links: &mut Links) -> Option<Residence> {
        if self.unwritten_content(block).is_some() {
            return None;
        }
        // The content of a link that has left was copied elsewhere; the next look finds it there.
        let (link, at) = self.segments.place(block)?;
        let mut residence = links.get(link, || self.link_residence(link));
        if let Residence::Device { offset, .. } = &mut residence {
            *offset = at;
        }
        Some(residence)
    }

    fn link_residence(&self, link: usize) -> Residence {
        let mut residence = on(link as u16, &self.segments.links[link].device);
        if let Residence::Device { queue, .. } = &mut residence
            && link == self.tail_link()
        {
            // The log's next write is always due there, and reads wait for their turn beside it.
            queue.writes = queue.writes.max(1);
        }
        residence
    }
}

/// The links that were asked, each with the residence of its first block.
#[derive(Default)]
struct Links(SmallVec<[(usize, Residence); 4]>);

impl Links {
    fn get(&mut self, link: usize, ask: impl FnOnce() -> Residence) -> Residence {
        if let Some((_, residence)) = self.0.iter().find(|(known, _)| *known == link) {
            return *residence;
        }
        let residence = ask();
        self.0.push((link, residence));
        residence
    }
}

fn on(number: u16, device: &DeviceRef) -> Residence {
    Residence::Device {
        device: number,
        offset: 0,
        size: device.geometry().size,
        is_rotational: device.is_rotational(),
        queue: device.queue_depth(),
    }
}
