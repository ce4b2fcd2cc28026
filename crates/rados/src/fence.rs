//! The fence: an exclusive lock on a header, and a guard on every write.
//!
//! Three things keep a client from writing after another one took over from it:
//!
//! 1. *The blocklist.* The client that takes over first has the cluster refuse the old one's address, and then asks
//!    every placement group something. From its answer on, a group has the map that refuses the old client, so that
//!    what the new one reads afterwards stays as it is. Only then does it break the lock.
//! 2. *The epoch.* Each opening raises the number in the header, in an operation that asserts the lock. Each
//!    object keeps the epoch that wrote it last, and a write is a compound operation that compares it: so an older
//!    client changes no object that a newer one has written, even when its address is no longer on the blocklist.
//! 3. *The latch.* A client that was refused once sends nothing more.
//!
//! A served image has a heartbeat beside these: `heartbeat` says when a standby takes over by itself.
//!
//! An object that the new client has not written is protected by the blocklist alone, which is why that lasts for
//! [`BLOCKLISTED`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::HashSet;

use crate::ObjectError;
use crate::format::{EPOCH, epoch_value};
use crate::object::{Change, Comparison, LockHolder, LockName, ObjectStore, Step};
use crate::opener::shown;

/// The name of the lock on a header.
pub const LOCK: &str = "thalweg";

/// How long the cluster refuses a client that lost its lock. Ceph's default of an hour is too short for a machine that
/// was frozen.
pub const BLOCKLISTED: Duration = Duration::from_secs(365 * 24 * 3600);

/// How often a write is tried whose object appears or disappears meanwhile.
const ATTEMPTS: usize = 16;

/// The guard on the writes of one opening.
#[derive(Debug)]
pub struct Fence {
    epoch: u64,
    lost: AtomicBool,
    /// The device is closed, whose fence it is.
    closed: AtomicBool,
    /// A change ended without an answer, and may be made later.
    doubtful: AtomicBool,
    /// Numbers of the objects that are known to have this epoch.
    stamped: Mutex<HashSet<u64>>,
}

impl Fence {
    /// The guard for writes in `epoch`.
    pub fn new(epoch: u64) -> Fence {
        Fence {
            epoch,
            lost: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            doubtful: AtomicBool::new(false),
            stamped: Mutex::new(HashSet::default()),
        }
    }

    /// The epoch of the writes.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether another client took over, so that this one sends nothing more.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether a change may be made at any time later, because its answer did not come in time.
    pub fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Acquire)
    }

    /// Admits no request from now on: the lock will be released.
    pub(crate) fn close(&self) -> bool {
        self.closed.swap(true, Ordering::AcqRel)
    }

    /// Whether it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Admits a request, unless the fence is lost or closed.
    pub(crate) fn admit(&self) -> Result<(), ObjectError> {
        match (self.is_closed(), self.is_lost()) {
            (true, _) => {
                Err(ObjectError::NotConnected { reason: "the device is closed".to_owned() })
            }
            (false, true) => Err(ObjectError::Fenced),
            (false, false) => Ok(()),
        }
    }

    /// Learns from the outcome of a request: after a refusal, no other is sent.
    pub(crate) fn learn<T>(&self, outcome: Result<T, ObjectError>) -> Result<T, ObjectError> {
        match &outcome {
            Err(ObjectError::Fenced) => self.lost.store(true, Ordering::Release),
            Err(ObjectError::NoAnswer { .. }) => self.doubtful.store(true, Ordering::Release),
            _ => {}
        }
        outcome
    }

    /// The same for a guarded change: a newer epoch on the object, or a lock that is gone, is a refusal.
    fn learn_guarded(&self, outcome: Result<(), ObjectError>) -> Result<(), ObjectError> {
        self.learn(outcome.map_err(|error| match error {
            ObjectError::Conflict { .. } => ObjectError::Fenced,
            other => other,
        }))
    }

    /// Writes an object by `steps`, and makes it if it is absent; it is tried first as if it were `absent`, or were not. A
    /// `number` identifies the object among those of
    /// this fence; without one, the object's epoch is written each time.
    pub(crate) async fn write(
        &self,
        store: &dyn ObjectStore,
        object: &str,
        (number, mut absent): (Option<u64>, bool),
        steps: &[Step],
    ) -> Result<(), ObjectError> {
        for _ in 0..ATTEMPTS {
            self.admit()?;
            let known = number.is_some_and(|number| self.stamped.lock().contains(&number));
            let change = match (absent, known) {
                (true, _) => self.stamp(Change::new().then(Step::CreateNew)),
                (false, true) => Change::new().then(self.compare(Comparison::Equal)),
                (false, false) => self.stamp(Change::new().then(self.compare(Comparison::AtLeast))),
            };
            let change = steps.iter().cloned().fold(change, Change::then);
            match self.learn_guarded(store.apply(object, change).await) {
                Ok(()) => {
                    if let Some(number) = number.filter(|_| !known) {
                        self.stamped.lock().insert(number);
                    }
                    return Ok(());
                }
                Err(ObjectError::NotFound { .. }) if !absent => absent = true,
                Err(ObjectError::Exists { .. }) if absent => absent = false,
                Err(error) => return Err(error),
            }
            if let Some(number) = number {
                self.stamped.lock().remove(&number);
            }
        }
        Err(ObjectError::Conflict { object: format!("{}/{object}", store.name()) })
    }

    /// Changes an object by `steps` if it is present.
    pub(crate) async fn change_present(
        &self,
        store: &dyn ObjectStore,
        object: &str,
        steps: &[Step],
    ) -> Result<(), ObjectError> {
        self.admit()?;
        let guarded = Change::new().then(self.compare(Comparison::AtLeast));
        let removes = steps.contains(&Step::Remove);
        let guarded = if removes { guarded } else { self.stamp(guarded) };
        let change = steps.iter().cloned().fold(guarded, Change::then);
        match self.learn_guarded(store.apply(object, change).await) {
            Err(ObjectError::NotFound { .. }) => Ok(()),
            outcome => outcome,
        }
    }

    /// Sends nothing more: another client took over.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Replaces a header's content, and makes the other `steps`, if this client has the lock on it.
    pub(crate) async fn replace_locked(
        &self,
        store: &dyn ObjectStore,
        object: &str,
        cookie: &str,
        data: bytes::Bytes,
        steps: &[Step],
    ) -> Result<(), ObjectError> {
        self.admit()?;
        let (lock, cookie) = (LOCK.to_owned(), cookie.to_owned());
        let change =
            Change::new().then(Step::AssertLocked { lock, cookie }).then(Step::Replace { data });
        let change = steps.iter().cloned().fold(change, Change::then);
        self.learn_guarded(store.apply(object, change).await)
    }

    fn compare(&self, comparison: Comparison) -> Step {
        Step::Compare { attribute: EPOCH, comparison, value: epoch_value(self.epoch) }
    }

    fn stamp(&self, change: Change) -> Change {
        change.then(Step::SetAttribute { attribute: EPOCH, value: epoch_value(self.epoch) })
    }
}

/// How a lock is taken.
pub(crate) struct Taking<'a> {
    /// The cookie of the new holder.
    pub(crate) cookie: &'a str,
    /// Whether other holders may share it.
    pub(crate) shared: bool,
    /// Whether a holder is to be stopped.
    pub(crate) stops: &'a (dyn Fn(&LockHolder) -> bool + Send + Sync),
}

/// Takes the lock on `header`. Stops the holders first, if all of them are to be stopped.
///
/// # Errors
/// [`ObjectError::Locked`] while another client has it and is not to be stopped, or while this client itself has it.
pub(crate) async fn lock(
    store: &dyn ObjectStore,
    header: &str,
    taking: &Taking<'_>,
) -> Result<(), ObjectError> {
    let lock = LockName { name: LOCK, cookie: taking.cookie };
    let taken = store.lock(header, &lock, taking.shared).await;
    let Err(ObjectError::Locked { object }) = taken else { return taken };
    let holders = store.holders(header, LOCK).await?;
    let own = store.client();
    if holders.iter().any(|holder| holder.client == own || !(taking.stops)(holder)) {
        return Err(ObjectError::Locked { object });
    }
    stop(store, header, &object, &holders).await?;
    store.lock(header, &lock, taking.shared).await
}

/// Has the cluster refuse the client with this address. Returns when every placement group does.
pub(crate) async fn shut_out(store: &dyn ObjectStore, address: &str) -> Result<(), ObjectError> {
    let (client, cookie) = Default::default();
    let holder = LockHolder { client, cookie, address: address.to_owned() };
    store.blocklist(&holder, BLOCKLISTED).await?;
    // Each placement group answers only when it has the map with the blocklist.
    store.list().await.map(drop)
}

/// Has the cluster refuse the holders of the lock on `header`, and breaks it.
async fn stop(
    store: &dyn ObjectStore,
    header: &str,
    object: &str,
    holders: &[LockHolder],
) -> Result<(), ObjectError> {
    for holder in holders {
        tracing::warn!(object, holder = shown(holder), "taking over from the holder of the lock");
        store.blocklist(holder, BLOCKLISTED).await?;
    }
    if !holders.is_empty() {
        // Each placement group answers only when it has the map with the blocklist.
        store.list().await?;
    }
    for holder in holders {
        match store.break_lock(header, LOCK, holder).await {
            // Another client breaks it, or its holder has released it.
            Err(ObjectError::NotFound { .. }) | Ok(()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
