//! How the kernel learns that a file ends earlier than it thinks.
//!
//! When another client has made a file shorter, the kernel drops its pages, but keeps the size until it asks for attributes. It
//! may read before it does. A short answer then shows it the end, unless it has taken an end from another answer since it asked.
//! From an answer of nothing, for pages behind the end, it takes their offset, which is too far. If the request for the page of
//! the true end was sent before, its answer does not count, and the program reads zeros behind the end.
//!
//! So an answer of nothing waits until that request has gone first.

use std::time::Duration;

use thalweg_env::Env;
use thalweg_fs::Ino;

use super::page_reads::PageRead;
use super::served::Served;

/// A program that reads on asks for its next page within this time.
const QUIET: Duration = Duration::from_millis(5);
/// The longest wait is so many times as long.
const PATIENCE: u32 = 20;

/// Returns when an answer of nothing may be given to a read of pages at an offset of a file. If it shows the true end, for which
/// other reads wait, it is returned, and ends behind the answer.
pub(super) async fn behind_the_end(
    env: &Env,
    served: &Served,
    (ino, offset): (Ino, u64),
    read: PageRead,
) -> Option<PageRead> {
    // Nothing else changes files behind the kernel's back.
    if !served.filesystem.is_remote() {
        return Some(read);
    }
    let size = async || served.filesystem.attributes(ino).await.ok().map(|it| it.size);
    let Some(end) = size().await.filter(|end| *end < offset) else { return Some(read) };
    let reads = read.reads();
    // It waits for the others, and they do not wait for it.
    drop(read);
    let mut before = reads.counts();
    for _ in 0..PATIENCE {
        env.sleep(QUIET).await;
        let now = reads.counts();
        if now == before && now.0 == now.1 {
            break;
        }
        before = now;
    }
    // The kernel locks the page of the end until it has taken the end from its answer. This does not wait without end: the request for
    // that page may wait for another client, and that one for these pages. A page of the end without bytes has no place here.
    if let Some(coherence) = served.coherence()
        && size().await == Some(end)
    {
        env.timeout(QUIET * PATIENCE, coherence.raise_size(ino, end)).await;
    }
    None
}
