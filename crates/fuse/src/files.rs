//! Serves a filesystem to the kernel, through FUSE.
//!
//! FUSE's threads decode a request and run it until it has to wait; a task finishes it and answers, so that
//! many requests are in flight. The kernel checks permissions, resolves paths, keeps locks unless it forwards
//! them ([`Locks`]), and caches names, attributes, pages and links for as long as the filesystem says.
//! [`Filesystem::watch`](thalweg_fs::Filesystem::watch) tells of changes through other handles.
//!
//! **Durability.** A write reaches the filesystem before it returns, byte for byte, unless the mount has
//! [`MountOptions::writeback_cache`](mounted::MountOptions::writeback_cache); `fsync` is
//! [`Filesystem::sync`](thalweg_fs::Filesystem::sync). For a file open with `O_SYNC` or `O_DSYNC` the kernel
//! sends an fsync after every write; with `O_DIRECT` it does not, and the write syncs. The kernel does not
//! forward `sync` and `syncfs` to filesystems in user space; they push out the kernel's own cache alone.
//!
//! **Unmounts.** The kernel does not wait for the server of a filesystem in user space that it unmounts,
//! unless a block device lies below. But umount(8) sends a statfs before it unmounts, and waits for the
//! answer: the server makes everything durable before it answers.
//!
//! **Direct and cached.** A direct write bypasses the kernel's cache. After an asynchronous one the kernel
//! does not drop pages that were read during the write. So where the file is open for cached access too,
//! the answer waits until they are dropped.
//!
//! **Privileges.** A write clears set-user-id, set-group-id and capabilities of a file. The kernel leaves
//! this to the filesystem, and saves a request before every write in return.
//!
//! - [`mounted`]: mounts, and their end; `options`: how to mount; `mounting`: what the kernel asks then;
//! - `adapter`: runs requests as tasks; `spinning`: what its threads do before they sleep; `requests` decodes
//!   requests, with `names`, `content` (`payload`) and `xattrs`;
//! - `served`: the state that requests share; `privileges` of inodes, and `listing` of directories;
//! - `known`: the inodes that the kernel knows; `coherence`: keeps its caches coherent, after answers
//!   that are under way (`grace`), on threads that do not wait for each other (`workers`); `dirty`: pages that the kernel
//!   has not written yet; `sizes`: those that it has of files, and `ends` that it learns when it reads (`page_reads`);
//!   `shown`: what programs are shown of these;
//! - `patience`: how long requests wait, and the signals that end a wait; `away`: answers while a server is away;
//! - `users`: the users of requests, where a server checks what these may do;
//! - `opening`: open files; `locks`: locks on files;
//! - [`levels`]: ioctls about how far a file has come;
//! - `stages`: times requests.

mod adapter;
mod attributes;
mod away;
mod coherence;
mod content;
mod dirty;
mod ends;
mod grace;
mod known;
pub mod levels;
mod listing;
mod locks;
pub mod mounted;
mod mounting;
mod names;
mod opening;
mod options;
mod page_reads;
mod patience;
mod privileges;
mod requests;
mod served;
mod shown;
mod sizes;
mod spinning;
mod stages;
mod users;
mod workers;
mod xattrs;

pub use options::Locks;
