//! The disks of object servers.

use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_store::device::DeviceRef;

use crate::hdd::{HardDisk, HardDiskSpec};
use crate::ssd::{SolidState, SolidStateSpec};

/// The parameters of a disk of an object server.
#[derive(Clone, Debug)]
pub enum DiskSpec {
    /// Without moving parts.
    SolidState(SolidStateSpec),
    /// A rotational disk.
    Rotational(HardDiskSpec),
}

impl DiskSpec {
    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        match self {
            DiskSpec::SolidState(spec) => spec.size,
            DiskSpec::Rotational(spec) => spec.size,
        }
    }
}

/// What a disk has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskTally {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub write_bytes: u64,
    /// Time that it was busy with requests; of a drive without moving parts the sum over its flash units and its bus.
    pub busy: Duration,
}

/// A disk of an object server.
#[derive(Debug)]
pub(super) enum Disk {
    SolidState(Arc<SolidState>),
    Rotational(Arc<HardDisk>),
}

impl Disk {
    pub(super) fn new(env: &Env, name: &str, spec: &DiskSpec) -> Disk {
        match spec {
            DiskSpec::SolidState(spec) => {
                Disk::SolidState(Arc::new(SolidState::new(env, name, spec.clone())))
            }
            DiskSpec::Rotational(spec) => {
                Disk::Rotational(Arc::new(HardDisk::new(env, name, spec.clone())))
            }
        }
    }

    pub(super) fn device(&self) -> DeviceRef {
        match self {
            Disk::SolidState(disk) => disk.clone(),
            Disk::Rotational(disk) => disk.clone(),
        }
    }

    pub(super) fn tally(&self) -> DiskTally {
        let busy = match self {
            Disk::SolidState(disk) => disk.busy().total(),
            Disk::Rotational(disk) => disk.busy().total(),
        };
        let total = self.device().tallies().total();
        DiskTally { read_bytes: total.read_bytes, write_bytes: total.write_bytes, busy }
    }
}
