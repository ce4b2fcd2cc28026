//! Framed calls in both directions over a byte stream.
//!
//! A connection passes through these modules:
//!
//! - [`accept`](mod@accept): the accept loop of a server; [`socket`]: Unix sockets in the folder of a volume;
//!   [`named`]: at a path of the user's choice;
//! - [`tls`]: over a network, both sides prove that they have their [`keys`];
//! - [`gate`] and [`visit`]: there a server lets in clients that it knows, and a client says which service it wants
//!   ([`entry`]);
//! - [`hello`]: both sides name their protocol and its version;
//! - [`frame`]: the layout of a frame, with its limits;
//! - [`channel`]: calls and answers; `limits`: how much a side takes; [`serving`] limits the calls that run at a time;
//! - `output`: the send queue, many frames in one write; [`traffic`]: what was sent, by what it was for.
//!
//! A protocol on top defines its messages, in postcard, and nothing else: `thalweg-ipc` is one.
//!
//! # Lock order
//!
//! A channel's `calls`, then its output's `writer`, then the output's `queue`, or a traffic's `sent`.

pub mod accept;
pub mod channel;
pub mod entry;
pub mod frame;
pub mod gate;
pub mod hello;
pub mod keys;
mod limits;
pub mod named;
mod output;
pub mod serving;
pub mod socket;
pub mod tls;
pub mod traffic;
pub mod visit;

pub use accept::accept;
pub use channel::{CallError, Channel, Incoming, Side};
pub use serving::Serving;
pub use traffic::Traffic;
