//! The caches of a chain: which ones it has, and their sizes.

use std::sync::Arc;

use thalweg_env::Env;

use super::cache::{Admission, Cache, RamSizes};
use super::{Options, Parts};

/// The tail cache and the body cache of a chain.
pub(super) fn new(env: &Env, options: &Options, parts: &Parts) -> (Arc<Cache>, Option<Arc<Cache>>) {
    let most = options.growth.as_ref().map_or(0, |growth| growth.most_blocks());
    // The body's reads need a cache that grows. With one link, everything is read at the tail.
    let grows = most > 0 && parts.links.len() > 1;
    let has_body = parts.body_cache.is_some() || options.body_cache_blocks > 0 || grows;
    let most = if has_body { most / 2 } else { most };
    let sizes = |least| RamSizes { least, most: most.max(least) };
    let tail = sizes(options.tail_cache_blocks);
    let tail = Cache::with_sizes(env, tail, parts.tail_cache.clone(), Admission::Adaptive);
    let body = sizes(options.body_cache_blocks);
    let body = || Cache::with_sizes(env, body, parts.body_cache.clone(), Admission::Always);
    (tail, has_body.then(body))
}
