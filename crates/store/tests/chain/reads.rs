//! Reads of the newest version beside writes.

use std::sync::Arc;
use std::time::Duration;

use thalweg_sim::faults::Faulty;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BlockStore, Lba, Write};
use thalweg_store::chain::{Chain, Cleaning, Options};

use crate::support::{Shape, content, options};

/// A block is overwritten while another version of it is read, and the device returns wrong bytes once. The read can
/// find that version no more, and must return a newer one, as a whole.
#[test]
fn a_read_whose_version_goes_returns_a_newer_one() {
    run(1, |env| async move {
        let shape = Shape { links: 1, segments_per_link: 14, ..Shape::small(Cleaning::MoveToTail) };
        let faults = parking_lot::Mutex::new(Vec::new());
        let devices = shape.devices(|name, geometry| {
            let disk = Arc::new(RamDisk::new(name, geometry));
            let (device, control) = Faulty::wrap(&env, disk);
            faults.lock().push(control);
            device
        });
        let link = faults.into_inner().swap_remove(0);
        shape.format(&env, &devices).await;
        let options = Options { tail_cache_blocks: 0, auto_clean: false, ..options() };
        let (chain, _) = Chain::open(&env, shape.parts(&devices), options).await.unwrap();
        let chain = Arc::new(chain);
        let write = |lba, stamp| vec![Write::block(Lba(lba), content(lba, stamp))];
        for lba in 0..300 {
            chain.apply(write(lba, 1)).await.unwrap();
        }
        chain.checkpoint().await.unwrap();
        let before = chain.now();
        link.slow(1.0, Duration::from_millis(10));
        // The second half of the first request.
        link.shorten_reads(1);
        let reader = chain.clone();
        let reading = env.spawn(async move { reader.read_newest(Lba(3), 2).await.unwrap() });
        env.sleep(Duration::from_millis(5)).await;
        let overwritten = chain.apply(write(3, 2)).await.unwrap();
        let (version, blocks) = reading.await.unwrap();
        assert!(version > before);
        assert_eq!(version, overwritten);
        assert_eq!(blocks, [Some(content(3, 2)), Some(content(4, 1))]);
        assert!(chain.hold(version).is_some());
        assert_eq!(chain.status().counts.damaged, 0);
    });
}
