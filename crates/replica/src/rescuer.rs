//! Contents of a follower's damaged blocks, from its primary.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_net::channel::Channel;
use thalweg_store::block::Lba;
use thalweg_store::chain::Rescue;
use tokio::sync::{mpsc, oneshot};

use super::protocol::{Answer, FromFollower};

/// Blocks that wait to be asked for.
const QUEUE: usize = 64;
/// Blocks that are asked for at a time.
const AT_A_TIME: usize = 16;
/// How long a read waits for the primary. Answers come in turn with changes, which may wait for this read.
const WAIT: Duration = Duration::from_secs(2);

/// A block that a read found damaged.
struct Wanted {
    lba: Lba,
    checksum: u32,
    found: oneshot::Sender<Option<Bytes>>,
}

/// Asks the primary for contents, while there is a connection to it.
pub(super) struct Rescuer {
    env: Env,
    queue: Mutex<Option<mpsc::Sender<Wanted>>>,
}

impl fmt::Debug for Rescuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rescuer").finish_non_exhaustive()
    }
}

impl Rescuer {
    pub(super) fn new(env: &Env) -> Rescuer {
        Rescuer { env: env.clone(), queue: Mutex::default() }
    }

    /// Asks over `channel` for what reads want, until another connection begins.
    pub(super) async fn run(&self, channel: &Channel) {
        let (queue, wanted) = mpsc::channel(QUEUE);
        *self.queue.lock() = Some(queue);
        let wanted = stream::unfold(wanted, |mut wanted| async move {
            wanted.recv().await.map(|one| (one, wanted))
        });
        let env = &self.env;
        let ask = |one: Wanted| async move {
            let call = FromFollower::Fetch { lba: one.lba, checksum: one.checksum };
            let answer = channel.call_within(env, WAIT, &call, &[]).await;
            let found = match answer {
                Ok((Answer::Content, content)) => Some(content),
                _ => None,
            };
            // The read may have ended.
            let _ = one.found.send(found);
        };
        wanted.for_each_concurrent(AT_A_TIME, ask).await;
    }

    /// The connection ended: reads do not wait for it.
    pub(super) fn disconnect(&self) {
        *self.queue.lock() = None;
    }
}

impl Rescue for Rescuer {
    fn content(&self, lba: Lba, checksum: u32) -> BoxFuture<'static, Option<Bytes>> {
        let (queue, env) = (self.queue.lock().clone(), self.env.clone());
        let asking = async move {
            let (found, answer) = oneshot::channel();
            queue?.send(Wanted { lba, checksum, found }).await.ok()?;
            answer.await.ok()?
        };
        async move { env.timeout(WAIT, asking).await? }.boxed()
    }
}
