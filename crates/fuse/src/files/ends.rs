//! How the kernel learns that a file ends earlier than it thinks.
//!
//! When another client has made a file shorter, the kernel drops its pages, but keeps the size until it asks for attributes. It
//! may read before it does. A short answer then shows it the end, unless it has taken an end from another answer since it asked.
//! From an answer of nothing, for pages behind the end, it takes their offset, which is too far. If the request for the page of
//! the true end was sent before, its answer does not count, and the program reads zeros behind the end.
//!
//! So an answer of nothing waits until that request has gone first.

use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_fs::{FsError, Ino};

use super::known::Known;
use super::served::Served;

/// A program that reads on asks for its next page within this time.
const QUIET: Duration = Duration::from_millis(5);
/// The longest wait is so many times as long.
const PATIENCE: u32 = 20;

/// A request for pages, until it is answered.
#[derive(Debug)]
pub(super) struct PageRead {
    known: Arc<Known>,
    ino: Ino,
}

impl PageRead {
    pub(super) fn begin(known: &Arc<Known>, ino: Ino) -> PageRead {
        known.begin_page_read(ino);
        PageRead { known: known.clone(), ino }
    }
}

impl Drop for PageRead {
    fn drop(&mut self) {
        self.known.end_page_read(self.ino);
    }
}

/// Returns when an answer of nothing may be given for pages at an offset of a file. Its own [`PageRead`] has ended.
///
/// # Errors
/// Those of the filesystem.
pub(super) async fn behind_the_end(
    env: &Env,
    served: &Served,
    ino: Ino,
    offset: u64,
) -> Result<(), FsError> {
    let size = served.filesystem.attributes(ino).await?.size;
    if size >= offset {
        return Ok(());
    }
    let mut before = served.known.page_reads(ino);
    for _ in 0..PATIENCE {
        env.sleep(QUIET).await;
        let reads = served.known.page_reads(ino);
        if reads == before && reads.begun == reads.answered {
            break;
        }
        before = reads;
    }
    // The page of the end is locked until the kernel has taken the end from its answer. Nothing waits for that without end: the
    // request for that page may wait for another client, and that one for these pages.
    if let Some(coherence) = served.coherence() {
        env.timeout(QUIET * PATIENCE, coherence.raise_size(ino, size)).await;
    }
    Ok(())
}
