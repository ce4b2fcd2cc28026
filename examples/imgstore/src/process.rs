//! A store in a process of its own (cross-process): its server, its client, and the process.
//!
//! The server uses the volume through its socket, `txn.sock`, and listens on a socket beside it. A request
//! carries the handle of a released transaction, and so does its answer. There may be any number of servers
//! for one partition: a store keeps nothing in memory.
//!
//! ```text
//! message   length of the rest, u32, little endian; then in postcard:
//! request   handle, calls
//! answer    handle and what was found, or why not
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thalweg_env::Env;
use thalweg_ipc::{Connection, socket};
use thalweg_store::tree::Store;
use thalweg_store::txn::{Begin, Handle, Retry, Transact};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::UnixStream;

use crate::ImgError;
use crate::endpoint::{self, Call, Endpoint, Txn};

/// Bytes of the longest message: the index of a million photos.
const LONGEST: u32 = 16 << 20;
/// Bytes that are read from a socket at once, and written.
const BUFFER: usize = 32 << 10;
const BACKLOG: u32 = 128;
/// Interval at which a server checks that the volume is still served.
const PULSE: Duration = Duration::from_millis(500);
/// Interval at which a client tries to connect to a starting server.
const POLL: Duration = Duration::from_millis(5);

type Stream = BufStream<UnixStream>;

#[derive(Serialize, Deserialize)]
struct Request {
    handle: Handle,
    calls: Vec<Call>,
}

type Answer = Result<(Handle, Vec<Bytes>), Refusal>;

/// An error in a message.
#[derive(Serialize, Deserialize)]
struct Refusal {
    why: String,
    is_retryable: bool,
}

fn socket_name(partition: &str) -> String {
    format!("{partition}.sock")
}

async fn send<T: Serialize>(stream: &mut Stream, message: &T) -> io::Result<()> {
    let message = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(message.len()).ok().filter(|length| *length <= LONGEST);
    stream
        .write_u32_le(length.ok_or_else(|| io::Error::other("the message is longer than 16 MiB"))?)
        .await?;
    stream.write_all(&message).await?;
    stream.flush().await
}

async fn receive<T: DeserializeOwned>(stream: &mut Stream) -> io::Result<T> {
    let length = stream.read_u32_le().await?;
    if length > LONGEST {
        return Err(io::Error::other("the message is longer than 16 MiB"));
    }
    let mut message = vec![0; length as usize];
    stream.read_exact(&mut message).await?;
    postcard::from_bytes(&message).map_err(io::Error::other)
}

fn gone(error: impl ToString) -> ImgError {
    ImgError::Gone(error.to_string())
}

/// Serves the store in a partition of the volume in `folder`, as long as the volume is served.
///
/// # Errors
/// It always ends with an error: the volume is not served, or not any more, or has no such store.
pub async fn serve(env: &Env, folder: &Path, partition: &str) -> Result<(), ImgError> {
    let volume =
        Connection::open(env, folder).await?.ok_or_else(|| gone("its volume is not served"))?;
    let store = Store::open(env, Arc::new(volume.clone()), partition).await?;
    let listener = socket::listen(folder, &socket_name(partition), BACKLOG).map_err(gone)?;
    let accept = async {
        loop {
            let (stream, _) = listener.accept().await.map_err(gone)?;
            let store = store.clone();
            // A conversation ends when its client closes the connection.
            env.spawn(async move { drop(converse(&store, stream).await) }).detach();
        }
    };
    let watch = async {
        loop {
            volume.begin(Begin::READ_ONLY).await?;
            env.sleep(PULSE).await;
        }
    };
    tokio::select! { ended = accept => ended, ended = watch => ended }
}

async fn converse(store: &Store, stream: UnixStream) -> io::Result<()> {
    let mut stream = BufStream::with_capacity(BUFFER, BUFFER, stream);
    loop {
        let Request { handle, calls } = receive(&mut stream).await?;
        let answer: Answer = endpoint::answer(store, handle, calls).await.map_err(|error| {
            Refusal { why: error.to_string(), is_retryable: error.is_retryable() }
        });
        send(&mut stream, &answer).await?;
    }
}

/// A store that another process serves.
pub struct RemoteStore {
    volume: Arc<dyn Transact>,
    folder: PathBuf,
    partition: String,
    /// Connections that wait for a request: each serves one at a time.
    idle: Mutex<Vec<Stream>>,
}

impl RemoteStore {
    /// The store in a partition of `volume`, whose folder it is.
    pub fn new(volume: Arc<dyn Transact>, folder: &Path, partition: &str) -> RemoteStore {
        let (folder, partition) = (folder.to_owned(), partition.to_owned());
        RemoteStore { volume, folder, partition, idle: Mutex::default() }
    }

    async fn connect(&self) -> io::Result<Stream> {
        let connected = socket::connect(&self.folder, &socket_name(&self.partition)).await?;
        let stream = connected.ok_or_else(|| io::Error::other("no process serves it"))?;
        Ok(BufStream::with_capacity(BUFFER, BUFFER, stream))
    }

    async fn ask(&self, request: &Request) -> io::Result<Answer> {
        let idle = self.idle.lock().pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        send(&mut stream, request).await?;
        let answer = receive(&mut stream).await?;
        self.idle.lock().push(stream);
        Ok(answer)
    }
}

#[async_trait]
impl Endpoint for RemoteStore {
    async fn call(&self, txn: Txn, calls: Vec<Call>) -> Result<(Txn, Vec<Bytes>), ImgError> {
        endpoint::lend(&*self.volume, txn, async |handle| {
            let answer = self.ask(&Request { handle, calls }).await.map_err(|error| {
                // The idle connections lead to the same process.
                self.idle.lock().clear();
                gone(error)
            })?;
            answer.map_err(|Refusal { why, is_retryable }| ImgError::Refused { why, is_retryable })
        })
        .await
    }
}

/// A process that serves a store. It is killed when this is dropped.
#[derive(Debug)]
pub struct StoreProcess(Child);

impl StoreProcess {
    /// Starts `command`, which must [`serve`] the store, and waits until it does.
    ///
    /// # Errors
    /// It cannot be started, or ends.
    pub async fn start(
        env: &Env,
        mut command: Command,
        folder: &Path,
        partition: &str,
    ) -> Result<StoreProcess, ImgError> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = StoreProcess(command.spawn().map_err(gone)?);
        while socket::connect(folder, &socket_name(partition)).await.map_err(gone)?.is_none() {
            if let Some(status) = process.0.try_wait().map_err(gone)? {
                return Err(gone(format!("its process ended with {status}")));
            }
            env.sleep(POLL).await;
        }
        Ok(process)
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        // They fail only if the process has ended before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
