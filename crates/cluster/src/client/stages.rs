//! The stages of a client, put together.

use std::sync::Arc;

use thalweg_env::connection::Connector;
use thalweg_env::{Env, Task};
use thalweg_fs::access::AccessLists;

use super::base::ClientBase;
use super::connection::Connections;
use super::direct_io::DirectIo;
use super::error::AttachError;
use super::open_files::OpenFiles;
use super::options::Options;
use super::rpc::Rpc;
use super::size_records::SizeRecords;
use super::writeback::Writeback;

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
    _tasks: [Task<()>; 4],
}

impl Stages {
    /// Connects, and begins a session.
    pub(super) async fn connect(
        env: &Env,
        connector: Box<dyn Connector>,
        options: Options,
    ) -> Result<Stages, AttachError> {
        let base = Arc::new(ClientBase::new(env, options));
        let of = || base.clone();
        let rpc = Arc::new(Rpc::new(of()));
        let direct_io = Arc::new(DirectIo::new(of(), rpc.clone()));
        let writeback = Arc::new(Writeback::new(of(), rpc.clone(), direct_io.clone()));
        let open_files = Arc::new(OpenFiles::new(of(), rpc.clone(), writeback.clone()));
        let size_records =
            SizeRecords::new(of(), rpc.clone(), direct_io.clone(), writeback.clone());
        let size_records = Arc::new(size_records);
        let connections = Arc::new(Connections::new(
            of(),
            connector,
            writeback.clone(),
            open_files.clone(),
            size_records.clone(),
        ));
        let connection = connections.attach().await?;
        let (keeping, renewing) = (connections.clone(), connections.clone());
        let (sending, reaching) = (writeback.clone(), direct_io.clone());
        let tasks = [
            env.spawn(async move { keeping.run(connection).await }),
            env.spawn(async move { renewing.renew_leases().await }),
            env.spawn(async move { sending.run().await }),
            env.spawn(async move { reaching.run().await }),
        ];
        Ok(Stages {
            lists: AccessLists::default(),
            connections,
            _tasks: tasks,
            base,
            rpc,
            writeback,
            direct_io,
            open_files,
            size_records,
        })
    }
}

impl Drop for Stages {
    /// Ends the connection with the last handle of a client.
    fn drop(&mut self) {
        self.connections.abandon();
    }
}
