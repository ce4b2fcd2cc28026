//! A filesystem for many machines.
//!
//! - [`server`]: a filesystem, served to clients on other machines; [`client`]: such a filesystem on the client's side;
//! - [`keeper`]: second copies of the journals of clients;
//! - [`conflicts`]: what a client could not write back that was away;
//! - `protocol`, `failure`: what the two say to each other; `squash`: what they make of the users of a client;
//! - `ranges`: sets of numbers.
//!
//! # Lock order
//!
//! 1. of a server: the list of leaving sessions or the order of a session's answers, then the state of the session, then those of
//!    other stages (what the clients cache, open files, replayed calls, room), then a reply cache's and a channel's;
//! 2. of a keeper: the turn to open copies, then a copy's state;
//! 3. all others, none of which is held while another is taken or anything is awaited.

pub mod client;
pub mod conflicts;
#[doc(hidden)]
pub mod failure;
pub mod keeper;
#[doc(hidden)]
pub mod protocol;
pub mod server;
mod squash;
