//! How far a file of a replicated volume has come.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;
use thalweg_store::block::Blocks;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_fs::local::{self, Format, LocalFs, Options};
use thalweg_fs::{Filesystem, FsError, Ino, Level, NewNode, Node, WriteAt, WriteHow};
use thalweg_replica::Room;
use thalweg_sim::run;

use thalweg_store::txn::{self, Begin, Durability, Transact, TransactionManager};

use crate::nodes::Nodes;

const LONG: Duration = Duration::from_secs(60);

/// A filesystem on the volume of the first node.
async fn filesystem(env: &Env, nodes: &Nodes) -> (LocalFs, Arc<dyn Transact>) {
    let chain = nodes.machines[0].process().chain.clone();
    let volume: Arc<dyn Transact> =
        Arc::new(TransactionManager::new(env, chain, txn::Options::default()));
    let format = Format { metadata_blocks: Some(100), ..Format::default() };
    local::make(env, &volume, &format).await.unwrap();
    // The replica connects.
    env.sleep(Duration::from_secs(1)).await;
    (LocalFs::open(env, volume.clone(), "fs", Options::default()).await.unwrap(), volume)
}

async fn file(fs: &LocalFs, name: &str) -> Ino {
    let new = NewNode { node: Node::File, mode: 0o644, umask: 0, uid: 0, gid: 0 };
    fs.create(Ino::ROOT, name.as_bytes(), &new).await.unwrap().ino
}

async fn write(fs: &LocalFs, ino: Ino, text: &'static str) {
    let data = vec![Bytes::from_static(text.as_bytes())];
    fs.write(ino, WriteAt::Offset(0), data, WriteHow::default()).await.unwrap();
}

#[test]
fn a_file_comes_to_the_replicas_and_is_waited_for() {
    run(1, |env| async move {
        let mut nodes = Nodes::new(&env, 2, 0, Room::default()).await;
        let (fs, _) = filesystem(&env, &nodes).await;
        let ino = file(&fs, "f").await;
        write(&fs, ino, "text").await;
        assert_eq!(fs.level(ino).await.unwrap(), Level::Memory);
        assert!(fs.wait_for(ino, Level::Server, LONG).await.unwrap());
        assert!(fs.wait_for(ino, Level::Replicas, LONG).await.unwrap());
        assert_eq!(fs.level(ino).await.unwrap(), Level::Replicas);
        let newest = |node: usize| nodes.machines[node].process().chain.now();
        assert_eq!(newest(1), newest(0));
        // Cut off, the replica is connected for a while as far as the primary knows.
        nodes.network.part(from_ref(&nodes.machines[1].host), from_ref(&nodes.machines[0].host));
        write(&fs, ino, "more").await;
        assert_eq!(fs.level(ino).await.unwrap(), Level::Memory);
        let start = env.now();
        let short = Duration::from_millis(100);
        assert!(!fs.wait_for(ino, Level::Replicas, short).await.unwrap());
        assert!(env.now().since(start) >= short);
        assert_eq!(fs.level(ino).await.unwrap(), Level::Server);
        let (waiting, asked) = (fs.clone(), env.clone());
        let wait = asked.spawn(async move { waiting.wait_for(ino, Level::Replicas, LONG).await });
        env.sleep(Duration::from_millis(10)).await;
        nodes.network.heal();
        assert!(wait.await.unwrap().unwrap());
        assert_eq!(fs.level(ino).await.unwrap(), Level::Replicas);
        nodes.machines[1].kill().await;
        env.sleep(LONG).await;
        write(&fs, ino, "alone").await;
        let waited = fs.wait_for(ino, Level::Replicas, LONG).await;
        assert!(matches!(waited, Err(FsError::NoReplicas)), "{waited:?}");
        assert_eq!(fs.level(ino).await.unwrap(), Level::Server, "it has come as far as it could");
    });
}

#[test]
fn a_file_of_which_nothing_has_changed_since_the_opening_has_a_level() {
    run(2, |env| async move {
        let nodes = Nodes::new(&env, 2, 1, Room::default()).await;
        let (fs, volume) = filesystem(&env, &nodes).await;
        let ino = file(&fs, "f").await;
        assert!(fs.wait_for(ino, Level::Server, LONG).await.unwrap());
        assert_eq!(fs.level(ino).await.unwrap(), Level::Replicas, "a flush waits for the replica");
        fs.close().await.unwrap();
        let again = LocalFs::open(&env, volume, "fs", Options::default()).await.unwrap();
        assert!(again.level(ino).await.unwrap() >= Level::Server);
        assert!(again.wait_for(ino, Level::Replicas, LONG).await.unwrap());
        assert_eq!(again.level(ino).await.unwrap(), Level::Replicas);
        assert!(matches!(again.level(Ino(4711)).await, Err(FsError::Stale)));
    });
}

#[test]
fn a_transaction_is_in_memory_until_it_commits() {
    run(3, |env| async move {
        let nodes = Nodes::new(&env, 2, 0, Room::default()).await;
        let (fs, volume) = filesystem(&env, &nodes).await;
        let (ino, other) = (file(&fs, "f").await, file(&fs, "other").await);
        fs.sync_all().await.unwrap();
        let within = fs.within(volume.begin(Begin::STRICT).await.unwrap());
        write(&within, ino, "text").await;
        assert_eq!(within.level(ino).await.unwrap(), Level::Memory);
        assert!(within.level(other).await.unwrap() >= Level::Server);
        let waited = within.wait_for(ino, Level::Server, LONG).await;
        assert!(matches!(waited, Err(FsError::Invalid(_))), "{waited:?}");
        within.commit(Durability::Synced).await.unwrap();
        assert!(fs.level(ino).await.unwrap() >= Level::Server);
    });
}
