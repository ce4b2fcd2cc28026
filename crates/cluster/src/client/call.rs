//! A call that outlives connections.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_fs::session_table::Committed;
use thalweg_fs::{FsError, Ino, Interruption};
use thalweg_net::channel::{CallError, Channel};
use thalweg_net::traffic::name_of;

use super::link::Link;
use super::reclaim_state::{Slot, UncommittedCall};
use super::users::{self, User};
use super::{LinkError, Shared};
use crate::protocol::{Answer, Call, CallEffect, MAX_ANSWERED, ReplayedCall, Reply, Request};

/// The numbers of the calls without an answer.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    last: u64,
    /// Of those that are to be carried out once: what each may have come to before it has an answer.
    once: BTreeMap<u64, Option<ReplayedCall>>,
    /// How many there are of the others, whose answers the server does not keep.
    others: usize,
    /// Answered calls behind one without an answer, of which the server does not know that they were answered.
    answered: VecDeque<u64>,
}

impl Numbers {
    pub(super) fn pending(&self) -> usize {
        self.once.len() + self.others
    }

    /// The oldest call without an answer, or the next one.
    fn oldest(&self) -> u64 {
        self.once.first_key_value().map_or(self.last + 1, |(first, _)| *first)
    }

    /// The calls that may have come to something before they have answers.
    pub(super) fn unanswered(&self) -> Vec<ReplayedCall> {
        self.once.values().flatten().copied().collect()
    }

    /// The calls that are to be carried out once, for the server on a new connection: it forgets the answers to all others.
    pub(super) fn resume(&mut self) -> Vec<u64> {
        self.answered.clear();
        self.once.keys().copied().collect()
    }

    /// What the server is to know with a call that is sent now: [`Call::oldest`] and [`Call::answered`].
    fn acknowledge(&mut self) -> (u64, Vec<u64>) {
        let oldest = self.oldest();
        self.answered.retain(|number| *number > oldest);
        let some = self.answered.len().min(MAX_ANSWERED);
        (oldest, self.answered.drain(..some).collect())
    }

    fn begin(&mut self, is_once: bool, slot: u16, effect: Option<CallEffect>) -> u64 {
        self.last += 1;
        let number = self.last;
        match is_once {
            true => {
                let unanswered = effect.map(|effect| ReplayedCall { number, slot, effect });
                self.once.insert(number, unanswered);
            }
            false => self.others += 1,
        }
        number
    }

    fn end(&mut self, number: u64, is_once: bool) {
        if !is_once {
            assert!(self.others > 0, "a call ends that has not begun");
            self.others -= 1;
            return;
        }
        let begun = self.once.remove(&number);
        assert!(begun.is_some(), "a call ends that has not begun");
        if number > self.oldest() {
            self.answered.push_back(number);
        }
    }
}

/// The number of a call that has no answer yet.
pub(super) struct Number {
    shared: Arc<Shared>,
    number: u64,
    is_once: bool,
}

impl Drop for Number {
    fn drop(&mut self) {
        self.shared.numbers.lock().end(self.number, self.is_once);
    }
}

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

impl Shared {
    fn number(self: &Arc<Self>, slot: u16, request: &Request, bytes: usize) -> Number {
        let print = request.footprint(bytes);
        let (effect, is_once) = (print.effect(), print.is_once());
        let number = self.numbers.lock().begin(is_once, slot, effect);
        Number { shared: self.clone(), number, is_once }
    }

    /// The connection, as soon as there is one other than `failed`. A call that was not sent waits no longer than its caller.
    async fn connected(
        &self,
        failed: Option<&Channel>,
        caller: Option<&Interruption>,
    ) -> Result<Channel, LinkError> {
        let caller = caller.filter(|_| failed.is_none());
        if caller.is_some_and(Interruption::is_given_up) {
            return Err(LinkError::GivenUp);
        }
        let mut links = self.link.subscribe();
        let connecting = async {
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
        };
        let connecting = async {
            match self.options.retry {
                None => connecting.await,
                Some(retry) => {
                    let late = || {
                        let secs = retry.as_secs_f64();
                        let why = format!("for {secs} s all attempts have failed");
                        Err(LinkError::Unreachable(why))
                    };
                    self.env.timeout(retry, connecting).await.unwrap_or_else(late)
                }
            }
        };
        let Some(caller) = caller else { return connecting.await };
        tokio::select! {
            biased;
            connected = connecting => connected,
            () = caller.given_up() => Err(LinkError::GivenUp),
        }
    }

    /// Makes a call, on as many connections as it takes. `then` sees each answer where frames are received, before
    /// anything that the server sent later; also when this future was dropped.
    pub(super) async fn call(
        self: &Arc<Self>,
        request: Request,
        payload: Vec<Bytes>,
        then: impl Fn(&Shared, &Reply, &Bytes) + Clone + Send + Sync + 'static,
    ) -> Result<(Reply, Bytes), FsError> {
        self.send_before(&request).await?;
        self.tell_before(&request).await?;
        let slot = self.slot_for(&request).await?;
        let named = request.footprint(0).inodes.to_vec().into();
        let caller = Interruption::current();
        let by = (slot, users::current());
        self.call_while(
            (caller.as_ref(), std::future::pending()),
            by,
            named,
            (request, payload),
            then,
        )
        .await
    }

    /// Makes a call in a slot, for a user; `named` are the inodes that it names, and those that a batch makes.
    pub(super) async fn call_in(
        self: &Arc<Self>,
        by: (Option<Arc<Slot>>, User),
        named: Arc<[Ino]>,
        call: (Request, Vec<Bytes>),
        then: impl Fn(&Shared, &Reply, &Bytes) + Clone + Send + Sync + 'static,
    ) -> Result<(Reply, Bytes), FsError> {
        self.call_until(by, named, call, then, std::future::pending()).await
    }

    /// As [`Shared::call_in`]; from `cancelled` on, the server is to fail the call if it waits for a lock. Its answer says whether
    /// it had got that before.
    pub(super) async fn call_until(
        self: &Arc<Self>,
        by: (Option<Arc<Slot>>, User),
        named: Arc<[Ino]>,
        call: (Request, Vec<Bytes>),
        then: impl Fn(&Shared, &Reply, &Bytes) + Clone + Send + Sync + 'static,
        cancelled: impl Future<Output = ()>,
    ) -> Result<(Reply, Bytes), FsError> {
        self.call_while((None, cancelled), by, named, call, then).await
    }

    /// As [`Shared::call_until`]. It fails if its caller gives it up before it was sent.
    async fn call_while(
        self: &Arc<Self>,
        (caller, cancelled): (Option<&Interruption>, impl Future<Output = ()>),
        (slot, user): (Option<Arc<Slot>>, User),
        named: Arc<[Ino]>,
        (request, payload): (Request, Vec<Bytes>),
        then: impl Fn(&Shared, &Reply, &Bytes) + Clone + Send + Sync + 'static,
    ) -> Result<(Reply, Bytes), FsError> {
        let slot_number = slot.as_ref().map_or(0, |slot| slot.number);
        let bytes: usize = payload.iter().map(Bytes::len).sum();
        let number = self.number(slot_number, &request, bytes);
        tokio::pin!(cancelled);
        let mut is_cancelled = false;
        let generation = self.session.lock().generation;
        let mut failed: Option<Channel> = None;
        let (is_once, is_change) = (number.is_once, request.footprint(bytes).is_change());
        let request = Arc::new(request);
        loop {
            let channel = self.connected(failed.as_ref(), caller).await?;
            if failed.is_some() && is_once && self.session.lock().generation != generation {
                tracing::error!(
                    "a call was under way when the server ended the session; it may count or not"
                );
                return Err(LinkError::Evicted.into());
            }
            let call = self.numbered((number.number, slot_number), &user, &request);
            let (shared, then, sent) = (self.clone(), then.clone(), self.env.now());
            let (kept, sent_payload, named) = (request.clone(), payload.clone(), named.clone());
            let maker = user.clone();
            // Also when nothing waits for the answer any more, the slot is used until it comes.
            let (used, number) = (slot.clone(), number.number);
            let take = move |reply: Reply, payload: Bytes| {
                shared.renew(sent);
                if let Some((slot, committed)) = used.as_ref().zip(reply.committed) {
                    let place = (number, slot.number);
                    shared.keep(place, &named, (maker, kept, sent_payload), committed);
                }
                if !reply.room.shares.is_empty() {
                    shared.cache.lock().queue.add_room(&reply.room);
                }
                then(&shared, &reply, &payload);
                (reply, payload)
            };
            if is_change {
                caller.inspect(|caller| caller.begin());
            }
            let purpose = name_of(&call.request);
            let answering = channel.call_then(purpose, &call, &payload, take);
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

    /// A call with this number, in this slot.
    fn numbered(&self, (number, slot): (u64, u16), user: &User, request: &Request) -> Call {
        let (oldest, answered) = self.numbers.lock().acknowledge();
        let (user, request) = (user.as_deref().cloned(), request.clone());
        Call { number, oldest, answered, slot, before: None, user, request }
    }

    /// Keeps a change until the server has made it durable.
    fn keep(
        &self,
        (number, slot): (u64, u16),
        named: &[Ino],
        (user, request, payload): (User, Arc<Request>, Vec<Bytes>),
        committed: Committed,
    ) {
        let inodes = {
            let cache = self.cache.lock();
            named.iter().filter_map(|ino| cache.reclaim(*ino)).collect()
        };
        let besides = request.footprint(0).changed_besides(committed.outcome).collect::<Vec<_>>();
        let changed = named.iter().copied().chain(besides).collect();
        let call =
            UncommittedCall { number, slot, user, request, payload, committed, inodes, changed };
        self.reclaim_state.replay_log.lock().keep(call);
    }

    /// A slot for a change. While many changes are kept, it comes when the server has made them durable.
    async fn slot_for(self: &Arc<Self>, request: &Request) -> Result<Option<Arc<Slot>>, FsError> {
        if !request.footprint(0).is_change() {
            return Ok(None);
        }
        self.make_room().await?;
        self.reclaim_state.slots.take().await.map(Some).ok_or_else(|| LinkError::Closed.into())
    }

    /// While many changes are kept, has the server make them durable.
    pub(super) async fn make_room(self: &Arc<Self>) -> Result<(), FsError> {
        if self.reclaim_state.replay_log.lock().is_full() {
            let last = self.reclaim_state.replay_log.lock().last();
            let call = (Request::SyncAll, Vec::new());
            Box::pin(self.call_in((None, None), [].into(), call, |_, _, _| {})).await?;
            last.into_iter()
                .for_each(|version| self.reclaim_state.replay_log.lock().durable(version));
        }
        Ok(())
    }

    /// Makes a call and caches nothing of the answer.
    pub(super) async fn ask(
        self: &Arc<Self>,
        request: Request,
    ) -> Result<(Answer, Bytes), FsError> {
        let (reply, payload) = self.call(request, Vec::new(), |_, _, _| {}).await?;
        Ok((reply.answer, payload))
    }

    /// A call that is answered with nothing but success.
    pub(super) async fn order(self: &Arc<Self>, request: Request) -> Result<(), FsError> {
        match self.ask(request).await? {
            (Answer::Done, _) => Ok(()),
            _ => Err(LinkError::Unexpected.into()),
        }
    }
}
