//! Limits the calls of a peer that run at a time.

use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::Serialize;
use thalweg_env::Env;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::channel::Channel;

/// An answer and its payload.
pub type Reply<A> = (A, Vec<Bytes>);

/// What a call takes of the budget while it runs.
#[derive(Debug)]
pub struct Permit(#[expect(dead_code, reason = "it is held")] Option<OwnedSemaphorePermit>);

/// Runs the calls of a connection's peer within a budget.
#[derive(Debug)]
pub struct Serving {
    env: Env,
    channel: Channel,
    budget: Arc<Semaphore>,
    most: u32,
}

impl Serving {
    /// Calls with costs of at most `budget` together run at a time.
    pub fn new(env: &Env, channel: Channel, budget: u32) -> Serving {
        let permits = Arc::new(Semaphore::new(budget as usize));
        Serving { env: env.clone(), channel, budget: permits, most: budget }
    }

    /// Sends the answer to call `id` when `work` is done; most work is done at the first poll. Returns as soon
    /// as the work has begun, which waits until the budget covers `cost`.
    pub async fn answer<A: Serialize + Send + 'static>(
        &self,
        id: u64,
        cost: u64,
        work: impl Future<Output = Reply<A>> + Send + 'static,
    ) {
        let channel = self.channel.clone();
        let answering = async move {
            let (answer, payload) = work.await;
            channel.answer(id, &answer, &payload);
        };
        let permit = self.afford(cost).await;
        self.run(permit, Box::pin(answering)).await;
    }

    /// As [`Serving::answer`], of work that answers by itself and that the budget covers already. Begins it without waiting: work
    /// that its caller has noted as running does run.
    pub async fn run(&self, permit: Permit, mut work: BoxFuture<'static, ()>) {
        if futures::poll!(&mut work) == Poll::Pending {
            let channel = self.channel.clone();
            let task = self.env.spawn(async move {
                work.await;
                channel.flush_soon();
                drop(permit);
            });
            // Work that has begun runs to its end when the peer disconnects.
            task.detach();
        }
    }

    /// Waits until all work that has begun is done and its answers are queued.
    pub async fn idle(&self) {
        drop(self.budget.acquire_many(self.most).await);
    }

    /// Waits until the budget covers `cost`.
    pub async fn afford(&self, cost: u64) -> Permit {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX).min(self.most);
        if let Ok(permit) = self.budget.clone().try_acquire_many_owned(cost) {
            return Permit(Some(permit));
        }
        self.channel.flush();
        Permit(self.budget.clone().acquire_many_owned(cost).await.ok())
    }
}
