//! Transactions over a socket.

#![allow(clippy::unwrap_used)]

mod access;
mod addresses;
mod bad_input;
mod calls;
mod ends;
mod open;
mod raw;
mod rig;
mod sessions;
mod threads;
mod views;
