//! The tasks of a node.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// A future that others only know by its result. The code that runs tasks is compiled for each type of a future: here for
/// each type of a result, of which there are few.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The tasks of a node.
#[derive(Default)]
pub(crate) struct Group {
    /// The node around this one. Tasks are members of both.
    outer: Option<Arc<Group>>,
    killed: AtomicBool,
    paused: AtomicBool,
    /// Tasks that were to be polled while the node was paused.
    stopped: Mutex<Vec<Waker>>,
    tasks: Mutex<Tasks>,
    emptied: Notify,
    /// Nanoseconds by which the wall clock is ahead of that outside.
    wall: AtomicI64,
}

#[derive(Default)]
struct Tasks {
    started: u64,
    /// By the order in which they were started. `None` until the runtime has the task.
    running: BTreeMap<u64, Option<AbortHandle>>,
}

impl Group {
    /// `future` as a task of this group, and what the group needs to kill it.
    pub(crate) fn member<T>(self: &Arc<Self>, future: Boxed<T>) -> (Member<T>, Ticket) {
        let groups = std::iter::successors(Some(self), |group| group.outer.as_ref());
        let ticket = Ticket(groups.map(|group| (group.clone(), group.enter())).collect());
        (Member { future: self.guard(future), _place: Place(ticket.clone()) }, ticket)
    }

    /// `future`, which is not polled any more once the group is killed.
    pub(crate) fn guard<T>(self: &Arc<Self>, future: Boxed<T>) -> Guard<T> {
        Guard { future, group: self.clone() }
    }

    /// A new group without tasks, inside `outer` if that is given.
    pub(crate) fn new(outer: Option<Arc<Group>>) -> Arc<Group> {
        Arc::new(Group { outer, ..Group::default() })
    }

    /// Tasks that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.tasks.lock().running.len()
    }

    /// Returns when every task has ended and was dropped.
    pub(crate) async fn gone(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.len() == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn is_killed(&self) -> bool {
        self.killed.load(Ordering::SeqCst)
            || self.outer.as_ref().is_some_and(|outer| outer.is_killed())
    }

    pub(crate) fn pause(&self) {
        self.paused.store(true, Ordering::SeqCst);
    }

    pub(crate) fn resume(&self) {
        let stopped = {
            let mut stopped = self.stopped.lock();
            self.paused.store(false, Ordering::SeqCst);
            std::mem::take(&mut *stopped)
        };
        stopped.into_iter().for_each(Waker::wake);
    }

    /// Whether the group, or one around it, is paused: `waker` is woken when that ends.
    fn is_paused(&self, waker: &Waker) -> bool {
        let groups = std::iter::successors(Some(self), |group| group.outer.as_deref());
        groups.into_iter().any(|group| {
            if !group.paused.load(Ordering::SeqCst) {
                return false;
            }
            let mut stopped = group.stopped.lock();
            let is_paused = group.paused.load(Ordering::SeqCst);
            if is_paused {
                stopped.push(waker.clone());
            }
            is_paused
        })
    }

    pub(crate) fn shift_wall(&self, nanos: i64) {
        self.wall.fetch_add(nanos, Ordering::SeqCst);
    }

    /// What the wall clock of a node shows when it is `nanos` outside of all nodes.
    pub(crate) fn wall(&self, nanos: u64) -> u64 {
        let around = self.outer.as_ref().map_or(nanos, |outer| outer.wall(nanos));
        around.saturating_add_signed(self.wall.load(Ordering::SeqCst))
    }

    fn enter(&self) -> u64 {
        let mut tasks = self.tasks.lock();
        tasks.started += 1;
        let id = tasks.started;
        tasks.running.insert(id, None);
        id
    }

    fn leave(&self, id: u64) {
        let mut tasks = self.tasks.lock();
        tasks.running.remove(&id);
        if tasks.running.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::SeqCst);
        // A task that is not among these yet finds the group killed when it is attached.
        let running: Vec<AbortHandle> =
            self.tasks.lock().running.values().flatten().cloned().collect();
        running.iter().for_each(AbortHandle::abort);
    }
}

/// Where a task stands in its group and in the groups around that.
#[derive(Clone)]
pub(crate) struct Ticket(Arc<[(Arc<Group>, u64)]>);

impl Ticket {
    /// Has the groups abort the task when they are killed.
    pub(crate) fn attach(&self, task: &AbortHandle) {
        for (group, id) in self.0.iter() {
            // It may have ended already.
            if let Some(entry) = group.tasks.lock().running.get_mut(id) {
                *entry = Some(task.clone());
            }
            if group.is_killed() {
                task.abort();
            }
        }
    }
}

/// Takes a task off its groups when dropped.
struct Place(Ticket);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.iter().for_each(|(group, id)| group.leave(*id));
    }
}

/// A task of a group. Its fields are dropped in this order: the task has a place until its future is gone.
pub(crate) struct Member<T> {
    future: Guard<T>,
    _place: Place,
}

impl<T> Future for Member<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.future).poll(cx)
    }
}

/// A future that is not polled once its group is killed.
pub(crate) struct Guard<T> {
    future: Boxed<T>,
    group: Arc<Group>,
}

impl<T> Future for Guard<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.group.is_killed() || self.group.is_paused(cx.waker()) {
            // The runtime drops it soon, or it goes on later.
            true => Poll::Pending,
            false => self.future.as_mut().poll(cx),
        }
    }
}
