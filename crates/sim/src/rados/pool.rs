//! A client of the simulated cluster.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use parking_lot::Mutex;
use thalweg_env::{Time, watch};
use thalweg_fs::contents::Space;
use thalweg_rados::object::{Change, LockHolder, LockName, ObjectStore};
use thalweg_rados::{ObjectError, ObjectStoreRef};
use tokio::sync::{mpsc, oneshot};

use super::Shared;
use super::group::{Answer, Message, Outcome, Reply, Request};
use super::port::Port;

/// A client's connection to a simulated cluster, and its pool.
#[derive(Debug)]
pub struct SimPool {
    shared: Arc<Shared>,
    number: u64,
    /// The newest map that it has.
    map: AtomicU64,
    /// What its messages take beside the latency.
    delay: Mutex<Duration>,
    port: Arc<Port>,
    /// To each group: messages with their times of arrival, in their order.
    links: Mutex<BTreeMap<u32, mpsc::UnboundedSender<(Time, Message)>>>,
    flight: Arc<Flight>,
}

/// Changes that have been started and not ended.
#[derive(Debug)]
struct Flight {
    changes: Mutex<(u64, BTreeSet<u64>)>,
    ended: watch::Sender<u64>,
}

impl SimPool {
    pub(super) fn new(shared: Arc<Shared>, number: u64) -> SimPool {
        let flight = Flight { changes: Mutex::default(), ended: watch::channel(0).0 };
        SimPool {
            shared,
            number,
            map: AtomicU64::new(1),
            delay: Mutex::new(Duration::ZERO),
            port: Arc::default(),
            links: Mutex::default(),
            flight: Arc::new(flight),
        }
    }

    /// The handle for devices and contents of files.
    pub fn store(self: &Arc<Self>) -> ObjectStoreRef {
        self.clone()
    }

    /// Delays the client's next messages by `span` each. Those to one group stay in their order.
    pub fn delay(&self, span: Duration) {
        *self.delay.lock() = span;
    }

    /// The client's address, as the blocklist has it.
    fn own_address(&self) -> String {
        format!("192.0.2.1:0/{}", self.number)
    }

    /// Puts a message onto the link to a group; the answer arrives in the receiver.
    fn send(&self, group: u32, request: Request) -> oneshot::Receiver<Outcome> {
        let (sender, answer) = oneshot::channel();
        let bytes = request.bytes();
        let reply = Reply { sender, port: self.port.clone() };
        let message = Message {
            request,
            client: self.client(),
            address: self.own_address(),
            map: self.map.load(Ordering::Relaxed),
            reply,
        };
        let mut links = self.links.lock();
        let primary = self.shared.primary(group);
        let arrival = self.shared.carry(&self.port, &primary.port, bytes) + *self.delay.lock();
        let link = links.entry(group).or_insert_with(|| {
            let (sender, mut receiver) = mpsc::unbounded_channel::<(Time, Message)>();
            let shared = self.shared.clone();
            let carry = async move {
                while let Some((arrival, message)) = receiver.recv().await {
                    shared.env.sleep_until(arrival).await;
                    // A cluster that has ended answers nothing.
                    drop(shared.inboxes[group as usize].send(message));
                }
            };
            self.shared.env.spawn(carry).detach();
            sender
        });
        drop(link.send((arrival, message)));
        answer
    }

    /// Sends a request, and waits for the answer for as long as clients do.
    fn ask(
        &self,
        object: &str,
        group: u32,
        request: Request,
    ) -> impl Future<Output = Outcome> + Send + use<> {
        let answer = self.send(group, request);
        let (shared, object) = (self.shared.clone(), format!("{}/{object}", self.name()));
        async move {
            match shared.env.timeout(shared.spec.request_timeout, answer).await {
                Some(Ok(outcome)) => outcome,
                Some(Err(_)) => {
                    Err(ObjectError::NotConnected { reason: "the cluster has ended".to_owned() })
                }
                None => Err(ObjectError::NoAnswer { object }),
            }
        }
    }

    /// The same for a request that completes although its caller may have gone.
    async fn change(&self, object: &str, request: Request) -> Result<(), ObjectError> {
        let asking = self.ask(object, self.shared.group_of(object), request);
        let (sender, receiver) = oneshot::channel();
        let (flight, started) = (self.flight.clone(), self.flight.start());
        let change = async move {
            let outcome = asking.await;
            flight.end(started);
            drop(sender.send(outcome));
        };
        self.shared.env.spawn(change).detach();
        match receiver.await {
            Ok(outcome) => outcome.map(drop),
            Err(_) => Err(ObjectError::NotConnected { reason: "the cluster has ended".to_owned() }),
        }
    }
}

impl Flight {
    fn start(&self) -> u64 {
        let mut changes = self.changes.lock();
        changes.0 += 1;
        let number = changes.0;
        changes.1.insert(number);
        number
    }

    fn end(&self, number: u64) {
        self.changes.lock().1.remove(&number);
        self.ended.send_modify(|count| *count += 1);
    }

    /// Waits for the changes that were started before.
    async fn settle(&self) {
        let mut ended = self.ended.subscribe();
        let newest = self.changes.lock().0;
        loop {
            let _ = ended.borrow_and_update();
            if self.changes.lock().1.first().is_none_or(|oldest| *oldest > newest) {
                return;
            }
            let _ = ended.changed().await;
        }
    }
}

#[async_trait]
impl ObjectStore for SimPool {
    fn name(&self) -> String {
        "simulated".to_owned()
    }

    async fn cluster(&self) -> Result<String, ObjectError> {
        Ok("simulated".to_owned())
    }

    async fn address(&self) -> Result<String, ObjectError> {
        Ok(self.own_address())
    }

    fn client(&self) -> String {
        format!("client.{}", self.number)
    }

    async fn read(&self, object: &str, offset: u64, len: usize) -> Result<Bytes, ObjectError> {
        let request = Request::Read { object: object.to_owned(), offset, len };
        match self.ask(object, self.shared.group_of(object), request).await? {
            Answer::Bytes(bytes) => Ok(bytes),
            _ => Ok(Bytes::new()),
        }
    }

    async fn attribute(
        &self,
        object: &str,
        attribute: &'static str,
    ) -> Result<Option<Bytes>, ObjectError> {
        let request = Request::Attribute { object: object.to_owned(), attribute };
        match self.ask(object, self.shared.group_of(object), request).await? {
            Answer::Attribute(value) => Ok(value),
            _ => Ok(None),
        }
    }

    async fn apply(&self, object: &str, change: Change) -> Result<(), ObjectError> {
        self.change(object, Request::Change { object: object.to_owned(), change }).await
    }

    async fn settle(&self) -> Result<(), ObjectError> {
        self.flight.settle().await;
        Ok(())
    }

    async fn list(&self) -> Result<Vec<String>, ObjectError> {
        let groups = 0..self.shared.spec.groups;
        let lists = join_all(groups.map(|group| self.ask("", group, Request::List))).await;
        let mut names = Vec::new();
        for list in lists {
            if let Answer::Names(own) = list? {
                names.extend(own);
            }
        }
        Ok(names)
    }

    async fn space(&self) -> Result<Space, ObjectError> {
        Ok(self.shared.space())
    }

    async fn lock(
        &self,
        object: &str,
        lock: &LockName<'_>,
        shared: bool,
    ) -> Result<(), ObjectError> {
        let (name, cookie) = (lock.name.to_owned(), lock.cookie.to_owned());
        let request = Request::Lock { object: object.to_owned(), lock: name, cookie, shared };
        self.change(object, request).await
    }

    async fn unlock(&self, object: &str, lock: &LockName<'_>) -> Result<(), ObjectError> {
        let (name, cookie) = (lock.name.to_owned(), lock.cookie.to_owned());
        let request = Request::Unlock { object: object.to_owned(), lock: name, cookie };
        self.change(object, request).await
    }

    async fn holders(&self, object: &str, lock: &str) -> Result<Vec<LockHolder>, ObjectError> {
        let request = Request::Holders { object: object.to_owned(), lock: lock.to_owned() };
        match self.ask(object, self.shared.group_of(object), request).await? {
            Answer::Holders(holders) => Ok(holders),
            _ => Ok(Vec::new()),
        }
    }

    async fn break_lock(
        &self,
        object: &str,
        lock: &str,
        holder: &LockHolder,
    ) -> Result<(), ObjectError> {
        let (lock, holder) = (lock.to_owned(), holder.clone());
        self.change(object, Request::Break { object: object.to_owned(), lock, holder }).await
    }

    async fn blocklist(&self, holder: &LockHolder, span: Duration) -> Result<(), ObjectError> {
        // The request to a monitor, and its answer.
        self.shared.env.sleep(self.shared.spec.latency * 2).await;
        let map = self.shared.blocklist(&holder.address, self.shared.env.now() + span);
        self.map.fetch_max(map, Ordering::Relaxed);
        Ok(())
    }
}
