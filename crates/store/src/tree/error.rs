//! Errors of partitions and the stores in them.

use crate::block::StoreError;
use crate::txn::{Retry, TxnError};

use super::format::{FORMAT_VERSION, Kind, MAX_KEY, MAX_VALUE};

/// Errors of partitions and the stores in them; each kind says what the caller must do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TreeError {
    /// Give up: a key of so many bytes is too long.
    #[error("a key has at most {MAX_KEY} bytes, not {0}")]
    KeyTooLarge(usize),
    /// Give up: a value of so many bytes is too long.
    #[error("a value has at most {MAX_VALUE} bytes, not {0}")]
    ValueTooLarge(usize),
    /// Give up, or delete something: the partition has no room for the change.
    #[error("no room left in partition {0}; delete something, or use a larger partition")]
    Full(String),
    /// Give up: the volume was never partitioned.
    #[error("the volume has no partitions; create one first")]
    NoCatalogue,
    /// Give up: partitions would overwrite data on the volume.
    #[error(
        "the volume holds something else than partitions (block {0} is not empty), perhaps a \
         filesystem; use an empty volume, or discard all of this one first"
    )]
    Foreign(u64),
    /// Give up: raw access would reach data of other programs in the volume.
    #[error(
        "block {block} belongs to {there}: the volume has partitions; make a raw partition for raw \
         blocks (thalweg kv VOLUME create NAME --kind raw --size SIZE) and open it by its name"
    )]
    Partitioned {
        /// The block.
        block: u64,
        /// What it belongs to.
        there: String,
    },
    /// Give up: the partition belongs to a filesystem.
    #[error("partition {0} is a part of a filesystem; mount that and use its files")]
    OfFilesystem(String),
    /// Give up: there is no partition of that name.
    #[error("no partition is named {0}")]
    Missing(String),
    /// Give up: there is a partition of that name.
    #[error("a partition named {0} exists already")]
    Exists(String),
    /// Give up: the requested blocks are taken.
    #[error("blocks {first} to {last} overlap with {with}")]
    Overlap {
        /// The first block asked for.
        first: u64,
        /// The last block asked for.
        last: u64,
        /// What they belong to.
        with: String,
    },
    /// Give up: no gap between partitions is as large.
    #[error("{}", no_gap(*.0, *.1))]
    NoGap(u64, u64),
    /// Give up: the partition is of another kind.
    #[error("partition {name} is a {is}, not a {wanted}")]
    WrongKind {
        /// The partition.
        name: String,
        /// Its kind.
        is: Kind,
        /// The kind asked for.
        wanted: &'static str,
    },
    /// Give up, or drop the partition: its creation or removal was interrupted.
    #[error("creating or dropping partition {0} was interrupted; drop it")]
    Unfinished(String),
    /// Give up: the request is invalid; the text says why.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// Use a newer program.
    #[error("the format of {what} has version {version}, and this program knows {FORMAT_VERSION}")]
    Newer {
        /// The structure that has this version.
        what: String,
        /// The version found.
        version: u32,
    },
    /// Stop: a stored structure is damaged.
    #[error("{what} is damaged: {detail}")]
    Damaged {
        /// The block, or the structure.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// An error of the transaction.
    #[error(transparent)]
    Txn(#[from] TxnError),
}

impl TreeError {
    /// Whether stored data is at fault: it cannot be read, or is inconsistent. A structure of a newer version
    /// does not count: this program cannot judge it.
    pub fn is_damage(&self) -> bool {
        match self {
            TreeError::Damaged { .. } => true,
            TreeError::Txn(error) => error.is_damage(),
            _ => false,
        }
    }
}

impl From<StoreError> for TreeError {
    fn from(error: StoreError) -> TreeError {
        TreeError::Txn(error.into())
    }
}

impl Retry for TreeError {
    fn is_retryable(&self) -> bool {
        matches!(self, TreeError::Txn(error) if error.is_retryable())
    }

    fn is_disconnected(&self) -> bool {
        matches!(self, TreeError::Txn(error) if error.is_disconnected())
    }
}

fn no_gap(wanted: u64, largest: u64) -> String {
    match largest {
        0 => "no block of the volume is free: its partitions have them all".to_owned(),
        _ => format!("no {wanted} blocks in a row are free; the largest gap has {largest}"),
    }
}
