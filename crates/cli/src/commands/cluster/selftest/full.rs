//! The checks of a full disk: a quota of the test's own directory makes it one.

use super::agent::{Op, Reply};
use super::sides::{Side, Times, text};
use crate::failure::{Failure, Outcome};

/// Bytes of the disk.
const DISK: u64 = 1 << 20;
/// Bytes of the quota that are for the directory itself and for the ends of files.
const SPARE: u64 = 64 << 10;

/// A full disk refuses what does not fit, and the other mount sees everything that was acknowledged.
pub(super) async fn full(
    one: &mut Side,
    two: &mut Side,
    path: String,
    times: &mut Times,
) -> Outcome<()> {
    let file = format!("{path}/f");
    if !limit(one, &path).await? {
        return Ok(());
    }
    let bytes = fill(one, &file, 2 * DISK).await?;
    if !(DISK - SPARE..=DISK).contains(&bytes) {
        return Err(Failure::new(format!("{bytes} bytes fit into {DISK}")));
    }
    let is_there = |reply: &Reply| *reply == Reply::Filled(bytes);
    two.sees(times, Op::Filled { path: file.clone() }, "what a full disk took", is_there).await?;
    remove(one, &path, &file).await
}

/// The room of a removed file that the other mount has read comes back at once.
pub(super) async fn returned(
    one: &mut Side,
    two: &mut Side,
    path: String,
    times: &mut Times,
) -> Outcome<()> {
    let (file, next) = (format!("{path}/f"), format!("{path}/g"));
    if !limit(one, &path).await? {
        return Ok(());
    }
    let bytes = fill(one, &file, 2 * DISK).await?;
    two.expect(Op::Filled { path: file.clone() }, &Reply::Filled(bytes), "a full file").await?;
    one.order(Op::Unlink { path: file }).await?;
    let again = Op::Fill { path: next.clone(), most: DISK - SPARE };
    let fits = |reply: &Reply| *reply == Reply::Filled(DISK - SPARE);
    two.sees(times, again, "the room of a removed file", fits).await?;
    remove(one, &path, &next).await
}

/// Makes a directory that takes no more than the disk; false where this client may set no quota.
async fn limit(side: &mut Side, path: &str) -> Outcome<bool> {
    side.order(Op::MakeDirectory { path: path.to_owned() }).await?;
    match side.call(Op::Limit { path: path.to_owned(), bytes: DISK }).await? {
        Reply::Done => Ok(true),
        _ => {
            side.order(Op::RemoveDirectory { path: path.to_owned() }).await?;
            Ok(false)
        }
    }
}

async fn fill(side: &mut Side, path: &str, most: u64) -> Outcome<u64> {
    match side.call(Op::Fill { path: path.to_owned(), most }).await? {
        Reply::Filled(bytes) => Ok(bytes),
        other => Err(Failure::new(format!("writing until there is no room: {}", text(&other)))),
    }
}

async fn remove(side: &mut Side, path: &str, file: &str) -> Outcome<()> {
    side.order(Op::Unlink { path: file.to_owned() }).await?;
    side.order(Op::RemoveDirectory { path: path.to_owned() }).await
}
