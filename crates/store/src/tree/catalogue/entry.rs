//! Entries of the catalogue.

use uuid::Uuid;

use crate::tree::format::{CatalogueBlock, CatalogueEntry, Kind, State};
use crate::tree::partition::{Partition, Run};

/// One run of a partition as an entry of the catalogue: a partition of that run alone, and the run's number.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) partition: Partition,
    pub(super) run: u16,
}

/// The entries of a partition.
pub(super) fn entries_of(partition: &Partition) -> Vec<Listed> {
    let entry = |(number, Run { first, blocks, state }): (usize, Run)| {
        let partition = Partition { first, blocks, state, further: vec![], ..partition.clone() };
        Listed { partition, run: number as u16 }
    };
    partition.all_runs().enumerate().map(entry).collect()
}

/// Writes entries into a block.
pub(super) fn fill_entries(block: &mut CatalogueBlock, entries: &[Listed]) {
    for (entry, Listed { partition, run }) in block.entries.iter_mut().zip(entries) {
        let name = partition.name.as_bytes();
        entry.name_len = name.len() as u8;
        entry.name[..name.len()].copy_from_slice(name);
        entry.kind = partition.kind.encode();
        entry.ready = u8::from(partition.state == State::Ready);
        entry.run = (*run).into();
        entry.uuid = *partition.uuid.as_bytes();
        entry.first = partition.first.into();
        entry.blocks = partition.blocks.into();
    }
}

/// An entry of a block; `None` when it is invalid.
pub(super) fn decode_entry(entry: &CatalogueEntry) -> Option<Listed> {
    let name = entry.name.get(..usize::from(entry.name_len))?;
    let partition = Partition {
        name: std::str::from_utf8(name).ok()?.to_owned(),
        kind: Kind::decode(entry.kind)?,
        first: entry.first.get(),
        blocks: entry.blocks.get(),
        further: Vec::new(),
        uuid: Uuid::from_bytes(entry.uuid),
        state: if entry.ready == 1 { State::Ready } else { State::Unfinished },
    };
    Some(Listed { partition, run: entry.run.get() })
}
