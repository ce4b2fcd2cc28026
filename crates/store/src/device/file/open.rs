//! Opening: type, size and sector of a file or a block device.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, fallocate};
use nix::unistd::linkat;

use super::locked::{Locked, locked_or_failed};
use super::queue::{Queues, device_of};
use super::{Access, FileOptions};
use crate::device::{DeviceError, Geometry, MEMORY_ALIGNMENT, Operation};

mod request {
    //! Requests to a block device.
    nix::ioctl_read_bad!(logical_sector, nix::request_code_none!(0x12, 104), libc::c_int);
    nix::ioctl_read_bad!(physical_sector, nix::request_code_none!(0x12, 123), libc::c_uint);
    nix::ioctl_read!(size, 0x12, 114, u64);
    nix::ioctl_write_ptr_bad!(discard, nix::request_code_none!(0x12, 119), [u64; 2]);
}

/// The largest sector that the upper layers support.
const MAX_SECTOR: u32 = 4096;

/// The result of opening a file or block device.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: Locked,
    pub(super) geometry: Geometry,
    pub(super) is_block_device: bool,
    /// Whether it, or a disk below the file, reports to be rotational.
    pub(super) is_rotational: bool,
    /// The names of the disks below it.
    pub(super) drives: Vec<String>,
    pub(super) direct: bool,
    /// Alignment of memory, in bytes, for direct I/O.
    pub(super) memory: usize,
}

/// Opens and locks the file or block device at `path`.
pub(super) fn open(path: &Path, options: &FileOptions) -> Result<Opened, DeviceError> {
    let name = path.display().to_string();
    let failed = |error| DeviceError::io(&name, Operation::Open, error);
    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let message = "neither a regular file nor a block device";
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, message)));
    }
    let mut flags = OpenOptions::new();
    flags.read(true).write(!options.access.only_reads());
    let (file, direct) = open_direct(path, &mut flags, options, kind.is_block_device())
        .map_err(|error| locked_or_failed(&name, error))?;
    let file = Locked::new(file, &name, options.access)?;
    describe(file, direct, &name, options)
}

/// Makes a file of `size` bytes, durable with its name, and opens and locks it.
pub(super) fn create(path: &Path, size: u64, options: &FileOptions) -> Result<Opened, DeviceError> {
    let failed = |error| DeviceError::io(&path.display().to_string(), Operation::Create, error);
    match open_unnamed(path, options).map_err(failed)? {
        Some((file, direct)) => create_whole(path, size, options, file, direct),
        None => create_named(path, size, options),
    }
}

/// Opens a file without a name on the filesystem of `path`; `None` if that filesystem cannot.
fn open_unnamed(path: &Path, options: &FileOptions) -> io::Result<Option<(File, bool)>> {
    let mut flags = OpenOptions::new();
    flags.read(true).write(true).mode(0o600);
    let mut open = |more| flags.custom_flags(libc::O_TMPFILE | more).open(folder_of(path));
    let (file, direct) = match options.direct {
        true => match open(libc::O_DIRECT) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (open(0), false),
            opened => (opened, true),
        },
        false => (open(0), false),
    };
    match file {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            Ok(None)
        }
        file => Ok(Some((file?, direct))),
    }
}

/// The file gets its name when its size and space are durable: after a crash it is complete or absent.
fn create_whole(
    path: &Path,
    size: u64,
    options: &FileOptions,
    file: File,
    direct: bool,
) -> Result<Opened, DeviceError> {
    let name = path.display().to_string();
    let failed = |error| DeviceError::io(&name, Operation::Create, error);
    let file = Locked::new(file, &name, options.access)?;
    allocate(&file, size, options.sparse).and_then(|()| file.sync_all()).map_err(failed)?;
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    let opened = of_size(describe(file, direct, &name, options)?, size)?;
    linkat(AT_FDCWD, unnamed.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)
        .map_err(|error| failed(error.into()))?;
    sync_folder_of(path).map_err(failed)?;
    Ok(opened)
}

/// Refuses a size that is not whole sectors.
fn of_size(opened: Opened, size: u64) -> Result<Opened, DeviceError> {
    match opened.geometry {
        Geometry { size: usable, .. } if usable == size && size > 0 => Ok(opened),
        Geometry { sector, .. } => Err(DeviceError::Misaligned { offset: 0, len: size, sector }),
    }
}

/// As [`create_whole`], but the file has its name from the start: a crash may leave it empty.
fn create_named(path: &Path, size: u64, options: &FileOptions) -> Result<Opened, DeviceError> {
    let name = path.display().to_string();
    let mut flags = OpenOptions::new();
    flags.read(true).write(true).create_new(true).mode(0o600);
    let (file, direct) = open_direct(path, &mut flags, options, false)
        .map_err(|error| DeviceError::io(&name, Operation::Create, error))?;
    let file = Locked::new(file, &name, options.access)?;
    let filled = allocate(&file, size, options.sparse)
        .and_then(|()| file.sync_all())
        .and_then(|()| sync_folder_of(path))
        .map_err(|error| DeviceError::io(&name, Operation::Create, error))
        .and_then(|()| describe(file, direct, &name, options));
    let whole = filled.and_then(|opened| of_size(opened, size));
    if whole.is_err() {
        // The file is new, and locked by this process; an incomplete one is of no use.
        let _ = std::fs::remove_file(path);
    }
    whole
}

/// Opens with `O_DIRECT`, or without it if the filesystem refuses it.
fn open_direct(
    path: &Path,
    flags: &mut OpenOptions,
    options: &FileOptions,
    is_block_device: bool,
) -> io::Result<(File, bool)> {
    let exclusive = match (is_block_device, options.access) {
        (true, Access::Exclusive) => libc::O_EXCL,
        _ => 0,
    };
    if options.direct {
        match flags.custom_flags(exclusive | libc::O_DIRECT).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                // The refused call may have made the file.
                flags.create_new(false);
            }
            opened => return Ok((opened?, true)),
        }
    }
    let file = match flags.custom_flags(exclusive).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            flags.create_new(true).open(path)?
        }
        opened => opened?,
    };
    Ok((file, false))
}

/// Gives the file its size, with its space reserved unless it is to be sparse.
fn allocate(file: &File, size: u64, sparse: bool) -> io::Result<()> {
    if !sparse {
        match fallocate(file, FallocateFlags::empty(), 0, signed(size)?) {
            Err(nix::Error::EOPNOTSUPP) => {
                tracing::warn!("the filesystem cannot reserve space; the new file is sparse");
            }
            reserved => return Ok(reserved?),
        }
    }
    file.set_len(size)
}

/// Extends a file to at least `wanted` bytes, durably; returns the present size of the file or block device.
pub(super) fn grow(file: &File, is_block: bool, wanted: u64) -> io::Result<u64> {
    if is_block {
        return Ok(block_device(file)?.0);
    }
    let metadata = file.metadata()?;
    let size = metadata.len();
    if size < wanted {
        let is_sparse = metadata.blocks().saturating_mul(512) < size;
        allocate(file, wanted, is_sparse)?;
    }
    // Even if another process has extended it: a crash must not undo that.
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

/// Discards a range, as far as the medium can.
pub(super) fn discard(file: &File, is_block: bool, offset: u64, len: u64) -> io::Result<()> {
    let given = if is_block {
        // SAFETY: the descriptor is open, and the kernel only reads the range.
        unsafe { request::discard(file.as_raw_fd(), &[offset, len]) }.map(drop)
    } else {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(file, flags, signed(offset)?, signed(len)?)
    };
    match given {
        Err(nix::Error::EOPNOTSUPP | nix::Error::ENOTTY | nix::Error::ENOSYS) => Ok(()),
        given => Ok(given?),
    }
}

fn signed(bytes: u64) -> io::Result<i64> {
    i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Direct I/O's alignments of memory and of offsets, as far as the filesystem reports them.
fn direct_alignment(file: &File) -> Option<(u32, u32)> {
    // SAFETY: statx is a plain C structure, for which zeros are valid.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is an empty C string, and `stat` is valid for writes.
    let failed = unsafe {
        let (fd, flags) = (file.as_raw_fd(), libc::AT_EMPTY_PATH);
        libc::statx(fd, c"".as_ptr(), flags, libc::STATX_DIOALIGN, &mut stat)
    };
    let told = failed == 0 && stat.stx_mask & libc::STATX_DIOALIGN != 0;
    told.then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

/// The physical sector of the block device below a file, if there is one.
fn sector_below(file: &File) -> Option<u32> {
    Queues::default().physical_sector(file.metadata().ok()?.dev())
}

/// Finds size and sector. The sector is the larger of the unit of requests and the physical sector: a smaller
/// write would make the drive read, change and write back a physical sector, and a power cut could damage
/// neighbours of the write.
fn describe(
    file: Locked,
    mut direct: bool,
    name: &str,
    options: &FileOptions,
) -> Result<Opened, DeviceError> {
    let failed = |error| DeviceError::io(name, Operation::Open, error);
    let metadata = file.metadata().map_err(failed)?;
    let is_block_device = metadata.file_type().is_block_device();
    let alignment = direct_alignment(&file);
    let (size, unit, physical) = if is_block_device {
        block_device(&file).map_err(failed)?
    } else {
        // Offset zero means that this file, unlike its filesystem, has no direct I/O.
        direct &= alignment.is_none_or(|(_, unit)| (1..=MAX_SECTOR).contains(&unit));
        let unit = alignment.filter(|_| direct).map_or(512, |(_, unit)| unit.max(512));
        (metadata.len(), unit, sector_below(&file).unwrap_or(unit))
    };
    let natural = physical.clamp(unit, MAX_SECTOR.max(unit));
    let sector = options.sector.unwrap_or(natural);
    if unit > MAX_SECTOR || !sector.is_multiple_of(unit) || ![512, 4096].contains(&sector) {
        let message = format!("sector of {sector} bytes over units of {unit}: use 512 or 4096");
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, message)));
    }
    let memory = match alignment {
        Some((memory, _)) if memory > 0 => (memory as usize).min(MEMORY_ALIGNMENT),
        _ => unit as usize,
    };
    let geometry = Geometry { size: size - size % u64::from(sector), sector };
    let (queues, number) = (Queues::default(), device_of(&metadata));
    let (is_rotational, drives) = (queues.has_arm(number), queues.drives(number));
    Ok(Opened { file, geometry, is_block_device, is_rotational, drives, direct, memory })
}

/// A block device's size, logical and physical sector, in bytes.
fn block_device(file: &File) -> io::Result<(u64, u32, u32)> {
    let (mut size, mut logical, mut physical) = (0, 0, 0);
    // SAFETY: each call writes one number of the type that it gets.
    unsafe {
        request::size(file.as_raw_fd(), &mut size)?;
        request::logical_sector(file.as_raw_fd(), &mut logical)?;
        request::physical_sector(file.as_raw_fd(), &mut physical)?;
    }
    Ok((size, u32::try_from(logical).unwrap_or(u32::MAX), physical))
}
