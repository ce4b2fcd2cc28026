//! Changes of keys that are made together.

use bytes::Bytes;

/// Changes that are made together, in this order.
#[derive(Clone, Debug, Default)]
pub struct Batch(pub(super) Vec<Change>);

/// A change of one key.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) key: Bytes,
    /// `None` deletes the key.
    pub(super) value: Option<Bytes>,
}

impl Batch {
    /// No changes.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a change: a key gets a value.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> &mut Batch {
        self.0.push(Change { key: key.into(), value: Some(value.into()) });
        self
    }

    /// Adds a change: a key is removed, if it is present.
    pub fn delete(&mut self, key: impl Into<Bytes>) -> &mut Batch {
        self.0.push(Change { key: key.into(), value: None });
        self
    }

    /// The number of changes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
