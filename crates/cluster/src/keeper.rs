//! Keeps second copies of the journals of clients (Arion, 10.5): what a client has acknowledged survives the loss of its machine.
//!
//! A copy is a journal itself, in a file that a client's journal could be: [`client::journal`](crate::client::journal) reads it. It is named for its
//! client and the session that makes it. The client sends each record to all its keepers and to its own journal at the same time, and tells what
//! the server has made durable.
//!
//! **Take-over.** [`Keeper::seal`] ends the copies of a client: each has a last mark, behind which nothing is appended. From then on the
//! client acknowledges nothing that relies on this keeper. [`client::take_over`](crate::client::take_over) then writes back what a copy has, and ends the session at
//! the server, which refuses the client if it returns. The sealed copy stays, so that a keeper refuses it too.

mod connection;
mod copies;
mod copy;
mod shelf;

use std::fmt;
use std::io;
use std::sync::Arc;

use thalweg_env::Env;
use thalweg_env::connection::Stream;
use thalweg_net::channel::{Channel, Limits, Side};

use crate::protocol::keep::{HELLO, MAX_BODY};
use connection::Connection;
use copies::Copies;
pub use shelf::{KeptCopy, Shelf, is_of};

/// Keeps copies. Clones are the same keeper.
#[derive(Clone)]
pub struct Keeper {
    copies: Arc<Copies>,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Keeper {
    /// A keeper of the copies there. Those in memory take so many bytes at most.
    pub fn new(env: &Env, shelf: Box<dyn Shelf>, memory: u64) -> Keeper {
        Keeper { copies: Arc::new(Copies::new(env, shelf, memory)) }
    }

    /// Serves a client, which was let in under this name, until the connection ends.
    ///
    /// # Errors
    /// Errors of the connection, and a client that violates the protocol.
    pub async fn serve<S: Stream>(&self, mut stream: S, client: &str) -> io::Result<()> {
        HELLO.exchange(&mut stream).await?;
        let (reader, writer) = tokio::io::split(stream);
        let limits = Limits { payload: MAX_BODY, ..Limits::default() };
        let channel = Channel::new(&self.copies.env, Side::Accepting, limits, writer);
        let connection = Connection::new(&self.copies, &channel, client);
        channel.run(reader, &connection).await
    }

    /// Ends the copies of a client, so that they can be taken over: they are in their files, and closed. Their names.
    ///
    /// # Errors
    /// The drive's, or the folder's.
    pub async fn seal(&self, client: &str) -> io::Result<Vec<String>> {
        self.copies.seal(client).await
    }

    /// The copies that are open.
    pub async fn copies(&self) -> Vec<KeptCopy> {
        self.copies.reports().await
    }

    /// Ends in order: copies in memory are written to files.
    ///
    /// # Errors
    /// The drive's, or the folder's: some are lost.
    pub async fn close(&self) -> io::Result<()> {
        self.copies.close().await
    }
}
