//! The bytes that mutations write, file by file.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Mutation, MutationKind};
use crate::attributes::Ino;

/// Bytes that follow one another in a file.
#[derive(Clone, Debug)]
pub struct Run {
    /// The first byte.
    pub offset: u64,
    /// The byte behind the last one.
    pub end: u64,
    /// The bytes; none if the maker of the mutations has stored them.
    pub data: Vec<Bytes>,
}

impl Run {
    /// Where it is written, and its bytes.
    pub fn into_write(self) -> (u64, Vec<Bytes>) {
        (self.offset, self.data)
    }
}

/// The runs of each file, in the order in which they were written.
pub type Runs = BTreeMap<Ino, Vec<Run>>;

/// What mutations write to each file. Writes that follow one another are one run.
pub fn runs_of<'a>(mutations: impl IntoIterator<Item = &'a Mutation>) -> Runs {
    let mut files = Runs::new();
    for Mutation { kind, .. } in mutations {
        let (ino, offset, len, data) = match kind {
            MutationKind::Write { ino, offset, data, .. } => {
                (ino, *offset, data.len() as u64, Some(data))
            }
            MutationKind::Stored { ino, offset, len, .. } => (ino, *offset, *len, None),
            MutationKind::Create { .. }
            | MutationKind::SetAttributes { .. }
            | MutationKind::Unlink { .. }
            | MutationKind::RemoveDirectory { .. }
            | MutationKind::Link { .. }
            | MutationKind::Rename { .. }
            | MutationKind::Reserve { .. }
            | MutationKind::SetXattr { .. }
            | MutationKind::RemoveXattr { .. } => continue,
        };
        let runs = files.entry(*ino).or_default();
        let end = offset.saturating_add(len);
        match runs.last_mut() {
            Some(last) if last.end == offset && last.data.is_empty() == data.is_none() => {
                last.data.extend(data.cloned());
                last.end = end;
            }
            _ => runs.push(Run { offset, end, data: data.cloned().into_iter().collect() }),
        }
    }
    files
}

/// Whether the maker of the mutations has stored some of the runs of a file.
pub fn is_stored(runs: &[Run]) -> bool {
    runs.iter().any(|run| run.data.is_empty())
}
