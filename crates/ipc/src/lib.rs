//! Transactions over a Unix socket: many processes share a volume that one process has open.
//!
//! - `protocol`: messages and their limits;
//! - `failure`: errors in messages;
//! - [`server`]: answers requests with a transaction manager; it takes each connection for a process;
//! - [`client`]: a volume behind a socket, with the traits that a volume in this process has;
//! - [`blocking`]: a volume for threads, behind a socket or in this process.
//!
//! Frames, calls and sockets are those of [`thalweg_net`].

pub mod blocking;
pub mod client;
mod failure;
#[doc(hidden)]
pub mod protocol;
pub mod server;

pub use client::Connection;
pub use server::{Config, Server};
pub use thalweg_net::socket;

/// The name of the socket for transactions in a volume's folder.
pub const SOCKET: &str = "txn.sock";
