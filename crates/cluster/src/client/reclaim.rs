//! A client reclaims from a new server what it held at the one before it.

use bytes::Bytes;
use futures::future::join_all;
use thalweg_env::Time;
use thalweg_fs::FsError;
use thalweg_net::channel::{CallError, Channel};
use thalweg_net::traffic::name_of;

use super::connection::Connections;
use super::error::AttachError;
use super::numbers::Reservation;
use super::open_table::Opening;
use super::replay_log::UncommittedCall;
use super::room::Claim;
use super::user::User;
use crate::protocol::{
    Answer, Call, JournalState, MAX_CLAIMS, MAX_SHARES, Reply, Request, encode_list,
};

/// Calls that are under way at a time.
const AT_ONCE: usize = 16;

fn call_for(user: &User, request: Request) -> Call {
    Call { user: user.as_deref().cloned(), ..Call::outside(request) }
}

impl Connections {
    /// Compares what the server has of a session that goes on with what this client has, after a reboot or without one.
    ///
    /// # Errors
    /// The server has other changes. Nothing is sent, and the session of a client that has not rebooted ends here: not at the server, where
    /// another client may have it by now.
    pub(super) fn compare_positions(
        &self,
        channel: &Channel,
        has_rebooted: bool,
        state: JournalState,
    ) -> Result<(), AttachError> {
        if has_rebooted {
            return self.writeback.resume(state);
        }
        let has_journal = self.base.session.info().journal.is_some();
        if !has_journal || self.base.queue.sent_ends.contains(state.applied) {
            return Ok(());
        }
        channel.close("the server has other changes of this session");
        tracing::error!(
            position = state.applied.position,
            "the server has other changes of this session than this client has made: its volume is of an earlier time, or the journal was copied and is mounted twice"
        );
        self.end_session(false);
        Err(AttachError::Ended)
    }

    /// Reclaims everything that this client held. The lease counts from the time that is returned; `None` if the server refuses the
    /// inodes, since the session has ended.
    pub(super) async fn reclaim(&self, channel: &Channel) -> Result<Option<Time>, AttachError> {
        let kept = self.base.replay_log.begin_replay();
        let needed = kept.iter().flat_map(|call| call.inodes.iter().copied());
        let reclaims = self.base.cache.reclaims(needed);
        for some in reclaims.chunks(MAX_CLAIMS) {
            let call = (Call::outside(Request::Reclaim), vec![encode_list(some)]);
            let answers = self.in_order(channel, vec![call]).await?;
            if let Some(Answer::Failed(error)) = answers.into_iter().next().map(|it| it.answer) {
                let error = FsError::from(error);
                tracing::error!(%error, "the server refuses what this client held");
                return Ok(None);
            }
        }
        self.reclaim_opens(channel).await?;
        self.reclaim_room(channel).await?;
        self.replay(channel, kept).await?;
        let sent = self.base.now();
        let unanswered = encode_list(&self.base.call_numbers.unanswered());
        let call = (Call::outside(Request::Reclaimed), vec![unanswered]);
        self.in_order(channel, vec![call]).await?;
        Ok(Some(sent))
    }

    /// Reclaims room for the changes that the server does not have.
    async fn reclaim_room(&self, channel: &Channel) -> Result<(), AttachError> {
        let claims = self.base.room.reclaim();
        let calls = claims.iter().flat_map(|Claim { shares, batch }| {
            shares.chunks(MAX_SHARES).map(|some| {
                let request = Request::ReclaimRoom { shares: some.to_vec(), batch: *batch };
                (Call::outside(request), Vec::new())
            })
        });
        self.in_order(channel, calls.collect()).await.map(drop)
    }

    async fn reclaim_opens(&self, channel: &Channel) -> Result<(), AttachError> {
        let opens = self.open_files.told().into_iter().map(
            |(handle, Opening { ino, user, caller, flags })| {
                call_for(&user, Request::ReclaimOpen { handle, caller, ino, flags })
            },
        );
        let locks = self.open_files.told_locks().into_iter();
        let locks = locks.map(|(ino, lock)| Request::ReclaimLock { ino, lock });
        let numbers = self.base.numbers.reservations().into_iter();
        let numbers = numbers.map(|Reservation { first, count, inode_token }| {
            Request::ReclaimNumbers { first, count, inode_token }
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
    async fn replay(
        &self,
        channel: &Channel,
        kept: Vec<UncommittedCall>,
    ) -> Result<(), AttachError> {
        let calls = kept.iter().map(|kept| {
            let call = Call {
                number: kept.number,
                slot: kept.slot,
                before: Some(kept.committed),
                ..call_for(&kept.user, (*kept.request).clone())
            };
            (call, kept.payload.clone())
        });
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
            for ino in &inodes {
                // What the client keeps of it has what is lost.
                self.base.inodes.with(*ino, |node| node.cached.forget_contents());
            }
            self.base.losses.add_all(failed, inodes);
            tracing::error!(failed, "the server has lost changes of this client");
        }
        if !renewed.is_empty() {
            tracing::info!(changes = renewed.len(), "changes were made again at the new server");
        }
        self.base.replay_log.end_replay(renewed);
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
            // They are polled in their order, and the first poll of each sends it.
            let all = join_all(some.iter().map(|(call, payload)| channel.call(call, payload)));
            let late = || AttachError::lost("the server did not answer in time");
            let answers: Vec<Result<(Reply, _), CallError>> =
                self.base.env.timeout(self.base.options.patience, all).await.ok_or_else(late)?;
            for answer in answers {
                replies.push(answer.map_err(AttachError::lost)?.0);
            }
        }
        assert_eq!(replies.len(), calls.len(), "each call has an answer");
        Ok(replies)
    }
}
