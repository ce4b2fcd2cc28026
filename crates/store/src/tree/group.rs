//! Groups of changes: callers that change a store at the same time share a transaction, and so its begin, its
//! commit, and each page that several of them change.
//!
//! A group is open for further changes until it begins. It begins when fewer than [`IN_FLIGHT`] groups are under
//! way: a lone caller never waits, and of many callers those that come while two groups are under way make the
//! next one. One caller drives its group, and the others wait; a driver that gives up leaves the group to
//! another caller. A caller that gives up before its group begins takes its changes back.
//!
//! A group that fails is no transaction of its callers: each makes its own changes alone then.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::batch::Change;
use super::error::TreeError;
use crate::block::BLOCK_SIZE;
use crate::txn::TxnError;

/// Groups under way: one writes while the other one flushes.
const IN_FLIGHT: usize = 2;
/// Maximum blocks that the changes of a group are expected to write. Well below the limit of a transaction,
/// because a change may write more than expected.
const MAX_BLOCKS: usize = 192;
/// Expected blocks of a change beside those of its value: a page of the tree, and its part of a page of the
/// bitmap. A deletion discards about as many.
const BLOCKS_OF_CHANGE: usize = 3;

/// Whether each change found its key.
pub(super) type Found = Vec<bool>;
type Outcome = Result<Arc<Found>, TreeError>;
type Run = BoxFuture<'static, Outcome>;

/// The groups of a store.
#[derive(Clone, Default)]
pub(super) struct Groups(Arc<Mutex<Queue>>);

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").finish_non_exhaustive()
    }
}

struct Queue {
    under_way: usize,
    /// Groups that have not begun, oldest first.
    waiting: VecDeque<Arc<Group>>,
    /// Maximum expected blocks of a group: fewer after a group was too large for a transaction.
    most: usize,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { under_way: 0, waiting: VecDeque::new(), most: MAX_BLOCKS }
    }
}

struct Group {
    state: Mutex<GroupState>,
    /// Notified when a caller may begin the group or go on with it, and when it has ended.
    changed: Notify,
}

#[derive(Default)]
struct GroupState {
    phase: Phase,
    /// The changes, until the group begins. Those of a caller that gave up are `None`.
    changes: Vec<Option<Change>>,
    /// Expected blocks of the changes.
    blocks: usize,
    /// Callers that have not given up.
    callers: usize,
}

#[derive(Default)]
enum Phase {
    /// More changes may come.
    #[default]
    Open,
    /// It has begun; the future is here while no caller drives it.
    UnderWay { shared: bool, run: Option<Run> },
    /// Whether several callers shared it, and its outcome.
    Ended(bool, Outcome),
}

/// A caller's part in a group.
struct Member {
    queue: Groups,
    group: Arc<Group>,
    /// Its changes among those of the group.
    places: Range<usize>,
}

/// What a caller does next.
enum Step {
    Drive(Run),
    Wait,
    End(bool, Outcome),
}

fn expected_blocks(change: &Change) -> usize {
    let value = change.value.as_ref().map_or(0, |value| value.len() / BLOCK_SIZE);
    BLOCKS_OF_CHANGE + value
}

impl Groups {
    /// Makes changes in a group. `run` makes changes in one transaction, those that are there.
    ///
    /// # Errors
    /// Those of `run` with these changes alone.
    pub(super) async fn make(
        &self,
        changes: Vec<Change>,
        run: impl Fn(Vec<Option<Change>>) -> Run,
    ) -> Result<Found, TreeError> {
        let member = self.join(&changes);
        let (shared, outcome) = member.end(&run).await;
        match outcome {
            Ok(found) => Ok(found[member.places.clone()].to_vec()),
            Err(error) if !shared => Err(error),
            Err(_) => Ok(run(changes.into_iter().map(Some).collect()).await?.to_vec()),
        }
    }

    /// Adds changes to the newest group that has not begun, or to a new one.
    fn join(&self, changes: &[Change]) -> Member {
        let blocks: usize = changes.iter().map(expected_blocks).sum();
        let mut queue = self.0.lock();
        let most = queue.most;
        let newest =
            queue.waiting.back().filter(|group| group.state.lock().blocks + blocks <= most);
        let group = match newest {
            Some(group) => group.clone(),
            None => {
                let group = Group { state: Mutex::default(), changed: Notify::new() };
                queue.waiting.push_back(Arc::new(group));
                queue.waiting[queue.waiting.len() - 1].clone()
            }
        };
        let places = {
            let mut state = group.state.lock();
            let first = state.changes.len();
            state.changes.extend(changes.iter().cloned().map(Some));
            state.blocks += blocks;
            state.callers += 1;
            first..state.changes.len()
        };
        Member { queue: self.clone(), group, places }
    }
}

impl Queue {
    /// A group has ended: the next one may begin.
    fn ended(&mut self) {
        self.under_way -= 1;
        if let Some(next) = self.waiting.front() {
            next.changed.notify_one();
        }
    }
}

impl Member {
    /// Waits until the group has ended, or brings it there.
    async fn end(&self, run: &impl Fn(Vec<Option<Change>>) -> Run) -> (bool, Outcome) {
        loop {
            // Registered before the look, so that no notification is lost.
            let mut changed = std::pin::pin!(self.group.changed.notified());
            changed.as_mut().enable();
            match self.step(run) {
                Step::End(shared, outcome) => return (shared, outcome),
                Step::Wait => changed.await,
                Step::Drive(run) => {
                    let mut driver = Driver { member: self, run: Some(run) };
                    poll_fn(|cx| driver.poll(cx)).await;
                }
            }
        }
    }

    fn step(&self, run: &impl Fn(Vec<Option<Change>>) -> Run) -> Step {
        let mut queue = self.queue.0.lock();
        let mut state = self.group.state.lock();
        match &mut state.phase {
            Phase::Ended(shared, outcome) => Step::End(*shared, outcome.clone()),
            Phase::UnderWay { run, .. } => run.take().map_or(Step::Wait, Step::Drive),
            Phase::Open => {
                let is_next = queue.waiting.front().is_some_and(|it| Arc::ptr_eq(it, &self.group));
                if !is_next || queue.under_way >= IN_FLIGHT {
                    return Step::Wait;
                }
                queue.under_way += 1;
                queue.waiting.pop_front();
                state.phase = Phase::UnderWay { shared: state.callers > 1, run: None };
                let changes = std::mem::take(&mut state.changes);
                drop(state);
                if queue.under_way < IN_FLIGHT
                    && let Some(next) = queue.waiting.front()
                {
                    next.changed.notify_one();
                }
                drop(queue);
                Step::Drive(run(changes))
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut queue = self.queue.0.lock();
        let mut state = self.group.state.lock();
        state.callers -= 1;
        let is_last = state.callers == 0;
        let abandoned = match &mut state.phase {
            Phase::Open => {
                state.changes[self.places.clone()].fill(None);
                drop(state);
                if is_last {
                    queue.waiting.retain(|group| !Arc::ptr_eq(group, &self.group));
                }
                // It may have been asked to begin the next group.
                if let Some(next) = queue.waiting.front() {
                    next.changed.notify_one();
                }
                None
            }
            Phase::UnderWay { run, .. } if is_last => {
                let run = run.take();
                queue.ended();
                run
            }
            Phase::UnderWay { .. } | Phase::Ended(..) => None,
        };
        drop(queue);
        // Its transaction is aborted, without a lock held.
        drop(abandoned);
    }
}

/// A caller that drives its group. Dropped before the end, it leaves the group to another caller.
struct Driver<'a> {
    member: &'a Member,
    run: Option<Run>,
}

impl Driver<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(run) = &mut self.run else { return Poll::Ready(()) };
        run.as_mut().poll(cx).map(|outcome| {
            self.run = None;
            self.end(outcome);
        })
    }

    fn end(&self, outcome: Outcome) {
        let mut queue = self.member.queue.0.lock();
        let mut state = self.member.group.state.lock();
        let shared = matches!(state.phase, Phase::UnderWay { shared: true, .. });
        queue.most = match &outcome {
            Err(TreeError::Txn(TxnError::TooLarge(_))) => (queue.most / 2).max(1),
            _ => (queue.most + 1).min(MAX_BLOCKS),
        };
        state.phase = Phase::Ended(shared, outcome);
        drop(state);
        queue.ended();
        drop(queue);
        self.member.group.changed.notify_waiters();
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        let Some(run) = self.run.take() else { return };
        if let Phase::UnderWay { run: place, .. } = &mut self.member.group.state.lock().phase {
            *place = Some(run);
        }
        self.member.group.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt;
    use futures::executor::LocalPool;
    use futures::future::abortable;
    use futures::task::LocalSpawnExt;
    use rand::seq::IndexedRandom;
    use rand::{RngExt, SeedableRng};
    use thalweg_env::Rng;
    use thalweg_sim::campaign;
    use tokio::sync::oneshot;

    use super::*;

    /// The transactions that were started: their changes, and what ends each.
    #[derive(Clone, Default)]
    struct Started(Arc<Mutex<Vec<(Keys, End)>>>);
    type Keys = Vec<Option<u8>>;
    type End = oneshot::Sender<Result<(), TreeError>>;

    impl Started {
        fn run(&self, changes: Vec<Option<Change>>) -> Run {
            let keys = changes.iter().map(|change| change.as_ref().map(|it| it.key[0])).collect();
            let blocks: usize = changes.iter().flatten().map(expected_blocks).sum();
            assert!(blocks <= MAX_BLOCKS || changes.len() == 1, "{blocks} blocks");
            let (end, ended) = oneshot::channel();
            self.0.lock().push((keys, end));
            let found =
                changes.iter().map(|change| change.as_ref().is_some_and(|it| it.key[0] % 2 == 0));
            let found: Found = found.collect();
            async move { ended.await.unwrap().map(|()| Arc::new(found)) }.boxed()
        }

        fn keys(&self) -> Vec<Keys> {
            self.0.lock().iter().map(|(keys, _)| keys.clone()).collect()
        }

        /// Ends the oldest one.
        fn end(&self, result: Result<(), TreeError>) {
            self.0.lock().remove(0).1.send(result).unwrap();
        }
    }

    type Making = BoxFuture<'static, Result<Found, TreeError>>;

    /// A call that makes one change, polled once.
    fn make(groups: &Groups, started: &Started, key: u8) -> Making {
        let (groups, started) = (groups.clone(), started.clone());
        let change = Change { key: vec![key].into(), value: None };
        let mut making =
            async move { groups.make(vec![change], |changes| started.run(changes)).await }.boxed();
        assert!((&mut making).now_or_never().is_none());
        making
    }

    fn full() -> TreeError {
        TreeError::Full("p".to_owned())
    }

    #[test]
    fn callers_share_a_group_while_two_are_under_way() {
        let (groups, started) = (Groups::default(), Started::default());
        let mut first: Vec<Making> = (0..2).map(|key| make(&groups, &started, key)).collect();
        assert_eq!(started.keys(), [[Some(0)], [Some(1)]]);
        let mut second: Vec<Making> = (2..5).map(|key| make(&groups, &started, key)).collect();
        assert_eq!(started.keys().len(), 2);
        started.end(Ok(()));
        assert_eq!((&mut first[0]).now_or_never().unwrap().unwrap(), [true]);
        assert!((&mut second[0]).now_or_never().is_none());
        assert_eq!(started.keys(), [vec![Some(1)], vec![Some(2), Some(3), Some(4)]]);
        started.end(Ok(()));
        started.end(Ok(()));
        assert_eq!((&mut first[1]).now_or_never().unwrap().unwrap(), [false]);
        for (making, found) in second.iter_mut().zip([true, false, true]) {
            assert_eq!(making.now_or_never().unwrap().unwrap(), [found]);
        }
        assert_eq!(groups.0.lock().under_way, 0);
    }

    #[test]
    fn callers_that_give_up_leave_their_group_to_others_or_take_their_changes_back() {
        let (groups, started) = (Groups::default(), Started::default());
        let first: Vec<Making> = (0..2).map(|key| make(&groups, &started, key)).collect();
        let mut rest: Vec<Making> = (2..6).map(|key| make(&groups, &started, key)).collect();
        drop(rest.remove(1));
        // No other caller waits for these two: their transactions are aborted.
        drop(first);
        assert_eq!(groups.0.lock().under_way, 0);
        assert!((&mut rest[0]).now_or_never().is_none());
        assert_eq!(started.keys()[2], [Some(2), None, Some(4), Some(5)]);
        drop(rest.remove(0));
        let last = started.0.lock().pop().unwrap();
        last.1.send(Ok(())).unwrap();
        for (making, found) in rest.iter_mut().zip([true, false]) {
            assert_eq!(making.now_or_never().unwrap().unwrap(), [found]);
        }
        let mut waiting: Vec<Making> = (0..2).map(|key| make(&groups, &started, key)).collect();
        waiting.push(make(&groups, &started, 2));
        drop(waiting.pop());
        assert!(groups.0.lock().waiting.is_empty());
    }

    /// Callers that are polled only when they were woken, some of which give up, and transactions that end in any
    /// way: every other caller ends.
    fn wake_all(seed: u64) {
        let mut rng = Rng::seed_from_u64(seed);
        let (groups, started) = (Groups::default(), Started::default());
        let mut pool = LocalPool::new();
        let mut callers = Vec::new();
        // Two of the one, or one of the other, make a full group.
        let large = [80, 150].map(|blocks| Bytes::from(vec![0; blocks * BLOCK_SIZE]));
        for key in 0..rng.random_range(1..30) {
            let (groups, started) = (groups.clone(), started.clone());
            let value = rng.random_bool(0.5).then(|| large.choose(&mut rng).cloned()).flatten();
            let call = async move {
                let change = Change { key: vec![key].into(), value };
                let made = groups.make(vec![change], |changes| started.run(changes)).await;
                assert!(made.is_err() || made.unwrap() == [key % 2 == 0]);
            };
            let (call, handle) = abortable(call);
            callers.push((pool.spawner().spawn_local_with_handle(call).unwrap(), handle));
        }
        for step in 0.. {
            assert!(step < 2000, "seed {seed}: {} callers wait for ever", callers.len());
            if rng.random_bool(0.5) {
                pool.run_until_stalled();
                callers.retain_mut(|(call, _)| call.now_or_never().is_none());
                let queue = groups.0.lock();
                assert!(queue.waiting.is_empty() || queue.under_way == IN_FLIGHT, "seed {seed}");
            }
            let Some((_, handle)) = callers.choose(&mut rng) else { break };
            if step < 60 && rng.random_bool(0.1) {
                handle.abort();
            }
            started.0.lock().retain(|(_, end)| !end.is_closed());
            if !started.keys().is_empty() && rng.random_bool(0.5) {
                started.end(if rng.random_bool(0.8) { Ok(()) } else { Err(full()) });
            }
        }
        assert_eq!(groups.0.lock().under_way, 0);
        assert!(groups.0.lock().waiting.is_empty());
    }

    #[test]
    fn no_caller_waits_for_ever() {
        campaign::seeds(300).for_each(wake_all);
    }

    #[test]
    fn a_group_that_fails_leaves_each_caller_its_own_transaction() {
        let (groups, started) = (Groups::default(), Started::default());
        let mut first: Vec<Making> = (0..2).map(|key| make(&groups, &started, key)).collect();
        let mut shared: Vec<Making> = (2..4).map(|key| make(&groups, &started, key)).collect();
        started.end(Err(full()));
        assert!(matches!((&mut first[0]).now_or_never(), Some(Err(TreeError::Full(_)))));
        assert!((&mut shared[0]).now_or_never().is_none());
        started.end(Ok(()));
        started.end(Err(full()));
        for making in &mut shared {
            assert!(making.now_or_never().is_none());
        }
        assert_eq!(started.keys(), [[Some(2)], [Some(3)]]);
        started.end(Ok(()));
        started.end(Err(full()));
        assert_eq!((&mut shared[0]).now_or_never().unwrap().unwrap(), [true]);
        assert!(matches!((&mut shared[1]).now_or_never(), Some(Err(TreeError::Full(_)))));
    }
}
