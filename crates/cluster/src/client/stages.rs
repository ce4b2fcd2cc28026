//! The stages of a client, put together, and the calls of programs: each comes behind what this client has made by itself, as
//! far as it depends on that.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::connection::Connector;
use thalweg_env::{Env, Task};
use thalweg_fs::access::AccessLists;
use thalweg_fs::{Answer as FileAnswer, Attributes, FsError, Ino};
use thalweg_net::Traffic;

use super::base::ClientBase;
use super::cache::ChangeGuard;
use super::connection::Connections;
use super::direct_io::DirectIo;
use super::error::{AttachError, expect_answer};
use super::open_files::OpenFiles;
use super::rpc::Rpc;
use super::size_records::SizeRecords;
use super::writeback::{SendGuard, Writeback};
use crate::protocol::{Answer, Reply, Request};

/// The stages that the calls of a filesystem begin at.
pub(super) struct Stages {
    pub(super) base: Arc<ClientBase>,
    pub(super) rpc: Arc<Rpc>,
    pub(super) writeback: Arc<Writeback>,
    pub(super) direct_io: Arc<DirectIo>,
    pub(super) open_files: Arc<OpenFiles>,
    pub(super) size_records: Arc<SizeRecords>,
    pub(super) lists: AccessLists,
    pub(super) connections: Arc<Connections>,
    /// One move to another machine at a time.
    pub(super) moving: tokio::sync::Mutex<()>,
    _tasks: [Task<()>; 4],
}

impl Stages {
    /// Begins a session.
    pub(super) async fn start(
        env: &Env,
        connector: Arc<dyn Connector>,
        base: ClientBase,
    ) -> Result<Stages, AttachError> {
        let (stages, turn) = Stages::start_held(env, connector, base).await?;
        drop(turn);
        Ok(stages)
    }

    /// The same, or goes on with the session of a journal. Nothing is sent until the guard is dropped.
    pub(super) async fn start_held(
        env: &Env,
        connector: Arc<dyn Connector>,
        base: ClientBase,
    ) -> Result<(Stages, SendGuard), AttachError> {
        let base = Arc::new(base);
        let of = || base.clone();
        let rpc = Arc::new(Rpc::new(of()));
        let direct_io = Arc::new(DirectIo::new(of(), rpc.clone()));
        let writeback = Arc::new(Writeback::new(of(), rpc.clone(), direct_io.clone()));
        let open_files = Arc::new(OpenFiles::new(of(), rpc.clone(), writeback.clone()));
        let size_records =
            SizeRecords::new(of(), rpc.clone(), direct_io.clone(), writeback.clone());
        let size_records = Arc::new(size_records);
        let connections = Arc::new(Connections {
            base: of(),
            connector,
            traffic: Traffic::default(),
            writeback: writeback.clone(),
            open_files: open_files.clone(),
            size_records: size_records.clone(),
        });
        // A recall may come before it is known what the server has of a journal: its mutations are sent behind that.
        let turn = writeback.hold().await;
        let connection = connections.attach_and_reclaim().await?;
        let (keeping, renewing) = (connections.clone(), connections.clone());
        let (sending, reaching) = (writeback.clone(), direct_io.clone());
        let tasks = [
            env.spawn(async move { keeping.run(connection).await }),
            env.spawn(async move { renewing.renew_leases().await }),
            env.spawn(async move { sending.run().await }),
            env.spawn(async move { reaching.run().await }),
        ];
        let stages = Stages {
            lists: AccessLists::default(),
            connections,
            moving: tokio::sync::Mutex::default(),
            _tasks: tasks,
            base,
            rpc,
            writeback,
            direct_io,
            open_files,
            size_records,
        };
        Ok((stages, turn))
    }

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
        expect_answer!(reply.answer, Answer::Inode(attributes) => self.shown(attributes))
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

impl Drop for Stages {
    /// Ends the connection with the last handle of a client.
    fn drop(&mut self) {
        self.connections.abandon();
    }
}
