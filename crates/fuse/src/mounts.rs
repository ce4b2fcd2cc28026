//! The kernel's mount tables: one for each mount namespace.

use std::ffi::{CStr, CString, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use thalweg_env::HashSet;

/// One mounted filesystem, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's number of this mount. No other mount has it before this one is gone.
    pub id: u64,
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// The directory of the filesystem that is seen there: `/`, except for bind mounts of a part.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The filesystem's type.
    pub kind: String,
    /// The source, in the filesystem's own words.
    pub source: String,
    /// For a filesystem in user space, the user that serves it.
    pub user: Option<u32>,
}

/// Identifies a mounted filesystem. Its device number alone does not: once the last mount is gone, the kernel
/// gives the number to the next filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// The source, in the filesystem's own words.
    pub source: String,
}

impl Mount {
    /// The filesystem that is mounted.
    pub fn identity(&self) -> Identity {
        Identity { device: self.device, source: self.source.clone() }
    }

    /// Whether it is a mount of that filesystem.
    pub fn is_of(&self, filesystem: &Identity) -> bool {
        self.device == filesystem.device && self.source == filesystem.source
    }
}

/// A mount namespace other than this process's, by one of its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process with the lowest number.
    pub process: u32,
    /// The mounts there.
    pub mounts: Vec<Mount>,
}

/// How the names of [`name_of`] begin.
pub const NAME: &str = "mount-";

/// The name, in a user's folder, under which the server of the filesystem with this device number is
/// found.
pub fn name_of((major, minor): (u32, u32)) -> String {
    format!("{NAME}{major}:{minor}")
}

/// The mounts that this process sees, in the order of mounting.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn list() -> io::Result<Vec<Mount>> {
    seen_by("self")
}

fn seen_by(process: &str) -> io::Result<Vec<Mount>> {
    let table = std::fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// The other mount namespaces in which a filesystem is mounted, as far as this process may inspect their
/// processes; root may inspect all.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn elsewhere(filesystem: &Identity) -> io::Result<Vec<Holder>> {
    let mut processes: Vec<u32> = std::fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    processes.sort_unstable();
    let mut known = HashSet::default();
    known.insert(std::fs::read_link("/proc/self/ns/mnt")?);
    let mut holders = Vec::new();
    for process in processes {
        // It may end at any time.
        let Ok(namespace) = std::fs::read_link(format!("/proc/{process}/ns/mnt")) else { continue };
        if known.contains(&namespace) {
            continue;
        }
        let Ok(mounts) = seen_by(&process.to_string()) else { continue };
        known.insert(namespace);
        if mounts.iter().any(|mount| mount.is_of(filesystem)) {
            holders.push(Holder { process, mounts });
        }
    }
    Ok(holders)
}

/// `umount2` of this mount and no other one, for a user without privileges through fusermount3.
///
/// # Errors
/// `EBUSY` while the mount is in use and `flags` has no `MNT_DETACH`, and while another one is mounted over it; `EINVAL` when it
/// is not mounted any more; otherwise the system's error.
pub fn unmount(mount: &Mount, flags: libc::c_int) -> io::Result<()> {
    match unmount_here(mount, flags) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            fusermount(&mount.mountpoint, flags)
        }
        result => result,
    }
}

/// Whether the path of a mount leads to it, and not to another one that is mounted over it or over a directory on the way.
///
/// # Errors
/// The system's error.
pub fn is_reached(mount: &Mount) -> io::Result<bool> {
    match open_place(&mount.mountpoint) {
        Ok(place) => Ok(is_at(&place, mount)),
        // What is mounted over a directory on the way lacks the rest of the path.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn unmount_here(mount: &Mount, flags: libc::c_int) -> io::Result<()> {
    let place = match open_place(&mount.mountpoint) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        place => place.ok().filter(|place| is_at(place, mount)),
    };
    let Some(place) = place else {
        let is_covered = list()?.iter().any(|it| it.id == mount.id && it.device == mount.device);
        let errno = if is_covered { libc::EBUSY } else { libc::EINVAL };
        return Err(io::Error::from_raw_os_error(errno));
    };
    if flags & libc::MNT_DETACH != 0 {
        // By the descriptor, so that it cannot be another mount, whatever happens meanwhile.
        let by_descriptor = CString::new(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
        match umount2(&by_descriptor, flags) {
            // There is no /proc.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
    }
    // Otherwise the descriptor would be a use of the mount.
    drop(place);
    let path = CString::new(mount.mountpoint.as_os_str().as_bytes())?;
    umount2(&path, flags | libc::UMOUNT_NOFOLLOW)
}

/// A descriptor of what is at a path now. Opening it asks nothing of a filesystem that is mounted there.
fn open_place(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)
}

/// Whether a descriptor is of the root of this mount: by the mount's number where the kernel tells it, since Linux 5.8, and else
/// by the filesystem's.
fn is_at(place: &File, mount: &Mount) -> bool {
    // SAFETY: all zeros are a valid value, which the call overwrites.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // Nothing is asked for, so that the filesystem is not asked; the kernel itself knows these numbers.
    // SAFETY: the descriptor is open, the path is a terminated string, and the pointer is valid for the call.
    let done = unsafe { libc::statx(place.as_raw_fd(), c"".as_ptr(), flags, 0, &raw mut found) };
    let has_id = found.stx_mask & libc::STATX_MNT_ID != 0;
    done == 0
        && (found.stx_dev_major, found.stx_dev_minor) == mount.device
        && (!has_id || found.stx_mnt_id == mount.id)
}

fn umount2(path: &CStr, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the path is a terminated string, alive for the call.
    match unsafe { libc::umount2(path.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The error for a user without privileges on a machine without fusermount3.
pub(crate) fn without_fusermount(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("fusermount3 of the package fuse3: {error}"))
}

/// Unmounts a filesystem in user space as the user that mounted it.
fn fusermount(mountpoint: &Path, flags: libc::c_int) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if flags & libc::MNT_DETACH != 0 {
        command.arg("-z");
    }
    let output = command.arg("--").arg(mountpoint).stdin(Stdio::null()).env("LC_ALL", "C").output();
    let output = output.map_err(|error| without_fusermount(&error))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false if said.contains("busy") => Err(io::Error::from_raw_os_error(libc::EBUSY)),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, said.trim().to_owned())),
    }
}

/// `umount2` of a mount in the mount namespace of another process.
///
/// # Errors
/// As of [`unmount`].
pub fn unmount_in(process: u32, mount: &Mount, flags: libc::c_int) -> io::Result<()> {
    let namespace = File::open(format!("/proc/{process}/ns/mnt"))?;
    let mount = mount.clone();
    // A thread can enter a namespace once it shares its working directory with no other thread, and
    // is not to come back from there.
    let thread = std::thread::Builder::new().name("thalweg-unmount".to_owned());
    let thread = thread.spawn(move || {
        // SAFETY: both calls change this thread alone; the descriptor is open.
        let entered = unsafe {
            libc::unshare(libc::CLONE_FS) == 0
                && libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) == 0
        };
        match entered {
            true => unmount_here(&mount, flags),
            false => Err(io::Error::last_os_error()),
        }
    })?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// Where the block device with this major and minor number is mounted.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn of_device(device: (u32, u32)) -> io::Result<Vec<PathBuf>> {
    let mounts = list()?.into_iter().filter(|mount| mount.device == device);
    Ok(mounts.map(|mount| mount.mountpoint).collect())
}

/// Where a filesystem is mounted.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn of(filesystem: &Identity) -> io::Result<Vec<PathBuf>> {
    let mounts = list()?.into_iter().filter(|mount| mount.is_of(filesystem));
    Ok(mounts.map(|mount| mount.mountpoint).collect())
}

/// The mount on `path` itself, the topmost if there are several.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn at(path: &Path) -> io::Result<Option<Mount>> {
    Ok(list()?.into_iter().rfind(|mount| mount.mountpoint == path))
}

/// Reads one line: `id parent major:minor root mountpoint options [tags...] - type source options`.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let (major, minor) = std::str::from_utf8(fields.nth(1)?).ok()?.split_once(':')?;
    let mut path = || Some(PathBuf::from(OsString::from_vec(unescape(fields.next()?))));
    let (root, mountpoint) = (path()?, path()?);
    let mut tail = fields.skip_while(|field| *field != b"-").skip(1);
    let mut text = || tail.next().map(|field| String::from_utf8_lossy(&unescape(field)).into());
    Some(Mount {
        id,
        device: (major.parse().ok()?, minor.parse().ok()?),
        root,
        mountpoint,
        kind: text()?,
        source: text()?,
        user: text().and_then(|options: String| {
            options.split(',').find_map(|word| word.strip_prefix("user_id=")?.parse().ok())
        }),
    })
}

/// Undoes the kernel's escapes: a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| *first == b'\\');
        let escaped = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_used_again_is_another_filesystem() {
        let line = |source: &str| {
            let line = format!("36 35 0:44 / /x rw - fuse.thalweg {source} rw,user_id=0");
            parse(line.as_bytes()).unwrap()
        };
        let first = line("/srv/a").identity();
        assert!(line("/srv/a").is_of(&first) && !line("/srv/b").is_of(&first));
    }

    #[test]
    fn a_line_is_read_with_and_without_tags() {
        let plain = b"36 35 98:0 / /mnt/a\\040b rw,noatime - ext4 /dev/loop0 rw";
        let tagged =
            b"36 35 0:44 /r /x rw master:1 shared:2 - fuse.thalweg thalweg rw,user_id=7,group_id=8";
        assert_eq!(
            parse(plain),
            Some(Mount {
                id: 36,
                device: (98, 0),
                root: PathBuf::from("/"),
                mountpoint: PathBuf::from("/mnt/a b"),
                kind: "ext4".to_owned(),
                source: "/dev/loop0".to_owned(),
                user: None,
            })
        );
        let tagged = parse(tagged).unwrap();
        assert_eq!((&*tagged.kind, &*tagged.source), ("fuse.thalweg", "thalweg"));
        assert_eq!((tagged.device, tagged.root), ((0, 44), PathBuf::from("/r")));
        assert_eq!(tagged.user, Some(7));
        for bad in [&b""[..], b"36 35", b"36 35 x / /m rw - ext4 s o", b"1 2 3:4 / /m rw"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn escapes_are_undone_and_others_are_kept() {
        assert_eq!(unescape(b"a\\134b\\011"), b"a\\b\t");
        assert_eq!(unescape(b"\\9\\04"), b"\\9\\04");
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(at(Path::new("/")).unwrap().is_some());
    }
}
