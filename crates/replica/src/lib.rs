//! Replicas: volumes that follow another one.
//!
//! A *primary* is a chained volume that is written; its *followers* get every commit over a connection each, in the
//! order of versions, and apply each as one. So a follower always holds a strict prefix of the primary's commits, and
//! only ones that a crash of the primary does not take back.
//!
//! The way of a commit: the chain shows it to its [tap](thalweg_store::chain::Tap), the *backlog*, which keeps the changes
//! of late in encoded form ([`record`]). The primary sends them to each follower at that one's pace, before they are
//! durable, and then says what is durable ([`protocol`]). A follower applies what is, makes it durable itself, and says so.
//! No writer of the primary waits for a follower: one that falls behind the backlog gets the newest content of the blocks
//! that changed since its version instead, in the order of their versions.
//!
//! Which states are the same on two machines is told by [positions](thalweg_store::chain::Position), never by versions
//! alone.
//!
//! # Lock order
//!
//! 1. the encoded changes of a backlog;
//! 2. its changes that are not encoded, which are taken under the chain's lock;
//! 3. all others, none of which is held while another is taken or anything is awaited.

mod applier;
mod backlog;
mod claim;
mod follower;
mod following;
pub mod nodes;
mod pace;
mod primary;
pub mod protocol;
pub mod record;
mod rescuer;
mod roster;
mod seen;
mod sender;
mod shared;
mod staleness;

pub use backlog::Room;
pub use claim::announce;
pub use follower::{Follower, FollowerStatus, describe};
pub use following::{FollowerOptions, Stopped};
pub use primary::Primary;
pub use roster::AckStatus;
pub use shared::{PrimaryOptions, ReplicaStatus};
