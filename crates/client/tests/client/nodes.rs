//! A volume on several nodes is opened by their addresses.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use thalweg_client::{OpenError, SessionCell, Volume};
use thalweg_env::Env;
use thalweg_ipc::{Config, Server};
use thalweg_store::block::Keep;
use thalweg_store::block::{Lba, Retained};
use thalweg_store::chain::{Chain, Cleaning, Create, Link, Options, Parts};
use thalweg_store::device::{DeviceRef, FileDevice, FileOptions};
use thalweg_store::stale::Versioned;
use thalweg_store::txn::{self, TransactionManager, TxnError};
use uuid::Uuid;

use crate::rig::{Rig, block};

async fn file(folder: &Path, name: &str) -> DeviceRef {
    let (path, options) = (folder.join(name), FileOptions::default());
    Arc::new(FileDevice::create(&path, 16 << 20, &options).await.unwrap())
}

/// A volume that has replicas, served in a folder of its own.
async fn primary(env: &Env) -> (TempDir, Arc<Chain>, Server) {
    let home = tempfile::tempdir().unwrap();
    let (link, map) = (file(home.path(), "link").await, file(home.path(), "map").await);
    let parts = || Parts {
        links: vec![Link { id: Uuid::from_u128(1), device: link.clone() }],
        map: map.clone(),
        map_link: None,
        tail_cache: None,
        body_cache: None,
    };
    let create = Create {
        volume: env.uuid(),
        blocks: 1000,
        segment_blocks: 240,
        max_segments: 64,
        cleaning: Cleaning::MoveToTail,
        placement: Default::default(),
        follows: false,
    };
    Chain::create(env, parts(), &create).await.unwrap();
    let chain = Arc::new(Chain::open(env, parts(), Options::default()).await.unwrap().0);
    chain.begin_history().await.unwrap();
    let retained = Retained::new(env, chain.clone(), Keep::latest(10));
    let versions = Versioned::of(env, Arc::new(retained));
    let manager = TransactionManager::of(env, versions, txn::Options::default());
    let server = Server::start(env, &manager, home.path(), Config::default()).unwrap();
    (home, chain, server)
}

async fn threaded(work: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(work).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_opened_by_the_addresses_of_its_nodes() {
    let env = Env::real();
    let (home, chain, server) = primary(&env).await;
    let folder = home.path().display().to_string();
    // A node that is away is left out.
    let nodes = format!("/nowhere/a-volume,{folder}");
    threaded(move || {
        let volume = Volume::open(Path::new(&nodes)).unwrap();
        assert!(volume.is_served());
        let session = SessionCell::new("read-my-writes").unwrap();
        let mut session = session.lock().unwrap();
        let version = volume.write_for(&mut session, Lba(9), Some(&block(9))).unwrap();
        let got = volume.read_for(&mut session, Lba(9)).unwrap();
        assert_eq!((got.value, got.node.as_deref()), (block(9), Some(&*folder)));
        assert_eq!(got.range.up, version);
        assert_eq!(volume.read(Lba(9), 1).unwrap(), [block(9)]);
    })
    .await;
    drop(server);
    chain.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_nodes_are_refused() {
    let env = Env::real();
    let (home, chain, server) = primary(&env).await;
    let (other, other_chain, other_server) = primary(&env).await;
    let without_replicas = Rig::new();
    let folder = |folder: &TempDir| folder.path().display().to_string();
    let named = [
        (format!("{},{}", folder(&home), folder(&other)), "replicas of one volume"),
        (format!("/nowhere,{}", folder(&without_replicas.folder)), "has no replicas"),
        (format!("{},thalweg://a b/c", folder(&home)), "thalweg://"),
    ];
    threaded(move || {
        for (nodes, why) in named {
            let error = Volume::open(Path::new(&nodes)).unwrap_err().to_string();
            assert!(error.contains(why), "{nodes}: {error}");
        }
        for nodes in ["/nowhere,/neither", ",", "/nowhere,"] {
            let error = Volume::open(Path::new(nodes)).unwrap_err();
            let is_away = matches!(error, OpenError::Server(TxnError::Disconnected(_)));
            assert!(is_away, "{nodes}: {error}");
        }
    })
    .await;
    drop((server, other_server));
    chain.close().await.unwrap();
    other_chain.close().await.unwrap();
}
