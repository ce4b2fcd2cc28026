//! A store in a thread of its own (cross-thread).

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::Env;
use thalweg_store::tree::Store;
use thalweg_store::txn::{Handle, Transact};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};

use crate::ImgError;
use crate::endpoint::{self, Call, Endpoint, Txn};

type Answer = Result<(Handle, Vec<Bytes>), ImgError>;

/// A released transaction, the calls to make in it, and the channel for the answer.
struct Request {
    handle: Handle,
    calls: Vec<Call>,
    caller: oneshot::Sender<Answer>,
}

/// A store that a single thread calls. The thread ends when this is dropped.
pub struct StoreThread {
    volume: Arc<dyn Transact>,
    requests: mpsc::UnboundedSender<Request>,
}

impl StoreThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot start it.
    pub fn start(env: &Env, store: Store) -> io::Result<StoreThread> {
        let volume = store.volume().clone();
        let (requests, waiting) = mpsc::unbounded_channel();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (env, name) = (env.clone(), store.name().to_owned());
        let thread = std::thread::Builder::new().name(name);
        thread.spawn(move || runtime.block_on(run(env, store, waiting)))?;
        Ok(StoreThread { volume, requests })
    }
}

/// Answers requests until the last sender is dropped. A request that waits for the volume does not delay the
/// next.
async fn run(env: Env, store: Store, mut waiting: mpsc::UnboundedReceiver<Request>) {
    while let Some(Request { handle, calls, caller }) = waiting.recv().await {
        let store = store.clone();
        let work = async move {
            // This fails when the caller was dropped; the transaction is aborted after its time limit.
            let _ = caller.send(endpoint::answer(&store, handle, calls).await);
        };
        env.spawn(work).detach();
    }
}

#[async_trait]
impl Endpoint for StoreThread {
    async fn call(&self, txn: Txn, calls: Vec<Call>) -> Result<(Txn, Vec<Bytes>), ImgError> {
        endpoint::lend(&*self.volume, txn, async |handle| {
            let gone = || ImgError::Gone("its thread has ended".to_owned());
            let (caller, answer) = oneshot::channel();
            self.requests.send(Request { handle, calls, caller }).map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        })
        .await
    }
}
