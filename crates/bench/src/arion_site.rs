//! The machines of the benchmarks of a client's journal (thesis, section 8.1), in virtual time.
//!
//! Links carry 1 Gbit/s, and have a latency of 100 µs. A client's journal is 2 GB on two striped disks of 15,000 rpm, whose caches are off.
//! The filesystem of the server is on a solid-state drive, or on RADOS: three object servers, each with a journal of 1 GB and a filesystem on
//! disks of 15,000 rpm, whose caches are on; three copies of each object. Names and attributes are on an image there, in place; contents are objects.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thalweg_env::Env;
use thalweg_fs::local::{self, Format, LocalFs};
use thalweg_fs::{Contents, ContentsFinder};
use thalweg_rados::{
    FileObjects, ObjectError, ObjectStoreRef, ObjectsFinder, Pools, RadosDevice, RadosOptions,
};
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_sim::net::LinkSpec;
use thalweg_sim::rados::{DiskSpec, RadosSpec, ServerTally, SimPool, SimRados};
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::device::{DeviceRef, Stripe};
use thalweg_store::inplace::{self, InPlace, NewInPlace, Parts};
use thalweg_store::txn::{self, Transact, TransactionManager};

use crate::BenchError;
use crate::cluster_site::{Processing, Site, filesystem};
use crate::rig::failed;

/// Bytes per second of each link.
pub(crate) const LINK: u64 = 125_000_000;
pub(crate) const LATENCY: Duration = Duration::from_micros(100);
/// Bytes of a client's journal.
pub(crate) const JOURNAL: u64 = 2 << 30;
/// Of the journal of an object server, and of its filesystem.
const OSD_JOURNAL: u64 = 1 << 30;
const OSD_FILESYSTEM: u64 = 300_000_000_000;
/// Of a disk's cache, where that is on.
const DISK_CACHE: u64 = 16 << 20;
const STRIPE_UNIT: u64 = 64 << 10;
/// Bytes of the image with names and attributes, and of its journal.
const IMAGE: u64 = 8 << 30;
const IMAGE_JOURNAL: u64 = 256 << 20;
/// Bytes of a solid-state drive, and of the filesystem on it.
const DRIVE: u64 = 16 << 30;
/// A processor that checks and copies a gigabyte in a second.
pub(crate) const PROCESSING: Processing = Processing { call: Duration::from_micros(25), byte: 1 };

/// A link of 1 Gbit/s.
pub(crate) fn link() -> LinkSpec {
    LinkSpec { bandwidth: LINK, ..LinkSpec::of(LATENCY) }
}

/// Until a link has carried so many bytes.
pub(crate) fn link_time(bytes: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / LINK)
}

/// A server whose filesystem is on a solid-state drive.
pub(crate) async fn embedded(env: &Env) -> Result<Site, BenchError> {
    let drive: DeviceRef =
        Arc::new(SolidState::new(env, "drive", SolidStateSpec::sata(DRIVE + IMAGE_JOURNAL)));
    let files = filesystem(env, drive.clone()).await?;
    Site::serve(env, link(), PROCESSING, (files, drive)).await
}

/// Object servers, and a server of files on them.
pub(crate) struct RadosSite {
    pub(crate) site: Site,
    pub(crate) rados: SimRados,
}

impl RadosSite {
    pub(crate) async fn new(env: &Env) -> Result<RadosSite, BenchError> {
        RadosSite::with_contents(env, |contents| contents).await
    }

    /// On these object servers, whose objects clients can reach past the server.
    pub(crate) async fn reachable(env: &Env, spec: RadosSpec) -> Result<RadosSite, BenchError> {
        let around = |contents: FileObjects| -> Arc<dyn Contents> {
            Arc::new(contents.located(SIMULATED.to_owned()))
        };
        RadosSite::on(env, spec, around).await
    }

    /// The filesystem has these contents around its own.
    pub(crate) async fn with_contents(
        env: &Env,
        around: impl FnOnce(Arc<dyn Contents>) -> Arc<dyn Contents>,
    ) -> Result<RadosSite, BenchError> {
        RadosSite::on(env, rados(), |contents| around(Arc::new(contents))).await
    }

    /// On these object servers.
    pub(crate) async fn on(
        env: &Env,
        spec: RadosSpec,
        around: impl FnOnce(FileObjects) -> Arc<dyn Contents>,
    ) -> Result<RadosSite, BenchError> {
        let rados = SimRados::new(env, spec);
        let (files, image) = filesystem_on(env, &rados, around).await?;
        let site = Site::serve(env, link(), PROCESSING, (files, image)).await?;
        Ok(RadosSite { site, rados })
    }
}

/// The identity of the simulated cluster.
const SIMULATED: &str = "simulated";

/// A client's own connection to the object servers.
#[derive(Debug)]
struct OwnPool(Arc<SimPool>);

#[async_trait]
impl Pools for OwnPool {
    async fn pool(&self, _: &str, _: &str) -> Result<ObjectStoreRef, ObjectError> {
        Ok(self.0.store())
    }
}

/// Finds the contents of files for a client that reaches the object servers itself.
pub(crate) fn finder(rados: &SimRados) -> Arc<dyn ContentsFinder> {
    let pool = rados.client();
    Arc::new(ObjectsFinder::new(Box::new(move || Arc::new(OwnPool(pool.clone())))))
}

/// The object servers.
pub(crate) fn rados() -> RadosSpec {
    let cached = |size| HardDiskSpec { write_cache: DISK_CACHE, ..HardDiskSpec::sas_15k(size) };
    RadosSpec {
        latency: LATENCY,
        bandwidth: Some(LINK),
        journal: DiskSpec::Rotational(cached(OSD_JOURNAL)),
        filesystem: DiskSpec::Rotational(cached(OSD_FILESYSTEM)),
        ..RadosSpec::default()
    }
}

/// What each object server has done.
pub(crate) fn tallies(rados: &SimRados) -> Vec<ServerTally> {
    (0..rados.servers()).map(|server| rados.server(server)).collect()
}

async fn filesystem_on(
    env: &Env,
    rados: &SimRados,
    around: impl FnOnce(FileObjects) -> Arc<dyn Contents>,
) -> Result<(LocalFs, DeviceRef), BenchError> {
    let store = rados.client().store();
    let layout = RadosOptions::default();
    let image = RadosDevice::create(env, store, "files", 2 * IMAGE, &layout).await;
    let image = Arc::new(image.map_err(failed)?);
    let contents: Arc<dyn Contents> = around(image.files("fs").map_err(failed)?);
    let device: DeviceRef = image.clone();
    let parts = || Parts { data: device.clone(), journal: None };
    let new = NewInPlace {
        name: "files".to_owned(),
        journal_size: Some(IMAGE_JOURNAL),
        size: Some(IMAGE),
    };
    InPlace::create(env, &parts(), &new).await.map_err(failed)?;
    let options = inplace::Options { cache: 1 << 30, ..inplace::Options::default() };
    let (store, _) = InPlace::open(env, parts(), options).await.map_err(failed)?;
    let volume = TransactionManager::new(env, Arc::new(store), txn::Options::default());
    let volume: Arc<dyn Transact> = Arc::new(volume);
    local::make_external(env, &volume, &Format::default(), &*contents).await.map_err(failed)?;
    let options = local::Options { keep_orphans: true, ..local::Options::default() };
    let files = LocalFs::open_with(env, volume, "fs", options, Some(contents)).await;
    Ok((files.map_err(failed)?, device))
}

/// A drive for a client's journal, and the disks that it is striped over.
pub(crate) fn journal_drive(env: &Env) -> Result<(DeviceRef, [Arc<HardDisk>; 2]), BenchError> {
    striped_drive(env, JOURNAL)
}

/// A drive of so many bytes, and the disks that it is striped over.
pub(crate) fn striped_drive(
    env: &Env,
    bytes: u64,
) -> Result<(DeviceRef, [Arc<HardDisk>; 2]), BenchError> {
    let disk = |name| Arc::new(HardDisk::new(env, name, HardDiskSpec::sas_15k(bytes / 2)));
    let disks = [disk("journal 0"), disk("journal 1")];
    let sides: Vec<DeviceRef> = disks.iter().map(|disk| disk.clone() as DeviceRef).collect();
    let stripe = Stripe::new(sides, STRIPE_UNIT).map_err(failed)?;
    Ok((Arc::new(stripe), disks))
}

/// A drive of so many bytes, striped over disks of which each has so many of them.
pub(crate) fn striped_over(
    env: &Env,
    disks: usize,
    disk: impl Fn(u64) -> DiskSpec,
    bytes: u64,
) -> Result<DeviceRef, BenchError> {
    let side = |number: usize| -> DeviceRef {
        let name = format!("journal {number}");
        match disk(bytes / disks as u64) {
            DiskSpec::Rotational(spec) => Arc::new(HardDisk::new(env, &name, spec)),
            DiskSpec::SolidState(spec) => Arc::new(SolidState::new(env, &name, spec)),
        }
    };
    let sides: Vec<DeviceRef> = (0..disks).map(side).collect();
    match &sides[..] {
        [only] => Ok(only.clone()),
        _ => Ok(Arc::new(Stripe::new(sides, STRIPE_UNIT).map_err(failed)?)),
    }
}
