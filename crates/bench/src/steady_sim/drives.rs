//! Kinds of chains, and their simulated drives.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::chain::{Chain, Cleaning, Create, Link, Options as ChainOptions, Parts};
use thalweg_store::device::{DeviceRef, Partition};
use uuid::Uuid;

use super::Plan;
use crate::BenchError;
use crate::rig::failed;

/// Bytes per second between host and solid-state drive: about 25,000 blocks.
const BUS_RATE: u64 = 100_000_000;
/// Links of a chain.
pub(super) const LINKS: u32 = 2;

/// The drives of the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Drives {
    /// One solid-state drive has both links and the map.
    Shared,
    /// Each link has a solid-state drive; the first has the map too.
    Separate,
    /// Each link has a hard disk; the map has a solid-state drive.
    Disks,
}

/// A kind of chain.
pub(super) type Kind = (Cleaning, Drives);

/// The kind that `thalweg volume create` makes of two files on one filesystem.
pub(super) const DEFAULT_KIND: Kind = (Cleaning::CompactInBody, Drives::Shared);

pub(super) const KINDS: [Kind; 6] = [
    DEFAULT_KIND,
    (Cleaning::CompactInBody, Drives::Separate),
    (Cleaning::MoveToTail, Drives::Shared),
    (Cleaning::MoveToTail, Drives::Separate),
    (Cleaning::CompactInBody, Drives::Disks),
    (Cleaning::MoveToTail, Drives::Disks),
];

pub(super) fn kind_name((cleaning, drives): Kind) -> String {
    let cleaning = match cleaning {
        Cleaning::CompactInBody => "cib",
        Cleaning::MoveToTail => "mtt",
    };
    let drives = match drives {
        Drives::Shared => "shared",
        Drives::Separate => "separate",
        Drives::Disks => "disks",
    };
    format!("{cleaning}_{drives}")
}

/// The parts of a chain; its map is at the start of the first link or on a drive of its own.
pub(super) fn parts(env: &Env, plan: Plan, drives: Drives) -> Result<Parts, BenchError> {
    let map = Chain::map_bytes(plan.segment_blocks, LINKS * plan.link_segments);
    let map = map.next_multiple_of(1 << 20);
    let link = u64::from(plan.link_segments * plan.segment_blocks) * BLOCK_SIZE as u64;
    let solid = |name: &str, size: u64| -> DeviceRef {
        let spec = SolidStateSpec { bus_rate: BUS_RATE, ..SolidStateSpec::sata(size) };
        Arc::new(SolidState::new(env, name, spec))
    };
    let disk = |name: &str| -> DeviceRef {
        Arc::new(HardDisk::new(env, name, HardDiskSpec::sas_10k(link)))
    };
    let part = |drive: &DeviceRef, start, size| -> Result<DeviceRef, BenchError> {
        Ok(Arc::new(Partition::new(drive.clone(), start, size).map_err(failed)?))
    };
    let (map, links) = match drives {
        Drives::Shared => {
            let drive = solid("drive", map + 2 * link);
            let links = [part(&drive, map, link)?, part(&drive, map + link, link)?];
            (part(&drive, 0, map)?, links)
        }
        Drives::Separate => {
            let first = solid("drive0", map + link);
            (part(&first, 0, map)?, [part(&first, map, link)?, solid("drive1", link)])
        }
        Drives::Disks => (solid("map", map), [disk("disk0"), disk("disk1")]),
    };
    let id = |number: usize| Uuid::from_u128(100 + number as u128);
    let links = links.into_iter().enumerate();
    Ok(Parts {
        links: links.map(|(number, device)| Link { id: id(number), device }).collect(),
        map,
        map_link: (drives != Drives::Disks).then(|| id(0)),
        tail_cache: None,
        body_cache: None,
    })
}

pub(super) async fn make(env: &Env, parts: &Parts, create: Create) -> Result<Chain, BenchError> {
    Chain::create(env, parts.clone(), &create).await.map_err(failed)?;
    let options = ChainOptions::default();
    Ok(Chain::open(env, parts.clone(), options).await.map_err(failed)?.0)
}

pub(super) fn create(plan: Plan, (cleaning, _): Kind, blocks: u64) -> Create {
    Create {
        volume: Uuid::from_u128(7),
        blocks,
        segment_blocks: plan.segment_blocks,
        max_segments: LINKS * plan.link_segments,
        cleaning,
        placement: Default::default(),
        follows: false,
    }
}
