//! The writes of one transaction: each block once.

use std::collections::hash_map::Entry;

use thalweg_env::HashMap;

use super::{BLOCK_SIZE, ByteRanges, Lba, StoreError, Write};

/// The writes of one transaction, each block once.
///
/// This is where the rule for a block that is written several times is applied, so that no store has a rule
/// of its own: **the last write wins, with the bytes that any of them changed.** The content and the class
/// are those of the last write. Its `changed` is the union, since it is relative to the block's content
/// before the transaction; a discard changes the whole block. A block keeps the place of its first write in
/// the list.
#[derive(Clone, Debug, Default)]
pub struct WriteList(Vec<Write>);

impl WriteList {
    /// Applies the rule to `writes`.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when a content has not [`BLOCK_SIZE`] bytes.
    pub fn new(mut writes: Vec<Write>) -> Result<WriteList, StoreError> {
        let mut is_ascending = true;
        let mut before: Option<Lba> = None;
        for write in &mut writes {
            match &write.content {
                Some(content) if content.len() != BLOCK_SIZE => {
                    return Err(StoreError::Invalid(format!(
                        "a block has {BLOCK_SIZE} bytes, and the content for block {} has {}",
                        write.lba.0,
                        content.len()
                    )));
                }
                None if !write.changed.is_whole() => write.changed = ByteRanges::whole(),
                _ => {}
            }
            is_ascending &= before.is_none_or(|before| before < write.lba);
            before = Some(write.lba);
        }
        Ok(WriteList(if is_ascending { writes } else { merged(writes) }))
    }

    /// The writes, in the order in which their blocks were first written.
    pub fn into_vec(self) -> Vec<Write> {
        self.0
    }
}

impl std::ops::Deref for WriteList {
    type Target = [Write];

    fn deref(&self) -> &[Write] {
        &self.0
    }
}

fn merged(writes: Vec<Write>) -> Vec<Write> {
    let mut places: HashMap<Lba, usize> = HashMap::default();
    let mut last: Vec<Write> = Vec::with_capacity(writes.len());
    for mut write in writes {
        match places.entry(write.lba) {
            Entry::Occupied(place) => {
                let before = &mut last[*place.get()];
                write.changed.add_all(&before.changed);
                *before = write;
            }
            Entry::Vacant(place) => {
                place.insert(last.len());
                last.push(write);
            }
        }
    }
    last
}
