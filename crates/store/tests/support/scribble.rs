//! Whole images with arbitrary damage.

use thalweg_sim::model::BlockModel;
use thalweg_sim::runtime::run;
use thalweg_sim::scribble::Disks;
use thalweg_store::block::{Blocks, BlocksExt, Lba, Version, Write};
use thalweg_store::chain::Cleaning;
use thalweg_store::device::DeviceRef;

use super::{Pair, Shape, content, random_step_in_parts};

/// A volume at rest, and everything that it ever held.
#[derive(Clone)]
pub struct Image {
    shape: Shape,
    disks: Disks,
    model: BlockModel,
}

impl Image {
    /// The image of a history.
    pub fn new(seed: u64, cleaning: Cleaning) -> Image {
        run(seed, |env| async move {
            let shape = Shape { blocks: 200, segments_per_link: 4, ..Shape::small(cleaning) };
            let (devices, disks) = shape.ram_disks();
            shape.format(&env, &devices).await;
            let (chain, _) = shape.open(&env, &devices).await.unwrap();
            let mut pair = Pair { chain, model: BlockModel::new(shape.blocks) };
            let mut rng = env.rng();
            for _ in 0..200 {
                pair.step(&env, &random_step_in_parts(&mut rng, shape.blocks)).await.unwrap();
            }
            pair.chain.sync(pair.chain.now()).await.unwrap();
            Image { shape, disks: Disks::of(&disks), model: pair.model }
        })
    }

    /// Scribbles as `data` says, eight bytes for each stroke, and opens what is left: an error, or
    /// the state of some version wherever a block can be read. Whether it opened.
    pub fn scribble(&self, data: &[u8]) -> bool {
        // Mostly the map device: links hold nothing but checked blocks.
        let disk = |kind: u8| if kind & 0x70 == 0 { usize::from(kind & 3) } else { 3 };
        let contents = self.disks.scribbled(data, |kind| (disk(kind), usize::MAX));
        let image = self.clone();
        run(1, |env| async move {
            let disks = image.disks.with(contents);
            let devices: Vec<_> = disks.into_iter().map(|disk| disk as DeviceRef).collect();
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
}
