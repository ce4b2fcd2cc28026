//! Reads of a file of this client's own: what it has made of the file by itself lies over what the server has.
//!
//! The server gets none of it while it is asked. A step may lie over itself: so it does not matter whether the server has some.

use std::ops::Range;

use thalweg_fs::Ino;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::ranges::Ranges;
use thalweg_store::journal::log::RecordPlace;

use super::inode_changes::Step;
use super::record::Waiting;

/// With more mutations that wait, looking through them takes longer than sending some.
pub(super) const MAX_SEARCHED: usize = 1 << 14;

/// What waits of the bytes of a file.
#[derive(Default)]
pub(super) struct OwnSteps {
    /// The file is one of the mutations.
    pub(super) is_made: bool,
    pub(super) steps: Vec<OwnStep>,
}

/// A change of bytes. Those of a write that is spilled are in a record of the journal, with this number.
pub(super) enum OwnStep {
    Here(Step),
    Spilled { offset: u64, len: u64, number: u64, place: RecordPlace },
}

impl OwnSteps {
    /// Of a file, from what waits in its order; `None` if that has other changes of its bytes.
    pub(super) fn of<'a>(
        file: Ino,
        waiting: impl Iterator<Item = &'a Waiting>,
    ) -> Option<OwnSteps> {
        let mut own = OwnSteps::default();
        for Waiting { number, record, .. } in waiting {
            let Mutation { kind, .. } = record.parts().mutation;
            if kind.made() == Some(file) {
                own.is_made = true;
            }
            if kind.ino() != file {
                continue;
            }
            match (kind, record.spilled_to()) {
                (MutationKind::Write { offset, .. }, Some(place)) => {
                    let (len, number) = (record.data_bytes(), *number);
                    own.steps.push(OwnStep::Spilled { offset, len, number, place });
                }
                (MutationKind::Write { offset, data, .. }, None) => {
                    own.steps.push(OwnStep::Here(Step::Write(offset, data)));
                }
                (MutationKind::SetAttributes { change, .. }, _) => {
                    own.steps.extend(change.size.map(|size| OwnStep::Here(Step::Size(size))));
                }
                (MutationKind::Stored { .. }, _) => return None,
                // Names in it, if it is a directory; what changes no bytes, if it is a file.
                _ => {}
            }
        }
        Some(own)
    }

    /// Whether these bytes follow from the steps alone, and not from what the server has.
    pub(super) fn cover(&self, bytes: &Range<u64>) -> bool {
        let mut known = Ranges::default();
        for step in &self.steps {
            let (start, end) = match step {
                OwnStep::Here(Step::Write(offset, data)) => (*offset, offset + data.len() as u64),
                OwnStep::Spilled { offset, len, .. } => (*offset, offset + len),
                // Zeros, or what was written later.
                OwnStep::Here(Step::Size(size)) => (*size, u64::MAX),
                OwnStep::Here(Step::Grow(_)) => continue,
            };
            let (start, end) = (start.max(bytes.start), end.min(bytes.end));
            if start < end {
                known.add(start..end);
            }
        }
        known.gaps(bytes.clone()).is_empty()
    }
}

/// Lays a step over `bytes`, which begin at `offset`.
pub(super) fn lay(step: &Step, offset: u64, bytes: &mut [u8]) {
    let end = offset + bytes.len() as u64;
    match step {
        Step::Write(at, data) => {
            let (from, to) = ((*at).max(offset), (at + data.len() as u64).min(end));
            if from < to {
                let part = &data[(from - at) as usize..(to - at) as usize];
                bytes[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            }
        }
        Step::Size(size) if *size < end => bytes[size.saturating_sub(offset) as usize..].fill(0),
        Step::Size(_) | Step::Grow(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn apply(steps: &[Step], file: &mut Vec<u8>) {
        for step in steps {
            match step {
                Step::Write(at, data) => {
                    let end = *at as usize + data.len();
                    file.resize(file.len().max(end), 0);
                    file[*at as usize..end].copy_from_slice(data);
                }
                Step::Size(size) => file.resize(*size as usize, 0),
                Step::Grow(size) => file.resize(file.len().max(*size as usize), 0),
            }
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let write = (0..60_u64, proptest::collection::vec(1..=255_u8, 1..20))
            .prop_map(|(at, data)| Step::Write(at, data.into()));
        let size = (0..80_u64).prop_map(Step::Size);
        let grow = (0..80_u64).prop_map(Step::Grow);
        proptest::collection::vec(prop_oneof![3 => write, 1 => size, 1 => grow], 0..12)
    }

    proptest! {
        /// The server may have any of the first steps already.
        #[test]
        fn what_lies_over_a_prefix_is_the_whole(
            first in proptest::collection::vec(1..=255_u8, 0..50),
            steps in steps(),
            sent in 0..12_usize,
            offset in 0..70_u64,
            len in 0..70_usize,
        ) {
            let (mut server, mut whole) = (first.clone(), first);
            apply(&steps[..sent.min(steps.len())], &mut server);
            apply(&steps, &mut whole);
            let end = (offset as usize + len).min(whole.len());
            let wanted = whole.get(offset as usize..end).unwrap_or_default();
            let mut read = server.get(offset as usize..).unwrap_or_default().to_vec();
            read.resize(wanted.len(), 0);
            steps.iter().for_each(|step| lay(step, offset, &mut read));
            prop_assert_eq!(&read[..], wanted);
        }

        /// Where the steps cover everything, the server's bytes change nothing.
        #[test]
        fn what_steps_cover_needs_no_server(
            first in proptest::collection::vec(1..=255_u8, 0..90),
            steps in steps(),
            offset in 0..70_u64,
            len in 1..20_usize,
        ) {
            let mut whole = first;
            apply(&steps, &mut whole);
            let end = (offset as usize + len).min(whole.len());
            prop_assume!((offset as usize) < end);
            let own = steps.iter().cloned().map(OwnStep::Here).collect();
            let own = OwnSteps { is_made: false, steps: own };
            let mut read = vec![0; end - offset as usize];
            steps.iter().for_each(|step| lay(step, offset, &mut read));
            let mut other = vec![255; read.len()];
            steps.iter().for_each(|step| lay(step, offset, &mut other));
            prop_assert_eq!(own.cover(&(offset..end as u64)), read == other);
            if read == other {
                prop_assert_eq!(&read[..], &whole[offset as usize..end]);
            }
        }
    }
}
