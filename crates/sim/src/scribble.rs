//! Disks with arbitrary damage, chosen by the bytes of a fuzzer or a test.

use std::sync::Arc;

use thalweg_store::device::{Device, Geometry};

use crate::content::Content;
use crate::ramdisk::RamDisk;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes that encode one change.
pub const STROKE: usize = 8;
/// Maximum number of changes.
const MOST: usize = 64;

/// A snapshot of disks.
#[derive(Clone, Debug)]
pub struct Disks {
    disks: Vec<(String, Geometry, Content)>,
    /// Pages of each disk that hold data, approximately: changes elsewhere would have no effect.
    used: Vec<Vec<u64>>,
}

impl Disks {
    /// Takes a snapshot of disks.
    pub fn of<'a>(disks: impl IntoIterator<Item = &'a Arc<RamDisk>>) -> Disks {
        let at_rest = |disk: &Arc<RamDisk>| (disk.name(), disk.geometry(), disk.content());
        let disks: Vec<_> = disks.into_iter().map(at_rest).collect();
        let stored = |(_, geometry, content): &(String, Geometry, Content)| {
            (0..geometry.size / PAGE).filter(|page| content.is_stored(*page)).collect()
        };
        Disks { used: disks.iter().map(stored).collect(), disks }
    }

    /// The content of each disk.
    pub fn contents(&self) -> Vec<Content> {
        self.disks.iter().map(|(_, _, content)| content.clone()).collect()
    }

    /// The contents after changes of [`STROKE`] bytes each. `place` maps a change's first byte to a disk and
    /// a number of its used pages. The other bytes select the page among these, the byte in it, and the
    /// kind of change.
    pub fn scribbled(&self, strokes: &[u8], place: impl Fn(u8) -> (usize, usize)) -> Vec<Content> {
        let mut contents = self.contents();
        for stroke in strokes.chunks_exact(STROKE).take(MOST) {
            let (disk, pages) = place(stroke[0]);
            let disk = disk.min(contents.len() - 1);
            let pages = &self.used[disk][..pages.min(self.used[disk].len())];
            if !pages.is_empty() {
                draw(&mut contents[disk], pages, stroke);
            }
        }
        contents
    }

    /// The same disks with other contents.
    pub fn with(&self, contents: Vec<Content>) -> Vec<Arc<RamDisk>> {
        let disks = self.disks.iter().zip(contents);
        let disk = |((name, geometry, _), content): (&(String, Geometry, _), _)| {
            Arc::new(RamDisk::with_content(name, *geometry, content))
        };
        disks.map(disk).collect()
    }
}

/// Makes one change to one of `pages`.
fn draw(content: &mut Content, pages: &[u64], stroke: &[u8]) {
    let number = |at: usize| u64::from(u16::from_le_bytes([stroke[at], stroke[at + 1]]));
    let page = pages[number(1) as usize % pages.len()] * PAGE;
    let at = page + number(3) % PAGE;
    match stroke[5] % 5 {
        0 => content.write(at, &[stroke[6]]),
        1 => {
            let was = content.read(at, 1)[0];
            content.write(at, &[was ^ (1 << (stroke[6] % 8))]);
        }
        2 => content.zero(at / 512 * 512, 512),
        3 => content.write(page, &[stroke[6]; PAGE as usize]),
        _ => {
            let from = pages[number(6) as usize % pages.len()] * PAGE;
            let bytes = content.read(from, PAGE as usize);
            content.write(page, &bytes);
        }
    }
}

/// Recomputes the checksum of a journal's or an in-place store's superblock, so that a reader accepts
/// its invalid fields. Both have their checksum at the same offset.
pub fn reseal(content: &mut Content, at: u64) {
    const CHECKSUM: std::ops::Range<usize> = 12..16;
    let mut sector = content.read(at, 512).to_vec();
    sector[CHECKSUM].fill(0);
    let sum = thalweg_store::checksum::crc32c(&sector);
    sector[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    content.write(at, &sector);
}
