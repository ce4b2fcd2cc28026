//! The bytes of a write, in the order in which its blocks take them.

use std::collections::VecDeque;

use bytes::Bytes;

/// Buffers, as one.
#[derive(Debug)]
pub(super) struct Source(VecDeque<Bytes>);

impl Source {
    /// All bytes of these buffers.
    pub(super) fn new(data: Vec<Bytes>) -> Source {
        Source(data.into_iter().filter(|it| !it.is_empty()).collect())
    }

    /// Whether all bytes are taken.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `len` bytes, which are there: not copied when one buffer has them.
    pub(super) fn take(&mut self, len: usize) -> Bytes {
        if let Some(first) = self.0.front_mut().filter(|first| first.len() >= len) {
            let taken = first.split_to(len);
            if first.is_empty() {
                self.0.pop_front();
            }
            return taken;
        }
        let mut taken = Vec::with_capacity(len);
        while taken.len() < len
            && let Some(mut first) = self.0.pop_front()
        {
            let rest = first.split_off(first.len().min(len - taken.len()));
            taken.extend_from_slice(&first);
            if !rest.is_empty() {
                self.0.push_front(rest);
            }
        }
        assert_eq!(taken.len(), len, "a write has fewer bytes than it says");
        taken.into()
    }
}
