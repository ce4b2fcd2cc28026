//! Clients of a server over a store in memory.

use std::time::Duration;

use bytes::BytesMut;
use thalweg_ipc::protocol::{self, Answer, Frame, MAX_ANSWER_PAYLOAD, Request, Welcome};
use thalweg_ipc::{Connection, SOCKET, socket};
use thalweg_store::block::{Blocks, Lba};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

pub(crate) use crate::served::{BLOCKS, Rig, block};

impl Rig {
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
        protocol::encode(id, request, payload.len(), &mut frame).unwrap();
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
