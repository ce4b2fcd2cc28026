//! Nodes are killed at once, with every task that they started.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thalweg_env::{Env, Push};
use thalweg_sim::runtime;
use tokio::sync::Notify;

/// Counts a millisecond at a time, for ever.
async fn tick(env: Env, ticks: Arc<AtomicU64>) {
    loop {
        env.sleep(Duration::from_millis(1)).await;
        ticks.fetch_add(1, Ordering::Relaxed);
    }
}

const WHILE: Duration = Duration::from_millis(100);

#[test]
fn a_killed_node_takes_its_detached_tasks_along_and_no_others() {
    runtime::run(1, |env| async move {
        let [direct, detached, nested, outside] =
            std::array::from_fn(|_| Arc::<AtomicU64>::default());
        let (first, second) = (env.node(), env.node());
        first.env().spawn(tick(first.env().clone(), direct.clone())).detach();
        let (inner, inner_ticks) = (first.env().clone(), [detached.clone(), nested.clone()]);
        // A task that ends, and leaves two behind, one of them started by the other.
        let starter = first.env().spawn(async move {
            let [detached, nested] = inner_ticks;
            let inner2 = inner.clone();
            inner.spawn(tick(inner.clone(), detached)).detach();
            inner
                .spawn(async move {
                    inner2.spawn(tick(inner2.clone(), nested)).detach();
                })
                .detach();
        });
        assert_eq!(starter.await, Some(()));
        second.env().spawn(tick(env.clone(), outside.clone())).detach();
        env.sleep(WHILE).await;
        let counts = || [&direct, &detached, &nested].map(|ticks| ticks.load(Ordering::Relaxed));
        assert!(counts().iter().all(|count| *count > 50), "{:?}", counts());
        assert_eq!((first.tasks(), second.tasks()), (3, 1));

        first.kill();
        let (killed, others) = (counts(), outside.load(Ordering::Relaxed));
        first.gone().await;
        assert_eq!(first.tasks(), 0);
        env.sleep(WHILE).await;
        assert_eq!(counts(), killed);
        assert!(outside.load(Ordering::Relaxed) > others + 50);
        drop(second);
        let dropped = outside.load(Ordering::Relaxed);
        env.sleep(WHILE).await;
        assert_eq!(outside.load(Ordering::Relaxed), dropped);
    });
}

#[test]
fn a_task_of_a_killed_node_never_runs_and_ends_without_a_result() {
    runtime::run(2, |env| async move {
        let node = env.node();
        let waiting = node.env().spawn(std::future::pending::<u64>());
        node.kill();
        let late = node.env().spawn(async { 7 });
        assert_eq!((waiting.await, late.await), (None, None));
        node.gone().await;
    });
}

#[test]
fn a_node_inside_a_node_is_killed_with_it_and_not_the_other_way_round() {
    runtime::run(3, |env| async move {
        let outer = env.node();
        let (one, two) = (outer.env().node(), outer.env().node());
        let ticks = Arc::<AtomicU64>::default();
        one.env().spawn(tick(env.clone(), ticks.clone())).detach();
        two.env().spawn(tick(env.clone(), ticks.clone())).detach();
        one.kill();
        one.gone().await;
        assert_eq!((outer.tasks(), two.tasks()), (1, 1));
        outer.kill();
        outer.gone().await;
        assert_eq!(two.tasks(), 0);
        let killed = ticks.load(Ordering::Relaxed);
        env.sleep(WHILE).await;
        assert_eq!(ticks.load(Ordering::Relaxed), killed);
    });
}

/// What a task of the node holds is dropped before the node is gone: a disk of its own can be opened again.
#[test]
fn a_node_that_is_gone_holds_nothing() {
    runtime::run(4, |env| async move {
        let (node, held) = (env.node(), Arc::new(()));
        for _ in 0..10 {
            let (held, env2) = (held.clone(), env.clone());
            node.env()
                .spawn(async move {
                    env2.sleep(WHILE).await;
                    drop(held);
                })
                .detach();
        }
        assert_eq!(Arc::strong_count(&held), 11);
        node.kill();
        node.gone().await;
        assert_eq!(Arc::strong_count(&held), 1);
    });
}

#[test]
fn a_push_does_not_advance_a_task_of_a_killed_node() {
    runtime::run(5, |env| async move {
        let (node, push, wanted) = (env.node(), Push::default(), Arc::new(Notify::new()));
        let done = Arc::<AtomicU64>::default();
        let task = node.env().spawn_pushed(&push, {
            let (wanted, done) = (wanted.clone(), done.clone());
            async move {
                loop {
                    wanted.notified().await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        env.sleep(WHILE).await;
        push.push(|| wanted.notify_one());
        assert_eq!(done.load(Ordering::Relaxed), 1);
        node.kill();
        push.push(|| wanted.notify_one());
        assert_eq!(done.load(Ordering::Relaxed), 1);
        assert_eq!(task.await, None);
    });
}

#[test]
fn a_paused_node_stands_still_and_goes_on_as_if_nothing_had_happened() {
    runtime::run(9, |env| async move {
        let [within, nested, outside] = std::array::from_fn(|_| Arc::<AtomicU64>::default());
        let node = env.node();
        let inner = node.env().node();
        node.env().spawn(tick(node.env().clone(), within.clone())).detach();
        inner.env().spawn(tick(inner.env().clone(), nested.clone())).detach();
        env.spawn(tick(env.clone(), outside.clone())).detach();
        let counts = || [&within, &nested, &outside].map(|ticks| ticks.load(Ordering::Relaxed));
        env.sleep(WHILE).await;
        node.pause();
        let [before, nested_before, outside_before] = counts();
        // A task that is started meanwhile waits, too.
        let started = node.env().spawn(async { 7 });
        env.sleep(WHILE).await;
        let [paused, nested_paused, outside_paused] = counts();
        assert_eq!((paused, nested_paused), (before, nested_before));
        assert!(outside_paused > outside_before + 50);
        node.resume();
        assert_eq!(started.await, Some(7));
        env.sleep(WHILE).await;
        let [after, nested_after, _] = counts();
        assert!(after > paused + 50 && nested_after > nested_paused + 50);
        // A node that is paused can be killed.
        node.pause();
        node.kill();
        node.gone().await;
        assert_eq!(node.tasks(), 0);
    });
}

/// Machines have wall clocks of their own, and these are set by hand now and then. The other clock goes on.
#[test]
fn a_wall_clock_that_is_set_is_that_of_one_node() {
    runtime::run(7, |env| async move {
        const SECOND: i64 = 1_000_000_000;
        let (outer, other) = (env.node(), env.node());
        let inner = outer.env().node();
        env.sleep(Duration::from_secs(10)).await;
        let now = env.now();
        outer.shift_wall_clock(100 * SECOND);
        inner.shift_wall_clock(-50 * SECOND);
        let shown = [&env, outer.env(), inner.env(), other.env()].map(Env::wall_clock);
        assert_eq!(shown, [10, 110, 60, 10]);
        outer.shift_wall_clock(-200 * SECOND);
        assert_eq!(outer.env().wall_nanos(), 0, "it shows no time before 1970");
        assert_eq!((outer.env().now(), env.now()), (now, now));
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(other.env().wall_clock(), 11);
    });
}
