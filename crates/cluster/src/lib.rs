//! Thalweg on several machines: see [`replica`].
//!
//! # Lock order
//!
//! 1. the encoded changes of a backlog;
//! 2. its changes that are not encoded, which are taken under the chain's lock;
//! 3. all others, none of which is held while another is taken or anything is awaited.

pub mod replica;
