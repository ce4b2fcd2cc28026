//! Volumes and filesystems for programs without async tasks: calls block, and a transaction belongs to the thread that began it
//! (Isotope 4.1). The libraries for C and Python wrap this crate.
//!
//! A [`Volume`] is open in this process, or served by another one, on this machine or another one; or it is a primary
//! and its replicas, of which each read asks the cheapest that may serve it.
//!
//! A [`Filesystem`] is that of a volume, open in this process, or one that another machine shares.
//!
//! # Lock order
//!
//! Of a filesystem: the position of an open file, which is held while its reads and writes wait; then what is open, or the
//! list of access control lists; then the locks of the filesystem below. Of a volume:
//! The list of a [`Volume`]'s threads, then the state of a thread, which is held while its calls wait, then the locks of
//! the volume below.

mod files;
mod volume;

pub use files::{Directory, File, FileError, FilesOptions, Filesystem, How, SeekTo, Times, User};
pub use thalweg_cluster::client::AttachError;
pub use volume::{OpenError, Outcome, SessionCell, SessionError, Volume};
