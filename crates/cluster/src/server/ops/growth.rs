//! Files that grow while several clients have them open.

use thalweg_fs::Ino;

use super::super::capabilities::Late;
use super::super::context::RequestContext;
use super::super::open_files::OpenFiles;
use crate::protocol::Changed;

/// A change of a file that other clients have open: their programs may map it without asking for its size, so they are told
/// when it has grown.
pub(super) struct Growth<'a, 'c> {
    ctx: &'a RequestContext<'c>,
    open_files: &'a OpenFiles,
    ino: Ino,
    /// Its size before the change.
    before: u64,
}

impl<'a, 'c> Growth<'a, 'c> {
    /// A change is about to be carried out; `None` if no other client has the file open.
    pub(super) async fn watch(
        ctx: &'a RequestContext<'c>,
        open_files: &'a OpenFiles,
        ino: Ino,
    ) -> Option<Growth<'a, 'c>> {
        let before = size_for_others(ctx, open_files, ino).await?;
        Some(Growth { ctx, open_files, ino, before })
    }

    /// The change was carried out.
    pub(super) async fn notify(growth: Option<Growth<'a, 'c>>) {
        let Some(Growth { ctx, open_files, ino, before }) = growth else { return };
        let size = size_for_others(ctx, open_files, ino).await;
        let Some(size) = size.filter(|size| *size > before) else { return };
        ctx.wait_for_others();
        let others = open_files.others(ctx.session.serial, ino).into_iter();
        let late = |session| Late { number: 0, session, change: Changed::Size { ino, size } };
        ctx.add_late(others.map(late));
    }
}

/// The size of a file that other clients have open.
async fn size_for_others(
    ctx: &RequestContext<'_>,
    open_files: &OpenFiles,
    ino: Ino,
) -> Option<u64> {
    if !open_files.is_open_by_others(ctx.session.serial, ino) {
        return None;
    }
    Some(ctx.files.attributes(ino).await.ok()?.attributes.size)
}
