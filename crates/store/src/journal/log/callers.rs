//! Group commit: callers that want their changes durable share commits.
//!
//! A flush costs the same for one caller and for many. Callers that write and sync in a loop come
//! back soon after a commit: a commit that begins with the first of them leaves the others to the
//! next one. So a commit waits for about as many callers as shared the last one, but no longer than
//! a commit takes: that is the most that a caller loses by missing it. A lone caller's commit
//! begins at once.
//!
//! One task commits, and callers advance it ([`Push`]): the first caller begins the commit, and the last one
//! that it waits for carries it out on its own thread, unless other callers are ready to run there. The callers
//! between them wake no task. The end of a commit wakes each caller that it covers, once, and no other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::{Either, select};
use slab::Slab;
use smallvec::SmallVec;
use thalweg_env::{Alarm, Env, Push, Time, may_block};
use tokio::sync::Notify;

use crate::lock::BriefMutex;

/// The longest wait for the next caller, and for all callers, however long commits take.
const LONGEST: Duration = Duration::from_millis(1);
const LONGEST_ALL: Duration = Duration::from_millis(6);

/// The callers of a task that commits versions in ascending order.
pub struct Callers {
    /// The newest version that survives a crash.
    durable: AtomicU64,
    line: BriefMutex<Line>,
    /// Wakes the task.
    wake: Notify,
    task: Push,
}

/// The callers that wait, and what is known of recent commits.
#[derive(Debug, Default)]
struct Line {
    waiting: Slab<Caller>,
    /// Of these, callers whose version is not durable.
    open: usize,
    /// The newest version that a caller wanted.
    wanted: u64,
    /// A commit is asked for by no caller that waits.
    asked: bool,
    phase: Phase,
    /// When the last caller came.
    last: Time,
    /// Callers that shared recent commits.
    expected: usize,
    /// Callers of the commit under way.
    came: usize,
    /// It began without a look at callers that are about to come.
    is_cut: bool,
    /// Moving average of a commit's duration.
    span: Duration,
}

#[derive(Debug)]
struct Caller {
    version: u64,
    is_open: bool,
    waker: Option<Waker>,
}

/// What the task does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// It waits to be asked.
    #[default]
    Idle,
    /// It waits for callers that are likely to come.
    Gathering,
    /// It commits.
    Committing,
}

impl Callers {
    /// No callers of a task that has committed everything up to version `durable`.
    pub fn new(durable: u64) -> Callers {
        let line = Line { wanted: durable, ..Line::default() };
        Callers {
            durable: AtomicU64::new(durable),
            line: BriefMutex::new(line),
            wake: Notify::new(),
            task: Push::default(),
        }
    }

    /// The task's: see [`Env::spawn_pushed`].
    pub fn task(&self) -> &Push {
        &self.task
    }

    /// The newest version that survives a crash.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// The newest version that a caller wanted durable.
    pub fn wanted(&self) -> u64 {
        self.line.lock().wanted
    }

    /// Asks for a commit without waiting for it.
    pub fn ask(&self) {
        self.line.lock().asked = true;
        self.wake.notify_one();
    }

    /// Waits until a version is durable, and advances the task where no other caller does. `check` says why it never
    /// will be; `now` is the time.
    ///
    /// # Errors
    /// The check's.
    pub async fn wait<E>(
        &self,
        version: u64,
        now: Time,
        check: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        let (waiting, leads) = self.enter(version, now);
        if leads {
            self.task.push(|| self.wake.notify_one());
        }
        std::future::poll_fn(|cx| {
            if self.durable() >= version {
                return Poll::Ready(Ok(()));
            }
            waiting.register(cx);
            // A change of either from now on finds the waker.
            match check() {
                _ if self.durable() >= version => Poll::Ready(Ok(())),
                Ok(()) => Poll::Pending,
                failed => Poll::Ready(failed),
            }
        })
        .await
    }

    /// Counts a caller until the guard is dropped; returns also whether it is to advance the task: the first one and
    /// the last of the expected ones.
    fn enter(&self, version: u64, now: Time) -> (Waiting<'_>, bool) {
        let mut line = self.line.lock();
        line.wanted = line.wanted.max(version);
        // A commit may have ended since the caller looked.
        let is_open = self.durable() < version;
        line.open += usize::from(is_open);
        line.last = now;
        let key = line.waiting.insert(Caller { version, is_open, waker: None });
        let leads = match line.phase {
            Phase::Idle => true,
            Phase::Gathering => line.open >= line.expected,
            // Once it has committed, the task looks for callers.
            Phase::Committing => false,
        };
        (Waiting { callers: self, key }, leads)
    }

    /// For the task: waits until a commit is asked for.
    pub async fn asked(&self) {
        loop {
            {
                let mut line = self.line.lock();
                if std::mem::take(&mut line.asked) || line.open > 0 {
                    return;
                }
            }
            self.wake.notified().await;
        }
    }

    /// For the task: waits for the callers that are likely to come.
    pub async fn gather(&self, env: &Env, alarm: &mut Alarm) {
        let (expected, span) = {
            let mut line = self.line.lock();
            line.phase = Phase::Gathering;
            (line.expected, line.span)
        };
        let yields = expected > 1 && !may_block();
        if yields {
            // Callers that are ready to run come first.
            tokio::task::yield_now().await;
        }
        let (patience, begun) = (span.min(LONGEST), env.now());
        while !patience.is_zero() {
            let last = {
                let line = self.line.lock();
                if line.open >= expected {
                    break;
                }
                line.last.max(begun)
            };
            let until = (last + patience).min(begun + span.min(LONGEST_ALL));
            let now = env.now();
            if now >= until {
                break;
            }
            // Each arrival extends the deadline; one sleep serves until it is over.
            let over = std::pin::pin!(alarm.sleep(until.since(now)));
            let full = std::pin::pin!(self.full(expected));
            if let Either::Left(_) = select(full, over).await {
                break;
            }
        }
        if yields {
            // More may have come than were expected.
            tokio::task::yield_now().await;
        }
        let mut line = self.line.lock();
        (line.phase, line.came) = (Phase::Committing, line.open);
        line.is_cut = may_block();
    }

    /// Waits until `expected` callers wait.
    async fn full(&self, expected: usize) {
        while self.line.lock().open < expected {
            self.wake.notified().await;
        }
    }

    /// For the task: everything up to a version survives a crash. Wakes the callers that it covers.
    pub fn advance(&self, version: u64) {
        let mut line = self.line.lock();
        self.durable.fetch_max(version, Ordering::AcqRel);
        let Line { waiting, open, .. } = &mut *line;
        let covered = waiting.iter_mut().filter(|(_, it)| it.is_open && it.version <= version);
        let mut wakers = SmallVec::<[Waker; 32]>::new();
        for (_, caller) in covered {
            (caller.is_open, *open) = (false, *open - 1);
            wakers.extend(caller.waker.take());
        }
        drop(line);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Has all callers look at their check: no commit may come any more.
    pub fn fail(&self) {
        let mut line = self.line.lock();
        let wakers = line.waiting.iter_mut().filter_map(|(_, caller)| caller.waker.take());
        let wakers: Vec<Waker> = wakers.collect();
        drop(line);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// For the task: a commit has ended that took `span`.
    pub fn ended(&self, span: Duration) {
        let mut line = self.line.lock();
        // A commit that began with the last of the expected callers missed those that have come since.
        let is_cut = line.is_cut && line.came >= line.expected.max(1);
        let missed = if is_cut { line.open } else { 0 };
        // The expectation falls slowly after callers have gone, and rises at once.
        let fallen = line.expected - line.expected.div_ceil(8);
        line.expected = (line.came + missed).max(fallen);
        (line.phase, line.came) = (Phase::Idle, 0);
        line.span = (line.span * 7 + span) / 8;
    }
}

/// A caller that waits, until dropped.
struct Waiting<'a> {
    callers: &'a Callers,
    key: usize,
}

impl Waiting<'_> {
    fn register(&self, cx: &Context<'_>) {
        let mut line = self.callers.line.lock();
        if let Some(caller) = line.waiting.get_mut(self.key)
            && !caller.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            caller.waker = Some(cx.waker().clone());
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut line = self.callers.line.lock();
        if let Some(caller) = line.waiting.try_remove(self.key) {
            line.open -= usize::from(caller.is_open);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use thalweg_env::Task;

    use super::*;

    /// Counts its wake-ups.
    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Counted>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    type Waits<'a> = Pin<Box<dyn Future<Output = Result<(), Infallible>> + Send + 'a>>;

    struct Caller<'a> {
        wakes: Arc<Counted>,
        waits: Waits<'a>,
    }

    impl<'a> Caller<'a> {
        /// A caller that has asked; it may have got its answer.
        fn of(callers: &'a Callers, version: u64) -> (Caller<'a>, bool) {
            let waits = Box::pin(callers.wait(version, Time::ZERO, || Ok(())));
            let mut caller = Caller { wakes: Arc::default(), waits };
            let is_done = caller.poll();
            (caller, is_done)
        }

        fn poll(&mut self) -> bool {
            let waker = Waker::from(self.wakes.clone());
            self.waits.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        }

        fn wakes(&self) -> usize {
            self.wakes.0.load(Ordering::Relaxed)
        }
    }

    /// Starts a task that commits whatever is wanted; returns the number of its commits.
    async fn started(env: &Env, callers: &Arc<Callers>) -> (Task<()>, Arc<AtomicUsize>) {
        let commits = Arc::new(AtomicUsize::new(0));
        let task = env.spawn_pushed(callers.task(), {
            let (env, callers, commits) = (env.clone(), callers.clone(), commits.clone());
            async move {
                let mut alarm = env.alarm();
                loop {
                    callers.asked().await;
                    callers.gather(&env, &mut alarm).await;
                    commits.fetch_add(1, Ordering::Relaxed);
                    callers.advance(callers.wanted());
                    callers.ended(Duration::from_secs(1));
                }
            }
        });
        tokio::task::yield_now().await;
        (task, commits)
    }

    fn done(commits: &AtomicUsize) -> usize {
        commits.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn a_lone_caller_commits_without_a_wake_up() {
        let (env, callers) = (Env::real(), Arc::new(Callers::new(0)));
        let (_task, commits) = started(&env, &callers).await;
        for version in 1..100 {
            let (caller, is_done) = Caller::of(&callers, version);
            assert!(is_done);
            assert_eq!((done(&commits), caller.wakes()), (version as usize, 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_of_the_expected_callers_commits_for_all() {
        let (env, callers) = (Env::simulated(1), Arc::new(Callers::new(0)));
        let (_task, commits) = started(&env, &callers).await;
        {
            let mut line = callers.line.lock();
            (line.expected, line.span) = (3, Duration::from_secs(1));
        }
        let mut version = 0;
        let mut come = |count: usize| {
            let came: Vec<_> = (0..count)
                .map(|_| {
                    version += 1;
                    Caller::of(&callers, version)
                })
                .collect();
            came
        };
        let mut first = come(2);
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert_eq!(done(&commits), 0, "it waits for the third");
        let mut last = come(1);
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert_eq!(done(&commits), 1);
        assert!(last[0].0.poll());
        for (caller, _) in &mut first {
            assert_eq!(caller.wakes(), 1);
            assert!(caller.poll());
        }
    }

    #[tokio::test]
    async fn a_commit_wakes_the_callers_that_it_covers() {
        let callers = Callers::new(0);
        let mut waiting: Vec<_> = (1..=4).map(|version| Caller::of(&callers, version).0).collect();
        callers.advance(2);
        let wakes: Vec<usize> = waiting.iter().map(Caller::wakes).collect();
        assert_eq!(wakes, [1, 1, 0, 0]);
        assert_eq!((waiting[0].poll(), waiting[2].poll()), (true, false));
        assert_eq!(callers.line.lock().open, 2);
        // A caller that gives up does not count any more.
        drop(waiting.pop());
        assert_eq!(callers.line.lock().open, 1);
        callers.fail();
        assert_eq!(waiting[2].wakes(), 1);
    }
}
