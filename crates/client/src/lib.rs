//! Volumes for programs without async tasks: calls block, and a transaction belongs to the thread that began it
//! (Isotope 4.1). The libraries for C and Python wrap this crate.
//!
//! A [`Volume`] is open in this process, or served by another one, on this machine or another one; or it is a primary
//! and its replicas, of which each read asks the cheapest that may serve it.
//!
//! # Lock order
//!
//! The list of a [`Volume`]'s threads, then the state of a thread, which is held while its calls wait, then the locks of
//! the volume below.

mod volume;

pub use volume::{OpenError, Outcome, SessionCell, SessionError, Volume};
