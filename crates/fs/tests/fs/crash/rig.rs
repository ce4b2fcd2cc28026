//! The volumes of filesystems that are crashed.

use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_fs::Contents;
use thalweg_fs::check::{How, Report, check_with};
use thalweg_fs::local::{self, Atime, LocalFs, Options};
use thalweg_sim::contents::SimContents;
use thalweg_store::block::{BLOCK_SIZE, BlockStore};
use thalweg_store::chain::{Chain, Cleaning};
use thalweg_store::device::{DeviceRef, Geometry};
use thalweg_store::inplace::{self, InPlace, Mode};
use thalweg_store::txn::{self, Transact, TransactionManager};

use crate::support::format;
use crate::{in_place, volumes};

/// Blocks of a volume.
const BLOCKS: u64 = 1100;
/// Bytes that the filesystem has at first, and after each time that it became larger.
pub(crate) const SIZES: [u64; 3] = [600 * 4096, 850 * 4096, (BLOCKS - 16) * 4096];

/// A kind of volume.
#[derive(Clone, Copy)]
pub(crate) enum Rig {
    /// A log-structured one.
    Chain(volumes::Shape),
    /// One that is updated in place, in modes that it changes among while it is used.
    InPlace(in_place::Shape, &'static [Mode]),
}

/// A volume that is open.
pub(crate) struct Volume {
    pub(crate) transact: Arc<dyn Transact>,
    store: Arc<dyn BlockStore>,
    in_place: Option<Arc<InPlace>>,
    chain: Option<Arc<Chain>>,
    /// The contents of files, if they are kept elsewhere.
    pub(crate) contents: Option<Arc<SimContents>>,
}

/// What a crash must leave, besides metadata of one state that is no older than the last sync.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Promise {
    /// Of data that was synced and not changed since, every byte.
    Synced,
    /// Data that is no older than the metadata, and was in its file some time.
    Ordered,
    /// Data that was in its file at the moment of the metadata or later: no byte is lost because its file is removed or
    /// shorter later.
    Elsewhere,
    /// All data of the same moment.
    OneMoment,
}

impl Rig {
    /// One of six: a chain, or an in-place store of one mode.
    pub(crate) fn varied(seed: u64) -> Rig {
        let modes: &[Mode] = match seed % 6 {
            0 => return Rig::chain(seed / 6),
            1 => &[Mode::Writeback],
            2 => &[Mode::Ordered],
            3 => &[Mode::Data],
            4 => &[Mode::Wasteless],
            _ => &[Mode::Selective],
        };
        Rig::in_place(modes, seed / 6)
    }

    /// One of two chains.
    pub(crate) fn chain(seed: u64) -> Rig {
        let shape =
            volumes::Shape { blocks: BLOCKS, ..volumes::Shape::small(Cleaning::MoveToTail) };
        let other =
            volumes::Shape { map_on_link: true, cleaning: Cleaning::CompactInBody, ..shape };
        Rig::Chain([shape, other][seed as usize % 2])
    }

    /// One of several in-place stores, which starts in the first mode.
    pub(crate) fn in_place(modes: &'static [Mode], seed: u64) -> Rig {
        let shape = in_place::Shape::varied(modes[0], seed);
        let options = inplace::Options { cache: 1 << 20, ..shape.options };
        // The largest write of the tests goes in, and a run of one goes around several times.
        Rig::InPlace(
            in_place::Shape { blocks: BLOCKS, journal: 640 << 10, options, ..shape },
            modes,
        )
    }

    pub(crate) fn promise(&self) -> Promise {
        let of = |mode: &Mode| match mode {
            Mode::Writeback => Promise::Synced,
            Mode::Ordered | Mode::Selective => Promise::Ordered,
            Mode::Data | Mode::Wasteless => Promise::OneMoment,
        };
        match self {
            Rig::Chain(_) => Promise::OneMoment,
            Rig::InPlace(_, modes) => modes.iter().map(of).min().unwrap(),
        }
    }

    /// Modes to change among.
    pub(crate) fn modes(&self) -> &'static [Mode] {
        match self {
            Rig::Chain(_) => &[],
            Rig::InPlace(_, modes) => modes,
        }
    }

    /// The smallest unit that a device writes as a whole.
    pub(crate) fn sector(&self) -> usize {
        match self {
            Rig::Chain(shape) => shape.sector as usize,
            Rig::InPlace(shape, _) => shape.sector as usize,
        }
    }

    pub(crate) fn devices(&self, make: impl Fn(&str, Geometry) -> DeviceRef) -> Vec<DeviceRef> {
        match self {
            Rig::Chain(shape) => shape.devices(make),
            Rig::InPlace(shape, _) => shape.devices(make),
        }
    }

    /// Makes the volume, and a filesystem on a part of it.
    pub(crate) async fn make(&self, env: &Env, devices: &[DeviceRef]) -> Volume {
        let blocks = Some(SIZES[0] / BLOCK_SIZE as u64);
        let format = local::Format { metadata_blocks: Some(40), blocks, ..format() };
        self.make_with(env, devices, &format, None).await
    }

    /// Makes the volume, and a filesystem on a part of it whose files have their contents elsewhere.
    pub(crate) async fn make_external(
        &self,
        env: &Env,
        devices: &[DeviceRef],
        contents: Arc<SimContents>,
    ) -> Volume {
        let blocks = Some(SIZES[0] / BLOCK_SIZE as u64);
        let format = local::Format { blocks, ..format() };
        let format = local::Format { metadata_blocks: None, ..format };
        self.make_with(env, devices, &format, Some(contents)).await
    }

    /// Makes the volume, and a filesystem on all of it with room for much metadata.
    pub(crate) async fn make_large(&self, env: &Env, devices: &[DeviceRef]) -> Volume {
        let format = local::Format { metadata_blocks: Some(250), ..format() };
        self.make_with(env, devices, &format, None).await
    }

    async fn make_with(
        &self,
        env: &Env,
        devices: &[DeviceRef],
        format: &local::Format,
        contents: Option<Arc<SimContents>>,
    ) -> Volume {
        match self {
            Rig::Chain(shape) => shape.format(env, devices).await,
            Rig::InPlace(shape, _) => shape.create(env, devices).await,
        }
        let volume = self.open(env, devices).await.with(contents);
        match &volume.contents {
            Some(contents) => {
                local::make_external(env, &volume.transact, format, &**contents).await.unwrap();
            }
            None => local::make(env, &volume.transact, format).await.unwrap(),
        }
        volume
    }

    /// Opens the volume, recovering it.
    pub(crate) async fn open(&self, env: &Env, devices: &[DeviceRef]) -> Volume {
        let (store, in_place, chain): (Arc<dyn BlockStore>, _, _) = match self {
            Rig::Chain(shape) => {
                let options = volumes::options();
                let (chain, _) = Chain::open(env, shape.parts(devices), options).await.unwrap();
                let chain = Arc::new(chain);
                (chain.clone(), None, Some(chain))
            }
            Rig::InPlace(shape, _) => {
                let store = Arc::new(shape.open(env, devices).await.0);
                (store.clone(), Some(store), None)
            }
        };
        let manager = TransactionManager::new(env, store.clone(), txn::Options::default());
        Volume { transact: Arc::new(manager), store, in_place, chain, contents: None }
    }
}

impl Volume {
    /// The same, with the contents of files elsewhere.
    pub(crate) fn with(self, contents: Option<Arc<SimContents>>) -> Volume {
        Volume { contents, ..self }
    }

    /// Opens the filesystem.
    pub(crate) async fn files(&self, env: &Env) -> LocalFs {
        let options = Options { atime: Atime::Never, ..Options::default() };
        let contents = self.contents.clone().map(|it| it as Arc<dyn Contents>);
        LocalFs::open_with(env, self.transact.clone(), "fs", options, contents).await.unwrap()
    }

    /// Checks the filesystem.
    pub(crate) async fn check(&self, env: &Env, how: How) -> Report {
        let contents = self.contents.clone().map(|it| it as Arc<dyn Contents>);
        check_with(env, self.transact.clone(), "fs", how, contents).await.unwrap()
    }

    /// How often its filesystem became larger.
    pub(crate) async fn growths(&self) -> usize {
        let size = local::size(&*self.transact, "fs").await.unwrap();
        SIZES.iter().position(|it| *it == size).unwrap_or_else(|| panic!("{size} bytes"))
    }

    /// Has an in-place store run in another mode.
    pub(crate) fn set_mode(&self, mode: Mode) {
        if let Some(store) = &self.in_place {
            store.set_options(inplace::Options { mode, ..store.options() });
        }
    }

    /// Makes all earlier changes durable.
    pub(crate) async fn sync(&self) {
        self.store.sync(self.store.now()).await.unwrap();
    }

    /// Ends its use: everything is where it stays.
    pub(crate) async fn close(&self) {
        match (&self.in_place, &self.chain) {
            (Some(store), _) => store.close().await.unwrap(),
            (_, Some(chain)) => chain.close().await.unwrap(),
            _ => {}
        }
    }

    /// The byte at which an in-place store has a block.
    pub(crate) fn home(&self, lba: u64) -> Option<u64> {
        self.in_place.as_ref().map(|store| store.superblock().place(lba))
    }

    /// Lets time pass, for the store's background work.
    pub(crate) async fn idle(&self, env: &Env) {
        env.sleep(Duration::from_millis(20)).await;
    }
}
