//! Golden bytes of the map device, recorded when the format was fixed. A change here is a new format version.

use std::sync::Arc;

use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BlocksExt, ByteRanges, Lba, Version, Write};
use thalweg_store::chain::Cleaning;
use thalweg_store::chain::format::{Entry, Kind, MapEntry, MapSector, Position, SectorHead};
use thalweg_store::chain::minilog::format::{Builder, Fragment, entry_of, open};
use thalweg_store::device::DeviceRef;
use zerocopy::IntoBytes;

use crate::support::{Shape, content};

fn hex(bytes: &[u8]) -> String {
    let words = bytes.chunks(4).map(|word| word.iter().map(|b| format!("{b:02x}")).collect());
    words.collect::<Vec<String>>().join(" ")
}

#[test]
fn an_entry() {
    let entry = MapEntry {
        kind: Kind::Moved,
        last: true,
        lba: Lba(0x12_3456_789a),
        version: Version(0xbbcc_ddee_ff00),
        check: 0x0102_0304,
    };
    let stored = Entry::encode(&entry);
    assert_eq!(hex(stored.as_bytes()), "04030201 9a785634 1282ccbb 00ffeedd");
    assert_eq!(stored.decode(), Some(entry));
    let kinds = [
        (Kind::Data, 1),
        (Kind::Moved, 2),
        (Kind::Discard, 3),
        (Kind::Pad, 4),
        (Kind::MovedDiscard, 5),
        (Kind::Mini, 6),
        (Kind::Settled, 7),
    ];
    for (kind, byte) in kinds {
        let stored = Entry::encode(&MapEntry { kind, last: false, ..entry });
        assert_eq!(stored.as_bytes()[9], byte);
    }
}

#[test]
fn a_map_sector() {
    let entry =
        MapEntry { kind: Kind::Data, last: false, lba: Lba(5), version: Version(6), check: 7 };
    let head = SectorHead {
        seq: 0x0605_0403_0201,
        durable: Position::new(0x11, 0x22),
        uncommitted: 0x3344,
        next: 0x5566_7788,
        index: 0x0002,
        count: 1,
        log: 1,
    };
    let sector = MapSector::seal(0xaabb_ccdd, head, &[Entry::encode(&entry)]);
    assert_eq!(hex(&sector.as_bytes()[..48]), GOLDEN_SECTOR);
    assert!(sector.as_bytes()[48..].iter().all(|byte| *byte == 0));
    assert_eq!(sector.verify(0xaabb_ccdd, 2), Some(head));
}

#[test]
fn a_mini_log_block() {
    let content = content(7, 1);
    let mut changed = ByteRanges::from(0..4);
    changed.add(18..20);
    let mut builder = Builder::default();
    builder.add(&Fragment::of(7, Version(0x1234), &changed, &content));
    builder.add(&Fragment::of(9, Version(0x1236), &ByteRanges::from(8..9), &content));
    let sealed = builder.seal(512);
    assert_eq!(hex(&sealed.content[..52]), GOLDEN_MINI);
    assert_eq!((sealed.content.len(), sealed.newest, sealed.span), (512, Version(0x1236), 2));
    assert_eq!(sealed.check, 0x2353_dbe7);
    let found = open(&entry_of(&sealed, true), &sealed.content).unwrap();
    let read: Vec<_> = found.iter().map(|one| (one.lba, one.version, one.pieces.len())).collect();
    assert_eq!(read, [(7, Version(0x1234), 2), (9, Version(0x1236), 1)]);
    assert_eq!(found[0].pieces[1], (18, content.slice(18..20)));
    let other = MapEntry { version: Version(0x1237), ..entry_of(&sealed, true) };
    assert_eq!(open(&other, &sealed.content), None, "another use of the block");
}

const GOLDEN_MINI: &str = "2f000200 34120000 00000000 07000000 00000200 00000400 12000200 07000000 \
     00000900 00000200 01000800 01000200 00000000";

const GOLDEN_SECTOR: &str = "763a53e3 ddccbbaa 01020304 05064433 22001001 00000000 88776655 02000101 \
     07000000 05000000 00010000 06000000";

/// Label, witness, checkpoint head and map sector of a small volume with one block.
#[test]
fn a_volume() {
    run(1, |env| async move {
        let shape = Shape::small(Cleaning::CompactInBody);
        let disks = parking_lot::Mutex::new(Vec::new());
        let devices = shape.devices(|name, geometry| {
            let disk = Arc::new(RamDisk::new(name, geometry));
            disks.lock().push(disk.clone());
            disk as DeviceRef
        });
        shape.format(&env, &devices).await;
        let (chain, _) = shape.open(&env, &devices).await.unwrap();
        chain.apply(vec![Write::block(Lba(3), content(3, 9))]).await.unwrap();
        chain.close().await.unwrap();
        let label = chain.label();
        let map = disks.lock()[shape.links].content();
        let at = |offset: u64, len: usize| hex(&map.read(offset, len));
        let checkpoint = 2 * 128 * 1024;
        let map_area = checkpoint + 2 * label.checkpoint_half;
        let found = [
            at(0, 128 + 32),
            at(checkpoint, 48),
            at(checkpoint + label.checkpoint_half + 4096, 128),
            at(map_area, 48),
        ];
        for (found, golden) in found.iter().zip(GOLDEN_VOLUME) {
            assert_eq!(found, golden);
        }
        assert_eq!(at(0, 256), at(128 * 1024, 256), "both copies of the label");
    });
}

const GOLDEN_VOLUME: [&str; 4] = [
    "5448414c 57454756 01000000 3b599609 02000000 00000000 00000000 00000000 \
     00000000 00000007 bc020000 00000000 f0000000 17000000 00c01400 00000000 \
     01000000 03000000 00000000 00000000 00000000 00000000 01000000 00000000 \
     00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
     00000000 00000000 00000000 00000064 00000000 05000000 00000000 00000000",
    "5448414c 57454757 01000000 76a2b770 00000000 00000000 00000000 00000007 \
     01000000 00000000 02000000 00000000",
    "5448414c 57454743 01000000 34df3aca 00000000 00000000 00000000 00000007 \
     01000000 00000000 00000000 a94cd5eb 78000000 00000000 00000000 00000000 \
     03000000 00000000 00000000 00000000 01000000 00000000 05000000 00000000 \
     02000000 00000000 0f000000 00000000 00000000 00000000 00000000 00000000",
    "c5b4e8ca 01feba96 01000000 00000000 01001000 00000000 ffffffff 00000100 \
     248d86ab 03000000 00810000 01000000",
];
