//! Loop devices, filesystems on them, and the kernel's counters of their writes.
//!
//! Everything made here is removed when it is dropped. It needs root.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::BenchError;

fn refused(what: impl Into<String>) -> BenchError {
    BenchError::Failed(what.into().into())
}

/// Runs a program to its end, and returns what it printed.
fn tool<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<String, BenchError> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| refused(format!("{program}: {error}; install it with `make setup`")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(refused(format!("{program}: {} (loop devices take root)", said.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The writes to a block device, by the kernel's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    /// Bytes written.
    pub(crate) bytes: u64,
    /// Flushes done.
    pub(crate) flushes: u64,
}

impl Reached {
    /// From a device's `stat`: the 7th field counts sectors of 512 bytes that were written, the 16th
    /// flushes.
    fn parse(stat: &str) -> Option<Reached> {
        let fields: Vec<u64> = stat.split_whitespace().flat_map(str::parse).collect();
        Some(Reached { bytes: fields.get(6)? * 512, flushes: *fields.get(15)? })
    }

    /// The difference between this and `earlier`.
    pub(crate) fn since(self, earlier: Reached) -> Reached {
        Reached { bytes: self.bytes - earlier.bytes, flushes: self.flushes - earlier.flushes }
    }
}

/// A loop device over a file of its own. Dropping it removes both.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    device: PathBuf,
    file: PathBuf,
}

impl LoopDevice {
    /// Over a new file of `size` bytes in `folder`.
    pub(crate) fn create(folder: &Path, size: u64) -> Result<LoopDevice, BenchError> {
        let file = folder.join("loop.img");
        let made = fs::File::create_new(&file).and_then(|file| file.set_len(size));
        made.map_err(|source| BenchError::Io { path: file.clone(), source })?;
        match tool("losetup", &[OsStr::new("--find"), OsStr::new("--show"), file.as_os_str()]) {
            Ok(device) => Ok(LoopDevice { device: device.into(), file }),
            Err(error) => {
                fs::remove_file(&file).ok();
                Err(error)
            }
        }
    }

    /// Over a new file all of whose blocks were written, so that the file is not extended later.
    pub(crate) fn create_written(folder: &Path, size: u64) -> Result<LoopDevice, BenchError> {
        let device = LoopDevice::create(folder, size)?;
        let write = || {
            let mut file = fs::OpenOptions::new().write(true).open(&device.device)?;
            let zeros = vec![0; 1 << 20];
            let mut left = size as usize;
            while left > 0 {
                let take = left.min(zeros.len());
                file.write_all(&zeros[..take])?;
                left -= take;
            }
            file.sync_all()
        };
        write().map_err(|source| BenchError::Io { path: device.device.clone(), source })?;
        Ok(device)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.device
    }

    /// The device's counters.
    pub(crate) fn reached(&self) -> Result<Reached, BenchError> {
        let name = self.device.file_name().unwrap_or_default();
        let path = Path::new("/sys/block").join(name).join("stat");
        let stat = fs::read_to_string(&path)
            .map_err(|source| BenchError::Io { path: path.clone(), source })?;
        Reached::parse(&stat)
            .ok_or_else(|| refused(format!("{}: flushes are not counted here", path.display())))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        tool("losetup", &[OsStr::new("--detach"), self.device.as_os_str()]).ok();
        fs::remove_file(&self.file).ok();
    }
}

/// A mounted ext4; dropping it unmounts it.
#[derive(Debug)]
pub(crate) struct Mounted {
    point: PathBuf,
}

impl Mounted {
    /// Makes an ext4 on `device`, and mounts it on a new folder in `folder`. All of its tables are written
    /// at once, so that the kernel writes none of them during a measurement.
    pub(crate) fn create(device: &LoopDevice, folder: &Path) -> Result<Mounted, BenchError> {
        Mounted::create_with(device, folder, "defaults")
    }

    /// The same, mounted with these options.
    pub(crate) fn create_with(
        device: &LoopDevice,
        folder: &Path,
        options: &str,
    ) -> Result<Mounted, BenchError> {
        let point = folder.join("mount");
        fs::create_dir(&point).map_err(|source| BenchError::Io { path: point.clone(), source })?;
        let whole = "lazy_itable_init=0,lazy_journal_init=0";
        let device = device.path().as_os_str();
        tool("mkfs.ext4", &[OsStr::new("-q"), OsStr::new("-E"), OsStr::new(whole), device])?;
        tool("mount", &[OsStr::new("-o"), OsStr::new(options), device, point.as_os_str()])?;
        Ok(Mounted { point })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.point
    }

    /// Writes back the kernel's dirty pages.
    pub(crate) fn sync(&self) -> Result<(), BenchError> {
        tool("sync", &[OsStr::new("--file-system"), self.point.as_os_str()]).map(drop)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        tool("umount", &[&self.point]).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    /// A device; prints why and returns `None` where there are no loop devices.
    fn device(folder: &Path) -> Option<LoopDevice> {
        match LoopDevice::create(folder, 64 << 20) {
            Ok(device) => Some(device),
            Err(error) => {
                eprintln!("SKIPPED: {error}");
                None
            }
        }
    }

    #[test]
    fn fields_are_the_right_ones() {
        let stat = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17";
        assert_eq!(Reached::parse(stat), Some(Reached { bytes: 7 * 512, flushes: 16 }));
        // Before Linux 5.5 flushes were not counted.
        assert_eq!(Reached::parse("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"), None);
    }

    #[test]
    fn a_known_number_of_writes_and_flushes_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let Some(device) = device(folder.path()) else { return };
        let mut file = fs::OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_EXCL)
            .open(device.path())
            .unwrap();
        let before = device.reached().unwrap();
        for _ in 0..25 {
            file.write_all(&[7; 4096]).unwrap();
            file.sync_data().unwrap();
        }
        let reached = device.reached().unwrap().since(before);
        assert_eq!(reached, Reached { bytes: 25 * 4096, flushes: 25 });
    }

    #[test]
    fn everything_is_gone_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let Some(device) = device(folder.path()) else { return };
        let (path, point);
        {
            let device = device;
            let mounted = Mounted::create(&device, folder.path()).unwrap();
            fs::write(mounted.path().join("file"), [1; 5000]).unwrap();
            mounted.sync().unwrap();
            (path, point) = (device.path().to_owned(), mounted.path().to_owned());
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(point.to_str().unwrap()));
        let name = format!("{}:", path.display());
        let own = folder.path().to_str().unwrap();
        let is_attached = || {
            let attached = tool("losetup", &["--all"]).unwrap();
            attached.lines().any(|line| line.starts_with(&name) && line.contains(own))
        };
        // While another process has the device open, the kernel detaches it when that process closes it.
        for _ in 0..100 {
            if !is_attached() {
                return;
            }
            tool("sleep", &["0.1"]).unwrap();
        }
        panic!("{name} is still attached");
    }
}
