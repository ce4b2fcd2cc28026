//! One volume that this process has open.

pub(crate) mod check;
pub(crate) mod files;
pub(crate) mod numbers;
pub(crate) mod opened;
pub(crate) mod read_only;
pub(crate) mod scrub;
pub(crate) mod served;
