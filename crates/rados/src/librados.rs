//! The client of a real cluster, over librados.
//!
//! All foreign code is called from this module. A request owns its buffers until its completion has run, whether its
//! future is dropped or not, and keeps its pool open for as long. Requests that librados has no asynchronous form of
//! run on threads that may block.

mod change;
mod closing;
mod cluster;
mod completion;
mod connected;
mod handles;
mod pool;
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unused,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod sys {
    include!(concat!(env!("OUT_DIR"), "/librados.rs"));
}

use std::ffi::CString;
use std::io;
use std::sync::Arc;

pub use cluster::{Cluster, ClusterOptions};
pub use connected::ClusterPools;
pub use pool::Pool;

use crate::ObjectError;

/// A name for librados.
fn c_string(object: &str, text: &str) -> Result<CString, ObjectError> {
    CString::new(text).map_err(|_| ObjectError::Invalid {
        object: object.to_owned(),
        reason: format!("{text:?} has a zero byte, and no name may have one"),
    })
}

/// The numbers of errors that librados returns and that differ from their usual meaning.
mod errno {
    pub(super) const PERMISSION: i32 = 1;
    pub(super) const ABSENT: i32 = 2;
    pub(super) const ACCESS: i32 = 13;
    pub(super) const BUSY: i32 = 16;
    pub(super) const PRESENT: i32 = 17;
    pub(super) const INVALID: i32 = 22;
    pub(super) const TOO_LARGE: i32 = 27;
    pub(super) const NO_SPACE: i32 = 28;
    pub(super) const RANGE: i32 = 34;
    /// The client is on the blocklist (`ESHUTDOWN`).
    pub(super) const BLOCKLISTED: i32 = 108;
    /// There is no such attribute (`ENODATA`).
    pub(super) const NO_ATTRIBUTE: i32 = 61;
    pub(super) const NOT_CONNECTED: i32 = 107;
    pub(super) const TIMED_OUT: i32 = 110;
    pub(super) const QUOTA: i32 = 122;
    /// A comparison does not hold (`ECANCELED`).
    pub(super) const CANCELED: i32 = 125;
}

/// The error for what librados returned about `object`, if that is below zero.
fn check(object: &str, returned: i32) -> Result<i32, ObjectError> {
    if returned >= 0 {
        return Ok(returned);
    }
    let object = object.to_owned();
    Err(match -returned {
        errno::ABSENT => ObjectError::NotFound { object },
        errno::PRESENT => ObjectError::Exists { object },
        errno::CANCELED => ObjectError::Conflict { object },
        errno::BUSY => ObjectError::Locked { object },
        errno::BLOCKLISTED => ObjectError::Fenced,
        errno::TIMED_OUT => ObjectError::NoAnswer { object },
        errno::NOT_CONNECTED => {
            ObjectError::NotConnected { reason: "the connection is closed".to_owned() }
        }
        errno::NO_SPACE | errno::QUOTA => ObjectError::NoSpace { object },
        errno::PERMISSION | errno::ACCESS => ObjectError::NotPermitted { object },
        errno::TOO_LARGE => {
            let reason = "the object would exceed the cluster's limit (osd_max_object_size)";
            ObjectError::Invalid { object, reason: reason.to_owned() }
        }
        errno::INVALID | errno::RANGE => {
            let reason = "the cluster finds the request invalid".to_owned();
            ObjectError::Invalid { object, reason }
        }
        number => {
            let source = Arc::new(io::Error::from_raw_os_error(number));
            ObjectError::Io { object, source }
        }
    })
}
