//! The one rule for a block that a transaction writes several times, and that the stores keep it.

use std::sync::Arc;

use thalweg_store::block::{
    BLOCK_SIZE, Blocks, BlocksExt, ByteRanges, Class, Lba, StoreError, Write, WriteList,
};
use thalweg_store::txn::{Options, TransactionManager};

use thalweg_sim::versions::VersionedMemory;

fn write(lba: u64, byte: u8, changed: std::ops::Range<usize>) -> Write {
    let content = Some(vec![byte; BLOCK_SIZE].into());
    Write { lba: Lba(lba), content, changed: changed.into(), class: Class::Data }
}

fn discard(lba: u64) -> Write {
    let class = Class::Metadata;
    Write { lba: Lba(lba), content: None, changed: ByteRanges::none(), class }
}

/// Lba, first byte of the content, and the changed bytes of each block of the list.
fn list(writes: Vec<Write>) -> Vec<(u64, Option<u8>, Vec<std::ops::Range<usize>>)> {
    let list = WriteList::new(writes).unwrap();
    let of = |write: &Write| {
        let byte = write.content.as_ref().map(|content| content[0]);
        (write.lba.0, byte, write.changed.iter().collect())
    };
    list.iter().map(of).collect()
}

fn only(range: std::ops::Range<usize>) -> Vec<std::ops::Range<usize>> {
    std::iter::once(range).collect()
}

#[test]
fn the_last_write_of_a_block_wins_with_the_bytes_that_any_changed() {
    let twice = vec![write(7, 1, 0..8), write(3, 2, 0..4), write(7, 3, 100..101)];
    assert_eq!(list(twice), [(7, Some(3), vec![0..8, 100..101]), (3, Some(2), only(0..4))]);
    let one = |last: Option<u8>| [(7, last, only(0..BLOCK_SIZE))];
    assert_eq!(list(vec![write(7, 1, 0..8), discard(7)]), one(None));
    assert_eq!(list(vec![discard(7), write(7, 1, 0..8)]), one(Some(1)));
    assert_eq!(list(vec![discard(7)]), one(None));
}

#[test]
fn the_class_is_that_of_the_last_write() {
    let meta = Write { class: Class::Metadata, ..write(7, 1, 0..8) };
    let list = WriteList::new(vec![meta.clone(), write(7, 2, 0..8), write(1, 1, 0..8), meta]);
    let list = list.unwrap();
    assert_eq!((list.len(), list[0].class), (2, Class::Metadata));
}

#[test]
fn a_content_that_is_no_block_is_refused() {
    let short = Write::block(Lba(1), vec![0; 512].into());
    let refused = WriteList::new(vec![write(0, 1, 0..8), short]);
    assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
}

/// Two partial writes of one block, each on top of the other, outside of transactions.
#[test]
fn a_write_outside_of_transactions_keeps_both_of_its_changes() {
    thalweg_sim::run(1, |env| async move {
        let store = Arc::new(VersionedMemory::new(10));
        let manager = TransactionManager::new(&env, store, Options::default());
        let mut block = vec![0; BLOCK_SIZE];
        let mut part = |at: usize| {
            block[at] = 7;
            let content = Some(block.clone().into());
            Write { lba: Lba(3), content, changed: (at..at + 1).into(), class: Class::Data }
        };
        manager.apply(vec![part(0), part(100)]).await.unwrap();
        let read = manager.read(Lba(3), 1, manager.now()).await.unwrap().remove(0).unwrap();
        assert_eq!((read[0], read[100]), (7, 7));
    });
}
