//! FUSE adapters for Thalweg: a volume as one file.
