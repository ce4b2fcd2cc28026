//! The filesystem that a server serves, and how.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_fs::Filesystem;

use super::options::Options;

/// What all stages know.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) env: Env,
    pub(super) files: Arc<dyn Filesystem>,
    pub(super) options: Arc<Options>,
}
