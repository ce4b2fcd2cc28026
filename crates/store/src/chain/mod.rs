//! A log chained over drives, with a multi-version index (Gecko; the store under Isotope).

pub mod cache;
