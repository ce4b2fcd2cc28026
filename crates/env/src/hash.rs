//! Hash maps and sets with a fixed order.
#![allow(clippy::disallowed_types)]

/// How they hash.
pub use foldhash::fast::FixedState;

/// A hash map whose order depends on nothing but its contents and history.
pub type HashMap<K, V> = std::collections::HashMap<K, V, FixedState>;
/// A hash set whose order depends on nothing but its contents and history.
pub type HashSet<K> = std::collections::HashSet<K, FixedState>;
