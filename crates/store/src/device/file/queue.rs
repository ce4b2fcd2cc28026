//! The system's data on the queues of block devices.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Drivers of virtual machines' disks. Their rotational flag says nothing, since no host reports its drives.
const TOLD_NOTHING: [&str; 2] = ["virtio_blk", "vbd"];
/// Maximum depth of devices on other devices.
const DEEP: usize = 16;

/// Looks up devices by their numbers.
#[derive(Debug)]
pub(super) struct Queues {
    devices: PathBuf,
}

impl Default for Queues {
    fn default() -> Queues {
        Queues { devices: "/sys/dev/block".into() }
    }
}

impl Queues {
    /// The device's physical sector in bytes, if the system knows it.
    pub(super) fn physical_sector(&self, device: u64) -> Option<u32> {
        number(&self.disk(device)?, "physical_block_size")
    }

    /// Whether the device, or one that it lies on, is a rotational disk.
    pub(super) fn has_arm(&self, device: u64) -> bool {
        self.disk(device).is_some_and(|disk| self.disk_has_arm(&disk, DEEP))
    }

    /// The names of the disks that the device lies on, without mapped devices; the device's numbers if the
    /// system does not know it.
    pub(super) fn drives(&self, device: u64) -> Vec<String> {
        let mut drives = Vec::new();
        if let Some(disk) = self.disk(device) {
            self.add_drives(&disk, DEEP, &mut drives);
        }
        if drives.is_empty() {
            drives.push(format!("{}:{}", libc::major(device), libc::minor(device)));
        }
        drives
    }

    fn add_drives(&self, disk: &Path, deep: usize, drives: &mut Vec<String>) {
        let below = self.below(disk);
        match deep.checked_sub(1).filter(|_| !below.is_empty()) {
            Some(deep) => below.iter().for_each(|disk| self.add_drives(disk, deep, drives)),
            None => drives.extend(disk.canonicalize().ok().map(|disk| disk.display().to_string())),
        }
    }

    fn disk_has_arm(&self, disk: &Path, deep: usize) -> bool {
        let Some(deep) = deep.checked_sub(1) else { return false };
        let below = self.below(disk);
        match below.is_empty() {
            true => number(disk, "rotational") == Some(1) && !is_told_nothing(disk),
            false => below.iter().any(|disk| self.disk_has_arm(disk, deep)),
        }
    }

    /// The disk of a device: itself, or for a partition, which has no queue of its own, the disk that
    /// contains it.
    fn disk(&self, device: u64) -> Option<PathBuf> {
        let (major, minor) = (libc::major(device), libc::minor(device));
        let device = self.devices.join(format!("{major}:{minor}"));
        self.with_queue(&device)
    }

    fn with_queue(&self, device: &Path) -> Option<PathBuf> {
        [device.to_owned(), device.join("..")].into_iter().find(|disk| disk.join("queue").is_dir())
    }

    /// The disks that this one is made of, or its backing file lies on.
    fn below(&self, disk: &Path) -> Vec<PathBuf> {
        let file = std::fs::read_to_string(disk.join("loop/backing_file")).ok();
        let under_file = file.and_then(|file| {
            let metadata = std::fs::metadata(file.trim_end_matches('\n')).ok()?;
            self.disk(device_of(&metadata))
        });
        let members = std::fs::read_dir(disk.join("slaves")).into_iter().flatten();
        let members = members.filter_map(|member| self.with_queue(&member.ok()?.path()));
        members.chain(under_file).collect()
    }
}

/// The device itself, or the one that the file lies on.
pub(super) fn device_of(metadata: &Metadata) -> u64 {
    match metadata.file_type().is_block_device() {
        true => metadata.rdev(),
        false => metadata.dev(),
    }
}

fn number(disk: &Path, what: &str) -> Option<u32> {
    std::fs::read_to_string(disk.join("queue").join(what)).ok()?.trim().parse().ok()
}

fn is_told_nothing(disk: &Path) -> bool {
    let driver = std::fs::read_link(disk.join("device/driver")).ok();
    let name = driver.as_deref().and_then(Path::file_name);
    name.is_some_and(|name| TOLD_NOTHING.iter().any(|driver| name == *driver))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A fake /sys folder of devices.
    struct System {
        folder: tempfile::TempDir,
    }

    impl System {
        fn new() -> System {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("numbers")).unwrap();
            System { folder }
        }

        fn queues(&self) -> Queues {
            Queues { devices: self.folder.path().join("numbers") }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.folder.path().join("disks").join(name)
        }

        fn numbered(&self, minor: u32, name: &str) -> u64 {
            let number = self.folder.path().join(format!("numbers/8:{minor}"));
            symlink(self.at(name), number).unwrap();
            libc::makedev(8, minor)
        }

        fn disk(&self, minor: u32, name: &str, rotational: u32, driver: &str) -> u64 {
            let disk = self.at(name);
            for folder in ["queue", "device", "slaves", "loop"] {
                fs::create_dir_all(disk.join(folder)).unwrap();
            }
            fs::write(disk.join("queue/rotational"), format!("{rotational}\n")).unwrap();
            fs::write(disk.join("queue/physical_block_size"), "4096\n").unwrap();
            symlink(format!("/bus/drivers/{driver}"), disk.join("device/driver")).unwrap();
            self.numbered(minor, name)
        }
    }

    #[test]
    fn a_disk_has_an_arm_if_its_driver_can_know_and_says_so() {
        let system = System::new();
        let disk = system.disk(0, "sda", 1, "sd");
        let flash = system.disk(1, "nvme0n1", 0, "nvme");
        let guests = [system.disk(2, "vda", 1, "virtio_blk"), system.disk(3, "xvda", 1, "vbd")];
        let queues = system.queues();
        assert!(queues.has_arm(disk));
        assert!(!queues.has_arm(flash));
        assert!(guests.iter().all(|disk| !queues.has_arm(*disk)));
        assert!(!queues.has_arm(libc::makedev(8, 77)), "no such device");
    }

    #[test]
    fn a_partition_is_as_its_disk() {
        let system = System::new();
        system.disk(0, "sda", 1, "sd");
        fs::create_dir(system.at("sda/sda1")).unwrap();
        let partition = system.numbered(1, "sda/sda1");
        assert!(system.queues().has_arm(partition));
        assert_eq!(system.queues().physical_sector(partition), Some(4096));
    }

    #[test]
    fn what_lies_on_others_is_as_they_are() {
        let system = System::new();
        system.disk(0, "sda", 1, "sd");
        system.disk(1, "vda", 1, "virtio_blk");
        fs::create_dir(system.at("sda/sda1")).unwrap();
        for (minor, name, below, has_arm) in
            [(2, "dm-0", "sda/sda1", true), (3, "dm-1", "vda", false), (4, "md0", "dm-0", true)]
        {
            let device = system.disk(minor, name, 1, "none");
            let member = system.at(name).join("slaves").join(below.replace('/', "-"));
            symlink(system.at(below), member).unwrap();
            assert_eq!(system.queues().has_arm(device), has_arm, "{name}");
        }
        // A device that lies on itself: the walk ends.
        let device = system.disk(5, "md1", 1, "none");
        symlink(system.at("md1"), system.at("md1/slaves/md1")).unwrap();
        assert!(!system.queues().has_arm(device));
    }

    #[test]
    fn a_loop_device_is_as_what_its_file_lies_on() {
        let system = System::new();
        let device = system.disk(0, "loop0", 1, "none");
        let file = system.folder.path().join("image");
        fs::write(&file, "").unwrap();
        let below = fs::metadata(&file).unwrap().dev();
        let (major, minor) = (libc::major(below), libc::minor(below));
        let backing = system.at("loop0").join("loop/backing_file");
        fs::write(backing, format!("{}\n", file.display())).unwrap();
        system.disk(1, "vda", 1, "virtio_blk");
        let number = system.folder.path().join(format!("numbers/{major}:{minor}"));
        symlink(system.at("vda"), number).unwrap();
        assert!(!system.queues().has_arm(device));
    }
}
