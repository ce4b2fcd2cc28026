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
    /// There will be none.
    Closed,
}

impl Link {
    fn channel(self) -> Option<Channel> {
        match self {
            Link::Up(channel) => Some(channel),
            Link::Down | Link::Refused(_) | Link::Ended | Link::Closed => None,
        }
    }
}

/// Where the way to the server is told: its connections, one after the other.
pub(super) struct Links(watch::Sender<Link>);

impl Links {
    pub(super) fn new() -> Links {
        Links(watch::Sender::new(Link::Down))
    }

    pub(super) fn current(&self) -> Link {
        self.0.borrow().clone()
    }

    pub(super) fn channel(&self) -> Option<Channel> {
        self.current().channel()
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(*self.0.borrow(), Link::Closed)
    }

    /// Sets the way to the server; whether there may be one.
    pub(super) fn set(&self, next: Link) -> bool {
        self.0.send_if_modified(|link| {
            let is_open = !matches!(link, Link::Closed | Link::Ended);
            if is_open {
                *link = next;
            }
            is_open
        })
    }

    /// There will be no connection any more; the last one.
    pub(super) fn close(&self) -> Option<Channel> {
        self.0.send_replace(Link::Closed).channel()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Link> {
        self.0.subscribe()
    }

    /// The connection, as soon as there is one other than `failed`.
    async fn next(&self, failed: Option<&Channel>) -> Result<Channel, LinkError> {
        let mut links = self.0.subscribe();
        loop {
            match &*links.borrow_and_update() {
                Link::Closed => return Err(LinkError::Closed),
                Link::Ended => return Err(LinkError::Ended),
                Link::Refused(why) => return Err(LinkError::Refused(why.clone())),
                Link::Up(channel) if !failed.is_some_and(|old| old.is_same(channel)) => {
                    return Ok(channel.clone());
                }
                Link::Up(_) | Link::Down => {}
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
            let Some(retry) = retry else { return self.next(failed).await };
            let late = || {
                let why = format!("for {} s all attempts have failed", retry.as_secs_f64());
                Err(LinkError::Unreachable(why))
            };
            env.timeout(retry, self.next(failed)).await.unwrap_or_else(late)
        };
        let Some(caller) = caller else { return connecting.await };
        tokio::select! {
            biased;
            connected = connecting => connected,
            () = caller.given_up() => Err(LinkError::GivenUp),
        }
    }
}
