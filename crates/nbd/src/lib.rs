//! NBD server for Thalweg volumes.
