//! What other clients drop or hear of before a call is answered.

use std::ops::Range;

use futures::future::join;
use thalweg_fs::Ino;

use super::Shared;
use super::context::RequestContext;
use super::pages::Late;
use super::response::Response;
use crate::protocol::Changed;

impl Shared {
    /// A client's kernel is about to cache pages of a file: from here on it is told of each change of them.
    pub(super) async fn hold_pages(&self, ctx: &RequestContext<'_>, ino: Ino, range: Range<u64>) {
        let serial = ctx.session.serial;
        while !self.capabilities.lock().read_pages(serial, ino, &range) {
            // What the owner sends before it releases the file may concern pages of this client, which drops none before
            // its read is answered. So it is not told before.
            let recalls = self.capabilities.recalls(serial, &[ino]);
            self.invalidate(ctx, recalls).await;
        }
    }

    /// Returns when the other sessions have dropped what outlived the changes of a call, and know what they are to know of them; and
    /// its own one what is outdated of what it shows.
    pub(super) async fn settle(&self, ctx: &RequestContext<'_>, shows: Option<&Response>) {
        let late = ctx.take_late();
        if !late.is_empty() {
            let (free, held) = self.capabilities.lock().divide(late);
            join(self.drop_unless_held(held), self.invalidate(ctx, free)).await;
        }
        if let Some(outcome) = shows {
            self.settle_pages(ctx.session.serial, &outcome.tells()).await;
        }
    }

    /// Returns when a client has dropped the pages of these files that it has read while they were changed. If it were told
    /// of a new size before, it would see zeros where the file goes on.
    async fn settle_pages(&self, session: u64, told: &[Ino]) {
        let ended = self.capabilities.lock().pages_ended.clone();
        loop {
            let next = ended.notified();
            tokio::pin!(next);
            next.as_mut().enable();
            {
                let pages = &self.capabilities.lock().pages;
                if !told.iter().any(|ino| pages.has_outdated(session, *ino)) {
                    return;
                }
            }
            next.await;
        }
    }

    /// The size of a file that other clients have open.
    pub(super) async fn size_for_others(&self, ctx: &RequestContext<'_>, ino: Ino) -> Option<u64> {
        if !self.open_files.is_open_by_others(ctx.session.serial, ino) {
            return None;
        }
        Some(self.filesystem.attributes(ino).await.ok()?.attributes.size)
    }

    /// A file has perhaps grown since it had the size `before`: the other clients that have it open are told, since their programs
    /// may map it without asking for its size.
    pub(super) async fn tell_size(&self, ctx: &RequestContext<'_>, ino: Ino, before: Option<u64>) {
        let Some(before) = before else { return };
        let Some(size) = self.size_for_others(ctx, ino).await.filter(|size| *size > before) else {
            return;
        };
        let change = Changed::Size { ino, size };
        ctx.waits_for_others();
        for session in self.open_files.others(ctx.session.serial, ino) {
            ctx.is_late(Late { number: 0, session, change: change.clone() });
        }
    }
}
