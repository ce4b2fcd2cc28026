//! Files and directories.
//!
//! - [`filesystem`]: the one trait that adapters see: inodes, names, byte ranges and typed errors;
//! - [`attributes`]: the attributes of an inode; [`answer`]: with the time for which they may be cached;
//! - [`handle`]: open files and directories, and the users of calls; [`locks`]: locks on files;
//! - [`invalidation`]: changes that a caller's caches do not know of;
//! - [`interruption`]: calls whose callers do not wait any more;
//! - [`node`]: what a new inode is to be; [`mutation`]: changes that were made elsewhere, and are applied later;
//! - [`level`]: how far the changes of a file have come;
//! - [`room`]: room that is promised for such changes;
//! - [`stored_ahead`]: bytes that a session stores before the batch that has them;
//! - [`session_table`]: the records of a server in the filesystem that it serves;
//! - [`contents`]: contents of files that are kept outside of the filesystem; [`direct`]: clients that reach them themselves;
//! - [`error`]: errors, named after what the caller must do; [`errno`]: the system's numbers for them;
//! - [`access`]: what a user may do; [`acl`]: access control lists; [`payload`]: bytes of writes;
//! - [`xattr_name`]: names of extended attributes;
//! - [`local`]: files and directories in two partitions of a volume.

pub mod access;
pub mod acl;
pub mod answer;
pub mod attributes;
pub mod coalesce;
pub mod contents;
pub mod direct;
pub mod entry;
pub mod errno;
pub mod error;
pub mod filesystem;
pub mod handle;
pub mod interruption;
pub mod invalidation;
pub mod level;
pub mod local;
pub mod locks;
pub mod mutation;
pub mod node;
pub mod payload;
pub mod ranges;
pub mod room;
pub mod session_table;
pub mod stored_ahead;
pub mod xattr_name;

pub use local::check;
pub use local::is_quota_attribute;

pub use answer::{Answer, Lookup, Validity};
pub use attributes::{AttributeChange, Attributes, Ino, Kind, TimeChange, Timestamp};
pub use contents::{Contents, ContentsFinder, ContentsKind};
pub use direct::DirectContents;
pub use error::{Action, Failure, FsError};
pub use filesystem::{
    Allocation, Cookie, Entry, Filesystem, NewNode, Node, Rename, Seek, SessionTable, SetXattr,
    Statistics, WriteAt, WriteHow,
};
pub use handle::{Caller, Credentials, Handle, OpenFlags, Opened, PageCache};
pub use interruption::Interruption;
pub use invalidation::{Change, Invalidation, Watcher};
pub use level::Level;
pub use locks::{Lock, LockKind, LockMode, LockOwner, LockRange};
pub use room::{Promises, Room, RoomShare};
