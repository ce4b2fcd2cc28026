//! Damaged journals.

use std::sync::Arc;

use rand::RngExt;
use thalweg_sim::content::Content;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_sim::scribble::{Disks, reseal};
use thalweg_store::block::Lba;
use thalweg_store::device::{DeviceRef, Geometry};
use thalweg_store::journal::{End, Journal, JournalError, format};

use super::{Blocks, OWNER, created, replayed, transaction};

const GEOMETRY: Geometry = Geometry { size: 300 << 10, sector: 512 };

/// A journal at rest, and the states after its transactions.
#[derive(Clone)]
pub struct Image {
    disks: Disks,
    /// After each transaction that is not released, beginning with the state before them.
    states: Vec<Blocks>,
}

impl Image {
    /// The image of a history that wraps around the ring.
    pub fn new(seed: u64) -> Image {
        run(seed, |env| async move {
            let disk = Arc::new(RamDisk::new("journal", GEOMETRY));
            let device: DeviceRef = disk.clone();
            let journal = created(&env, &device).await;
            let (mut rng, mut now) = (env.rng(), Blocks::new());
            let mut states = vec![(0, now.clone())];
            for stamp in 1..200 {
                let before = now.clone();
                let record = transaction(&mut rng, stamp, &mut now);
                match journal.append(&record).await {
                    Ok(appended) => states.push((appended.sequence, now.clone())),
                    Err(JournalError::Full { .. }) => {
                        now = before;
                        let keep = rng.random_range(1..states.len());
                        states.drain(..keep);
                        journal.release(states[0].0 + 1);
                        journal.forget().await.unwrap();
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            let states = states.into_iter().map(|(_, state)| state).collect();
            Image { disks: Disks::of([&disk]), states }
        })
    }

    /// Damages the journal as `data` says and replays it: either that fails, or the result is the
    /// state after some of the transactions. Returns whether it was replayed. An odd number of
    /// bytes gives the superblocks valid checksums whatever they hold: then only termination is
    /// promised.
    pub fn scribble(&self, data: &[u8]) -> bool {
        let is_sealed = data.len() % 2 == 1;
        // Every fourth write goes to the superblocks.
        let pages = |kind: u8| if kind & 3 == 0 { 2 } else { usize::MAX };
        let mut contents = self.disks.scribbled(data, |kind| (0, pages(kind)));
        if is_sealed {
            (0..format::COPIES).for_each(|copy| reseal(&mut contents[0], copy * format::COPY));
        }
        let image = self.clone();
        run(1, |env| async move {
            let device: DeviceRef = image.disks.with(contents).remove(0);
            let Ok((journal, replay)) = Journal::<Lba>::open(&env, device, OWNER, true).await
            else {
                return false;
            };
            let mut home = image.states[0].clone();
            if matches!(replay.end, End::Rotten { .. }) || is_sealed {
                return false;
            }
            replayed(&journal, &replay, &mut home).await;
            assert!(image.states.contains(&home), "{} transactions", replay.transactions);
            true
        })
    }
}

/// Opens a journal of arbitrary bytes whose superblocks have valid checksums.
pub fn arbitrary(data: &[u8]) {
    let mut content = Content::new();
    content.write(0, &data[..data.len().min(GEOMETRY.size as usize)]);
    for copy in 0..format::COPIES {
        let at = copy * format::COPY;
        content.write(at, &format::SUPERBLOCK_MAGIC);
        content.write(at + 8, &format::FORMAT_VERSION.to_le_bytes());
        reseal(&mut content, at);
    }
    run(1, |env| async move {
        let disk = RamDisk::with_content("journal", GEOMETRY, content);
        Journal::<Lba>::open(&env, Arc::new(disk), OWNER, true).await.ok();
    });
}
