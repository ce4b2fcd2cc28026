//! The journaled filesystem on simulated drives, in its five modes (Okeanos, chapter 5).

pub mod filebench;
pub mod logs;
pub mod parallel;
pub mod postmark;
pub mod recovery;
mod rig;
pub mod streams;
