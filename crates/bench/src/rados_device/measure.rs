//! The writes, and their times.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use thalweg_env::Env;
use thalweg_rados::{ClusterOptions, Pool, RadosDevice, RadosOptions};
use thalweg_store::device::{AlignedBuf, Device, Purpose};

use crate::ceph::Ceph;
use crate::rig::{failed, median, rounded};
use crate::{BenchError, Report};

/// What the servers keep objects in.
const STORE: &str = "bluestore";
const OBJECTS: u64 = 16;
const OBJECT: u64 = 4 << 20;
const ROUNDS: u32 = 25;

/// A kind of writes.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// Bytes of a write.
    len: u64,
    /// Writes in flight.
    depth: u64,
    /// Writes of a round at scale 1.
    writes: f64,
}

const LOADS: [Load; 4] = [
    Load { name: "4k_1", len: 4096, depth: 1, writes: 200.0 },
    Load { name: "4k_16", len: 4096, depth: 16, writes: 800.0 },
    Load { name: "4m_1", len: OBJECT, depth: 1, writes: 8.0 },
    Load { name: "4m_16", len: OBJECT, depth: 16, writes: 32.0 },
];

/// What writes.
#[derive(Clone)]
enum Subject {
    Device(Arc<RadosDevice>),
    Librados(Pool),
}

impl Subject {
    /// Writes `data` durably at `at`, of the device or of as many objects one after the other.
    async fn write(&self, at: u64, data: Bytes) -> Result<(), BenchError> {
        match self {
            Subject::Device(device) => {
                device.write_durably(at, vec![data], Purpose::UserData).await.map_err(failed)
            }
            Subject::Librados(pool) => {
                let object = format!("plain.{:016x}", at / OBJECT);
                pool.write_plainly(&object, at % OBJECT, data).await.map_err(failed)
            }
        }
    }
}

async fn pool(conf: &std::path::Path) -> Result<Pool, BenchError> {
    let options = ClusterOptions { conf: Some(conf.to_owned()), ..ClusterOptions::default() };
    let cluster = thalweg_rados::Cluster::connect(&options).await.map_err(failed)?;
    cluster.pool("test", "").await.map_err(failed)
}

/// Measures all loads on a cluster that is started for it.
pub(super) fn run(scale: f64, report: &mut Report) -> Result<(), BenchError> {
    let cluster = Ceph::start(STORE, 0)?;
    report.figure("store", STORE);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(failed)?.block_on(async {
        let env = Env::real();
        let size = OBJECTS * OBJECT;
        let store = Arc::new(pool(&cluster.conf()).await?);
        let layout = RadosOptions::default();
        let device = RadosDevice::create(&env, store, "device", size, &layout).await;
        let device = Arc::new(device.map_err(failed)?);
        let plain = pool(&cluster.conf()).await?;
        let subjects = [Subject::Device(device.clone()), Subject::Librados(plain)];
        for load in LOADS {
            measure(&env, &subjects, load, scale, report).await?;
        }
        device.close().await.map_err(failed)
    })
}

/// Measures one load, the subjects in turns.
async fn measure(
    env: &Env,
    subjects: &[Subject; 2],
    load: Load,
    scale: f64,
    report: &mut Report,
) -> Result<(), BenchError> {
    let each = ((load.writes * scale) as u64 / load.depth).max(1);
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..=ROUNDS {
        // Neither is always the first.
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        for subject in order {
            let took = round(env, &subjects[subject], load, each, u64::from(number)).await?;
            // The first round makes the objects.
            if number > 0 {
                times[subject].push(took);
            }
        }
    }
    let ratios = times[0].iter().zip(&times[1]).map(|(device, librados)| librados / device);
    report.figure(&format!("write_{}_over_librados", load.name), rounded(median(ratios.collect())));
    for (subject, times) in ["device", "librados"].iter().zip(times) {
        let each = median(times) * 1e6;
        report.figure(&format!("{subject}_{}_us", load.name), rounded(each));
    }
    Ok(())
}

/// Seconds for each write of a round, in which each of the workers makes `each` of them.
async fn round(
    env: &Env,
    subject: &Subject,
    load: Load,
    each: u64,
    number: u64,
) -> Result<f64, BenchError> {
    let mut data = AlignedBuf::zeroed(load.len as usize);
    data.fill(number as u8);
    let data = data.freeze();
    let begun = env.now();
    let workers = (0..load.depth).map(|worker| {
        let (subject, data) = (subject.clone(), data.clone());
        env.spawn(async move {
            for write in 0..each {
                let write = write * load.depth + worker + number * 7919;
                // Spread over the objects, and over each of them.
                let inside = write * 7919 % (OBJECT / load.len) * load.len;
                subject.write(write % OBJECTS * OBJECT + inside, data.clone()).await?;
            }
            Ok::<(), BenchError>(())
        })
    });
    for outcome in join_all(workers.collect::<Vec<_>>()).await {
        outcome.ok_or_else(|| BenchError::Failed("a worker panicked".into()))??;
    }
    Ok(env.now().since(begun).as_secs_f64() / (each * load.depth) as f64)
}
