//! Encodes the mutations of a batch into the parts in which it is staged, one part after the other.

use bytes::Bytes;
use thalweg_fs::FsError;
use thalweg_fs::mutation::Mutation;

use super::error::LinkError;
use crate::protocol::MAX_PAYLOAD;

/// A batch is encoded as a list, whose length comes first.
pub(super) struct PartEncoder {
    /// What is in no part yet.
    rest: Vec<u8>,
    /// Mutations that are to come.
    left: usize,
}

fn encoded<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, FsError> {
    postcard::to_allocvec(value).map_err(|_| LinkError::Unexpected.into())
}

impl PartEncoder {
    /// Of so many mutations.
    pub(super) fn new(mutations: usize) -> Result<PartEncoder, FsError> {
        Ok(PartEncoder { rest: encoded(&mutations)?, left: mutations })
    }

    pub(super) fn push(&mut self, mutation: &Mutation) -> Result<(), FsError> {
        self.left = self.left.checked_sub(1).expect("a batch has no more mutations than it says");
        self.rest.extend_from_slice(&encoded(mutation)?);
        Ok(())
    }

    /// The parts behind which more comes.
    pub(super) fn take_full(&mut self) -> Vec<Bytes> {
        let mut parts = Vec::new();
        while self.rest.len() > MAX_PAYLOAD {
            let rest = self.rest.split_off(MAX_PAYLOAD);
            parts.push(std::mem::replace(&mut self.rest, rest).into());
        }
        parts
    }

    /// The last part.
    pub(super) fn finish(self) -> Bytes {
        assert!(self.left == 0 && self.rest.len() <= MAX_PAYLOAD, "a batch has all its mutations");
        self.rest.into()
    }
}

#[cfg(test)]
mod tests {
    use thalweg_fs::Ino;
    use thalweg_fs::mutation::MutationKind;

    use super::*;

    #[test]
    fn parts_are_those_of_the_list() {
        for (count, len) in [(0_usize, 0), (1, 10), (3, MAX_PAYLOAD), (40, 100_000), (300, 16_384)]
        {
            let write = |at: usize| {
                let data = vec![at as u8; len].into();
                let (ino, offset) = (Ino(2), at as u64);
                let kind = MutationKind::Write { ino, offset, data, clear_suid: false };
                Mutation { time: Default::default(), kind }
            };
            let mutations: Vec<Mutation> = (0..count).map(write).collect();
            let (mut encoder, mut parts) = (PartEncoder::new(count).unwrap(), Vec::new());
            for mutation in &mutations {
                encoder.push(mutation).unwrap();
                parts.extend(encoder.take_full());
            }
            assert!(parts.iter().all(|part| part.len() == MAX_PAYLOAD));
            parts.push(encoder.finish());
            assert_eq!(parts.concat(), postcard::to_allocvec(&mutations).unwrap());
        }
    }
}
