//! A filesystem behind a server, as its clients see it.
//!
//! A [`Client`] is a [`Filesystem`](thalweg_fs::Filesystem) that asks three questions at each call:
//!
//! - cached? `cache`: what may be used without a call, under the lease of the `session`;
//! - delegated? `delegation`: what this client changes by itself. `queue` has these mutations, and `writeback` sends them, `batch` by batch, with the `sender`; `local` gets what such
//!   changes need: inode `numbers`, `room`; `direct_io` stores bytes of files past the server, within `write_bounds` and with `size_records`;
//! - else a call: `stages`, each behind what it depends on, made by `rpc` on as many connections as it takes.
//!
//! A read of a file of its own takes bytes from `partial_pages`, or from the `overlay` of what waits over what the server has.
//!
//! Each inode that a client knows is one node of `inodes`, with what is `cached` of it and what is `delegated`. `names`, `content`, `open_files`, `locks`,
//! and `durability` have the calls of a filesystem; `connection` keeps the `link` to the server, `server_calls` answers what that one calls;
//! `replay_log` and `reclaim` are for a server that starts again.
//!
//! A client that loses its connection connects again, and its calls wait. They fail when the server cannot be reached
//! for [`Options::retry`], or at once when it does not let the client in any more. If the server has ended the session in the meantime, everything that was open is stale, which
//! is logged; a new session begins by itself, or none with [`Recover::No`].

pub mod address;
mod ahead;
mod base;
mod batch;
mod cache;
mod cached;
mod call_numbers;
mod conflict_content;
mod conflict_folders;
mod conflict_plan;
mod conflict_rule;
mod conflicts;
mod connection;
mod content;
mod copies;
mod damaged_journal;
mod delegated;
mod delegation;
mod direct_io;
mod dirty_limit;
mod durability;
mod error;
mod filesystem;
mod found_journal;
pub mod inode_changes;
mod inodes;
pub mod journal;
pub(crate) mod journal_format;
mod journal_moves;
mod journal_pages;
mod journal_record;
mod journal_runs;
mod journal_slot;
mod journaled_queue;
mod journaling;
mod known_xattrs;
mod link;
mod listings;
mod local;
mod locks;
mod losses;
mod moved_state;
mod moving;
mod names;
mod numbers;
mod open_files;
mod open_table;
mod options;
mod overlay;
mod own_listing;
mod part_encoder;
mod partial_pages;
mod pending;
mod queue;
mod receiver;
mod reclaim;
mod record;
mod recovery;
mod refusals;
mod renames;
mod reopen;
mod replay_log;
mod reservations;
mod room;
mod rpc;
mod sender;
mod sent_ends;
mod server_calls;
mod session;
mod size_records;
mod stages;
mod takeover;
mod used_meanwhile;
mod user;
mod write_around;
mod write_bounds;
mod write_pace;
mod writeback;
mod xattrs;

pub use copies::{CopyReport, CopyState, KeeperTarget};
pub use error::AttachError;
pub use filesystem::{Client, ClientStatus};
pub use moving::{MoveError, MoveReport, MoveTarget};
pub use options::{
    ConflictScope, JournaledData, OnConflict, Options, Recover, SyncTo, UnknownConflictScope,
    UnknownOnConflict, UnknownRecover, UnknownSyncTo,
};
pub use pending::{Changes, JournalSide, MountedJournal, PendingReport};
pub use receiver::{Arrival, Receiver};
pub use takeover::{TakenOver, take_over};
