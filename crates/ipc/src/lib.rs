//! Transactions over a Unix socket: many processes share a volume that one process has open.
//!
//! - `protocol`: messages and their limits;
//! - `failure`: errors in messages;
//! - `output`: the send queue, many frames in one write;
//! - [`server`]: answers requests with a transaction manager; it takes each connection for a process;
//! - [`client`]: a volume behind a socket, with the traits that a volume in this process has;
//! - [`blocking`]: a volume for threads, behind a socket or in this process;
//! - [`socket`]: sockets in the folder of a volume.

pub mod blocking;
pub mod client;
mod failure;
mod output;
#[doc(hidden)]
pub mod protocol;
pub mod server;
pub mod socket;

pub use client::Connection;
pub use server::{Config, Server};
pub use socket::SOCKET;
