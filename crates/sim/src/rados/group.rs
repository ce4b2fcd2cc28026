//! A placement group: it serves requests in their order of arrival.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use parking_lot::Mutex;
use thalweg_env::watch;
use thalweg_rados::ObjectError;
use thalweg_rados::object::{Change, LockHolder};
use tokio::sync::{mpsc, oneshot};

use super::object::{Object, changed, written};
use super::port::Port;
use super::server::{Liveness, Server};
use super::{RadosTally, Shared};

/// A request to a group.
pub(super) enum Request {
    Read { object: String, offset: u64, len: usize },
    Attribute { object: String, attribute: &'static str },
    Change { object: String, change: Change },
    Lock { object: String, lock: String, cookie: String, shared: bool },
    Unlock { object: String, lock: String, cookie: String },
    Holders { object: String, lock: String },
    Break { object: String, lock: String, holder: LockHolder },
    List,
}

impl Request {
    /// Bytes that it has beside its head.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Request::Change { change, .. } => written(change).iter().map(|(_, len)| len).sum(),
            _ => 0,
        }
    }

    fn count(&self, tally: &mut RadosTally) {
        match self {
            Request::Read { len, .. } => {
                tally.reads += 1;
                tally.read_bytes += *len as u64;
            }
            Request::Change { change, .. } => {
                tally.changes += 1;
                tally.changed_bytes += written(change).iter().map(|(_, len)| len).sum::<u64>();
            }
            Request::Attribute { .. } => tally.reads += 1,
            Request::List => tally.lists += 1,
            _ => tally.locks += 1,
        }
    }
}

/// The answer of a group.
pub(super) enum Answer {
    Done,
    Bytes(Bytes),
    Attribute(Option<Bytes>),
    Holders(Vec<LockHolder>),
    Names(Vec<String>),
}

pub(super) type Outcome = Result<Answer, ObjectError>;

/// A request with its sender.
pub(super) struct Message {
    pub(super) request: Request,
    /// The client's name.
    pub(super) client: String,
    pub(super) address: String,
    /// The map that the client has.
    pub(super) map: u64,
    pub(super) reply: Reply,
}

/// Where an answer goes.
pub(super) struct Reply {
    pub(super) sender: oneshot::Sender<Outcome>,
    /// The client's.
    pub(super) port: Arc<Port>,
}

/// Changes of a group whose commits are under way.
struct Commits {
    shared: Arc<Shared>,
    number: u32,
    /// For each object, how many changes are not committed.
    uncommitted: Mutex<BTreeMap<String, usize>>,
    /// Changes with each commit.
    committed: watch::Sender<u64>,
}

/// Serves the requests of a group.
pub(super) async fn serve(
    shared: Arc<Shared>,
    number: u32,
    mut inbox: mpsc::UnboundedReceiver<Message>,
) {
    let commits = Arc::new(Commits {
        shared: shared.clone(),
        number,
        uncommitted: Mutex::default(),
        committed: watch::channel(0).0,
    });
    while let Some(message) = inbox.recv().await {
        let primary = active(&shared, number).await;
        let map = primary.learn_map(message.map);
        if shared.refuses(&message.address, map) {
            shared.state.lock().tally.refused += 1;
            answer(&shared, number, message.reply, Err(ObjectError::Fenced));
            continue;
        }
        message.request.count(&mut shared.state.lock().tally);
        commits.accept(message);
    }
}

/// Waits until the group serves requests; its primary.
async fn active(shared: &Shared, number: u32) -> &Server {
    let mut health = shared.health.subscribe();
    loop {
        let _ = health.borrow_and_update();
        let servers: Vec<&Server> = shared.servers_of(number).collect();
        let is = |state| servers.iter().filter(move |server| server.liveness() == state).count();
        let stalled = shared.state.lock().stalled.contains(&number);
        // While one is missed, the group waits for it or for the map without it.
        if !stalled && is(Liveness::Missed) == 0 && is(Liveness::Alive) >= shared.spec.least {
            let alive = servers.into_iter().find(|server| server.liveness() == Liveness::Alive);
            if let Some(primary) = alive {
                return primary;
            }
        }
        // The cluster is as it was for as long as this task runs.
        let _ = health.changed().await;
    }
}

/// Sends an answer, which arrives after the latency, and when the ports have carried it.
fn answer(shared: &Arc<Shared>, group: u32, reply: Reply, outcome: Outcome) {
    let bytes = match &outcome {
        Ok(Answer::Bytes(bytes)) => bytes.len() as u64,
        _ => 0,
    };
    let carried = shared.carry(&shared.primary(group).port, &reply.port, bytes);
    let answering = {
        let shared = shared.clone();
        async move {
            shared.env.sleep_until(carried).await;
            // The client may have gone.
            drop(reply.sender.send(outcome));
        }
    };
    shared.env.spawn(answering).detach();
}

fn path(object: &str) -> String {
    format!("simulated/{object}")
}

impl Commits {
    /// Carries out a request: changes at once, in memory; what takes time, beside the next requests.
    fn accept(self: &Arc<Self>, message: Message) {
        let Message { request, client, address, reply, .. } = message;
        match request {
            Request::Read { object, offset, len } => {
                let commits = self.clone();
                let read = async move { commits.read(&object, offset, len, reply).await };
                self.shared.env.spawn(read).detach();
            }
            Request::Holders { object, lock } => {
                let state = self.shared.state.lock();
                let found = state.objects.get(&object);
                let of = |found: &Object| found.locks.get(&lock).map(|lock| lock.holders.clone());
                let holders = found.map(|found| of(found).unwrap_or_default());
                let outcome = holders.ok_or(ObjectError::NotFound { object: path(&object) });
                drop(state);
                answer(&self.shared, self.number, reply, outcome.map(Answer::Holders));
            }
            Request::Attribute { object, attribute } => {
                let state = self.shared.state.lock();
                let found = state.objects.get(&object).map(|found| found.attribute(attribute));
                let outcome = found.ok_or(ObjectError::NotFound { object: path(&object) });
                drop(state);
                answer(&self.shared, self.number, reply, outcome.map(Answer::Attribute));
            }
            Request::List => {
                let state = self.shared.state.lock();
                let names = state.objects.keys();
                let own = names.filter(|name| self.shared.group_of(name) == self.number);
                let own = own.cloned().collect();
                drop(state);
                answer(&self.shared, self.number, reply, Ok(Answer::Names(own)));
            }
            Request::Change { object, change } => {
                let ranges = written(&change);
                let applied = self.apply(&object, &change, &client);
                self.commit(object, ranges, applied, reply);
            }
            Request::Lock { object, lock, cookie, shared } => {
                let holder = LockHolder { client, cookie, address };
                let applied = self.lock(&object, &lock, holder, shared);
                self.commit(object, Vec::new(), applied, reply);
            }
            Request::Unlock { object, lock, cookie } => {
                let applied = self.unlock(&object, &lock, &client, &cookie);
                self.commit(object, Vec::new(), applied, reply);
            }
            Request::Break { object, lock, holder } => {
                let applied = self.unlock(&object, &lock, &holder.client, &holder.cookie);
                self.commit(object, Vec::new(), applied, reply);
            }
        }
    }

    fn apply(&self, object: &str, change: &Change, client: &str) -> Result<(), ObjectError> {
        let mut state = self.shared.state.lock();
        let before = state.objects.get(object);
        let next = changed(&path(object), before, change, client)?;
        // A full pool takes what needs no more space.
        let size = |object: Option<&Object>| object.map(Object::size);
        if state.full && size(next.as_ref()) > size(before) {
            return Err(ObjectError::NoSpace { object: path(object) });
        }
        match next {
            Some(next) => state.objects.insert(object.to_owned(), next),
            None => state.objects.remove(object),
        };
        Ok(())
    }

    fn lock(
        &self,
        object: &str,
        lock: &str,
        holder: LockHolder,
        shared: bool,
    ) -> Result<(), ObjectError> {
        let mut state = self.shared.state.lock();
        let found = state.objects.entry(object.to_owned()).or_default();
        let lock = found.locks.entry(lock.to_owned()).or_default();
        let free = lock.holders.is_empty() || shared && lock.shared;
        if !free {
            return Err(ObjectError::Locked { object: path(object) });
        }
        lock.shared = shared;
        lock.holders.push(holder);
        Ok(())
    }

    fn unlock(
        &self,
        object: &str,
        lock: &str,
        client: &str,
        cookie: &str,
    ) -> Result<(), ObjectError> {
        let mut state = self.shared.state.lock();
        let locks = state.objects.get_mut(object).map(|found| &mut found.locks);
        let not_held = || ObjectError::NotFound { object: path(object) };
        let lock = locks.and_then(|locks| locks.get_mut(lock)).ok_or_else(not_held)?;
        let holds = |holder: &LockHolder| holder.client == client && holder.cookie == cookie;
        let number = lock.holders.iter().position(holds).ok_or_else(not_held)?;
        lock.holders.remove(number);
        Ok(())
    }

    /// Makes an applied change durable on all servers of the group, and answers then.
    fn commit(
        self: &Arc<Self>,
        object: String,
        ranges: Vec<(u64, u64)>,
        applied: Result<(), ObjectError>,
        reply: Reply,
    ) {
        if let Err(error) = applied {
            return answer(&self.shared, self.number, reply, Err(error));
        }
        *self.uncommitted.lock().entry(object.clone()).or_default() += 1;
        let commits = self.clone();
        let commit = async move {
            let shared = &commits.shared;
            let primary = shared.primary(commits.number);
            let bytes = ranges.iter().map(|(_, len)| len).sum();
            let copies = shared.servers_of(commits.number).map(|server| {
                let (object, ranges) = (&object, &ranges);
                // The primary sends it to the others, and hears from them.
                let is_other = !std::ptr::eq(server, primary);
                let carried = is_other.then(|| shared.carry(&primary.port, &server.port, bytes));
                async move {
                    if let Some(carried) = carried {
                        shared.env.sleep_until(carried).await;
                    }
                    if present(shared, server).await {
                        server.commit(object, ranges).await;
                        present(shared, server).await;
                    }
                    if is_other {
                        let heard = shared.carry(&server.port, &primary.port, 0);
                        shared.env.sleep_until(heard).await;
                    }
                }
            });
            join_all(copies).await;
            active(shared, commits.number).await;
            commits.end(&object);
            answer(shared, commits.number, reply, Ok(Answer::Done));
        };
        self.shared.env.spawn(commit).detach();
    }

    fn end(&self, object: &str) {
        let mut uncommitted = self.uncommitted.lock();
        if let Some(count) = uncommitted.get_mut(object) {
            *count -= 1;
            if *count == 0 {
                uncommitted.remove(object);
            }
        }
        drop(uncommitted);
        self.committed.send_modify(|count| *count += 1);
    }

    /// Reads when the changes before it are committed.
    async fn read(&self, object: &str, offset: u64, len: usize, reply: Reply) {
        let mut committed = self.committed.subscribe();
        loop {
            let _ = committed.borrow_and_update();
            if !self.uncommitted.lock().contains_key(object) {
                break;
            }
            let _ = committed.changed().await;
        }
        let read = {
            let state = self.shared.state.lock();
            state.objects.get(object).map(|found| found.read(offset, len))
        };
        let outcome = match read {
            None => Err(ObjectError::NotFound { object: path(object) }),
            Some(bytes) => {
                let primary = active(&self.shared, self.number).await;
                primary.read(object, offset, bytes.len() as u64).await;
                Ok(Answer::Bytes(bytes))
            }
        };
        answer(&self.shared, self.number, reply, outcome);
    }
}

/// Waits until a server is alive, or the cluster does without it; whether it is alive.
async fn present(shared: &Shared, server: &Server) -> bool {
    let mut health = shared.health.subscribe();
    loop {
        let _ = health.borrow_and_update();
        match server.liveness() {
            Liveness::Alive => return true,
            Liveness::Out => return false,
            Liveness::Missed => {
                let _ = health.changed().await;
            }
        }
    }
}
