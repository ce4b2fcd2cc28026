//! `thalweg dump`: prints the structures on a file or device of a volume.

mod bytes;
mod in_place;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use thalweg_env::Env;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::chain::dump::{
    CheckpointDump, Dump, EntryDump, LabelDump, LabelFields, SegmentDump, dump,
};
use thalweg_store::device::kinds::kind_of;
use thalweg_store::device::{Access, DeviceKinds};
use thalweg_store::pool::format::{
    COPY, DATA_START, Fault, HEADER_MAGIC, Header, Member, PAIR, Role, SLOTS, slot_offset,
};
use thalweg_store::pool::{PoolError, lone_side};
use tokio::runtime::Handle;

use self::bytes::DeviceBytes;
use crate::devices;
use crate::failure::{Failure, Outcome};
use crate::size::Size;

/// Show the structures on a file, device or image of a volume
///
/// Takes no lock and changes nothing; a volume in use may change while it is shown.
#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    /// A map device, a journal, or any other file, device or image of a volume
    file: PathBuf,
    /// Byte at which the map area starts [default: where the device's label says]
    #[arg(long, value_name = "SIZE")]
    offset: Option<Size>,
    /// Also every entry of the map and every tag of the journal
    #[arg(long)]
    entries: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn print_map(found: &Dump) {
    found.labels.iter().for_each(print_label);
    for (half, witness) in found.witnesses.iter().enumerate() {
        if let Some((generation, number)) = witness {
            println!("half {half}: checkpoint {generation}.{number} was durable");
        }
    }
    found.checkpoints.iter().for_each(print_checkpoint);
    found.segments.iter().for_each(print_segment);
}

fn print_label(copy: &LabelDump) {
    println!("label at {}", copy.offset);
    if let Some(error) = &copy.error {
        println!("  no label: {error}");
    }
    let Some(LabelFields { sequence, volume, blocks, segment_blocks, max_segments, .. }) =
        copy.label
    else {
        return;
    };
    let (size, segment) =
        (blocks * BLOCK_SIZE as u64, u64::from(segment_blocks) * BLOCK_SIZE as u64);
    println!("  volume {volume}, sequence {sequence}");
    println!(
        "  {blocks} blocks ({}), segments of {}, room for {max_segments}",
        Size(size),
        Size(segment)
    );
    let Some(label) = &copy.label else { return };
    println!("  cleaning {:?}, placement {:?}", label.cleaning, label.placement);
    println!("  made at {}", label.created);
    for (number, link) in label.links.iter().enumerate() {
        let leaving = if link.leaving { ", leaving" } else { "" };
        let last = link.base + link.segments.saturating_sub(1);
        println!("  link {number} {}: segments {} to {last}{leaving}", link.id, link.base);
    }
    for snapshot in &label.snapshots {
        let (name, version) = (&snapshot.name, snapshot.version);
        println!("  snapshot {name}: version {version}, {} blocks", snapshot.blocks);
    }
    for (above, to, first) in &label.voids {
        println!("  void versions: above {above}, up to {to}, from block {first} on");
    }
    for ([users, body], first, version) in &label.cuts {
        println!(
            "  recovered version {version}: the logs ended in sequences {users} and {body}, and \
             went on from {first}"
        );
    }
}

fn print_checkpoint(record: &CheckpointDump) {
    let CheckpointDump { offset, generation, number, version, payload, blocks, .. } = record;
    let state = if record.whole { "" } else { ", DAMAGED" };
    println!(
        "checkpoint {generation}.{number} at {offset}: version {version}, {blocks} blocks, {}{state}",
        Size(*payload)
    );
    for (log, place) in record.logs.iter().enumerate() {
        if let Some((segment, slot, seq)) = place {
            println!("  log {log} at segment {segment}, slot {slot}, sequence {seq}");
        }
    }
}

fn print_segment(it: &SegmentDump) {
    let log = if it.log == 0 { "users" } else { "compaction" };
    let next = it.next.map_or(String::new(), |next| format!(", goes on in {next}"));
    println!(
        "segment {} at {}: sequence {}, {log}, {} entries in {} sectors, {} earlier, {} damaged{next}",
        it.segment, it.offset, it.seq, it.entries, it.sectors, it.earlier, it.damaged
    );
    for EntryDump { slot, kind, lba, version, last, check } in it.content.iter().flatten() {
        let end = if *last { ", ends its transaction" } else { "" };
        println!("  {slot:6} {kind:7} block {lba}, version {version}, check {check:08x}{end}");
    }
}

/// One copy of a header or slot of a device's label.
#[derive(Debug, serde::Serialize)]
struct Copy {
    offset: u64,
    /// Its fields; `None` when it is damaged.
    fields: Option<Value>,
    /// Why it cannot be decoded.
    fault: Option<String>,
}

fn fault_text(fault: Fault) -> Option<String> {
    match fault {
        Fault::None => None,
        Fault::Damaged => Some("damaged".to_owned()),
        Fault::Newer(format) => Some(format!("of the newer format {format}")),
    }
}

fn header_fields(header: &Header) -> Value {
    let Header { sequence, device, sharing, size, created } = header;
    json!({
        "header": device, "sequence": sequence, "sharing": format!("{sharing:?}").to_lowercase(),
        "size": size, "created": created,
    })
}

fn member_fields(member: &Member) -> Value {
    let sides = (0..member.sides).filter(|side| member.in_sync >> side & 1 == 1);
    json!({
        "volume": member.volume, "name": member.name, "role": member.role, "group": member.group,
        "device": member.device, "sequence": member.sequence,
        "column": member.column, "columns": member.columns,
        "side": member.side, "sides": member.sides,
        "stripe_unit": member.unit, "sector": member.sector,
        "start": member.start, "length": member.length, "map_bytes": member.map_bytes,
        "events": member.events, "in_sync": sides.collect::<Vec<_>>(),
    })
}

/// A device's label: every copy of its header and slots that is not empty.
fn label_copies(start: &[u8]) -> Vec<Copy> {
    let mut copies = Vec::new();
    let places = (0..2).map(|copy| copy * COPY);
    let slots = (0..SLOTS).flat_map(|slot| [slot_offset(slot), slot_offset(slot) + COPY]);
    for offset in places.chain(slots) {
        let Some(bytes) = start.get(offset as usize..(offset + COPY) as usize) else { break };
        let decoded = match offset < PAIR {
            true => Header::decode(bytes).map(|header| header_fields(&header)),
            false => Member::decode(bytes).map(|member| member_fields(&member)),
        };
        match decoded {
            Ok(fields) => copies.push(Copy { offset, fields: Some(fields), fault: None }),
            Err(fault) => {
                let fault = fault_text(fault);
                copies.extend(fault.map(|fault| Copy { offset, fields: None, fault: Some(fault) }));
            }
        }
    }
    copies
}

/// Where the slots of a label say that a map area starts.
fn map_starts(start: &[u8]) -> Vec<u64> {
    let pairs = (0..SLOTS).map(slot_offset);
    let mut starts: Vec<u64> = pairs
        .filter_map(|offset| {
            let copies = [offset, offset + COPY].map(|at| start.get(at as usize..));
            copies.into_iter().flatten().find_map(|bytes| Member::decode(bytes).ok())
        })
        // The map area of a striped link lies on several devices, in pieces.
        .filter(|member| member.role == Role::Map || member.map_bytes > 0 && member.columns == 1)
        .map(|member| member.start)
        .collect();
    starts.dedup();
    starts
}

fn print_copy(copy: &Copy) {
    println!("device label at {}", copy.offset);
    if let Some(fault) = &copy.fault {
        println!("  {fault}");
    }
    for (name, value) in copy.fields.iter().filter_map(Value::as_object).flatten() {
        println!("  {name:12} {value}");
    }
}

/// Reads the bytes before the first extent, or fewer if the file is shorter.
fn read_start<F: Read + Seek>(file: &mut F) -> std::io::Result<Vec<u8>> {
    let mut start = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(DATA_START).read_to_end(&mut start)?;
    Ok(start)
}

/// The structures that were found.
enum Structures {
    InPlace(in_place::Marked),
    Chained { copies: Vec<Copy>, maps: Vec<(u64, Dump)> },
}

/// Reads the structures of a volume from the bytes of one of its devices.
fn read<F: Read + Seek>(
    file: &mut F,
    offset: Option<Size>,
    entries: bool,
) -> std::io::Result<Structures> {
    let start = read_start(file)?;
    if offset.is_none()
        && let Some(marked) = in_place::marked(&start)
    {
        return Ok(Structures::InPlace(marked));
    }
    let labelled = [0, COPY as usize]
        .iter()
        .any(|at| start[*at.min(&start.len())..].starts_with(&HEADER_MAGIC));
    let copies = if labelled { label_copies(&start) } else { Vec::new() };
    let places = match offset {
        Some(offset) => vec![offset.0],
        None if labelled => map_starts(&start),
        None => vec![0],
    };
    let mut maps = Vec::new();
    for place in places {
        let found = dump(file, place, entries)?;
        if labelled || found.labels.iter().any(|copy| copy.label.is_some()) {
            maps.push((place, found));
        }
    }
    Ok(Structures::Chained { copies, maps })
}

pub(crate) async fn run(env: &Env, args: DumpArgs) -> Outcome<()> {
    let kinds = devices::known(env);
    let dumped = run_with(&kinds, &args).await;
    devices::close(&kinds, dumped).await
}

async fn run_with(kinds: &DeviceKinds, args: &DumpArgs) -> Outcome<()> {
    let path = &args.file;
    let failed = |error: std::io::Error| {
        Failure::of(&error)
            .while_doing(format!("cannot read {}", path.display()))
            .help("name a device of a volume, as thalweg volume status shows it")
    };
    let (offset, entries) = (args.offset, args.entries);
    let open = async || kinds.open(path, Access::Reading).await.map_err(PoolError::from);
    let found = match kind_of(path) {
        None => read(&mut File::open(path).map_err(failed)?, offset, entries),
        Some(_) => {
            let mut bytes = DeviceBytes::new(open().await?, Handle::current());
            let reading = tokio::task::spawn_blocking(move || read(&mut bytes, offset, entries));
            reading.await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
        }
    };
    match found.map_err(failed)? {
        Structures::InPlace(marked) => {
            in_place::run(open().await?, marked, args.entries, args.json).await
        }
        Structures::Chained { copies, maps } if copies.is_empty() && maps.is_empty() => {
            Err(Failure::new(format!("{} holds no label of a volume", path.display())).help(
                "name a device of a volume, or say where its map area starts: --offset BYTES",
            ))
        }
        Structures::Chained { copies, maps } => {
            print_chained(&copies, &maps, args.json);
            let holds_journal = |copy: &Copy| {
                copy.fields
                    .as_ref()
                    .is_some_and(|fields| fields["role"] == json!(Role::ClientJournal))
            };
            if !copies.iter().any(holds_journal) {
                return Ok(());
            }
            // What this device of a mirrored journal has, though the other one may have more.
            match lone_side(&open().await?).await? {
                Some(side) => {
                    in_place::run(side, in_place::Marked::Journal, args.entries, args.json).await
                }
                None => Ok(()),
            }
        }
    }
}

fn print_chained(copies: &[Copy], maps: &[(u64, Dump)], json: bool) {
    if json {
        let areas = maps.iter().map(|(start, map)| json!({ "start": start, "map": map }));
        println!("{}", json!({ "label": copies, "map_areas": areas.collect::<Vec<_>>() }));
        return;
    }
    copies.iter().for_each(print_copy);
    for (start, map) in maps {
        println!("map area at {start}");
        print_map(map);
    }
}
