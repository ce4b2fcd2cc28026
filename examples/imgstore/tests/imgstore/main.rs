//! ImgStore wherever its stores run.

#![allow(clippy::unwrap_used)]

mod atomic;
mod calls;
mod crowd;
mod held;
mod killed;
mod program;
mod rig;
