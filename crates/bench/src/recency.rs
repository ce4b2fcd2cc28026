//! Keys in the order of their last use.

use std::collections::BTreeMap;

use thalweg_env::HashMap;

/// Keys in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    keys: BTreeMap<u64, u64>,
    numbers: HashMap<u64, u64>,
    added: u64,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn contains(&self, key: u64) -> bool {
        self.numbers.contains_key(&key)
    }

    /// Adds a key at the end, or moves it there.
    pub(crate) fn push(&mut self, key: u64) {
        self.remove(key);
        self.added += 1;
        self.keys.insert(self.added, key);
        self.numbers.insert(key, self.added);
    }

    pub(crate) fn remove(&mut self, key: u64) -> bool {
        let number = self.numbers.remove(&key);
        number.is_some_and(|number| self.keys.remove(&number).is_some())
    }

    /// Takes the oldest key.
    pub(crate) fn pop(&mut self) -> Option<u64> {
        let (_, key) = self.keys.pop_first()?;
        self.numbers.remove(&key);
        Some(key)
    }
}
