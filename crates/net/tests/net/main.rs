//! Frames, calls in both directions, and the accept loop.

mod accept;
mod calls;
mod frames;
