//! Measures the calls per second of one connection, with server and client in one process and the store in
//! memory: reads of an unwritten block, and transactions that read and write one block.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::{Env, Task};
use thalweg_ipc::{Config, Connection, Server};
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{BLOCK_SIZE, Lba};
use thalweg_store::txn::{Begin, Durability, Options, Transact, TransactionManager};

const SPAN: Duration = Duration::from_secs(3);
const BLOCKS: u64 = 1 << 16;

async fn read(volume: Connection, done: Arc<AtomicU64>) {
    loop {
        let txn = volume.begin(Begin::STRICT).await.unwrap();
        for _ in 0..1000 {
            txn.read(Lba(0)).await.unwrap();
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Small calls: their answers carry no block.
async fn begin(volume: Connection, done: Arc<AtomicU64>) {
    loop {
        let txn = volume.begin(Begin::STRICT).await.unwrap();
        txn.abort().await;
        done.fetch_add(2, Ordering::Relaxed);
    }
}

async fn change(volume: Connection, done: Arc<AtomicU64>, own: u64) {
    let content = Bytes::from(vec![1; BLOCK_SIZE]);
    loop {
        let txn = volume.begin(Begin::STRICT).await.unwrap();
        txn.read(Lba(own)).await.unwrap();
        txn.write(Lba(own), content.clone()).unwrap();
        txn.commit(Durability::Visible).await.unwrap();
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let env = Env::real();
    let store = Arc::new(VersionedMemory::new(BLOCKS));
    let manager = TransactionManager::new(&env, store, Options::default());
    let folder = tempfile::tempdir().unwrap();
    let _server = Server::start(&env, &manager, folder.path(), Config::default()).unwrap();
    for kind in ["begin and abort", "read 4 KiB", "read, write, commit"] {
        for tasks in [1, 8, 64] {
            let volume = Connection::open(&env, folder.path()).await.unwrap().unwrap();
            let done = Arc::new(AtomicU64::new(0));
            let running: Vec<Task<()>> = (0..tasks)
                .map(|own| match kind {
                    "begin and abort" => env.spawn(begin(volume.clone(), done.clone())),
                    "read 4 KiB" => env.spawn(read(volume.clone(), done.clone())),
                    _ => env.spawn(change(volume.clone(), done.clone(), own)),
                })
                .collect();
            let start = env.now();
            env.sleep(SPAN).await;
            let count = done.load(Ordering::Relaxed);
            let rate = count as f64 / env.now().since(start).as_secs_f64();
            drop(running);
            println!("{kind:20} {tasks:3} at a time: {rate:9.0}/s");
        }
    }
}
