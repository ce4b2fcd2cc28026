//! The server as its clients see it: our own test client for every rule, and foreign clients.
#![allow(unreachable_pub, clippy::unwrap_used)]

mod client;
mod foreign;
mod garbage;
mod handshake;
mod lifecycle;
mod memory;
mod tls;
mod transmission;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memory::MemoryVolume;
use tempfile::TempDir;
use thalweg_env::Env;
use thalweg_nbd::{Export, Server, ServerConfig, UnixSocketOptions};

/// A server on a Unix socket in a directory of its own.
struct Fixture {
    server: Server,
    volume: Arc<MemoryVolume>,
    socket: PathBuf,
    directory: TempDir,
}

const MIB: u64 = 1 << 20;

fn quick_config() -> ServerConfig {
    ServerConfig {
        handshake_timeout: Duration::from_millis(500),
        shutdown_grace: Duration::from_millis(500),
        ..ServerConfig::default()
    }
}

impl Fixture {
    fn with(volume: MemoryVolume, config: ServerConfig) -> Fixture {
        let server = Server::new(Env::real(), config);
        let volume = Arc::new(volume);
        let export = Export::new("disk", volume.clone()).description("a disk");
        server.add_export(export).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("nbd.sock");
        server.listen_unix(&socket, UnixSocketOptions::default(), None).unwrap();
        Fixture { server, volume, socket, directory }
    }

    fn new() -> Fixture {
        Fixture::with(MemoryVolume::new(8 * MIB), quick_config())
    }

    async fn raw(&self) -> client::Client {
        client::Client::connect(&self.socket).await
    }

    /// A client in transmission, with structured replies and block status.
    async fn client(&self) -> client::Client {
        let mut client = self.raw().await;
        client.greet(3).await;
        client.negotiate_structured("disk").await;
        client.go("disk").await;
        client
    }

    /// A client in transmission without any extension.
    async fn plain_client(&self) -> client::Client {
        let mut client = self.raw().await;
        client.greet(3).await;
        client.go("disk").await;
        client
    }
}

/// Waits until `condition` holds, for ten seconds at most.
async fn eventually(condition: impl Fn() -> bool) {
    let env = Env::real();
    for _ in 0..1000 {
        if condition() {
            return;
        }
        env.sleep(Duration::from_millis(10)).await;
    }
    panic!("a condition did not come true within ten seconds");
}
