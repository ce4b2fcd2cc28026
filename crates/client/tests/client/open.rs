//! Volumes of either kind are opened by path, with a server or without.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use thalweg_client::{OpenError, Volume};
use thalweg_env::Env;
use thalweg_ipc::{Config, Server};
use thalweg_store::block::Lba;
use thalweg_store::device::{DeviceRef, FileDevice, FileOptions};
use thalweg_store::inplace::{InPlace, InPlaceError, NewInPlace, Parts};
use thalweg_store::open::{self, AnyVolume, Options, VolumePath};

use crate::rig::block;

async fn file(path: &Path, bytes: u64) -> DeviceRef {
    Arc::new(FileDevice::create(path, bytes, &FileOptions::default()).await.unwrap())
}

/// A volume that is updated in place, in a file; its journal is in a second file if `journal`.
async fn in_place(journal: bool) -> (TempDir, PathBuf, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let [data, log] = ["data", "journal"].map(|name| home.path().join(name));
    let journal = match journal {
        true => Some(file(&log, 8 << 20).await),
        false => None,
    };
    let parts = Parts { data: file(&data, 32 << 20).await, journal };
    let new = NewInPlace { name: "v".to_owned(), journal_size: None, size: None };
    InPlace::create(&Env::real(), &parts, &new).await.unwrap();
    (home, data, log)
}

/// Runs blocking calls on a thread that may block.
async fn threaded(work: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(work).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_in_place_that_nobody_serves_is_opened_by_its_file() {
    let (_home, data, _) = in_place(false).await;
    threaded(move || {
        let volume = Volume::open(&data).unwrap();
        assert!(!volume.is_served());
        volume.write(Lba(9), &block(9)).unwrap();
        volume.close().unwrap();
        drop(volume);
        // Acknowledged writes are present also without a close.
        let volume = Volume::open(&data).unwrap();
        assert_eq!(volume.read(Lba(9), 1).unwrap(), [block(9)]);
        volume.write(Lba(10), &block(10)).unwrap();
        drop(volume);
        let volume = Volume::open(&data).unwrap();
        assert_eq!(volume.read(Lba(10), 1).unwrap(), [block(10)]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_elsewhere_has_to_be_named() {
    let (home, data, log) = in_place(true).await;
    threaded(move || {
        let refused = Volume::open(&data).unwrap_err();
        let OpenError::Volume(open::OpenError::InPlace(error)) = refused else {
            panic!("{refused:?}")
        };
        assert!(matches!(error, InPlaceError::JournalElsewhere { .. }));
        let options = Options { journal: Some(log), ..Options::default() };
        let volume = Volume::open_with(&data, &options).unwrap();
        volume.write(Lba(1), &block(1)).unwrap();
        for nothing in [home.path().join("none"), home.path().to_owned()] {
            let refused = Volume::open(&nothing).unwrap_err();
            let OpenError::Volume(open::OpenError::NoVolume { path }) = refused else {
                panic!("{refused:?}")
            };
            assert_eq!(path, nothing);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_in_place_that_is_served_is_reached_through_its_sockets() {
    let (_home, data, _) = in_place(false).await;
    let env = Env::real();
    let place = VolumePath::find(&data).unwrap();
    let opened = AnyVolume::open(&env, &place, &Options::default()).await.unwrap();
    // As root, /run/thalweg; other users may have no such folder here.
    let Some(sockets) = place.sockets().into_iter().next() else { return };
    std::fs::create_dir_all(&sockets).unwrap();
    let server = Server::start(&env, opened.transactions(), &sockets, Config::default()).unwrap();
    threaded(move || {
        let volume = Volume::open(&data).unwrap();
        assert!(volume.is_served());
        volume.write(Lba(3), &block(3)).unwrap();
        assert_eq!(volume.read(Lba(3), 1).unwrap(), [block(3)]);
    })
    .await;
    drop(server);
    opened.close().await.unwrap();
    std::fs::remove_dir(&sockets).unwrap();
}
