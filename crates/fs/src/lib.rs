//! Files and directories.
//!
//! - [`filesystem`]: the one trait that adapters see: inodes, names, byte ranges and typed errors;
//! - [`attributes`]: what an inode says of itself;
//! - [`error`]: what can go wrong, named after what the caller must do;
//! - [`local`]: files and directories in two partitions of a volume.

mod acl;
pub mod attributes;
pub mod error;
pub mod filesystem;
pub mod local;

pub use local::check;

pub use attributes::{AttributeChange, Attributes, Ino, Kind, TimeChange, Timestamp};
pub use error::FsError;
pub use filesystem::{
    Allocation, Change, Cookie, Entry, Filesystem, NewNode, Node, Rename, Seek, SetXattr,
    Statistics, Watcher, WriteAt, WriteHow,
};
