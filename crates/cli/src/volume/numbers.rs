//! The numbers of an open volume, for metrics.

use thalweg_fs::Statistics;
use thalweg_store::chain::Status;
use thalweg_store::device::Tallies;
use thalweg_store::inplace::InPlaceStatus;
use thalweg_store::latency::StageStatus;
use thalweg_store::txn::TxnStatus;

use crate::attention::{Attention, Followers, Upstream};

/// The numbers of an open volume.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub(crate) name: String,
    pub(crate) store: StoreNumbers,
    pub(crate) transactions: TxnStatus,
    /// Those of its filesystem, if mounted.
    pub(crate) files: Option<Statistics>,
    /// How long the kernel's requests to it took.
    pub(crate) mount_stages: Vec<StageStatus>,
    /// What needs attention.
    pub(crate) attention: Vec<Attention>,
    /// Of a primary, its followers.
    pub(crate) followers: Option<Followers>,
    /// Of a replica, its primary.
    pub(crate) upstream: Option<Upstream>,
}

/// The numbers of the two kinds of stores.
#[derive(Debug)]
pub(crate) enum StoreNumbers {
    Chain(Box<Status>),
    InPlace { status: Box<InPlaceStatus>, parts: Vec<Part> },
}

/// Counters of a device of an in-place volume.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) path: String,
    pub(crate) role: &'static str,
    pub(crate) io: Tallies,
}
