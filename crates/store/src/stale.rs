//! Reads of versions that are old enough to be cheap and new enough for the reader (Yogurt, chapter 5 of the thesis).
//!
//! A store that keeps several versions of a block often has some of them in cheaper places than the newest: in memory,
//! on a faster drive, or on one that is not writing. A reader that says what it needs gets the cheapest that will do.
//!
//! - [`Versioned`]: the block-level interface (table 5.2): reads and writes at versions, their cost, the versions in which
//!   a content is valid, and snapshots;
//! - [`StaleView`]: reads of several blocks that are of one state, which is chosen as they are read (5.3.1);
//! - [`Guarantee`] and [`Session`]: what a client needs, as a range of versions;
//! - [`CostModel`] and [`choose`]: what a read costs (5.3.3), and the choice.
//!
//! Transactions on such views are in [`txn`](crate::txn), the interface for keys and values (table 5.1) in
//! [`tree`](crate::tree).
//!
//! Which versions there are is decided below, by [`Retained`](crate::block::Retained); a version that is gone is no error
//! for a reader with a guarantee: it gets a newer one.

mod arm;
pub mod choose;
mod cost;
mod error;
mod guarantee;
mod reads;
pub mod session;
mod snapshot;
mod standing;
mod token;
mod upstream;
mod versioned;
mod view;

pub use cost::{Constants, Cost, CostList, CostModel, Costs, Load};
pub use error::StaleError;
pub use guarantee::{Guarantee, GuaranteeError};
pub use session::{Item, Needs, Node, Session, Unserved, VersionRange};
pub use snapshot::Snapshot;
pub use standing::Standing;
pub use token::{NoSession, SessionToken};
pub use upstream::{CurrentAsOf, Upstream};
pub use versioned::{Got, Versioned};
pub use view::StaleView;
