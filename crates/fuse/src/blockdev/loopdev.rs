//! The kernel's loop devices: a block device over a file.
//!
//! `LOOP_CONFIGURE` (Linux 5.8) binds a device to a file and configures it in one step, so no program sees
//! it half configured.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The device that hands out loop devices.
pub const CONTROL: &str = "/dev/loop-control";

const LOOP_CLR_FD: u64 = 0x4C01;
const LOOP_SET_STATUS64: u64 = 0x4C04;
const LOOP_GET_STATUS64: u64 = 0x4C05;
const LOOP_SET_CAPACITY: u64 = 0x4C07;
const LOOP_CONFIGURE: u64 = 0x4C0A;
const LOOP_CTL_GET_FREE: u64 = 0x4C82;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_PARTSCAN: u32 = 8;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// How many free devices may be lost to other programs before an error.
const ATTEMPTS: usize = 64;

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

impl LoopInfo {
    fn zeroed() -> LoopInfo {
        // SAFETY: every field is an integer or an array of integers.
        unsafe { std::mem::zeroed() }
    }
}

/// How a loop device is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoopOptions {
    /// The logical block in bytes, a power of two from 512 to a page.
    pub block_size: u32,
    /// Refuse writes.
    pub read_only: bool,
    /// Release the file when the last program closes the device.
    pub autoclear: bool,
    /// Look for partitions.
    pub partition_scan: bool,
}

/// Why there is no loop device.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The kernel has no loop devices, or this process may not make any.
    #[error(
        "{CONTROL} cannot be used: {0}; run as root, on a kernel with loop devices (modprobe loop)"
    )]
    Control(#[source] io::Error),
    /// The device's node is missing or closed to this process.
    #[error("{} cannot be opened: {source}; is /dev a devtmpfs, and is this root?", device.display())]
    Open {
        /// The device.
        device: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel refused the file.
    #[error("{} does not take the file: {source}", device.display())]
    Configure {
        /// The device.
        device: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other programs took every free device first.
    #[error("other programs took {ATTEMPTS} free loop devices first; try again")]
    Contended,
}

/// The number of a loop device. Another program may own the device: look at [`LoopDevice::backing_file`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopDevice(u32);

impl LoopDevice {
    /// The device's path.
    pub fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.0))
    }

    /// The path of the file underneath, `None` when there is none. The kernel is asked through
    /// sysfs, which never waits for the server of the file.
    pub fn backing_file(self) -> Option<PathBuf> {
        let path = self.attribute("loop/backing_file")?;
        let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
        Some(PathBuf::from(OsStr::from_bytes(path)))
    }

    /// Whether the loop driver goes around the page cache.
    pub fn is_direct(self) -> bool {
        self.attribute("loop/dio").as_deref() == Some(b"1")
    }

    /// Major and minor number.
    pub fn number(self) -> Option<(u32, u32)> {
        let number = String::from_utf8(self.attribute("dev")?).ok()?;
        let (major, minor) = number.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    fn attribute(self, name: &str) -> Option<Vec<u8>> {
        let mut value = std::fs::read(format!("/sys/block/loop{}/{name}", self.0)).ok()?;
        value.pop_if(|byte| *byte == b'\n');
        Some(value)
    }

    /// Opens the device to control it. Never for writing: some kernels then refuse to mount it.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(self) -> io::Result<File> {
        OpenOptions::new().read(true).custom_flags(libc::O_CLOEXEC).open(self.path())
    }

    /// Opens the device exclusively: it cannot be mounted or claimed meanwhile.
    ///
    /// # Errors
    /// `EBUSY` while it is mounted or claimed by another driver.
    pub fn open_exclusive(self) -> io::Result<File> {
        OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(self.path())
    }
}

/// Every loop device whose file underneath is `file`.
///
/// # Errors
/// When `/sys` cannot be read.
pub fn over(file: &Path) -> io::Result<Vec<LoopDevice>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse().ok());
        if let Some(device) = number.map(LoopDevice)
            && device.backing_file().as_deref() == Some(file)
        {
            found.push(device);
        }
    }
    Ok(found)
}

/// Takes a free loop device and binds it to `file`, which should be open with `O_DIRECT`.
/// It returns the device and an open handle that keeps it, when `autoclear` asks for one.
///
/// # Errors
/// See [`LoopError`].
pub fn configure(file: &File, options: &LoopOptions) -> Result<(LoopDevice, File), LoopError> {
    let control = OpenOptions::new().read(true).write(true).open(CONTROL);
    let control = control.map_err(LoopError::Control)?;
    for _ in 0..ATTEMPTS {
        let device = free(&control)?;
        let path = device.path();
        let open = OpenOptions::new().read(true).write(!options.read_only).open(&path);
        let open = open.map_err(|source| LoopError::Open { device: path.clone(), source })?;
        // The handle that stays is not for writing; it must exist before the first one is closed.
        let keeper = device.open();
        let keeper = keeper.map_err(|source| LoopError::Open { device: path.clone(), source })?;
        match bind(&open, file, options) {
            Ok(()) => return Ok((device, keeper)),
            // Another program was faster.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(source) => return Err(LoopError::Configure { device: path, source }),
        }
    }
    Err(LoopError::Contended)
}

fn free(control: &File) -> Result<LoopDevice, LoopError> {
    // SAFETY: the request takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    u32::try_from(number)
        .map(LoopDevice)
        .map_err(|_| LoopError::Control(io::Error::last_os_error()))
}

fn bind(device: &File, file: &File, options: &LoopOptions) -> io::Result<()> {
    let fd = u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?;
    let mut info = LoopInfo::zeroed();
    info.flags = LO_FLAGS_DIRECT_IO;
    for (wanted, flag) in [
        (options.read_only, LO_FLAGS_READ_ONLY),
        (options.autoclear, LO_FLAGS_AUTOCLEAR),
        (options.partition_scan, LO_FLAGS_PARTSCAN),
    ] {
        info.flags |= if wanted { flag } else { 0 };
    }
    let config = LoopConfig { fd, block_size: options.block_size, info, reserved: [0; 8] };
    // SAFETY: the argument is the structure that the request reads, alive for the call.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) })
}

/// Releases the file. While other programs have the device open this only marks the file to be released at
/// the last close; [`keep`] undoes the mark.
///
/// # Errors
/// The system's error; `ENXIO` when the device has no file.
pub fn clear(device: &File) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD, 0) })
}

/// Undoes a [`clear`] that waits for the last program to close the device.
///
/// # Errors
/// The system's error; `ENXIO` when the device has no file any more.
pub fn keep(device: &File) -> io::Result<()> {
    let mut info = LoopInfo::zeroed();
    // SAFETY: the argument is the structure that the request fills, alive for the call.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) })?;
    info.flags &= !LO_FLAGS_AUTOCLEAR;
    // SAFETY: the argument is the structure that the request reads, alive for the call.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_STATUS64, &raw const info) })
}

/// Tells the device that its file has a new size.
///
/// # Errors
/// The system's error.
pub fn resize(device: &File) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY, 0) })
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
