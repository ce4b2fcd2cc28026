//! Key-value stores on transactions (Isotope 4.3.1): a B-tree (IsoBT) and a hash table (IsoHT), each
//! in a named partition of a volume.
//!
//! A store is a mapping from keys to blocks and nothing else. It has no lock, no log and no memory of
//! its own: isolation, atomicity and durability are the transaction's, so that one transaction may
//! span several stores, and raw blocks beside them. Each call follows one template, which
//! [`Store::put`] shows: begin, work, commit, retry.
//!
//! **Which bytes a call depends on.** Transactions conflict where they touch the same 16 bytes, so a
//! store says for each page which bytes it read and which it wrote, and as few as are enough:
//!
//! - a page that was on the way counts with the bytes that say what it is;
//! - a key that was found counts with its record. Whoever overwrites the value, moves the record or
//!   removes it writes into the record's first bytes, even when its place is left free;
//! - a key that was not found counts with the *membership* of the leaf or bucket where it would be,
//!   the half of the page header that changes whenever a record joins or leaves the page, and when
//!   the page is split, merged or freed;
//! - a range counts with the membership of each leaf, and each record in it;
//! - what is written counts as read as well, in whole units of 16 bytes: free space in a page, or a
//!   free block, was free when it was taken.
//!
//! Two transactions that give different keys of one page new values of the same size have no unit
//! in common, and both commit. Snapshot isolation, which compares writes alone, keeps stores sound
//! too: whoever moves a record writes where those write who change it.
//!
//! There is no count of keys and no list of free blocks, which every transaction would have to
//! write. Free blocks are found in bitmaps from a random place on (4.3.3), and counts by counting.

mod area;
mod btree;
pub mod catalogue;
mod check;
mod error;
pub mod format;
mod hash;
mod page;
mod raw;
mod salvage;
mod space;
mod store;
mod value;
mod work;

pub use catalogue::{NewPartition, Partition, Run};
pub use check::Report;
pub use error::TreeError;
pub use format::{Kind, MAX_KEY, MAX_VALUE, State};
pub use raw::{Raw, RawBlocks};
pub use salvage::{KeyRange, Salvage};
pub use store::{Batch, Iter, Pair, Store, StoreSnapshot};
