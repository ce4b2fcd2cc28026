//! A client claims from a new server what it held at the one before it.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures::future::{join_all, maybe_done};
use thalweg_fs::FsError;
use thalweg_net::channel::{CallError, Channel};
use thalweg_net::traffic::name_of;

use super::holdings::KeptCall;
use super::opening::Opening;
use super::{AttachError, Shared};
use crate::protocol::{Answer, Call, MAX_CLAIMS, MAX_SHARES, Reply, Request, encode_list};

/// Calls that are under way at a time.
const AT_ONCE: usize = 16;

impl Shared {
    /// Claims everything that this client held.
    ///
    /// # Errors
    /// Those of the connection, and a server that refuses the inodes: then the session has ended.
    pub(super) async fn claim_all(self: &Arc<Self>, channel: &Channel) -> Result<(), AttachError> {
        let kept = self.holdings.kept.lock().outdate();
        let needed = kept.iter().flat_map(|call| call.inodes.iter().copied());
        let claims = self.cache.lock().claims(needed);
        for some in claims.chunks(MAX_CLAIMS) {
            let call = (Call::outside(Request::Claim), vec![encode_list(some)]);
            let answers = self.in_order(channel, vec![call]).await?;
            if let Some(Answer::Failed(error)) = answers.into_iter().next().map(|it| it.answer) {
                let error = FsError::from(error);
                tracing::error!(%error, "the server refuses what this client held");
                self.forget_session();
                return Err(lost("the server refuses the session"));
            }
        }
        self.claim_opens(channel).await?;
        self.claim_room(channel).await?;
        self.make_again(channel, kept).await?;
        let sent = self.env.now();
        let unanswered = self.numbers.lock().unanswered();
        let call = (Call::outside(Request::Claimed), vec![encode_list(&unanswered)]);
        self.in_order(channel, vec![call]).await?;
        self.renew(sent);
        Ok(())
    }

    /// Claims room for the changes that the server does not have.
    async fn claim_room(&self, channel: &Channel) -> Result<(), AttachError> {
        let shares = self.cache.lock().pending.claim_room();
        let calls = shares
            .chunks(MAX_SHARES)
            .map(|some| (Call::outside(Request::ClaimRoom { shares: some.to_vec() }), Vec::new()));
        self.in_order(channel, calls.collect()).await.map(drop)
    }

    async fn claim_opens(&self, channel: &Channel) -> Result<(), AttachError> {
        let opens = self.holdings.opens.lock().told();
        let opens = opens.into_iter().map(|(handle, Opening { ino, user, caller, flags })| Call {
            user: user.as_deref().cloned(),
            ..Call::outside(Request::ClaimOpen { handle, caller, ino, flags })
        });
        let locks = {
            let opens = self.holdings.opens.lock();
            let mut locks = self.holdings.locks.held();
            locks.retain(|(ino, _)| opens.is_told(*ino));
            locks
        };
        let locks = locks.into_iter().map(|(ino, lock)| Request::ClaimLock { ino, lock });
        let reserved = self.cache.lock().pending.reservations();
        let numbers = reserved.into_iter().map(|it| Request::ClaimNumbers {
            first: it.first,
            count: it.count,
            proof: it.proof,
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
    async fn make_again(&self, channel: &Channel, kept: Vec<KeptCall>) -> Result<(), AttachError> {
        if kept.is_empty() {
            return Ok(());
        }
        let calls = kept.iter().map(
            |KeptCall { number, slot, user, request, payload, committed, .. }| {
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
                (_, Some(committed)) => renewed.push(KeptCall { committed, ..call }),
                // It has survived.
                (_, None) => {}
            }
        }
        if failed > 0 {
            self.holdings.lose(failed);
            self.cache.lock().fail(inodes);
            tracing::error!(failed, "the server has lost changes of this client");
        }
        tracing::info!(changes = renewed.len(), "changes were made again at the new server");
        self.holdings.kept.lock().renew(renewed);
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
