//! Calls of programs: each comes behind what this client has made by itself, as far as it depends on that.

use bytes::Bytes;
use thalweg_fs::{Answer as FileAnswer, Attributes, FsError, Ino};

use super::cache::ChangeGuard;
use super::error::unexpected;
use super::stages::Stages;
use crate::protocol::{Answer, Reply, Request};

impl Stages {
    /// Makes a call. `then` sees each answer where frames are received, before anything that the server sent later; also when this
    /// future was dropped.
    pub(super) async fn call(
        &self,
        request: Request,
        payload: Vec<Bytes>,
        then: impl Fn(&Reply, &Bytes) + Clone + Send + Sync + 'static,
    ) -> Result<(Reply, Bytes), FsError> {
        self.writeback.send_before(&request).await?;
        self.open_files.notify_before(&request).await?;
        self.rpc.call(request, payload, then).await
    }

    /// Makes a call and caches nothing of the answer.
    pub(super) async fn request(&self, request: Request) -> Result<(Answer, Bytes), FsError> {
        let (reply, payload) = self.call(request, Vec::new(), |_, _| {}).await?;
        Ok((reply.answer, payload))
    }

    /// Makes a call that changes something. The client caches nothing that it concerns until it is answered; `begin` runs when that begins.
    pub(super) async fn change(
        &self,
        request: Request,
        payload: Vec<Bytes>,
        begin: impl FnOnce(),
        then: impl Fn(&Reply) + Clone + Send + Sync + 'static,
    ) -> Result<Reply, FsError> {
        let bytes = payload.iter().map(Bytes::len).sum();
        let guard = ChangeGuard::begin(&self.base.cache, request.footprint(bytes).changed());
        begin();
        let then = move |reply: &Reply, _: &Bytes| {
            let _guard = &guard;
            then(reply);
        };
        Ok(self.call(request, payload, then).await?.0)
    }

    /// Attributes, with how long they may be used.
    pub(super) fn shown(&self, attributes: Attributes) -> FileAnswer {
        self.base.cache.valid(attributes)
    }

    /// An answer that names an inode.
    pub(super) fn learned(&self, reply: &Reply) -> Result<FileAnswer, FsError> {
        match reply.answer {
            Answer::Inode(attributes) => Ok(self.shown(attributes)),
            _ => unexpected(),
        }
    }

    /// The attributes of an inode, by a call. With `shown`, the caller's cache shows them to programs.
    pub(super) async fn request_attributes(
        &self,
        ino: Ino,
        shown: bool,
    ) -> Result<FileAnswer, FsError> {
        let request = Request::Attributes { ino, shown };
        let (reply, _) = self.call(request, Vec::new(), |_, _| {}).await?;
        self.learned(&reply)
    }
}
