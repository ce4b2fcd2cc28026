//! Prints the structures on an in-place volume's device, and on a journal's.

use serde_json::json;
use thalweg_cluster::client::journal::OWNER as CLIENT_JOURNAL;
use thalweg_store::block::{BLOCK_SIZE, Lba};
use thalweg_store::device::DeviceRef;
use thalweg_store::inplace::dump::{InPlaceDump, MapDump, dump};
use thalweg_store::inplace::format::Superblock;
use thalweg_store::inplace::{InPlaceError, format as inplace};
use thalweg_store::journal::dump::{
    self as journal, CopyDump, EndDump, JournalDump, LogDump, TagDump,
};
use thalweg_store::journal::format as journal_format;

use crate::failure::Outcome;
use crate::size::Size;

/// The kind of a device, by its magic numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marked {
    Volume,
    Journal,
}

/// The kind of a device, by its first bytes; `None` if it is neither.
pub(super) fn marked(start: &[u8]) -> Option<Marked> {
    let has = |magic: &[u8], copies: u64, copy: u64| {
        (0..copies)
            .any(|nth| start.get((nth * copy) as usize..).is_some_and(|it| it.starts_with(magic)))
    };
    match () {
        () if has(&inplace::MAGIC, inplace::COPIES, inplace::COPY) => Some(Marked::Volume),
        () if has(
            &journal_format::SUPERBLOCK_MAGIC,
            journal_format::COPIES,
            journal_format::COPY,
        ) =>
        {
            Some(Marked::Journal)
        }
        () => None,
    }
}

pub(super) async fn run(
    device: DeviceRef,
    marked: Marked,
    entries: bool,
    json: bool,
) -> Outcome<()> {
    match marked {
        Marked::Volume => {
            let found = dump(&device, entries).await?;
            match json {
                true => println!("{}", json!({ "in_place": found })),
                false => print_volume(&found, entries),
            }
        }
        Marked::Journal if is_client_journal(&device).await => {
            let found = journal::dump_log(&device).await.map_err(InPlaceError::from)?;
            match json {
                true => println!("{}", json!({ "client_journal": found })),
                false => print_log(&found),
            }
        }
        Marked::Journal => {
            let found: JournalDump<Lba> =
                journal::dump(&device).await.map_err(InPlaceError::from)?;
            match json {
                true => println!("{}", json!({ "journal": found })),
                false => print_journal(&found, entries),
            }
        }
    }
    Ok(())
}

/// Whether it is the journal of a client of a shared filesystem. One without a superblock may be anything.
async fn is_client_journal(device: &DeviceRef) -> bool {
    journal::owner(device).await.is_ok_and(|owner| owner == CLIENT_JOURNAL)
}

fn print_log(found: &LogDump) {
    print_journal_superblocks(&found.superblocks);
    for it in &found.records {
        println!(
            "record {} at {}: up to change {}, {} in the journal, epoch {}, {} bytes of head and {} of changes",
            it.sequence,
            it.offset,
            it.stamp,
            Size(it.bytes),
            it.epoch,
            it.header,
            it.body
        );
    }
    print_end(found.end, "record");
}

fn print_volume(found: &InPlaceDump, entries: bool) {
    for copy in &found.superblocks {
        println!("superblock at {}", copy.offset);
        if let Some(error) = &copy.error {
            println!("  {error}");
        }
        copy.superblock.iter().for_each(print_superblock);
    }
    if let Some(journal) = &found.journal {
        print_journal(journal, entries);
    }
    found.map.iter().for_each(print_map);
}

fn print_superblock(it: &Superblock) {
    let Superblock { generation, volume, journal, name, blocks, version, .. } = it;
    let size = Size(blocks.saturating_mul(BLOCK_SIZE as u64));
    println!("  volume {volume}, called {name}, generation {generation}");
    println!("  {blocks} blocks ({size}) from {} on, sectors of {}", it.data_offset, it.sector);
    match it.journal_at {
        (_, 0) => println!("  journal {journal}, on a device of its own"),
        (offset, size) => println!("  journal {journal}, {} from {offset} on", Size(size)),
    }
    println!("  map from {} on, version {version}, made at {}", it.map_offset, it.created);
    if it.second_part > 0 {
        println!("  second part of the map from {} on", it.second_part);
    }
}

fn print_map(map: &MapDump) {
    let MapDump { summed, unsummed, empty, damaged, content } = map;
    println!("map: {summed} blocks with a checksum, {unsummed} without, {empty} empty");
    for sector in damaged {
        println!("  sector {sector}: DAMAGED");
    }
    for (lba, sum) in content.iter().flatten() {
        match sum {
            Some(sum) => println!("  block {lba}, check {sum:08x}"),
            None => println!("  block {lba}"),
        }
    }
}

fn print_journal(journal: &JournalDump<Lba>, entries: bool) {
    print_journal_superblocks(&journal.superblocks);
    for it in &journal.transactions {
        println!(
            "transaction {} at {}: version {}, {} in the journal, {} tags with {} bytes and {} blocks",
            it.sequence,
            it.offset,
            it.stamp,
            Size(it.bytes),
            it.tags.len(),
            it.multiwrite,
            it.regular
        );
        if entries {
            it.tags.iter().for_each(print_tag);
        }
    }
    print_end(journal.end, "transaction");
}

fn print_journal_superblocks(copies: &[CopyDump<journal_format::Superblock>]) {
    for copy in copies {
        println!("journal's superblock at {}", copy.offset);
        if let Some(error) = &copy.error {
            println!("  {error}");
        }
        if let Some(it) = &copy.superblock {
            let journal_format::Geography { size, sector } = it.geography;
            println!("  journal {} of volume {}, generation {}", it.id, it.owner, it.generation);
            println!("  a ring of {}, sectors of {}, epoch {}", Size(size), sector, it.epoch);
            println!(
                "  recovery begins with transaction {} at {}, behind version {}",
                it.tail_sequence, it.tail_offset, it.stamp
            );
            if it.kept_before > it.tail_sequence {
                println!(
                    "  those before {} are of earlier openings, from epoch {} on",
                    it.kept_before, it.oldest_epoch
                );
            }
        }
    }
}

fn print_end(end: EndDump, what: &str) {
    match end {
        EndDump::Unknown => println!("no {what} can be found"),
        EndDump::Clean => println!("the journal ends clean"),
        EndDump::Torn => println!("after it one incomplete {what}, which never became durable"),
        EndDump::Rotten { later } => {
            println!("DAMAGED after that: what was durable went up to {what} {later}")
        }
    }
}

fn print_tag(tag: &TagDump<Lba>) {
    match tag {
        TagDump::Bytes { block, offset, len, fresh } => {
            let fresh = if *fresh { ", zeros before" } else { "" };
            println!("  block {}: {len} bytes from {offset} on{fresh}", block.0);
        }
        TagDump::Whole { block } => println!("  block {}: all of it", block.0),
        TagDump::Void { block, count, note } => {
            let note = match *note {
                inplace::NOTE_CLEARED => "hold nothing",
                inplace::NOTE_DIRECT => "were written in place",
                _ => "have an unknown note",
            };
            println!("  {count} blocks from {} on {note}", block.0);
        }
    }
}
