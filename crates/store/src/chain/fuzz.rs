//! Every decoder, for arbitrary bytes. Each either refuses them or returns a value that encodes to the same
//! bytes.

use bytes::Bytes;
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::checkpoint::{decode_header, decode_payload, decode_witness};
use super::format::{CheckpointHeader, Entry, LABEL_BYTES, MapSector, PAGE, SECTOR};
use super::label::Label;
use super::minilog::format as minilog;
use crate::block::{BLOCK_SIZE, ByteRanges, Version};

/// A label.
pub fn label(bytes: &[u8]) {
    let Ok(label) = Label::decode(bytes) else { return };
    assert!(label.layout().total() >= 2 * LABEL_BYTES);
    assert_eq!(Label::decode(&label.encode()).ok(), Some(label));
}

/// A map sector, read by the volume `tag` at `index`.
pub fn sector(bytes: &[u8], tag: u32, index: u16) {
    let Ok((sector, _)) = MapSector::read_from_prefix(bytes) else { return };
    sector.is_marked(tag, index);
    sector.resembles(tag, index, 7, 0);
    for entry in sector.entries().iter().filter_map(Entry::decode) {
        assert_eq!(Entry::encode(&entry).decode(), Some(entry));
    }
    if let Some(head) = sector.verify(tag, index) {
        assert!(sector.is_marked(tag, index));
        let again = MapSector::seal(tag, head, sector.entries());
        assert_eq!(again.verify(tag, index), Some(head));
    }
}

/// A checkpoint record: its head's page, then its payload. Also decodes the payload under a head made of the
/// first bytes, because the checksum rejects most heads.
pub fn checkpoint(bytes: &[u8], volume: Uuid) {
    let (page, payload) = bytes.split_at(bytes.len().min(PAGE));
    decode_witness(page, volume.as_bytes());
    if let Some(header) = decode_header(page, volume.as_bytes()) {
        decode_payload(&header, payload);
    }
    let Ok((header, rest)) = CheckpointHeader::read_from_prefix(bytes) else { return };
    if let Some(loaded) = decode_payload(&header, rest) {
        assert!(loaded.contents.len() * 8 <= rest.len());
    }
}

/// A mini-log block, whatever its checksum.
pub fn mini(bytes: &[u8]) {
    let block = Bytes::copy_from_slice(&bytes[..bytes.len().min(BLOCK_SIZE)]);
    let Some(fragments) = minilog::decode(&block) else { return };
    let mut builder = minilog::Builder::default();
    fragments.iter().for_each(|fragment| builder.add(fragment));
    let sealed = builder.seal(SECTOR);
    assert_eq!(minilog::open(&minilog::entry_of(&sealed, true), &sealed.content), Some(fragments));
}

/// Seed inputs that each decoder accepts: a label, a map sector and a mini-log block.
pub fn seeds(label: &Label) -> Vec<Vec<u8>> {
    let content = Bytes::from(vec![7; BLOCK_SIZE]);
    let mut changed = ByteRanges::from(3..9);
    changed.add(100..120);
    let mut builder = minilog::Builder::default();
    for lba in 0..9 {
        let version = Version(5 + u64::from(lba));
        builder.add(&minilog::Fragment::of(lba, version, &changed, &content));
    }
    let mini = builder.seal(SECTOR).content.to_vec();
    let label = label.encode().to_vec();
    let mut sector = vec![0; SECTOR];
    let head = super::format::SectorHead {
        seq: 7,
        durable: super::format::Position::new(7, 3),
        uncommitted: 3,
        next: 2,
        index: 1,
        count: 0,
        log: 0,
    };
    sector.copy_from_slice(MapSector::seal(9, head, &[]).as_bytes());
    vec![label, sector, mini]
}
