//! The way to the server.

use std::time::Duration;

use thalweg_env::{Env, watch};
use thalweg_fs::Interruption;
use thalweg_net::channel::Channel;

use super::error::LinkError;

#[derive(Clone, Debug)]
pub(super) enum Link {
    /// There is a connection, and the server knows the session.
    Up(Channel),
    Down,
    /// There is none, since the server does not let the client in, for this reason.
    Refused(String),
    /// There will be none, since the session has ended ([`Recover::No`](super::options::Recover::No)).
    Ended,
    /// There will be none, since the mount has moved to another machine.
    Moved,
    /// There will be none.
    Closed,
}

impl Link {
    fn channel(self) -> Option<Channel> {
        match self {
            Link::Up(channel) => Some(channel),
            Link::Down | Link::Refused(_) | Link::Ended | Link::Moved | Link::Closed => None,
        }
    }
}

/// The way to the server now.
#[derive(Clone, Debug)]
pub(super) struct Way {
    link: Link,
    /// Calls of programs wait: the mount may be about to move.
    is_held: bool,
}

/// Where the way to the server is told: its connections, one after the other.
pub(super) struct Links(watch::Sender<Way>);

impl Links {
    pub(super) fn new() -> Links {
        Links(watch::Sender::new(Way { link: Link::Down, is_held: false }))
    }

    pub(super) fn current(&self) -> Link {
        self.0.borrow().link.clone()
    }

    /// Calls that are not under way wait from now on, until they are not held any more.
    pub(super) fn hold(&self, is_held: bool) {
        self.0.send_modify(|way| way.is_held = is_held);
    }

    pub(super) fn is_held(&self) -> bool {
        self.0.borrow().is_held
    }

    /// Returns when calls are not held.
    pub(super) async fn released(&self) {
        if self.is_held() {
            let _ = self.0.subscribe().wait_for(|way| !way.is_held).await;
        }
    }

    /// Returns when calls are held.
    pub(super) async fn held(&self) {
        let _ = self.0.subscribe().wait_for(|way| way.is_held).await;
    }

    /// The connection, as soon as there is one other than `failed`, also for calls that are held; why there will be none.
    pub(super) async fn next_channel(
        &self,
        failed: Option<&Channel>,
    ) -> Result<Channel, LinkError> {
        self.next(failed, true).await
    }

    pub(super) fn channel(&self) -> Option<Channel> {
        self.current().channel()
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.0.borrow().link, Link::Closed | Link::Moved)
    }

    /// Sets the way to the server; whether there may be one.
    pub(super) fn set(&self, next: Link) -> bool {
        self.0.send_if_modified(|way| {
            let is_open = !matches!(way.link, Link::Closed | Link::Ended | Link::Moved);
            if is_open {
                way.link = next;
            }
            is_open
        })
    }

    /// There will be no connection any more; the last one.
    pub(super) fn close(&self) -> Option<Channel> {
        let mut last = None;
        self.0.send_modify(|way| last = std::mem::replace(&mut way.link, Link::Closed).channel());
        last
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Way> {
        self.0.subscribe()
    }

    /// The connection, as soon as there is one other than `failed`.
    async fn next(&self, failed: Option<&Channel>, also_held: bool) -> Result<Channel, LinkError> {
        let mut links = self.0.subscribe();
        loop {
            let way = links.borrow_and_update().clone();
            match &way.link {
                Link::Closed => return Err(LinkError::Closed),
                Link::Ended => return Err(LinkError::Ended),
                Link::Moved => return Err(LinkError::Moved),
                Link::Refused(why) => return Err(LinkError::Refused(why.clone())),
                Link::Up(channel) => {
                    let is_new = !failed.is_some_and(|old| old.is_same(channel));
                    if is_new && (also_held || !way.is_held) {
                        return Ok(channel.clone());
                    }
                }
                Link::Down => {}
            }
            if links.changed().await.is_err() {
                return Err(LinkError::Closed);
            }
        }
    }

    /// The same, for as long as `retry`. A call that was not sent waits no longer than its caller.
    pub(super) async fn connected(
        &self,
        env: &Env,
        retry: Option<Duration>,
        failed: Option<&Channel>,
        caller: Option<&Interruption>,
    ) -> Result<Channel, LinkError> {
        let caller = caller.filter(|_| failed.is_none());
        if caller.is_some_and(Interruption::is_given_up) {
            return Err(LinkError::GivenUp);
        }
        let connecting = async {
            // A call that was under way before they were held is sent again.
            let next = self.next(failed, failed.is_some());
            let Some(retry) = retry else { return next.await };
            let late = || {
                let why = format!("for {} s all attempts have failed", retry.as_secs_f64());
                Err(LinkError::Unreachable(why))
            };
            env.timeout(retry, next).await.unwrap_or_else(late)
        };
        let Some(caller) = caller else { return connecting.await };
        tokio::select! {
            biased;
            connected = connecting => connected,
            () = caller.given_up() => Err(LinkError::GivenUp),
        }
    }
}
