//! The room that the server has promised.

use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Time;
use thalweg_fs::FsError;
use thalweg_net::channel::Channel;

use super::Shared;
use super::cache::Cache;
use crate::protocol::{Invalidated, Request};

/// After the server has promised too little room it is not asked for more within this time.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

impl Shared {
    /// Makes a change without the server, if that is possible. One that finds too little room is tried once more, when the
    /// server has promised more.
    pub(super) async fn in_room<T>(
        self: &Arc<Self>,
        change: impl Fn(&mut Cache) -> Option<T>,
    ) -> Result<Option<T>, FsError> {
        let quota = {
            let mut cache = self.cache.lock();
            let made = change(&mut cache);
            match cache.queue.take_lack() {
                Some(quota) if made.is_none() => quota,
                _ => return Ok(made),
            }
        };
        let is_asked = {
            let pending = &mut self.cache.lock().queue;
            let now = self.env.now();
            let is_early = pending.no_room_until > now;
            if !is_early {
                pending.no_room_until = now + ROOM_PAUSE;
            }
            !is_early
        };
        if !is_asked {
            return Ok(None);
        }
        self.order(Request::Room { quota }).await?;
        let mut cache = self.cache.lock();
        let made = change(&mut cache);
        if cache.queue.take_lack().is_none() {
            cache.queue.no_room_until = Time::default();
        }
        Ok(made)
    }

    /// The client takes no more of what it was promised. The server gets every change that has taken some, and then the answer.
    pub(super) fn return_room(self: &Arc<Self>, recalls: u64, channel: Channel, id: u64) {
        self.cache.lock().queue.return_room(recalls);
        let shared = self.clone();
        let returning = async move {
            if let Err(error) = shared.send_mutations(true).await {
                tracing::error!(%error, "room was returned without all changes that had taken some");
            }
            channel.answer(id, &Invalidated, &[]);
            channel.flush_soon();
        };
        self.env.spawn(returning).detach();
    }
}
