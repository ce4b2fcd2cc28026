//! Readers of recorded traces. The first line of a file tells its format:
//!
//! | format | line |
//! |---|---|
//! | SNIA MSR Cambridge | `timestamp,host,disk,Read or Write,offset,bytes,response time` |
//! | SNIA Microsoft Enterprise and Production (ETW text) | `DiskRead, time, process, thread, irp, 0xoffset, 0xbytes, elapsed, disk, ...`, after a header |
//! | CloudPhysics, in libCacheSim's form | `version,time,SCSI operation,bytes,sector`, after a header |
//! | MQSim | `time device sector sectors type`, type 0 writes |
//! | ARC `.lis` | `first block, blocks, ignored, request`, separated by blanks |
//!
//! A file may be compressed by gzip or zstd, according to its extension. Disks get address spaces of
//! their own, and blocks are numbered in the order of their first use, so that a trace of a few GB does
//! not need the address space of the recorded disks.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use rand::{RngExt, SeedableRng};
use thalweg_env::{HashMap, Rng};

use super::Access;
use crate::BenchError;

const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;
/// The longest valid request: 1 GiB. A line with a longer one is damaged.
const LONGEST: u64 = 1 << 30;

/// A recorded trace, one access for each block.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Accesses of one block each, in order.
    pub accesses: Vec<Access>,
    /// Number of distinct blocks, which are numbered from 0.
    pub span: u64,
    /// Whether the format distinguishes reads from writes. If not, each request is one or the other at
    /// random.
    pub tells_writes: bool,
}

/// Reads the trace in `path`. `seed` is for formats that do not distinguish reads from writes.
///
/// # Errors
/// [`BenchError::Io`], or [`BenchError::Trace`] when a line has no known format.
pub fn read(path: &Path, seed: u64) -> Result<Recorded, BenchError> {
    let io = |source| BenchError::Io { path: path.to_owned(), source };
    let file = BufReader::new(File::open(path).map_err(io)?);
    let ending = path.extension().and_then(|ending| ending.to_str());
    let reader: Box<dyn Read> = match ending {
        Some("gz") => Box::new(flate2::read::MultiGzDecoder::new(file)),
        Some("zst") => Box::new(
            ruzstd::decoding::StreamingDecoder::new(file)
                .map_err(|error| io(std::io::Error::other(error)))?,
        ),
        _ => Box::new(file),
    };
    parse(path, BufReader::new(reader), seed)
}

/// The request on a line; offsets are in bytes.
struct Request {
    disk: u64,
    /// `None` where the format does not distinguish.
    write: Option<bool>,
    offset: u64,
    bytes: u64,
}

#[derive(Clone, Copy)]
enum Format {
    Msr,
    Etw,
    CloudPhysics,
    MqSim,
    Arc,
}

fn parse(path: &Path, reader: impl BufRead, seed: u64) -> Result<Recorded, BenchError> {
    let mut format = None;
    let mut blocks = Blocks::new(seed);
    for (line, text) in (1..).zip(reader.lines()) {
        let text = text.map_err(|source| BenchError::Io { path: path.to_owned(), source })?;
        let bad = |detail: &str| BenchError::Trace {
            path: path.to_owned(),
            line,
            detail: detail.to_owned(),
        };
        let Some(known) = format.or_else(|| recognise(&text)) else {
            return Err(bad("the format is not known; see the traces that can be read"));
        };
        format = Some(known);
        match request(known, &text) {
            Parsed::Request(request) if request.bytes <= LONGEST => blocks.add(&request),
            Parsed::Other => {}
            _ => return Err(bad("a field is missing or is no number that makes sense")),
        }
    }
    Ok(blocks.trace)
}

fn recognise(line: &str) -> Option<Format> {
    let commas = line.split(',').count();
    let blanks = line.split_whitespace().count();
    if line.starts_with("BeginHeader") || line.trim_start().starts_with("Disk") {
        Some(Format::Etw)
    } else if line.starts_with("version,time,op,size,lbn") {
        Some(Format::CloudPhysics)
    } else if commas == 7 {
        Some(Format::Msr)
    } else if commas == 1 && blanks == 5 {
        Some(Format::MqSim)
    } else if commas == 1 && blanks == 4 {
        Some(Format::Arc)
    } else {
        None
    }
}

enum Parsed {
    Request(Request),
    /// A line that is not a read or write of a disk.
    Other,
    Bad,
}

fn request(format: Format, line: &str) -> Parsed {
    if line.trim().is_empty() {
        return Parsed::Other;
    }
    let parsed = match format {
        Format::Msr => msr(line),
        Format::Etw => match line.trim_start() {
            data if data.starts_with("DiskRead,") || data.starts_with("DiskWrite,") => etw(data),
            _ => return Parsed::Other,
        },
        Format::CloudPhysics => cloud_physics(line),
        Format::MqSim => mq_sim(line),
        Format::Arc => arc(line),
    };
    match parsed {
        Some(Some(request)) => Parsed::Request(request),
        Some(None) => Parsed::Other,
        None => Parsed::Bad,
    }
}

fn msr(line: &str) -> Option<Option<Request>> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [_, _, disk, kind, offset, bytes, ..] = fields[..] else { return None };
    let write = match kind {
        "Write" => true,
        "Read" => false,
        _ => return None,
    };
    let (disk, offset, bytes) = (disk.parse().ok()?, offset.parse().ok()?, bytes.parse().ok()?);
    Some(Some(Request { disk, write: Some(write), offset, bytes }))
}

fn etw(line: &str) -> Option<Option<Request>> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() < 9 || fields[8] == "DiskNum" {
        return (fields.len() >= 9).then_some(None);
    }
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    Some(Some(Request {
        disk: fields[8].parse().ok()?,
        write: Some(fields[0] == "DiskWrite"),
        offset: hex(fields[5])?,
        bytes: hex(fields[6])?,
    }))
}

fn cloud_physics(line: &str) -> Option<Option<Request>> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [_, _, operation, bytes, sector] = fields[..] else { return None };
    // SCSI READ(6), (10), (16), (12), and the same of WRITE.
    let write = match operation {
        "a" | "0a" | "2a" | "8a" | "aa" => true,
        "8" | "08" | "28" | "88" | "a8" => false,
        // The header, and commands that move no data.
        _ => return Some(None),
    };
    let sector: u64 = sector.parse().ok()?;
    let offset = sector.checked_mul(SECTOR)?;
    Some(Some(Request { disk: 0, write: Some(write), offset, bytes: bytes.parse().ok()? }))
}

fn mq_sim(line: &str) -> Option<Option<Request>> {
    let fields = numbers(line)?;
    let [_, disk, sector, sectors, kind] = fields[..] else { return None };
    let (offset, bytes) = (sector.checked_mul(SECTOR)?, sectors.checked_mul(SECTOR)?);
    Some(Some(Request { disk, write: Some(kind == 0), offset, bytes }))
}

fn arc(line: &str) -> Option<Option<Request>> {
    let fields = numbers(line)?;
    let [block, blocks, _, _] = fields[..] else { return None };
    let (offset, bytes) = (block.checked_mul(BLOCK)?, blocks.checked_mul(BLOCK)?);
    Some(Some(Request { disk: 0, write: None, offset, bytes }))
}

fn numbers(line: &str) -> Option<Vec<u64>> {
    line.split_whitespace().map(|field| field.parse().ok()).collect()
}

/// Numbers blocks by first use.
struct Blocks {
    trace: Recorded,
    numbers: HashMap<(u64, u64), u64>,
    rng: Rng,
}

impl Blocks {
    fn new(seed: u64) -> Blocks {
        let trace = Recorded { tells_writes: true, ..Recorded::default() };
        Blocks { trace, numbers: HashMap::default(), rng: Rng::seed_from_u64(seed) }
    }

    fn add(&mut self, request: &Request) {
        self.trace.tells_writes &= request.write.is_some();
        let write = request.write.unwrap_or_else(|| self.rng.random());
        let end = request.offset.saturating_add(request.bytes.max(1)).div_ceil(BLOCK);
        for place in request.offset / BLOCK..end {
            let next = self.numbers.len() as u64;
            let block = *self.numbers.entry((request.disk, place)).or_insert(next);
            self.trace.accesses.push(Access { write, block, blocks: 1 });
        }
        self.trace.span = self.numbers.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(text: &str) -> Vec<(bool, u64)> {
        let trace = parse(Path::new("test"), text.as_bytes(), 1).unwrap();
        trace.accesses.iter().map(|access| (access.write, access.block)).collect()
    }

    #[test]
    fn every_format_is_recognised_and_read() {
        let msr = "128166372003061629,usr,0,Read,7014612992,4096,41286\n\
                   128166372016382155,usr,1,Write,7014612992,8192,1963\n\
                   128166372026382155,usr,0,Write,7014612992,512,1963\n";
        assert_eq!(blocks(msr), [(false, 0), (true, 1), (true, 2), (true, 0)]);
        let etw = "BeginHeader\n   DiskRead,  TimeStamp, Process Name ( PID), ThreadID, IrpPtr, \
                   ByteOffset, IOSize, ElapsedTime, DiskNum, IrpFlags\nEndHeader\n   DiskWrite, 44, \
                   x ( 4), 90, 0xfffa, 0x0004200, 0x00001000, 320, 0, 0x0, 1, 2\n FileIo, 1\n";
        assert_eq!(blocks(etw), [(true, 0), (true, 1)]);
        let cloud = "version,time,op,size,lbn\n1,5633898,2a,512,9\n1,5633899,28,8192,8\n";
        assert_eq!(blocks(cloud), [(true, 0), (false, 0), (false, 1)]);
        let mq_sim = "938513000 4 8 16 0\n938828000 3 8 8 1\n";
        assert_eq!(blocks(mq_sim), [(true, 0), (true, 1), (false, 2)]);
        let arc = "100 2 0 1\n101 1 0 2\n";
        assert_eq!(blocks(arc).iter().map(|(_, block)| *block).collect::<Vec<_>>(), [0, 1, 1]);
    }

    #[test]
    fn nonsense_is_refused_with_its_line() {
        let cases = [
            ("hello\n", 1),
            ("1 2 3 4 5\n1 2 3 x 5\n", 2),
            ("1 2 3 4 5\n1 2 3 4\n", 2),
            ("1 0 8 1 0\n1 0 18446744073709551615 1 0\n", 2),
            ("1,usr,0,Read,0,99999999999999,1\n", 1),
            ("1,usr,0,Read,0,1,1\n1,usr,0,Erase,0,1,1\n", 2),
        ];
        for (text, bad) in cases {
            match parse(Path::new("test"), text.as_bytes(), 1) {
                Err(BenchError::Trace { line, .. }) => assert_eq!(line, bad, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn compressed_files_are_read() {
        let folder = std::env::temp_dir().join(format!("thalweg-trace-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = b"1 0 8 16 0\n2 0 8 8 1\n";
        let gzip = folder.join("a.trace.gz");
        let mut encoder = flate2::write::GzEncoder::new(
            File::create(&gzip).unwrap(),
            flate2::Compression::fast(),
        );
        std::io::Write::write_all(&mut encoder, text).unwrap();
        encoder.finish().unwrap();
        let zstd = folder.join("a.trace.zst");
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        std::fs::write(&zstd, ruzstd::encoding::compress_to_vec(&text[..], level)).unwrap();
        for path in [gzip, zstd] {
            assert_eq!(read(&path, 1).unwrap().accesses.len(), 3, "{}", path.display());
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
