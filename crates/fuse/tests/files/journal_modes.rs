//! A mount of a client with a journal, in each of its modes.

use thalweg_cluster::client::JournaledData;
use thalweg_fuse::mounted::MountOptions;
use thalweg_sim::campaign;

use crate::rig::{Rig, journaled_client, local, server};
use crate::tools::fsx;

/// Operations of each run of `fsx`.
const OPERATIONS: u32 = 1500;

#[test]
fn fsx_in_each_mode() {
    let modes = [
        JournaledData::Wasteless,
        JournaledData::Pages,
        JournaledData::Selective { threshold: 4096 },
    ];
    for seed in campaign::seeds(modes.len() as u64) {
        let data = modes[seed as usize % modes.len()];
        let make = |env: &_| journaled_client(env, &server(env, local(env)), data);
        let Some(rig) = Rig::with(make, &MountOptions::default()) else { return };
        fsx(&rig.path("fsx"), rig.beside(), seed, OPERATIONS);
    }
}
