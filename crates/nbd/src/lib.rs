//! NBD server for Thalweg volumes.
//!
//! Protocol in, one call to a [`Volume`](thalweg_store::volume::Volume) out. A connection passes
//! through these modules:
//!
//! - [`server`]: exports, listeners, shutdown; sockets and the accept loop are those of `thalweg-net`;
//! - [`tls`]: certificates and the upgrade of a connection;
//! - `handshake`: fixed newstyle negotiation;
//! - `connection`: transmission: `input` cuts the stream into requests, `execute` calls the volume,
//!   `output` holds replies until the socket takes them;
//! - [`protocol`]: constants, layouts and decoders, without I/O;
//! - [`stats`]: counters that can be read at any time.
//!
//! # Lock order
//!
//! A server's `listeners` and its registry's `exports` are taken alone, never across an await.

mod connection;
mod error;
mod execute;
pub mod export;
mod handshake;
mod input;
mod output;
mod patience;
pub mod protocol;
pub mod server;
pub mod stats;
pub mod tls;

pub use error::ServerError;
pub use export::Export;
pub use server::{Server, ServerConfig};
pub use stats::ServerStats;
pub use thalweg_net::named::{SocketError, UnixSocketOptions};
pub use tls::{TlsConfig, TlsError};
