//! A process that is frozen while another client takes over from it, on a real cluster.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_rados::{Cluster, ClusterOptions, ObjectStoreRef, Opening, RadosDevice};
use thalweg_store::device::{Device, DeviceError, Purpose};

use crate::device::{OPTIONS, SIZE};
use crate::mini_cluster::MiniCluster;

/// Names the configuration file for the child process.
const VARIABLE: &str = "THALWEG_TEST_FROZEN";
/// The exit status of a child that was fenced.
const FENCED: i32 = 7;

async fn client(conf: PathBuf) -> ObjectStoreRef {
    let options = ClusterOptions { conf: Some(conf), ..ClusterOptions::default() };
    Arc::new(Cluster::connect(&options).await.unwrap().pool("test", "").await.unwrap())
}

/// Not a test of its own: the body of the child process. It writes at all times, several writes at once.
#[tokio::test]
async fn child_that_writes() {
    let Ok(conf) = std::env::var(VARIABLE) else { return };
    let env = Env::real();
    let store = client(conf.into()).await;
    let device = RadosDevice::open(&env, store, "frozen", Opening::Exclusive).await.unwrap();
    for round in 0_u64.. {
        let writes = (0..8).map(|at| {
            let data = vec![Bytes::from(vec![1; 4096])];
            device.write((round * 8 + at) * 4096 % SIZE, data, Purpose::UserData)
        });
        for outcome in futures::future::join_all(writes).await {
            match outcome {
                Ok(()) => {}
                // The connection is open, and requests are in flight.
                Err(DeviceError::Fenced { .. }) => std::process::exit(FENCED),
                Err(error) => panic!("{error}"),
            }
        }
        if round == 20 {
            println!("writing.");
        }
    }
}

fn signal(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// The old client is frozen in the middle of its writes. It wakes when the cluster accepts it again: after its entry on
/// the blocklist has gone.
pub(crate) async fn wakes_up_and_changes_nothing(env: &Env, mini: &MiniCluster) {
    for forgotten in [false, true] {
        let store = client(mini.conf()).await;
        let made = RadosDevice::create(env, store.clone(), "frozen", SIZE, &OPTIONS).await;
        made.unwrap().close().await.unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "frozen::child_that_writes", "--nocapture"])
            .env(VARIABLE, mini.conf())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line.contains("writing.")));
        signal(&child, "-STOP");
        let device = RadosDevice::open(env, store.clone(), "frozen", Opening::TakeOver);
        let device = device.await.unwrap();
        let all = vec![Bytes::from(vec![2; SIZE as usize])];
        device.write(0, all, Purpose::UserData).await.unwrap();
        if forgotten {
            mini.ceph(&["osd", "blocklist", "clear"]);
        }
        signal(&child, "-CONT");
        assert_eq!(child.wait().unwrap().code(), Some(FENCED));
        let read = device.read(0, SIZE as usize, Purpose::UserData).await.unwrap();
        assert!(read.iter().all(|byte| *byte == 2), "blocklist cleared: {forgotten}");
        device.close().await.unwrap();
        RadosDevice::remove(env, store, "frozen").await.unwrap();
    }
}
