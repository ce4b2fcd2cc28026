//! The description of a volume to be made.

use uuid::Uuid;

use std::path::PathBuf;

use super::settings::Settings;
use crate::chain::{Cleaning, Placement};

/// How a new file is allocated; `qemu-img`'s words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Preallocation {
    /// Its space is reserved.
    #[default]
    Falloc,
    /// Zeros are written to it too. With reserved space alone, a filesystem journals the first write of each
    /// block, so that a small write and its flush become several of both; written zeros avoid that.
    Full,
}

/// A device by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// A block device, a file, or a path at which a file will be made.
    pub path: PathBuf,
    /// Bytes of a file to be made; by default, as many as its part of the volume needs.
    pub size: Option<u64>,
    /// How a file to be made is allocated.
    pub preallocation: Preallocation,
}

impl DeviceSpec {
    /// The device at `path`.
    pub fn new(path: impl Into<PathBuf>) -> DeviceSpec {
        DeviceSpec { path: path.into(), size: None, preallocation: Preallocation::default() }
    }

    /// The device at `path`; a file of `size` bytes is made if it is absent.
    pub fn with_size(path: impl Into<PathBuf>, size: u64) -> DeviceSpec {
        DeviceSpec { size: Some(size), ..DeviceSpec::new(path) }
    }

    /// The same device; a file to be made is filled with zeros before it is used.
    pub fn preallocated(self) -> DeviceSpec {
        DeviceSpec { preallocation: Preallocation::Full, ..self }
    }
}

/// The devices of one link: the sides of each column of a stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// The columns, each with its sides. All columns have the same number of sides.
    pub columns: Vec<Vec<DeviceSpec>>,
    /// Bytes of the stripe's unit, if there are several columns.
    pub unit: u32,
}

impl LinkSpec {
    /// Default size of a stripe's unit in bytes.
    pub const UNIT: u32 = 64 * 1024;

    /// One device.
    pub fn plain(device: DeviceSpec) -> LinkSpec {
        LinkSpec::mirror(vec![device])
    }

    /// A mirror: devices with the same content.
    pub fn mirror(sides: Vec<DeviceSpec>) -> LinkSpec {
        LinkSpec { columns: vec![sides], unit: LinkSpec::UNIT }
    }

    /// A stripe over devices.
    pub fn stripe(devices: Vec<DeviceSpec>) -> LinkSpec {
        LinkSpec::stripe_of_mirrors(devices.into_iter().map(|device| vec![device]).collect())
    }

    /// A stripe over mirrors.
    pub fn stripe_of_mirrors(columns: Vec<Vec<DeviceSpec>>) -> LinkSpec {
        LinkSpec { columns, unit: LinkSpec::UNIT }
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = &DeviceSpec> {
        self.columns.iter().flatten()
    }
}

/// Space on an SSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// The SSD, which other volumes may use too.
    pub device: DeviceSpec,
    /// Bytes of it; by default a sixteenth of the links' size, or the free space if that is less.
    pub bytes: Option<u64>,
}

/// A volume to be made.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// Its name, 1 to 64 bytes; used in messages.
    pub name: String,
    /// Its size in bytes, rounded up to whole blocks of 4 KiB.
    pub size: u64,
    /// Its links, in the order of the chain.
    pub links: Vec<LinkSpec>,
    /// The sides of the map device, which other volumes may use too. If empty, the map lies on the first
    /// link.
    pub map: Vec<DeviceSpec>,
    /// The SSD tier of the tail cache.
    pub cache: Option<CacheSpec>,
    /// The SSD tier of the body cache.
    pub body_cache: Option<CacheSpec>,
    /// How segments are cleaned.
    pub cleaning: Cleaning,
    /// Which links the log takes.
    pub placement: Placement,
    /// Blocks in a segment, a multiple of 240. By default about 1/128 of the smallest link, at
    /// most 15 MiB.
    pub segment_blocks: Option<u32>,
    /// How many times larger than now the chain may become: the map area has room for it.
    pub growth: f64,
    /// The sector in bytes, if not the devices' own. With a smaller one, a power cut may damage the
    /// neighbours of a write.
    pub sector: Option<u32>,
    /// The settings for opening it; they override an opening's options.
    pub settings: Settings,
    /// Whether to overwrite devices that carry another volume's label or a known signature.
    pub force: bool,
    /// The volume that this one is to follow. It has the same identity, and its size is this volume's.
    pub follows: Option<Follows>,
}

/// A volume on another machine that a volume follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follows {
    /// Its identity.
    pub volume: Uuid,
    /// Its address, for those that connect to it.
    pub address: String,
}

impl NewVolume {
    /// A volume of `size` bytes on `links`, with defaults for the rest.
    pub fn new(name: impl Into<String>, size: u64, links: Vec<LinkSpec>) -> NewVolume {
        NewVolume {
            name: name.into(),
            size,
            links,
            map: Vec::new(),
            cache: None,
            body_cache: None,
            cleaning: Cleaning::MoveToTail,
            placement: Placement::Chained,
            segment_blocks: None,
            growth: 2.0,
            sector: None,
            settings: Settings::default(),
            force: false,
            follows: None,
        }
    }
}
