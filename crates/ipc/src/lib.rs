//! Transactions over a Unix socket or a network: many processes share a volume that one process has open.
//!
//! - `protocol`: messages and their limits;
//! - `failure`: errors in messages;
//! - [`server`]: answers requests with a transaction manager; it takes each connection for a process;
//! - [`client`]: a volume behind a socket, with the traits that a volume in this process has;
//! - [`remote`]: the address of a volume on another machine.
//!
//! Frames, calls and sockets are those of [`thalweg_net`].
//!
//! # Lock order
//!
//! In a client: what a remote transaction has seen, then the locks of [`thalweg_net`]. At the server the list of
//! a connection's transactions and the state of each are never held together.

pub mod client;
mod failure;
#[doc(hidden)]
pub mod protocol;
pub mod remote;
pub mod server;

pub use client::Connection;
pub use remote::Remote;
pub use server::{Config, Server, Service};
pub use thalweg_net::socket;

/// The name of the socket for transactions in a volume's folder.
pub const SOCKET: &str = "txn.sock";
