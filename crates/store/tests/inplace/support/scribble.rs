//! Damaged in-place stores.

use std::sync::Arc;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::Env;
use thalweg_sim::content::Content;
use thalweg_sim::model::BlockModel;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_sim::scribble::{Disks, reseal};
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Class, Lba, Version, Write};
use thalweg_store::device::DeviceRef;
use thalweg_store::inplace::format::{COPIES, COPY, ENTRIES, MAP_SECTOR, MapSector, Superblock};
use thalweg_store::inplace::{InPlace, Mend, Mode, Recovered};

use zerocopy::IntoBytes;

use super::{Shape, transaction};

/// A store that was not closed, and everything that it ever held.
#[derive(Clone)]
pub struct Image {
    shape: Shape,
    disks: Disks,
    model: BlockModel,
    superblock: Superblock,
}

impl Image {
    /// The image of a history.
    pub fn new(seed: u64, mode: Mode) -> Image {
        run(seed, |env| async move {
            let shape = Shape::varied(mode, seed);
            let disks = parking_lot::Mutex::new(Vec::new());
            // Every other store grows beyond the first part of its map.
            let room = Shape { blocks: 1300, ..shape };
            let devices = room.devices(|name, geometry| {
                let disk = Arc::new(RamDisk::new(name, geometry));
                disks.lock().push(disk.clone());
                disk as DeviceRef
            });
            shape.create(&env, &devices).await;
            let (store, _) = shape.open(&env, &devices).await;
            let mut model = BlockModel::new(shape.blocks);
            let (mut rng, mut now) = (env.rng(), vec![None; shape.blocks as usize]);
            for step in 0..120 {
                if step == 60 && seed % 2 == 1 {
                    store.grow(Some(1200 * BLOCK_SIZE as u64)).await.unwrap();
                }
                let writes = transaction(&mut rng, &shape, &mut now);
                store.apply(writes.clone()).await.unwrap();
                model.apply(&writes);
                let span = std::time::Duration::from_micros(rng.random_range(0..9000));
                env.sleep(span).await;
            }
            store.sync(store.now()).await.unwrap();
            let superblock = store.superblock();
            Image { shape, disks: Disks::of(&disks.into_inner()), model, superblock }
        })
    }

    /// Damages the store as `data` says, opens, reads and scrubs it: either that fails, or every
    /// block that has a checksum holds content that it had at some time. Returns whether it opened.
    /// An odd number of bytes gives the superblocks valid checksums whatever they hold: then only
    /// termination is promised.
    pub fn scribble(&self, data: &[u8]) -> bool {
        let is_sealed = data.len() % 2 == 1;
        let place = |kind: u8| {
            // Every fourth write goes to the first pages of a device: superblocks, and the map or
            // journal behind them.
            let pages = if kind & 3 == 0 { 4 } else { usize::MAX };
            (usize::from(kind & 0x10 == 0), pages)
        };
        let mut contents = self.disks.scribbled(data, place);
        if is_sealed {
            self.reseal(&mut contents);
        }
        let image = self.clone();
        run(1, |env| async move { image.open(&env, contents, is_sealed).await })
    }

    /// Opens the rest after the map was cleared and one block changed.
    pub fn blank(&self, lba: u64) {
        let mut contents = self.disks.contents();
        for number in 0..Superblock::map_size(self.shape.blocks) / MAP_SECTOR {
            let place = self.superblock.map_offset + number * MAP_SECTOR;
            let sector = MapSector::empty(number, &self.superblock.volume);
            contents[0].write(place, sector.as_bytes());
        }
        contents[0].write(self.superblock.place(lba), &[0xe7; BLOCK_SIZE]);
        let image = self.clone();
        run(1, |env| async move { image.open(&env, contents, false).await });
    }

    fn reseal(&self, contents: &mut [Content]) {
        let (inside, size) = self.superblock.journal_at;
        for copy in (0..COPIES).map(|copy| copy * COPY) {
            reseal(&mut contents[0], copy);
            match size {
                0 => reseal(&mut contents[1], copy),
                _ => reseal(&mut contents[0], inside + copy),
            }
        }
    }

    async fn open(&self, env: &Env, contents: Vec<Content>, is_sealed: bool) -> bool {
        let maps = contents[0].clone();
        let devices: Vec<DeviceRef> =
            self.disks.with(contents).into_iter().map(|disk| disk as DeviceRef).collect();
        let opened = InPlace::open(env, self.shape.parts(&devices), self.shape.options).await;
        let Ok((store, recovered)) = opened else { return false };
        let mut wrong = 0;
        let known = (0..store.blocks().min(self.shape.blocks)).map(Lba);
        for lba in known.filter(|lba| !self.is_lost(*lba, &recovered)) {
            if let Ok(found) = store.read(lba, 1, store.now()).await {
                wrong += u64::from(!is_sealed && !self.may_hold(lba, &found[0], &maps));
            }
        }
        // The journal's bytes went over a base that did not match: the content is unknown.
        assert!(wrong <= recovered.unverified, "{wrong} blocks never held that: {recovered:?}");
        store.scrub(Mend::Yes, &|_, _| {}).await.ok();
        let write = Write::block(Lba(0), Bytes::from(vec![7; BLOCK_SIZE]));
        if let Ok(version) = store.apply(vec![write]).await {
            store.sync(version).await.ok();
        }
        store.close().await.ok();
        true
    }

    /// Whether a transaction changed the block that was durable and is not in the journal any more, because all
    /// records from it on are damaged. Its changes may be in place, and replay puts older bytes over them.
    fn is_lost(&self, lba: Lba, recovered: &Recovered) -> bool {
        let mut versions = (recovered.version..=self.model.now().0).map(Version);
        let first = versions.next().map(|at| self.model.read(lba, at));
        first.is_some_and(|first| versions.any(|at| self.model.read(lba, at) != first))
    }

    /// Whether a block held that at some time, as far as its mode promises that.
    fn may_hold(&self, lba: Lba, found: &Option<Bytes>, maps: &Content) -> bool {
        let strict = self.shape.options.mode.journals_all_data();
        if self.shape.class(lba.0) == Class::Data && !strict {
            return true;
        }
        // A map sector that says that its blocks are empty is trusted.
        let number = lba.0 / ENTRIES;
        let sector =
            maps.read(self.superblock.map_offset + number * MAP_SECTOR, MAP_SECTOR as usize);
        let empty = MapSector::empty(number, &self.superblock.volume);
        if found.is_none() && sector == empty.as_bytes() {
            return true;
        }
        let bytes = |content: Option<Bytes>| content.unwrap_or_else(|| vec![0; BLOCK_SIZE].into());
        let found = bytes(found.clone());
        (0..=self.model.now().0).any(|at| bytes(self.model.read(lba, Version(at))) == found)
    }
}
