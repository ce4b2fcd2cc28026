//! Transactions over a socket.

#![allow(clippy::unwrap_used)]

mod access;
mod addresses;
mod bad_input;
mod calls;
mod ends;
mod protocol;
mod rig;
mod served;
mod views;
