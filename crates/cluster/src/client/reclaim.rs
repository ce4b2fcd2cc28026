//! A client reclaims from a new server what it held at the one before it.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures::future::{join_all, maybe_done};
use thalweg_fs::FsError;
use thalweg_net::channel::{CallError, Channel};
use thalweg_net::traffic::name_of;

use super::opening::Opening;
use super::reclaim_state::UncommittedCall;
use super::{AttachError, Shared};
use crate::protocol::{Answer, Call, MAX_CLAIMS, MAX_SHARES, Reply, Request, encode_list};

/// Calls that are under way at a time.
const AT_ONCE: usize = 16;

impl Shared {
    /// Reclaims everything that this client held.
    ///
    /// # Errors
    /// Those of the connection, and a server that refuses the inodes: then the session has ended.
    pub(super) async fn reclaim_all(
        self: &Arc<Self>,
        channel: &Channel,
    ) -> Result<(), AttachError> {
        let kept = self.reclaim_state.replay_log.lock().outdate();
        let needed = kept.iter().flat_map(|call| call.inodes.iter().copied());
        let reclaims = self.cache.lock().reclaims(needed);
        for some in reclaims.chunks(MAX_CLAIMS) {
            let call = (Call::outside(Request::Reclaim), vec![encode_list(some)]);
            let answers = self.in_order(channel, vec![call]).await?;
            if let Some(Answer::Failed(error)) = answers.into_iter().next().map(|it| it.answer) {
                let error = FsError::from(error);
                tracing::error!(%error, "the server refuses what this client held");
                self.forget_session();
                return Err(lost("the server refuses the session"));
            }
        }
        self.reclaim_opens(channel).await?;
        self.reclaim_room(channel).await?;
        self.make_again(channel, kept).await?;
        let sent = self.env.now();
        let unanswered = self.numbers.lock().unanswered();
        let call = (Call::outside(Request::Reclaimed), vec![encode_list(&unanswered)]);
        self.in_order(channel, vec![call]).await?;
        self.renew(sent);
        Ok(())
    }

    /// Reclaims room for the changes that the server does not have.
    async fn reclaim_room(&self, channel: &Channel) -> Result<(), AttachError> {
        let shares = self.cache.lock().queue.reclaim_room();
        let calls = shares.chunks(MAX_SHARES).map(|some| {
            (Call::outside(Request::ReclaimRoom { shares: some.to_vec() }), Vec::new())
        });
        self.in_order(channel, calls.collect()).await.map(drop)
    }

    async fn reclaim_opens(&self, channel: &Channel) -> Result<(), AttachError> {
        let opens = self.reclaim_state.opens.lock().told();
        let opens = opens.into_iter().map(|(handle, Opening { ino, user, caller, flags })| Call {
            user: user.as_deref().cloned(),
            ..Call::outside(Request::ReclaimOpen { handle, caller, ino, flags })
        });
        let locks = {
            let opens = self.reclaim_state.opens.lock();
            let mut locks = self.reclaim_state.locks.held();
            locks.retain(|(ino, _)| opens.is_told(*ino));
            locks
        };
        let locks = locks.into_iter().map(|(ino, lock)| Request::ReclaimLock { ino, lock });
        let reserved = self.cache.lock().queue.reservations();
        let numbers = reserved.into_iter().map(|it| Request::ReclaimNumbers {
            first: it.first,
            count: it.count,
            inode_token: it.inode_token,
        });
        let others = locks.chain(numbers).map(Call::outside);
        let calls: Vec<_> = opens.chain(others).map(|call| (call, Vec::new())).collect();
        let answers = self.in_order(channel, calls).await?;
        let refused = answers.iter().filter(|it| matches!(it.answer, Answer::Failed(_))).count();
        if refused > 0 {
            tracing::error!(refused, "open files and locks of this client are lost");
        }
        Ok(())
    }

    /// Makes changes again that the server may not have.
    async fn make_again(
        &self,
        channel: &Channel,
        kept: Vec<UncommittedCall>,
    ) -> Result<(), AttachError> {
        if kept.is_empty() {
            return Ok(());
        }
        let calls = kept.iter().map(
            |UncommittedCall { number, slot, user, request, payload, committed, .. }| {
                let call = Call {
                    number: *number,
                    slot: *slot,
                    before: Some(*committed),
                    user: user.as_deref().cloned(),
                    ..Call::outside((**request).clone())
                };
                (call, payload.clone())
            },
        );
        let answers = self.in_order(channel, calls.collect()).await?;
        let (mut renewed, mut failed, mut inodes) = (Vec::new(), 0, Vec::new());
        for (call, reply) in kept.into_iter().zip(answers) {
            match (reply.answer, reply.committed) {
                (Answer::Failed(error), _) => {
                    let (error, request) = (FsError::from(error), name_of(&*call.request));
                    tracing::error!(%error, request, number = call.number, "a change is lost");
                    failed += 1;
                    inodes.extend(call.changed);
                }
                (_, Some(committed)) => renewed.push(UncommittedCall { committed, ..call }),
                // It has survived.
                (_, None) => {}
            }
        }
        if failed > 0 {
            self.reclaim_state.lose(failed);
            self.cache.lock().fail(inodes);
            tracing::error!(failed, "the server has lost changes of this client");
        }
        tracing::info!(changes = renewed.len(), "changes were made again at the new server");
        self.reclaim_state.replay_log.lock().renew(renewed);
        Ok(())
    }

    /// Makes calls that are carried out in their order.
    async fn in_order(
        &self,
        channel: &Channel,
        calls: Vec<(Call, Vec<Bytes>)>,
    ) -> Result<Vec<Reply>, AttachError> {
        let mut replies = Vec::with_capacity(calls.len());
        for some in calls.chunks(AT_ONCE) {
            let mut making: Vec<_> = some
                .iter()
                .map(|(call, payload)| Box::pin(maybe_done(channel.call(call, payload))))
                .collect();
            // The first poll sends.
            poll_fn(|context| {
                making.iter_mut().for_each(|call| {
                    let _ = call.as_mut().poll(context);
                });
                Poll::Ready(())
            })
            .await;
            let all = join_all(making.iter_mut());
            let late = || lost("the server did not answer in time");
            self.env.timeout(self.options.patience, all).await.ok_or_else(late)?;
            for call in &mut making {
                let answered: Option<Result<(Reply, _), CallError>> = call.as_mut().take_output();
                let answered = answered.ok_or_else(late)?;
                replies
                    .push(answered.map_err(|error| AttachError::Lost(io::Error::other(error)))?.0);
            }
        }
        Ok(replies)
    }
}

fn lost(why: &'static str) -> AttachError {
    AttachError::Lost(io::Error::other(why))
}
