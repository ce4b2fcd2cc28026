//! NBD server for Thalweg volumes.
//!
//! Protocol in, one call to a [`Volume`](thalweg_store::volume::Volume) out. A connection passes
//! through these modules:
//!
//! - [`server`]: exports, listeners, shutdown; [`socket`] makes Unix sockets safely;
//! - [`tls`]: certificates and the upgrade of a connection;
//! - `handshake`: fixed newstyle negotiation;
//! - `connection`: transmission: `input` cuts the stream into requests, `execute` calls the volume,
//!   `output` holds replies until the socket takes them;
//! - [`protocol`]: constants, layouts and decoders, without I/O;
//! - [`stats`]: counters that can be read at any time.

mod connection;
mod execute;
pub mod export;
mod handshake;
mod input;
mod output;
mod patience;
pub mod protocol;
pub mod server;
pub mod socket;
pub mod stats;
pub mod tls;

pub use export::Export;
pub use server::{Server, ServerConfig, ServerError};
pub use socket::UnixSocketOptions;
pub use stats::ServerStats;
pub use tls::{TlsConfig, TlsError};
