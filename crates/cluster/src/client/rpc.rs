//! Calls that outlive connections.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Time;
use thalweg_fs::{FsError, Ino, Interruption};
use thalweg_net::channel::{CallError, Channel};
use thalweg_net::traffic::name_of;

use super::base::ClientBase;
use super::call_numbers::{Slot, Slots};
use super::error::{LinkError, expect_answer};
use super::replay_log::UncommittedCall;
use super::user::{self, User};
use crate::protocol::{Answer, Call, CallEffect, Reply, Request};

/// Waits for the answer to a call. Once that is cancelled, `cancel` tells the server so, on each connection.
async fn answer<T>(
    answering: impl Future<Output = T>,
    mut cancelled: Pin<&mut impl Future<Output = ()>>,
    is_cancelled: &mut bool,
    cancel: impl Fn(),
) -> T {
    tokio::pin!(answering);
    let mut is_told = false;
    loop {
        tokio::select! {
            biased;
            // Its first poll sends the call, so that `cancel` comes behind it.
            answered = &mut answering => return answered,
            () = &mut cancelled, if !*is_cancelled => *is_cancelled = true,
            () = std::future::ready(()), if *is_cancelled && !is_told => {}
        }
        cancel();
        is_told = true;
    }
}

pub(super) struct Outgoing {
    request: Arc<Request>,
    payload: Vec<Bytes>,
    user: User,
    /// Of a change: the slot that it uses.
    pub(super) slot: Option<Arc<Slot>>,
    /// The inodes that it names, and those that a batch makes.
    pub(super) named: Arc<[Ino]>,
    /// It fails if its caller gives it up before it was sent.
    caller: Option<Interruption>,
    /// The number of the session without which it is to fail, if it was not sent by then: what it says is of that one.
    pub(super) of_session: Option<u64>,
    effect: Option<CallEffect>,
    is_once: bool,
    is_change: bool,
}

impl Outgoing {
    pub(super) fn with(request: Request, payload: Vec<Bytes>, user: User) -> Outgoing {
        let print = request.footprint(payload.iter().map(Bytes::len).sum());
        let (effect, is_once, is_change) = (print.effect(), print.is_once(), print.is_change());
        let named = print.inodes.as_slice().into();
        drop(print);
        let (slot, caller, of_session, request) = (None, None, None, Arc::new(request));
        Outgoing {
            request,
            payload,
            user,
            slot,
            named,
            caller,
            of_session,
            effect,
            is_once,
            is_change,
        }
    }
}

/// Makes calls, each on as many connections as it takes.
pub(super) struct Rpc {
    base: Arc<ClientBase>,
    slots: Slots,
    /// A clone for each call that was sent and has no answer.
    sent: Arc<()>,
}

impl Rpc {
    pub(super) fn new(base: Arc<ClientBase>) -> Rpc {
        Rpc { base, slots: Slots::default(), sent: Arc::default() }
    }

    /// Makes a call of the program that runs. `then` sees each answer where frames are received, before anything that the server
    /// sent later; also when this future was dropped.
    pub(super) async fn call(
        self: &Arc<Self>,
        request: Request,
        payload: Vec<Bytes>,
        then: impl Fn(&Reply, &Bytes) + Clone + Send + Sync + 'static,
    ) -> Result<(Reply, Bytes), FsError> {
        let mut call = Outgoing::with(request, payload, user::current());
        if call.is_change {
            self.limit_uncommitted().await?;
            call.slot = Some(self.slots.acquire().await.ok_or(LinkError::Closed)?);
        }
        call.caller = Interruption::current();
        self.make(call, then, std::future::pending()).await
    }

    /// The same, of a call that is answered with nothing but success.
    pub(super) async fn order(self: &Arc<Self>, request: Request) -> Result<(), FsError> {
        let (reply, _) = self.call(request, Vec::new(), |_, _| {}).await?;
        expect_answer!(reply.answer, Answer::Done => ())
    }

    /// Makes a call that the client makes for itself.
    pub(super) async fn own(self: &Arc<Self>, request: Request) -> Result<Answer, FsError> {
        let call = Outgoing::with(request, Vec::new(), None);
        Ok(self.make(call, |_, _| {}, std::future::pending()).await?.0.answer)
    }

    /// A call is about to be sent: it counts until this is dropped. `None` if calls that are not under way are held.
    fn count_sent(&self, own: &mut Option<Arc<()>>, is_first: bool) -> Option<Arc<()>> {
        let counted = own.get_or_insert_with(|| self.sent.clone()).clone();
        // In this order: a mount that is about to move holds calls, and then looks for those that count.
        if is_first && self.base.links.is_held() {
            *own = None;
            return None;
        }
        Some(counted)
    }

    /// Whether calls were sent that have no answers.
    pub(super) fn has_sent(&self) -> bool {
        Arc::strong_count(&self.sent) > 1
    }

    /// While many changes are kept, has the server make them durable.
    pub(super) async fn limit_uncommitted(self: &Arc<Self>) -> Result<(), FsError> {
        if self.base.replay_log.is_exceeded() { self.make_durable().await } else { Ok(()) }
    }

    /// Has the server make everything durable that it has of this client.
    pub(super) async fn make_durable(self: &Arc<Self>) -> Result<(), FsError> {
        let last = self.base.replay_log.last();
        Box::pin(self.own(Request::SyncAll)).await?;
        if let Some(version) = last {
            self.base.replay_log.are_durable(version);
        }
        Ok(())
    }

    /// Makes a call. From `cancelled` on, the server is to fail it if it waits for a lock. Its answer says whether it had got that
    /// before.
    pub(super) async fn make(
        self: &Arc<Self>,
        call: Outgoing,
        then: impl Fn(&Reply, &Bytes) + Clone + Send + Sync + 'static,
        cancelled: impl Future<Output = ()>,
    ) -> Result<(Reply, Bytes), FsError> {
        let base = &self.base;
        let slot = call.slot.as_ref().map_or(0, |slot| slot.number);
        assert!(call.slot.is_some() || !call.is_change, "a change uses a slot");
        let number = self.base.call_numbers.begin(call.is_once, slot, call.effect);
        if let Request::Batch { charged, .. } = &*call.request {
            self.base.room.begin_batch(number.number, charged);
        }
        tokio::pin!(cancelled);
        let mut is_cancelled = false;
        let generation = self.base.session.generation();
        let (mut failed, mut sent_once): (Option<Channel>, Option<Arc<()>>) = (None, None);
        let call = Arc::new(call);
        loop {
            let caller = call.caller.as_ref();
            let retry = base.options.retry;
            let connecting = base.links.connected(&base.env, retry, failed.as_ref(), caller);
            let channel = connecting.await?;
            let is_first = failed.is_none();
            let Some(counted) = self.count_sent(&mut sent_once, is_first) else { continue };
            self.check_session(&call, (failed.is_some() && number.is_once).then_some(generation))?;
            base.call_numbers.sends(number.number, base.session.server_number());
            let message = self.message(&call, number.number, slot);
            let (rpc, then, sent) = (self.clone(), then.clone(), self.base.now());
            // Also when nothing waits for the answer any more, the slot is used until it comes.
            let (made, number) = (call.clone(), number.number);
            let receive = move |reply: Reply, payload: Bytes| {
                let _counted = counted;
                rpc.receive(&made, number, &reply, sent);
                then(&reply, &payload);
                (reply, payload)
            };
            if call.is_change {
                caller.inspect(|caller| caller.begin());
            }
            let purpose = name_of(&message.request);
            let answering = channel.call_then(purpose, &message, &call.payload, receive);
            let cancel = || {
                if channel.tell(&Call::outside(Request::Cancel(number)), &[]).is_ok() {
                    channel.flush_soon();
                }
            };
            match answer(answering, cancelled.as_mut(), &mut is_cancelled, cancel).await {
                Ok((reply, payload)) => {
                    return match reply.answer {
                        Answer::Failed(error) => Err(error.into()),
                        _ => Ok((reply, payload)),
                    };
                }
                Err(CallError::Overloaded(why)) => {
                    return Err(LinkError::Unreachable(why.to_owned()).into());
                }
                // Names are all that may be so long.
                Err(CallError::TooLarge(_)) => return Err(FsError::NameTooLong),
                Err(CallError::Lost(_) | CallError::Late(_)) => failed = Some(channel.clone()),
            }
        }
    }

    /// Whether a call may be sent in this session, if it was sent before in one that has this number.
    ///
    /// # Errors
    /// [`LinkError::Evicted`]
    fn check_session(&self, call: &Outgoing, sent_in: Option<u64>) -> Result<(), FsError> {
        let now = self.base.session.generation();
        if sent_in.is_some_and(|it| it != now) {
            tracing::error!(
                "a call was under way when the server ended the session; it may count or not"
            );
            return Err(LinkError::Evicted.into());
        }
        if call.of_session.is_some_and(|it| it != now) {
            return Err(LinkError::Evicted.into());
        }
        Ok(())
    }

    fn message(&self, call: &Outgoing, number: u64, slot: u16) -> Call {
        let (oldest, answered) = self.base.call_numbers.acknowledge();
        let (user, request) = (call.user.as_deref().cloned(), (*call.request).clone());
        Call { number, oldest, answered, slot, before: None, user, request }
    }

    /// A call that was sent then has this answer. A change is kept until the server has made it durable, and an inode is cached.
    fn receive(&self, call: &Outgoing, number: u64, reply: &Reply, sent: Time) {
        self.base.session.renew(sent);
        if let Some((slot, committed)) = call.slot.as_ref().zip(reply.committed) {
            let inodes =
                call.named.iter().filter_map(|ino| self.base.cache.reclaim(*ino)).collect();
            let print = call.request.footprint(0);
            let besides = print.changed_besides(committed.outcome);
            let changed = call.named.iter().copied().chain(besides).collect();
            self.base.replay_log.keep(UncommittedCall {
                number,
                slot: slot.number,
                user: call.user.clone(),
                request: call.request.clone(),
                payload: call.payload.clone(),
                committed,
                inodes,
                changed,
            });
        }
        if !reply.room.shares.is_empty() {
            self.base.room.add(&reply.room);
        }
        if let Answer::Inode(attributes) = &reply.answer {
            let told = (reply.stamp, reply.inode_token);
            self.base.cache.learn(attributes, told, reply.grants.attributes);
        }
    }
}
