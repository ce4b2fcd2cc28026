//! Whole images that somebody scribbled on.

use std::sync::Arc;

use thalweg_sim::content::Content;
use thalweg_sim::model::BlockModel;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BlockStore, Lba, Version, Write};
use thalweg_store::chain::Cleaning;
use thalweg_store::device::{Device, DeviceRef, Geometry};

use super::{Pair, Shape, content, random_step_in_parts};

/// A volume at rest, and everything that it ever held.
#[derive(Clone)]
pub struct Image {
    shape: Shape,
    disks: Vec<(String, Geometry, Content)>,
    model: BlockModel,
    /// Bytes of each disk that hold something, roughly.
    used: Vec<Vec<u64>>,
}

impl Image {
    /// The image of a history.
    pub fn new(seed: u64, cleaning: Cleaning) -> Image {
        run(seed, |env| async move {
            let shape = Shape { blocks: 200, segments_per_link: 4, ..Shape::small(cleaning) };
            let disks = parking_lot::Mutex::new(Vec::new());
            let devices = shape.devices(|name, geometry| {
                let disk = Arc::new(RamDisk::new(name, geometry));
                disks.lock().push(disk.clone());
                disk as DeviceRef
            });
            shape.format(&env, &devices).await;
            let (chain, _) = shape.open(&env, &devices).await.unwrap();
            let mut pair = Pair { chain, model: BlockModel::new(shape.blocks) };
            let mut rng = env.rng();
            for _ in 0..200 {
                pair.step(&env, &random_step_in_parts(&mut rng, shape.blocks)).await.unwrap();
            }
            pair.chain.sync(pair.chain.now()).await.unwrap();
            let disks: Vec<_> =
                disks.lock().iter().map(|d| (d.name(), d.geometry(), d.content())).collect();
            let stored = |(_, geometry, content): &(String, Geometry, Content)| {
                (0..geometry.size / 4096).filter(|page| content.is_stored(*page)).collect()
            };
            Image { shape, used: disks.iter().map(stored).collect(), disks, model: pair.model }
        })
    }

    /// Scribbles as `data` says, eight bytes for each stroke, and opens what is left: an error, or
    /// the state of some version wherever a block can be read. Whether it opened.
    pub fn scribble(&self, data: &[u8]) -> bool {
        let mut contents: Vec<Content> = self.disks.iter().map(|(_, _, c)| c.clone()).collect();
        for stroke in data.chunks_exact(8).take(64) {
            self.stroke(&mut contents, stroke);
        }
        let image = self.clone();
        run(1, |env| async move {
            let disks = image.disks.iter().zip(contents).map(|((name, geometry, _), content)| {
                Arc::new(RamDisk::with_content(name, *geometry, content)) as DeviceRef
            });
            let devices: Vec<_> = disks.collect();
            let Ok((chain, _)) = image.shape.open(&env, &devices).await else { return false };
            let now = chain.now();
            assert!(now <= image.model.now());
            for lba in (0..image.shape.blocks).map(Lba) {
                if let Ok(found) = chain.read(lba, 1, now).await {
                    assert_eq!(found[0], image.model.read(lba, now), "{lba:?} at {now}");
                }
            }
            let write = Write::block(Lba(0), content(0, 1 << 40));
            if let Ok(version) = chain.apply(vec![write]).await {
                assert_eq!(version, Version(now.0 + 1));
                chain.sync(version).await.unwrap();
            }
            true
        })
    }

    /// One stroke: a kind, a place, and what is put there.
    fn stroke(&self, contents: &mut [Content], stroke: &[u8]) {
        let number = |at: usize| u64::from(u16::from_le_bytes([stroke[at], stroke[at + 1]]));
        // Mostly the map device: links hold nothing but checked blocks.
        let disk = if stroke[0] & 0x70 == 0 { usize::from(stroke[0] & 3) } else { 3 };
        let disk = disk.min(contents.len() - 1);
        let pages = &self.used[disk];
        if pages.is_empty() {
            return;
        }
        let page = pages[number(1) as usize % pages.len()];
        let at = page * 4096 + number(3) % 4096;
        let content = &mut contents[disk];
        match stroke[5] % 5 {
            0 => content.write(at, &[stroke[6]]),
            1 => {
                let was = content.read(at, 1)[0];
                content.write(at, &[was ^ (1 << (stroke[6] % 8))]);
            }
            2 => content.zero(at / 512 * 512, 512),
            3 => content.write(page * 4096, &[stroke[6]; 4096]),
            _ => {
                let from = pages[number(6) as usize % pages.len()] * 4096;
                let bytes = content.read(from, 4096);
                content.write(page * 4096, &bytes);
            }
        }
    }
}
