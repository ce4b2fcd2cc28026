//! A client that can send invalid bytes. It has its own code for the layouts, so that a mistake in the
//! server's code is found.

use std::path::Path;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const ENOTSUP: u32 = 95;

/// An option reply: kind and payload.
pub type OptionReply = (u32, Vec<u8>);

/// A reply message of the transmission phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Simple { error: u32, cookie: u64 },
    Chunk { done: bool, kind: u16, cookie: u64, payload: Vec<u8> },
}

impl Reply {
    pub fn cookie(&self) -> u64 {
        match self {
            Reply::Simple { cookie, .. } | Reply::Chunk { cookie, .. } => *cookie,
        }
    }

    /// The error number, 0 for success.
    pub fn error(&self) -> u32 {
        match self {
            Reply::Simple { error, .. } => *error,
            Reply::Chunk { kind: 0x8001, payload, .. } => be32(payload),
            Reply::Chunk { .. } => 0,
        }
    }
}

pub fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

pub fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

pub struct Client<S = UnixStream> {
    pub stream: S,
    cookie: u64,
}

impl Client {
    pub async fn connect(path: &Path) -> Client {
        Client::on(UnixStream::connect(path).await.unwrap())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub fn on(stream: S) -> Client<S> {
        Client { stream, cookie: 100 }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    pub async fn receive(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    /// Whether the server closes without sending anything more.
    pub async fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]).await, Ok(0) | Err(_))
    }

    pub async fn greet(&mut self, flags: u32) {
        let greeting = self.receive(18).await;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(&greeting[16..], [0, 3]);
        self.send(&flags.to_be_bytes()).await;
    }

    pub async fn send_option(&mut self, code: u32, payload: &[u8]) {
        self.send(b"IHAVEOPT").await;
        self.send(&code.to_be_bytes()).await;
        self.send(&(payload.len() as u32).to_be_bytes()).await;
        self.send(payload).await;
    }

    pub async fn option_reply(&mut self, code: u32) -> OptionReply {
        let header = self.receive(20).await;
        assert_eq!(be64(&header), 0x3e889045565a9);
        assert_eq!(be32(&header[8..]), code);
        let payload = self.receive(be32(&header[16..]) as usize).await;
        (be32(&header[12..]), payload)
    }

    /// Sends an option and returns all replies, up to an acknowledgement or an error.
    pub async fn option(&mut self, code: u32, payload: &[u8]) -> Vec<OptionReply> {
        self.send_option(code, payload).await;
        let mut replies = Vec::new();
        loop {
            let reply = self.option_reply(code).await;
            let last = reply.0 == 1 || reply.0 & (1 << 31) != 0;
            replies.push(reply);
            if last {
                return replies;
            }
        }
    }

    /// The kind of the last reply to an option.
    pub async fn verdict(&mut self, code: u32, payload: &[u8]) -> u32 {
        self.option(code, payload).await.last().unwrap().0
    }

    pub async fn negotiate_structured(&mut self, name: &str) {
        assert_eq!(self.verdict(8, &[]).await, 1);
        let replies = self.option(10, &context_request(name, &["base:allocation"])).await;
        assert_eq!(replies.len(), 2);
    }

    pub async fn go(&mut self, name: &str) -> Vec<OptionReply> {
        let replies = self.option(7, &export_request(name, &[3])).await;
        assert_eq!(replies.last().unwrap().0, 1, "GO was refused");
        replies
    }

    pub async fn request(&mut self, command: u16, flags: u16, offset: u64, len: u32) -> u64 {
        self.cookie += 1;
        let mut bytes = 0x25609513u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&command.to_be_bytes());
        bytes.extend_from_slice(&self.cookie.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        bytes.extend_from_slice(&len.to_be_bytes());
        self.send(&bytes).await;
        self.cookie
    }

    pub async fn reply(&mut self) -> Reply {
        let magic = be32(&self.receive(4).await);
        if magic == 0x67446698 {
            let rest = self.receive(12).await;
            return Reply::Simple { error: be32(&rest), cookie: be64(&rest[4..]) };
        }
        assert_eq!(magic, 0x668e33ef);
        let header = self.receive(16).await;
        let kind = u16::from_be_bytes([header[2], header[3]]);
        let payload = self.receive(be32(&header[12..]) as usize).await;
        Reply::Chunk { done: header[1] == 1, kind, cookie: be64(&header[4..]), payload }
    }

    /// Sends a request and returns the error number of its reply.
    pub async fn call(&mut self, command: u16, flags: u16, offset: u64, len: u32) -> u32 {
        let cookie = self.request(command, flags, offset, len).await;
        let reply = self.reply().await;
        assert_eq!(reply.cookie(), cookie);
        reply.error()
    }

    pub async fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let cookie = self.request(WRITE, flags, offset, data.len() as u32).await;
        self.send(data).await;
        let reply = self.reply().await;
        assert_eq!(reply.cookie(), cookie);
        reply.error()
    }

    /// All chunks of a structured reply.
    pub async fn chunks(&mut self, cookie: u64) -> Vec<(u16, Vec<u8>)> {
        let mut chunks = Vec::new();
        loop {
            let Reply::Chunk { done, kind, cookie: found, payload } = self.reply().await else {
                panic!("a simple reply to a read");
            };
            assert_eq!(found, cookie);
            chunks.push((kind, payload));
            if done {
                return chunks;
            }
        }
    }

    /// Reads with structured replies and puts the chunks together.
    pub async fn read(&mut self, flags: u16, offset: u64, len: u32) -> Vec<u8> {
        let cookie = self.request(READ, flags, offset, len).await;
        let mut data = Vec::new();
        for (kind, payload) in self.chunks(cookie).await {
            assert_eq!(be64(&payload), offset + data.len() as u64, "chunks out of order");
            match kind {
                1 => data.extend_from_slice(&payload[8..]),
                2 => data.resize(data.len() + be32(&payload[8..]) as usize, 0),
                other => panic!("unexpected chunk {other}"),
            }
        }
        assert_eq!(data.len(), len as usize);
        data
    }

    /// Block status: (length, flags).
    pub async fn status(&mut self, flags: u16, offset: u64, len: u32) -> Vec<(u32, u32)> {
        let cookie = self.request(BLOCK_STATUS, flags, offset, len).await;
        let chunks = self.chunks(cookie).await;
        assert_eq!(chunks.len(), 1);
        assert_eq!(chunks[0].0, 5);
        assert_eq!(be32(&chunks[0].1), 1);
        chunks[0].1[4..].chunks(8).map(|pair| (be32(pair), be32(&pair[4..]))).collect()
    }
}

pub fn export_request(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut payload = (name.len() as u32).to_be_bytes().to_vec();
    payload.extend_from_slice(name.as_bytes());
    payload.extend_from_slice(&(infos.len() as u16).to_be_bytes());
    infos.iter().for_each(|info| payload.extend_from_slice(&info.to_be_bytes()));
    payload
}

pub fn context_request(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut payload = (name.len() as u32).to_be_bytes().to_vec();
    payload.extend_from_slice(name.as_bytes());
    payload.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        payload.extend_from_slice(&(query.len() as u32).to_be_bytes());
        payload.extend_from_slice(query.as_bytes());
    }
    payload
}
