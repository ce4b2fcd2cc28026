//! The checks of locks, a round at a time.

use std::time::Duration;

use thalweg_env::Env;

use super::agent::{Op, Reply, TestLock};
use super::sides::{Side, Times, make, text};
use crate::failure::{Failure, Outcome};

/// How long a lock that is excluded is watched.
const QUIET: Duration = Duration::from_millis(20);

fn lock(lock: TestLock, wait: bool) -> Op {
    Op::Lock { file: 1, lock, wait }
}

fn unlock(lock: TestLock) -> Op {
    Op::Unlock { file: 1, lock }
}

async fn open(one: &mut Side, two: &mut Side, path: &str) -> Outcome<()> {
    make(one, two, path, "locked").await?;
    one.order(Op::Open { file: 1, path: path.to_owned() }).await?;
    two.order(Op::Open { file: 1, path: path.to_owned() }).await
}

async fn close(one: &mut Side, two: &mut Side, path: String) -> Outcome<()> {
    one.order(Op::Close { file: 1 }).await?;
    two.order(Op::Close { file: 1 }).await?;
    one.order(Op::Unlink { path }).await
}

/// One side begins to wait for a lock that the other one has.
async fn wait(two: &mut Side, wanted: TestLock) -> Outcome<()> {
    two.send(&lock(wanted, true)).await?;
    if two.is_quiet(QUIET).await {
        return Ok(());
    }
    let early = text(&two.receive().await?);
    let what = "a lock that the other side has does not block on";
    Err(Failure::new(format!("{what} {}: {early}", two.place)))
}

/// The side that waits has the lock, since `start`.
async fn is_granted(
    env: &Env,
    two: &mut Side,
    start: thalweg_env::Time,
    times: &mut Times,
) -> Outcome<()> {
    match two.receive().await? {
        Reply::Done => {
            times.push(env.now().since(start));
            Ok(())
        }
        reply => {
            Err(Failure::new(format!("a wait for a lock fails on {}: {}", two.place, text(&reply))))
        }
    }
}

pub(super) async fn flock(
    env: &Env,
    one: &mut Side,
    two: &mut Side,
    path: String,
    times: &mut Times,
) -> Outcome<()> {
    let (shared, exclusive) = (TestLock::FlockShared, TestLock::FlockExclusive);
    open(one, two, &path).await?;
    one.order(lock(exclusive, false)).await?;
    let excludes = "an exclusive lock of the other side does not exclude";
    two.expect(lock(exclusive, false), &Reply::Busy, excludes).await?;
    two.expect(lock(shared, false), &Reply::Busy, excludes).await?;
    wait(two, exclusive).await?;
    let start = env.now();
    one.order(unlock(exclusive)).await?;
    is_granted(env, two, start, times).await?;
    two.order(unlock(exclusive)).await?;
    one.order(lock(shared, false)).await?;
    two.order(lock(shared, false)).await?;
    let excludes = "a shared lock of the other side does not exclude an exclusive one";
    two.expect(lock(exclusive, false), &Reply::Busy, excludes).await?;
    close(one, two, path).await
}

pub(super) async fn posix(
    env: &Env,
    one: &mut Side,
    two: &mut Side,
    path: String,
    times: &mut Times,
) -> Outcome<()> {
    let [first, overlaps, apart] = [0, 5, 20].map(|first| TestLock::Posix { first });
    open(one, two, &path).await?;
    one.order(lock(first, false)).await?;
    let excludes = "a lock of the same bytes by the other side does not exclude";
    two.expect(lock(overlaps, false), &Reply::Busy, excludes).await?;
    two.expect(lock(apart, false), &Reply::Done, "a lock of other bytes fails").await?;
    wait(two, overlaps).await?;
    let start = env.now();
    one.order(unlock(first)).await?;
    is_granted(env, two, start, times).await?;
    one.expect(lock(first, false), &Reply::Busy, excludes).await?;
    close(one, two, path).await
}

/// A process that has a lock is killed.
pub(super) async fn dead_holder(
    env: &Env,
    one: &mut Side,
    two: &mut Side,
    path: String,
    times: &mut Times,
) -> Outcome<()> {
    for held in [TestLock::FlockExclusive, TestLock::Posix { first: 0 }] {
        open(one, two, &path).await?;
        one.order(lock(held, false)).await?;
        wait(two, held).await?;
        let start = env.now();
        one.send(&Op::Die).await?;
        is_granted(env, two, start, times).await?;
        one.restart()?;
        two.order(Op::Close { file: 1 }).await?;
        two.order(Op::Unlink { path: path.clone() }).await?;
    }
    Ok(())
}
