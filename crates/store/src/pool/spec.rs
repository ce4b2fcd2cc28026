//! What a volume is asked to be.

use std::path::PathBuf;

use super::manifest::Settings;
use crate::chain::{Cleaning, Options};

/// What a new file gets before it is used, in `qemu-img`'s words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Preallocation {
    /// Its room is reserved.
    #[default]
    Falloc,
    /// Zeros are written too. A filesystem notes the first write of each reserved block in its own
    /// journal, so that a small write and its flush become several of both; after this, none is
    /// the first.
    Full,
}

/// A device by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// A block device, a file, or a path at which a file will be made.
    pub path: PathBuf,
    /// Bytes of a file that is made; by default, as many as its part of the volume needs.
    pub size: Option<u64>,
    /// What a file that is made gets before it is used.
    pub preallocation: Preallocation,
}

impl DeviceSpec {
    /// The device at `path`.
    pub fn new(path: impl Into<PathBuf>) -> DeviceSpec {
        DeviceSpec { path: path.into(), size: None, preallocation: Preallocation::default() }
    }

    /// The device at `path`, made as a file of `size` bytes if nothing is there.
    pub fn with_size(path: impl Into<PathBuf>, size: u64) -> DeviceSpec {
        DeviceSpec { size: Some(size), ..DeviceSpec::new(path) }
    }

    /// The same device, with a file that is made written once before it is used.
    pub fn preallocated(self) -> DeviceSpec {
        DeviceSpec { preallocation: Preallocation::Full, ..self }
    }
}

/// The devices of one link: the sides of each column of a stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Columns, each with its sides. All columns have as many sides.
    pub columns: Vec<Vec<DeviceSpec>>,
    /// Bytes that go to one column before the next, if there are several.
    pub unit: u32,
}

impl LinkSpec {
    /// Bytes of a stripe's unit unless somebody says otherwise.
    pub const UNIT: u32 = 64 * 1024;

    /// One device.
    pub fn plain(device: DeviceSpec) -> LinkSpec {
        LinkSpec::mirror(vec![device])
    }

    /// Devices with the same content.
    pub fn mirror(sides: Vec<DeviceSpec>) -> LinkSpec {
        LinkSpec { columns: vec![sides], unit: LinkSpec::UNIT }
    }

    /// Devices that share the content.
    pub fn stripe(devices: Vec<DeviceSpec>) -> LinkSpec {
        LinkSpec::stripe_of_mirrors(devices.into_iter().map(|device| vec![device]).collect())
    }

    /// Mirrors that share the content.
    pub fn stripe_of_mirrors(columns: Vec<Vec<DeviceSpec>>) -> LinkSpec {
        LinkSpec { columns, unit: LinkSpec::UNIT }
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = &DeviceSpec> {
        self.columns.iter().flatten()
    }
}

/// Room on an SSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// The SSD, which other volumes may use too.
    pub device: DeviceSpec,
    /// Bytes of it; by default a sixteenth of the links' size, or what is left if that is less.
    pub bytes: Option<u64>,
}

/// A volume to be made.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// Its name, 1 to 64 bytes: for messages.
    pub name: String,
    /// Its size in bytes, rounded up to whole blocks of 4 KiB.
    pub size: u64,
    /// Its links, in the order of the chain.
    pub links: Vec<LinkSpec>,
    /// The sides of the map device, which other volumes may use too. Without one, the map lies on
    /// the first link.
    pub map: Vec<DeviceSpec>,
    /// Where the tail cache goes on from RAM.
    pub cache: Option<CacheSpec>,
    /// Where the body cache goes on from RAM.
    pub body_cache: Option<CacheSpec>,
    /// How segments are cleaned.
    pub cleaning: Cleaning,
    /// Blocks in a segment, a multiple of 240. By default about 1/128 of the smallest link, at
    /// most 15 MiB.
    pub segment_blocks: Option<u32>,
    /// How much larger the chain may become than it is now: the map area has room for it.
    pub growth: f64,
    /// The sector in bytes, instead of the devices' own. With a smaller one a power cut may damage
    /// neighbours of what was being written.
    pub sector: Option<u32>,
    /// How it is opened, unless whoever opens it says otherwise.
    pub settings: Settings,
    /// Whether to write over devices that carry another volume's label or somebody's signature.
    pub force: bool,
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
            segment_blocks: None,
            growth: 2.0,
            sector: None,
            settings: Settings::default(),
            force: false,
        }
    }
}

/// How a volume is opened. What its own settings say goes over this.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// What its chain does at run time.
    pub chain: Options,
    /// Whether the second sides of mirrors rest while they are in the body.
    pub standby: bool,
    /// What its transactions may use up.
    pub transactions: crate::txn::Options,
    /// Whether it is opened for reading alone: no byte of its devices and of its folder changes. What
    /// needs recovery is recovered in memory; others may read it at the same time.
    pub read_only: bool,
}
