//! A filesystem behind a server, as its clients see it.
//!
//! A [`Client`] is a [`Filesystem`](thalweg_fs::Filesystem) that asks three questions at each call:
//!
//! - cached? `cache`: what may be used without a call, under the lease of the `session`;
//! - delegated? `delegation`: what this client changes by itself. `queue` has these mutations, and `writeback` sends them; `local` gets what such
//!   changes need: inode `numbers`, `room`; `write_bounds`, `size_records` are about files whose bytes it stores past the server with `direct_io`;
//! - else a call: `calls`, each behind what it depends on, made by `rpc` on as many connections as it takes.
//!
//! Each inode that a client knows is one node of `inodes`, with what is `cached` of it and what is `delegated`. `names`, `content`, `open_files`, `locks`,
//! and `durability` have the calls of a filesystem; `connection` keeps the `link` to the server, `server_calls` answers what that one calls;
//! `replay_log` and `reclaim` are for a server that starts again.
//!
//! A client that loses its connection connects again, and its calls wait. They fail when the server cannot be reached
//! for [`Options::retry`], or at once when it does not let the client in any more. If the server has ended the session in the meantime, everything that was open is stale, which
//! is logged; a new session begins by itself, or none with [`Recover::No`].

pub mod address;
mod base;
mod cache;
mod cached;
mod call_numbers;
mod caller_cache;
mod calls;
mod connection;
mod content;
mod delegated;
mod delegation;
mod dir_names;
mod direct_io;
mod durability;
mod error;
mod filesystem;
mod inodes;
mod link;
mod local;
mod locks;
mod losses;
mod names;
mod numbers;
mod open_files;
mod open_table;
mod options;
mod queue;
mod reclaim;
mod record;
mod replay_log;
mod room;
mod rpc;
mod server_calls;
mod session;
mod size_records;
mod slots;
mod status;
mod user;
mod write_bounds;
mod writeback;

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_env::connection::Connector;
use thalweg_fs::access::AccessLists;

pub use error::AttachError;
pub use filesystem::Client;
pub use options::{Options, Recover, UnknownRecover};
pub use status::ClientStatus;

use base::ClientBase;
use calls::Calls;
use connection::{Connections, Life};
use content::Content;
use direct_io::DirectIo;
use durability::Durability;
use filesystem::Stages;
use local::LocalChanges;
use locks::FileLocks;
use names::Names;
use open_files::OpenFiles;
use rpc::Rpc;
use size_records::SizeRecords;
use writeback::Writeback;

impl Client {
    /// Connects, and begins a session.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn connect(
        env: &Env,
        connector: Box<dyn Connector>,
        options: Options,
    ) -> Result<Client, AttachError> {
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
        let calls = Calls::new(of(), rpc.clone(), writeback.clone(), open_files.clone());
        let calls = Arc::new(calls);
        let local = LocalChanges::new(of(), rpc.clone(), writeback.clone(), calls.clone());
        let local = Arc::new(local);
        let locks = FileLocks::new(of(), rpc, writeback.clone(), open_files.clone());
        let (keeping, renewing) = (connections.clone(), connections.clone());
        let (sending, reaching) = (writeback.clone(), direct_io.clone());
        let tasks = [
            env.spawn(async move { keeping.run(connection).await }),
            env.spawn(async move { renewing.renew_leases().await }),
            env.spawn(async move { sending.run().await }),
            env.spawn(async move { reaching.run().await }),
        ];
        Ok(Client::new(Stages {
            names: Names::new(of(), writeback.clone(), calls.clone(), local.clone()),
            content: Content::new(of(), writeback.clone(), direct_io.clone(), calls.clone(), local),
            durability: Durability::new(of(), writeback, calls.clone(), size_records),
            locks: Arc::new(locks),
            life: Life::new(connections, tasks),
            lists: AccessLists::default(),
            base,
            direct_io,
            calls,
            open_files,
        }))
    }
}
