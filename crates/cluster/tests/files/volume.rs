//! A filesystem on a volume whose machine crashes.

use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_fs::Filesystem;
use thalweg_fs::local::{self, Format, LocalFs, Options};
use thalweg_sim::crash::Shape as Left;
use thalweg_sim::faults::{Faults, Faulty};
use thalweg_sim::recording::Recorder;
use thalweg_store::device::{DeviceRef, Geometry};
use thalweg_store::inplace::{self, InPlace, Mode, NewInPlace, Parts};
use thalweg_store::txn::{self, Transact, TransactionManager};

use crate::objects::Objects;

/// Bytes of the volume, and of its journal.
const SIZE: u64 = 12 << 20;
const JOURNAL: u64 = 4 << 20;
/// Blocks of metadata.
const METADATA: u64 = 1000;
/// The same of a volume that is soon full.
const SMALL: (u64, u64) = (5 << 20, 200);

/// The devices of the volume.
pub(crate) struct Disk {
    recorder: Recorder,
    devices: Vec<DeviceRef>,
    /// Contents of files, unless these lie on the devices.
    objects: Option<Objects>,
}

impl Disk {
    /// A new filesystem. Each request to the devices takes `latency` at most.
    pub(crate) async fn make(env: &Env, objects: Option<Objects>, latency: Duration) -> Disk {
        Disk::sized(env, objects, latency, (SIZE, METADATA)).await
    }

    /// A new filesystem that is soon full.
    pub(crate) async fn small(env: &Env) -> Disk {
        Disk::sized(env, None, Duration::ZERO, SMALL).await
    }

    /// With devices that fail when they are told to.
    pub(crate) fn failing(mut self, env: &Env) -> (Disk, Vec<Faults>) {
        let mut faults = Vec::new();
        for device in &mut self.devices {
            let (faulty, control) = Faulty::wrap(env, device.clone());
            *device = faulty;
            faults.push(control);
        }
        (self, faults)
    }

    async fn sized(
        env: &Env,
        objects: Option<Objects>,
        latency: Duration,
        (size, metadata): (u64, u64),
    ) -> Disk {
        let recorder = Recorder::with_latency(env, latency);
        let device = |name, size| recorder.device(name, Geometry { size, sector: 512 });
        let devices = vec![device("data", 2 * size), device("journal", JOURNAL)];
        let disk = Disk { recorder, devices, objects };
        let new =
            NewInPlace { name: "test".to_owned(), journal_size: Some(JOURNAL), size: Some(size) };
        InPlace::create(env, &disk.parts(), &new).await.unwrap();
        let format = Format { metadata_blocks: Some(metadata), ..Format::default() };
        let volume = disk.volume(env).await;
        match &disk.objects {
            Some(objects) => {
                let contents = objects.serve().await;
                local::make_external(env, &volume, &format, &*contents).await.unwrap();
            }
            None => local::make(env, &volume, &format).await.unwrap(),
        }
        disk
    }

    fn parts(&self) -> Parts {
        Parts { data: self.devices[0].clone(), journal: Some(self.devices[1].clone()) }
    }

    async fn volume(&self, env: &Env) -> Arc<dyn Transact> {
        // Nothing is durable before a sync.
        let never = Duration::from_secs(1000);
        let options = inplace::Options {
            mode: Mode::Data,
            commit: never,
            writeback: never,
            expire: never,
            cache: 8 << 20,
            ..inplace::Options::default()
        };
        let (store, _) = InPlace::open(env, self.parts(), options).await.unwrap();
        let store = Arc::new(store);
        Arc::new(TransactionManager::new(env, store, txn::Options::default()))
    }

    /// Opens the filesystem.
    pub(crate) async fn open(&self, env: &Env) -> Arc<dyn Filesystem> {
        let options = Options { keep_orphans: true, ..Options::default() };
        let contents = match &self.objects {
            Some(objects) => Some(objects.serve().await),
            None => None,
        };
        let volume = self.volume(env).await;
        Arc::new(LocalFs::open_with(env, volume, "fs", options, contents).await.unwrap())
    }

    /// The devices after a crash now.
    pub(crate) fn crash(&self, env: &Env, left: Left) -> Disk {
        self.at(env, self.position(), left)
    }

    /// A moment that they can be brought back to, until they crash.
    pub(crate) fn position(&self) -> usize {
        self.recorder.position()
    }

    /// The devices as they were at a position.
    pub(crate) fn at(&self, env: &Env, position: usize, left: Left) -> Disk {
        let image = self.recorder.image(position, left);
        let (recorder, devices) = Recorder::from_image(env, Default::default(), &image);
        Disk { recorder, devices, objects: self.objects.clone() }
    }
}
