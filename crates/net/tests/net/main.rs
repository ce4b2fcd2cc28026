//! Frames, calls in both directions, the accept loop, keys, and the gate of a server.

#![allow(clippy::unwrap_used)]

mod accept;
mod calls;
mod frames;
mod gate;
mod keys;
mod socket;
mod tls;
