//! Key-value stores on transactions (Isotope 4.3.1): a B-tree (IsoBT) and a hash table (IsoHT), each
//! in a named partition of a volume.
//!
//! A store is a mapping from keys to blocks and nothing else. It has no lock, no log and no memory of its
//! own data: isolation, atomicity and durability are the transaction's, so one transaction may span several
//! stores, and raw blocks beside them. Each call follows one template, which [`Store::put`] shows: begin,
//! work, commit, retry. Callers of one process that change a store at the same time share the transaction (`group`).
//!
//! **Which bytes a call depends on.** Transactions conflict where they touch the same 16 bytes, so a store
//! marks in each page the bytes that it read and wrote, and as few as suffice:
//!
//! - a page on the search path counts with its identity, the bytes that say what it is;
//! - a key that was found counts with its record. Every change that gives it another value, moves the record or
//!   removes it writes into the record's first bytes, even when its place is left free. A value in blocks of its own
//!   counts with these too: an overwrite of a part writes into them alone;
//! - a key that was not found counts with the *membership* of the leaf or bucket where it would be, the half
//!   of the page header that changes whenever a record joins or leaves the page, and when the page is split,
//!   merged or freed;
//! - a range counts with the membership of each leaf, and each record in it;
//! - a write counts as a read as well, in whole units of 16 bytes: free space in a page, or a free block, was
//!   free when it was taken.
//!
//! Two transactions that give different keys of one page new values of the same size have no unit in common,
//! and both commit. Stores stay sound under snapshot isolation too, which compares writes alone: a move of a
//! record writes to the same bytes as a change of it.
//!
//! There is no count of keys and no list of free blocks, which every transaction would have to write. Free
//! blocks are found in bitmaps, from a random place on (4.3.3), and keys are counted by reading them.

mod area;
mod batch;
mod btree;
pub mod catalogue;
mod check;
mod descent;
mod error;
pub mod format;
mod group;
mod hash;
mod overwrite;
mod page;
mod partition;
mod raw;
mod read_view;
mod record;
mod room;
mod salvage;
mod scan;
mod space;
mod store;
mod units;
mod value;
mod versions;
mod way;
mod window;
mod work;
mod working_set;

pub use batch::Batch;
pub use check::Report;
pub use error::TreeError;
pub use format::{Kind, MAX_KEY, MAX_VALUE, State};
pub use partition::{NewPartition, Partition, Run};
pub use raw::{Raw, RawBlocks};
pub use salvage::{KeyRange, Salvage};
pub use scan::Scan;
pub use store::{Iter, Store, StoreSnapshot};
pub use value::Pair;
pub use working_set::WorkingSet;
