//! Files, as C programs use them.

use std::path::Path;
use std::sync::Arc;

use thalweg_env::Env;
use thalweg_fs::local::{self, Format};
use thalweg_store::open::{AnyVolume, Options, VolumePath};
use thalweg_store::txn::Transact;

use crate::{calls, in_place, runtime, volume};

/// Makes an empty filesystem on a volume.
fn mkfs(path: &Path) {
    runtime().block_on(async {
        let env = Env::real();
        let place = VolumePath::find(path).unwrap();
        let volume = AnyVolume::open(&env, &place, &Options::default()).await.unwrap();
        let transact: Arc<dyn Transact> = Arc::new(volume.transactions().clone());
        local::make(&env, &transact, &Format::default()).await.unwrap();
        volume.close().await.unwrap();
    });
}

#[test]
fn every_call_on_files_of_a_volume() {
    let home = volume();
    let folder = home.path().join("vol");
    mkfs(&folder);
    calls("files", &folder, &[]);
}

#[test]
fn every_call_on_files_of_a_volume_in_place() {
    let home = tempfile::tempdir().unwrap();
    let path = in_place(home.path(), "one");
    mkfs(&path);
    calls("files", &path, &[]);
}
