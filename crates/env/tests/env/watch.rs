//! The tasks that watch a value wake in the order in which they began to wait.

use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_env::watch::{self, Closed};
use thalweg_sim::runtime;

const WATCHERS: usize = 100;

/// Lets every other task run until it waits.
async fn settle(env: &Env) {
    env.sleep(std::time::Duration::from_millis(1)).await;
}

#[test]
fn watchers_wake_in_the_order_of_their_waiting() {
    runtime::run(1, |env| async move {
        let (sender, receiver) = watch::channel(0);
        let woken = Arc::new(Mutex::new(Vec::new()));
        for number in 0..WATCHERS {
            let (mut receiver, woken) = (receiver.clone(), woken.clone());
            let watching = async move {
                while receiver.changed().await.is_ok() {
                    woken.lock().push((*receiver.borrow(), number));
                }
                woken.lock().push((usize::MAX, number));
            };
            env.spawn(watching).detach();
        }
        for value in 1..4 {
            settle(&env).await;
            sender.send_replace(value);
        }
        settle(&env).await;
        drop(sender);
        settle(&env).await;
        let all = |value| (0..WATCHERS).map(move |number| (value, number));
        let expected: Vec<_> = [1, 2, 3, usize::MAX].into_iter().flat_map(all).collect();
        assert_eq!(*woken.lock(), expected);
    });
}

#[test]
fn a_receiver_sees_each_change_once_and_the_last_one_before_the_end() {
    runtime::run(1, |_| async move {
        let (sender, mut receiver) = watch::channel(1);
        assert_eq!(receiver.has_changed(), Ok(false));
        assert_eq!(sender.send_replace(2), 1);
        let late = sender.subscribe();
        assert_eq!((receiver.has_changed(), late.has_changed()), (Ok(true), Ok(false)));
        assert_eq!(receiver.changed().await, Ok(()));
        assert_eq!((*receiver.borrow(), receiver.has_changed()), (2, Ok(false)));

        assert!(!sender.send_if_modified(|_| false));
        assert_eq!(receiver.has_changed(), Ok(false));
        sender.send_modify(|value| *value += 1);
        assert_eq!(*receiver.borrow_and_update(), 3);
        assert_eq!(receiver.has_changed(), Ok(false));
        sender.send_replace(4);
        assert_eq!(receiver.wait_for(|value| *value == 4).await, Ok(()));

        let other = sender.clone();
        sender.send_replace(5);
        drop(sender);
        assert_eq!(receiver.has_changed(), Ok(true));
        drop(other);
        assert_eq!(receiver.has_changed(), Err(Closed));
        assert_eq!(receiver.clone().wait_for(|value| *value == 6).await, Err(Closed));
        assert_eq!(receiver.changed().await, Ok(()));
        assert_eq!(*receiver.borrow(), 5);
        assert_eq!(receiver.changed().await, Err(Closed));
    });
}

#[test]
fn a_sender_waits_until_no_receiver_is_left() {
    runtime::run(1, |env| async move {
        let (sender, receiver) = watch::channel(());
        let other = receiver.clone();
        let ended = Arc::new(Mutex::new(false));
        let (waiting, ends) = (sender.clone(), ended.clone());
        env.spawn(async move {
            waiting.closed().await;
            *ends.lock() = true;
        })
        .detach();
        drop(receiver);
        settle(&env).await;
        assert!(!*ended.lock());
        drop(other);
        settle(&env).await;
        assert!(*ended.lock());
        drop(sender.subscribe());
        sender.closed().await;
    });
}

/// In real time, on threads: no waiting task misses a change.
#[test]
fn no_change_is_missed_between_threads() {
    const CHANGES: u64 = 20_000;
    let (sender, receiver) = watch::channel(0);
    let follow = |mut receiver: watch::Receiver<u64>| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut last = 0;
            while receiver.changed().await.is_ok() {
                let value = *receiver.borrow_and_update();
                assert!(value >= last);
                last = value;
            }
            last
        })
    };
    std::thread::scope(|scope| {
        let following: Vec<_> = (0..3)
            .map(|_| {
                let receiver = receiver.clone();
                scope.spawn(move || follow(receiver))
            })
            .collect();
        scope.spawn(move || (1..=CHANGES).for_each(|value| sender.send_modify(|it| *it = value)));
        for it in following {
            assert_eq!(it.join().unwrap(), CHANGES);
        }
    });
}
