//! A server over a store in memory, and clients.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tempfile::TempDir;
use thalweg_env::Env;
use thalweg_ipc::protocol::{self, Answer, Frame, MAX_ANSWER_PAYLOAD, Request, Welcome};
use thalweg_ipc::{Config, Connection, SOCKET, Server, socket};
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{BLOCK_SIZE, BlockStore, Lba};
use thalweg_store::txn::{Options, TransactionManager};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

pub(crate) const BLOCKS: u64 = 2048;

pub(crate) fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK_SIZE])
}

pub(crate) struct Rig {
    pub(crate) env: Env,
    pub(crate) store: Arc<VersionedMemory>,
    pub(crate) manager: TransactionManager,
    pub(crate) folder: TempDir,
    pub(crate) server: Option<Server>,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::with(Options::default(), Config::default())
    }

    pub(crate) fn with(options: Options, config: Config) -> Rig {
        let env = Env::real();
        let store = Arc::new(VersionedMemory::new(BLOCKS));
        let manager = TransactionManager::new(&env, store.clone(), options);
        let folder = tempfile::tempdir().unwrap();
        let server = Some(Server::start(&env, &manager, folder.path(), config).unwrap());
        Rig { env, store, manager, folder, server }
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection::open(&self.env, self.folder.path()).await.unwrap().unwrap()
    }

    /// A peer that may send any bytes.
    pub(crate) async fn raw(&self) -> Raw {
        let stream = socket::connect(self.folder.path(), SOCKET).await.unwrap().unwrap();
        let mut raw = Raw { stream, input: BytesMut::new() };
        protocol::HELLO.exchange(&mut raw.stream).await.unwrap();
        assert!(matches!(raw.frame::<Welcome>().await, Some(Frame { id: 0, .. })));
        raw
    }

    pub(crate) async fn stored(&self, lba: u64) -> u8 {
        let found = self.store.read_newest(Lba(lba), 1).await.unwrap().1;
        found[0].as_ref().map_or(0, |content| content[0])
    }

    /// Waits until `count` transactions run: those of a dead client are aborted in the background.
    pub(crate) async fn wait_for_running(&self, count: u64) {
        for _ in 0..2000 {
            if self.manager.status().running == count {
                return;
            }
            self.env.sleep(Duration::from_millis(5)).await;
        }
        panic!("{} transactions run instead of {count}", self.manager.status().running);
    }
}

pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    input: BytesMut,
}

impl Raw {
    pub(crate) async fn send(&mut self, id: u64, request: &Request, payload: &[u8]) {
        let mut frame = BytesMut::new();
        protocol::encode(id, request, payload.len(), &mut frame);
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).await.unwrap();
    }

    /// The next frame; `None` when the server closed the connection.
    pub(crate) async fn frame<T: serde::de::DeserializeOwned>(&mut self) -> Option<Frame<T>> {
        loop {
            if let Some(frame) = protocol::decode(&mut self.input, MAX_ANSWER_PAYLOAD).unwrap() {
                return Some(frame);
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    pub(crate) async fn answer(&mut self) -> Option<(u64, Answer)> {
        self.frame().await.map(|frame| (frame.id, frame.message))
    }
}
