//! Transactions over a Unix socket: many processes share a volume that one of them has open.
//!
//! - `protocol`: what travels, and its limits;
//! - `failure`: errors as they travel;
//! - `output`: frames on their way out, many in one write;
//! - [`server`]: answers requests with a transaction manager; a connection is a process to it;
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
