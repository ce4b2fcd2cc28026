//! The cost of calls in the store below: blocks, and bytes of them that change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_fs::Filesystem;
use thalweg_fs::local::{self, Atime, Format, LocalFs, Options};
use thalweg_sim::passing::{Around, Change, Passing};
use thalweg_sim::run;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{Class, Lba, StoreError, Write};
use thalweg_store::device::{DeviceRef, MemoryDevice, Tally};
use thalweg_store::inplace::{InPlace, NewInPlace, Options as StoreOptions, Parts};
use thalweg_store::txn::{self, Transact, TransactionManager};

use crate::support::*;

/// Counts the operations of a store.
#[derive(Debug, Default)]
struct Counting {
    written: Mutex<Vec<Write>>,
    reads: AtomicU64,
}

#[async_trait]
impl Around for Counting {
    async fn before_read(&self, _: Lba, _: u64) -> Result<(), StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn before_change(&self, change: Change<'_>) -> Result<(), StoreError> {
        if let Change::Apply(writes) = change {
            self.written.lock().extend_from_slice(writes);
        }
        Ok(())
    }
}

impl Counting {
    /// Writes since the last call of this: blocks and changed bytes of data and of metadata; and reads.
    fn cost(&self) -> ([(usize, usize); 2], u64) {
        let written = std::mem::take(&mut *self.written.lock());
        let of = |class| {
            let some = written.iter().filter(|write| write.class == class);
            some.fold((0, 0), |sum, write| (sum.0 + 1, sum.1 + write.changed.bytes()))
        };
        ([of(Class::Data), of(Class::Metadata)], self.reads.swap(0, Ordering::Relaxed))
    }
}

/// A filesystem with so many files, whose tree has more than one level.
async fn used(env: &Env, files: usize) -> (LocalFs, Arc<Passing<Counting>>) {
    let memory = Arc::new(VersionedMemory::new(60_000));
    let store = Arc::new(Passing::new(memory, Counting::default()));
    let manager = TransactionManager::new(env, store.clone(), txn::Options::default());
    let volume: Arc<dyn Transact> = Arc::new(manager);
    local::make(env, &volume, &Format::default()).await.unwrap();
    let options = Options { atime: Atime::Never, ..Options::default() };
    let fs = LocalFs::open(env, volume, "fs", options).await.unwrap();
    for number in 0..files {
        let file = create(&fs, ROOT, &format!("file {number}")).await;
        write(&fs, file, 0, &pattern(number as u64, 100)).await;
    }
    store.around.cost();
    (fs, store)
}

#[test]
fn a_small_change_touches_few_bytes() {
    run(1, |env| async move {
        let (fs, store) = used(&env, 2000).await;
        let file = fs.find(ROOT, b"file 777").await.unwrap().ino;
        let (_, reads) = store.around.cost();
        // A path of three nodes for the name, and one for the inode.
        assert!(reads <= 6, "{reads}");
        write(&fs, file, 0, &pattern(1, 40_000)).await;
        store.around.cost();
        env.sleep(std::time::Duration::from_secs(1)).await;
        write(&fs, file, 5000, &[7; 128]).await;
        let ([data, metadata], reads) = store.around.cost();
        println!("overwrite: {data:?} {metadata:?}, {reads} reads");
        assert_eq!(data, (1, 128));
        // The record's first byte, and both times.
        assert!(metadata.0 == 1 && metadata.1 <= 17, "{metadata:?}");
        write(&fs, file, 40_000, &[7; 50]).await;
        let ([data, metadata], _) = store.around.cost();
        println!("append in the last block: {data:?} {metadata:?}");
        assert_eq!(data, (1, 50));
        assert!(metadata.0 == 1 && metadata.1 <= 33, "{metadata:?}");
        write(&fs, file, 40_960, &[7; 4096]).await;
        let ([data, metadata], _) = store.around.cost();
        println!("append a block: {data:?} {metadata:?}");
        assert_eq!(data, (1, 4096));
        assert!(metadata.0 <= 3 && metadata.1 <= 80, "{metadata:?}");
        create(&fs, ROOT, "one more").await;
        let ([_, metadata], _) = store.around.cost();
        println!("create: {metadata:?}");
        assert!(metadata.0 <= 4 && metadata.1 <= 1200, "{metadata:?}");
        read(&fs, file, 0, 40_000).await;
        let ([_, metadata], reads) = store.around.cost();
        println!("read: {reads} reads");
        assert_eq!(metadata, (0, 0));
        assert!(reads <= 9, "{reads}");
    });
}

/// A filesystem on a device, and what keeps it.
struct OnDevice {
    fs: LocalFs,
    store: Arc<InPlace>,
}

impl OnDevice {
    /// Opens the volume on a device, and its filesystem, which is made if that is asked for.
    async fn open(env: &Env, device: &DeviceRef, is_new: bool) -> OnDevice {
        let parts = Parts { data: device.clone(), journal: None };
        let opened = InPlace::open(env, parts, StoreOptions::default()).await.unwrap();
        let store = Arc::new(opened.0);
        let manager = TransactionManager::new(env, store.clone(), txn::Options::default());
        let volume: Arc<dyn Transact> = Arc::new(manager);
        if is_new {
            local::make(env, &volume, &Format::default()).await.unwrap();
        }
        let fs = LocalFs::open(env, volume, "fs", Options::default()).await.unwrap();
        OnDevice { fs, store }
    }

    async fn close(self) {
        self.fs.close().await.unwrap();
        drop(self.fs);
        self.store.close().await.unwrap();
    }
}

/// What the device does until a filesystem that was closed in order with so many files is open, and one name of it
/// was found.
async fn cost_of_opening(env: &Env, files: usize) -> Tally {
    let device: DeviceRef = Arc::new(MemoryDevice::new(256 << 20));
    let parts = Parts { data: device.clone(), journal: None };
    let new = NewInPlace { name: "opening".to_owned(), ..NewInPlace::default() };
    InPlace::create(env, &parts, &new).await.unwrap();
    let made = OnDevice::open(env, &device, true).await;
    for number in 0..files {
        let file = create(&made.fs, ROOT, &format!("file {number}")).await;
        if number % 16 == 0 {
            write(&made.fs, file, 0, &pattern(number as u64, 5000)).await;
        }
    }
    made.close().await;
    let before = device.tallies().total();
    let again = OnDevice::open(env, &device, false).await;
    again.fs.find(ROOT, b"file 0").await.unwrap();
    let cost = device.tallies().total() - before;
    again.close().await;
    cost
}

#[test]
fn opening_costs_the_same_whatever_the_number_of_files() {
    run(1, |env| async move {
        let few = cost_of_opening(&env, 300).await;
        let many = cost_of_opening(&env, 12_000).await;
        println!("opening with 300 files: {few:?}; with 12000: {many:?}");
        // Up to two more levels of the tree, on the paths to the counts, the table, the name and its inode.
        assert!(many.reads <= few.reads + 8, "{few:?} {many:?}");
        assert!(many.read_bytes <= few.read_bytes + 8 * 4096, "{few:?} {many:?}");
        assert!(many.writes <= few.writes && many.flushes <= few.flushes, "{few:?} {many:?}");
        assert!(many.read_bytes <= 4 << 20, "{many:?}");
    });
}
