//! Pages that the kernels of several clients cache, and hold while they read or write them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use thalweg_cluster::client::Client;
use thalweg_env::{Env, Rng};
use thalweg_fs::{Caller, Change, Filesystem, Ino, Invalidation, Node, WriteAt, WriteHow};
use thalweg_sim::{campaign, run};
use tokio::sync::Notify;

use crate::scene::*;

const PAGE: u64 = 4096;
const PAGES: u64 = 3;
const CLIENTS: usize = 3;

/// A page of a kernel's cache: the numbers that it has, if it was read.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    numbers: Option<[u64; CLIENTS]>,
    /// A read or a write of it is under way: it cannot be dropped.
    locked: bool,
}

/// The cache of a client's kernel.
#[derive(Debug, Default)]
struct Pages {
    pages: Mutex<BTreeMap<u64, Page>>,
    changed: Notify,
}

impl Pages {
    /// Locks a page, once it is not locked.
    async fn lock(&self, page: u64) -> Page {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut pages = self.pages.lock();
                let found = pages.entry(page).or_default();
                if !found.locked {
                    found.locked = true;
                    return *found;
                }
            }
            changed.await;
        }
    }

    /// Unlocks a page, which has these numbers from now on, or was not read.
    fn unlock(&self, page: u64, numbers: Option<[u64; CLIENTS]>) {
        {
            let mut pages = self.pages.lock();
            match numbers {
                None => drop(pages.remove(&page)),
                numbers => drop(pages.insert(page, Page { numbers, locked: false })),
            }
        }
        self.changed.notify_waiters();
    }
}

/// A client, and the pages of a file in its kernel's cache.
struct Kernel {
    client: Client,
    pages: Arc<Pages>,
    file: Ino,
}

impl Kernel {
    async fn new(env: &Env, client: Client, file: Ino) -> Kernel {
        client.find(Ino::ROOT, b"f").await.unwrap();
        client.reference(file);
        client.open(&Caller::default(), file, WRITING).await.unwrap();
        let pages = Arc::new(Pages::default());
        let (of_watcher, env) = (pages.clone(), env.clone());
        client.watch(Box::new(move |change| {
            let bytes = match change {
                Change::Inode { content: Some(bytes), .. } => bytes,
                // A kernel waits for the last page.
                Change::Grown { size, .. } => size - 1..size,
                _ => return Invalidation::complete(),
            };
            let (invalidation, completion) = Invalidation::pending();
            let pages = of_watcher.clone();
            let dropping = async move {
                let end = bytes.end.min(PAGES * PAGE);
                for page in bytes.start / PAGE..end.div_ceil(PAGE) {
                    pages.lock(page).await;
                    pages.unlock(page, None);
                }
                drop(completion);
            };
            env.spawn(dropping).detach();
            invalidation
        }));
        Kernel { client, pages, file }
    }

    /// Reads a page through the cache.
    async fn read(&self, page: u64) -> [u64; CLIENTS] {
        if let Some(numbers) = self.pages.pages.lock().get(&page).and_then(|it| it.numbers) {
            return numbers;
        }
        let found = self.pages.lock(page).await;
        let numbers = match found.numbers {
            Some(numbers) => numbers,
            None => {
                let read = self.client.read_cached(self.file, page * PAGE, 4096).await.unwrap();
                let mut bytes = read.concat();
                bytes.resize(PAGE as usize, 0);
                std::array::from_fn(|at| {
                    let number = &bytes[at * 8..(at + 1) * 8];
                    u64::from_le_bytes(number.try_into().unwrap())
                })
            }
        };
        self.pages.unlock(page, Some(numbers));
        numbers
    }

    /// Writes one of a page's numbers: to the page first, if that was read; else it stays locked meanwhile.
    async fn write(&self, page: u64, at: usize, number: u64) {
        let numbers = self.pages.lock(page).await.numbers.map(|mut numbers| {
            numbers[at] = number;
            numbers
        });
        if numbers.is_some() {
            self.pages.unlock(page, numbers);
        }
        let data = vec![Bytes::copy_from_slice(&number.to_le_bytes())];
        let offset = WriteAt::Offset(page * PAGE + at as u64 * 8);
        self.client.write(self.file, offset, data, WriteHow::default()).await.unwrap();
        if numbers.is_none() {
            self.pages.unlock(page, None);
        }
    }
}

/// Each client writes growing numbers to a place of its own on each page, and reads whole pages. No program reads a number that was
/// replaced before the read began, and no client is evicted because kernels wait for each other.
#[test]
fn pages_show_what_was_acknowledged_and_wait_in_no_circle() {
    for seed in campaign::seeds(30) {
        run(seed, move |env| async move {
            let scene = Scene::durable(&env).await;
            let maker = scene.client("maker").await;
            let file = make(&maker.client, Ino::ROOT, "f", Node::File).await;
            maker.client.sync_all().await.unwrap();
            let mut machines = Vec::new();
            for name in ["a", "b", "c"] {
                machines.push(scene.client(name).await);
            }
            let written = Arc::new(Mutex::new([[0u64; CLIENTS]; PAGES as usize]));
            let mut tasks = Vec::new();
            for (at, machine) in machines.iter().enumerate() {
                let kernel = Arc::new(Kernel::new(&env, machine.client.clone(), file).await);
                // Several programs on each machine; one of them writes.
                for program in 0..3u64 {
                    let (kernel, written, env) = (kernel.clone(), written.clone(), env.clone());
                    let mut random = Rng::seed_from_u64(seed * 100 + at as u64 * 10 + program);
                    tasks.push(env.clone().spawn(async move {
                        for number in 1..=60u64 {
                            let page = random.random_range(0..PAGES);
                            if program == 0 {
                                kernel.write(page, at, number).await;
                                written.lock()[page as usize][at] = number;
                                continue;
                            }
                            let before = written.lock()[page as usize];
                            let found = kernel.read(page).await;
                            let is_new = found.iter().zip(before).all(|(found, it)| *found >= it);
                            assert!(is_new, "client {at} reads {found:?} after {before:?}");
                            let pause = random.random_range(0..3000);
                            env.sleep(Duration::from_micros(pause)).await;
                        }
                    }));
                }
            }
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(scene.service.status().evictions, 0);
        });
    }
}
