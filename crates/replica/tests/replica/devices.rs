//! The devices of a machine.

use thalweg_env::Env;
use thalweg_sim::faults::{Faults, Faulty};
use thalweg_store::chain::{Link, Parts};
use thalweg_store::device::DeviceRef;
use uuid::Uuid;

/// Devices with controlled damage.
pub(crate) fn faulty(
    env: &Env,
    devices: impl IntoIterator<Item = DeviceRef>,
) -> (Vec<DeviceRef>, Vec<Faults>) {
    let wrap = |device| Faulty::wrap(env, device);
    devices.into_iter().map(wrap).map(|(device, faults)| (device as DeviceRef, faults)).unzip()
}

/// The parts of a chain: two drives, the map, and further drives.
pub(crate) fn parts(devices: &[DeviceRef]) -> Parts {
    let links = devices[..2].iter().chain(&devices[3..]).zip(1..);
    let link =
        |(device, id): (&DeviceRef, u128)| Link { id: Uuid::from_u128(id), device: device.clone() };
    Parts {
        links: links.map(link).collect(),
        map: devices[2].clone(),
        map_link: None,
        tail_cache: None,
        body_cache: None,
    }
}
