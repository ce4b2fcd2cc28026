//! Power cuts while a file gets blocks that another one has just given up: the other one, which a crash brings back,
//! has nothing of it.

use thalweg_fs::local::LocalFs;
use thalweg_fs::{Filesystem, FsError};
use thalweg_sim::crash::Shape as Survival;
use thalweg_sim::recording::Recorder;
use thalweg_sim::run;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::inplace::Mode;

use super::LATENCY;
use super::rig::Rig;
use crate::support::*;

/// Bytes of each file.
const LEN: usize = 4 * BLOCK_SIZE;

/// Writes to a file until no block is free.
async fn fill(fs: &LocalFs) {
    let file = create(fs, ROOT, "filler").await;
    let (mut at, mut len) = (0, 64 * BLOCK_SIZE);
    while len >= BLOCK_SIZE {
        match try_write(fs, file, at, &vec![9; len]).await {
            Ok(_) => at += len as u64,
            Err(FsError::NoSpace) => len /= 2,
            Err(error) => panic!("{error}"),
        }
    }
}

fn reuse(mode: &'static [Mode]) {
    run(1, |env| async move {
        let rig = Rig::in_place(mode, 0);
        let recorder = Recorder::with_latency(&env, LATENCY);
        let devices = rig.devices(|name, geometry| recorder.device(name, geometry));
        let volume = rig.make(&env, &devices).await;
        let fs = volume.files(&env).await;
        let (old, new) = (create(&fs, ROOT, "old").await, create(&fs, ROOT, "new").await);
        write(&fs, old, 0, &[1; LEN]).await;
        fill(&fs).await;
        fs.close().await.unwrap();
        drop(fs);
        volume.close().await;
        let volume = rig.open(&env, &devices).await;
        let fs = volume.files(&env).await;
        write(&fs, old, 0, &[2; LEN]).await;
        truncate(&fs, old, 0).await;
        write(&fs, new, 0, &[3; LEN]).await;
        let begun = recorder.position();
        fs.sync_all().await.unwrap();
        let (mut before, mut after) = (0, 0);
        for point in begun..=recorder.position() {
            let image = recorder.image(point, Survival::Everything);
            let volume = rig.open(&env, &image.devices).await;
            let fs = volume.files(&env).await;
            let found = (content(&fs, old).await, content(&fs, new).await);
            let when = format!("{mode:?}: {}", image.describe());
            assert!(!found.0.contains(&3), "{when}: the old file has bytes of the new one");
            match found.0.len() {
                0 => assert!(found.1 == [3; LEN], "{when}"),
                _ => assert!(found.0.len() == LEN && found.1.is_empty(), "{when}"),
            }
            before += u64::from(found.1.is_empty());
            after += u64::from(found.0.is_empty());
        }
        assert!(before > 0 && after > 0, "{before} {after}");
    });
}

#[test]
fn a_file_never_has_bytes_of_another_one_that_got_its_blocks() {
    for mode in [[Mode::Ordered], [Mode::Selective], [Mode::Wasteless], [Mode::Data]] {
        reuse(Box::leak(Box::new(mode)));
    }
}
