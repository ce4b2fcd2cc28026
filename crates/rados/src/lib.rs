//! Devices and contents of files on the objects of a Ceph cluster.
//!
//! - [`object`]: the interface of a pool of objects, which a real cluster and a simulated one implement;
//! - [`device`]: [`RadosDevice`], a device of the store that is striped over objects;
//! - [`kind`]: [`RadosKind`], which opens devices by their names `rados:POOL/IMAGE`;
//! - [`files`]: [`FileObjects`], contents of files in objects named by inode and stripe;
//! - `contents`: the same as a filesystem sees them;
//! - [`fence`]: the exclusive lock, and the guard on every write; [`opener`]: the process that has the lock;
//! - [`heartbeat`]: a served image has beats, by which a standby notices that the server has died;
//! - [`format`](mod@format): names and bytes of objects;
//! - [`finder`]: contents of a filesystem that another machine serves;
//! - `librados`: the client of a real cluster, behind the feature of that name.
//!
//! # Lock order
//!
//! Each lock is held alone, and none across a request.

mod contents;
pub mod device;
mod error;
pub mod fence;
pub mod files;
pub mod finder;
pub mod format;
pub mod heartbeat;
pub mod kind;
#[cfg(feature = "librados")]
pub mod librados;
mod location;
pub mod object;
pub mod opener;
mod striped;

pub use device::{Opening, RadosDevice, RadosOptions, Released};
pub use error::ObjectError;
pub use files::FileObjects;
pub use finder::ObjectsFinder;
pub use heartbeat::Serving;
pub use kind::{Pools, RadosKind};
#[cfg(feature = "librados")]
pub use librados::{Cluster, ClusterOptions, ClusterPools, Pool};
pub use object::{ObjectStore, ObjectStoreRef};
pub use opener::Opener;
