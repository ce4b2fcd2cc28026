//! Measures what the guard on each write costs on a real cluster, and how long a take-over takes.
//!
//! `cargo run --release -p thalweg-rados --features librados --example rados_rate -- CEPH.CONF POOL`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use thalweg_env::Env;
use thalweg_rados::fence::Fence;
use thalweg_rados::object::{Change, Step};
use thalweg_rados::{
    Cluster, ClusterOptions, FileObjects, ObjectStoreRef, Opening, RadosDevice, RadosOptions,
};
use thalweg_store::device::{Device, Purpose};

type Failure = Box<dyn Error + Send + Sync>;

const BLOCK: u64 = 4096;
/// Each kind of write works on so many objects.
const OBJECTS: u64 = 16;
const OBJECT: u64 = 4 << 20;
/// Writes of one round.
const WRITES: u64 = 200;
const ROUNDS: u64 = 15;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let (Some(conf), Some(pool)) = (arguments.next(), arguments.next()) else {
        return Err("usage: rados_rate CEPH.CONF POOL".into());
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure(&conf, &pool))
}

async fn client(conf: &str, pool: &str) -> Result<ObjectStoreRef, Failure> {
    let options = ClusterOptions { conf: Some(conf.into()), ..ClusterOptions::default() };
    Ok(Arc::new(Cluster::connect(&options).await?.pool(pool, "rate").await?))
}

/// The subjects, which write in turns.
struct Subjects {
    store: ObjectStoreRef,
    device: RadosDevice,
    files: FileObjects,
}

/// How a write is guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// Not at all.
    None,
    /// One that compares the epoch with that of an object which has it: a device's.
    Compare,
    /// One that compares and sets it: that of contents of files, and a device's first write of an object.
    CompareAndSet,
}

const GUARDS: [Guard; 3] = [Guard::None, Guard::Compare, Guard::CompareAndSet];

impl Subjects {
    async fn write(&self, guard: Guard, number: u64) -> Result<(), Failure> {
        let data = Bytes::from(vec![number as u8; BLOCK as usize]);
        // Spread over the objects, and over each of them.
        let at = number % OBJECTS * OBJECT + number * 7919 % (OBJECT / BLOCK) * BLOCK;
        match guard {
            Guard::None => {
                let change =
                    Change::new().then(Step::Write { offset: at % OBJECT, data: vec![data] });
                self.store.apply(&format!("plain.{}", at / OBJECT), change).await?;
            }
            Guard::Compare => self.device.write_durably(at, vec![data], Purpose::UserData).await?,
            Guard::CompareAndSet => self.files.write(1, at, &[data]).await?,
        }
        Ok(())
    }

    /// Microseconds that a write took on average, with `depth` of them at once.
    async fn round(&self, env: &Env, guard: Guard, depth: u64) -> Result<f64, Failure> {
        let begun = env.now();
        let workers = join_all((0..depth).map(|worker| async move {
            for number in 0..WRITES / depth {
                self.write(guard, number * depth + worker).await?;
            }
            Ok::<(), Failure>(())
        }));
        workers.await.into_iter().collect::<Result<Vec<()>, Failure>>()?;
        Ok(env.now().since(begun).as_secs_f64() * 1e6 / (WRITES / depth * depth) as f64)
    }
}

async fn measure(conf: &str, pool: &str) -> Result<(), Failure> {
    let env = Env::real();
    let store = client(conf, pool).await?;
    for name in store.list().await? {
        store.apply(&name, Change::new().then(Step::Remove)).await?;
    }
    let size = OBJECTS * OBJECT;
    let device =
        RadosDevice::create(&env, store.clone(), "rate", size, &RadosOptions::default()).await?;
    let files = FileObjects::new(store.clone(), "files", OBJECT, Arc::new(Fence::new(1)))?;
    let subjects = Subjects { store, device, files };
    println!(
        "{BLOCK}-byte durable writes, median of {ROUNDS} rounds of {WRITES} in turns, µs each:"
    );
    for depth in [1, 16] {
        let mut rounds = [const { Vec::new() }; GUARDS.len()];
        for round in 0..=ROUNDS {
            for (guard, times) in GUARDS.into_iter().zip(&mut rounds) {
                let took = subjects.round(&env, guard, depth).await?;
                // The first round makes the objects.
                if round > 0 {
                    times.push(took);
                }
            }
        }
        for (guard, times) in GUARDS.into_iter().zip(&mut rounds) {
            times.sort_by(f64::total_cmp);
            let (median, least) = (times[times.len() / 2], times[0]);
            println!("depth {depth:2}  {guard:?}  median {median:.0}  least {least:.0}");
        }
    }
    drop(subjects);
    env.sleep(Duration::from_millis(200)).await;
    take_overs(&env, conf, pool).await
}

/// Take-overs of devices with more and more objects.
async fn take_overs(env: &Env, conf: &str, pool: &str) -> Result<(), Failure> {
    let options = RadosOptions { object_size: BLOCK, ..RadosOptions::default() };
    let size = 20_000 * BLOCK;
    let old = client(conf, pool).await?;
    let mut device = RadosDevice::create(env, old, "taken", size, &options).await?;
    let mut present = 0;
    for objects in [100, 1_000, 20_000] {
        let data = vec![vec![1; BLOCK as usize].into(); (objects - present) as usize];
        device.write(present * BLOCK, data, Purpose::UserData).await?;
        present = objects;
        let store = client(conf, pool).await?;
        let begun = env.now();
        let next = RadosDevice::open(env, store, "taken", Opening::TakeOver).await?;
        println!(
            "take-over with {objects} objects: {:.0} ms",
            env.now().since(begun).as_secs_f64() * 1e3
        );
        device = next;
    }
    let begun = env.now();
    let all = vec![vec![2; BLOCK as usize].into(); present as usize];
    device.write(0, all, Purpose::UserData).await?;
    let took = env.now().since(begun).as_secs_f64() * 1e3;
    println!(
        "a first write to each of {present} objects, as marking each at a take-over would be: {took:.0} ms"
    );
    device.close().await?;
    let store = client(conf, pool).await?;
    RadosDevice::remove(env, store, "taken").await?;
    Ok(())
}
