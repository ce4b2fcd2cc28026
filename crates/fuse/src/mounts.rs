//! The kernel's mount table.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mounted filesystem, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The filesystem's type.
    pub kind: String,
    /// What is mounted, in the filesystem's own words.
    pub source: String,
}

/// What this process sees mounted, in the order of mounting.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn list() -> io::Result<Vec<Mount>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// Where the block device with this major and minor number is mounted.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn of_device(device: (u32, u32)) -> io::Result<Vec<PathBuf>> {
    let mounts = list()?.into_iter().filter(|mount| mount.device == device);
    Ok(mounts.map(|mount| mount.mountpoint).collect())
}

/// What is mounted on `path` itself, the topmost if several are.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn at(path: &Path) -> io::Result<Option<Mount>> {
    Ok(list()?.into_iter().rfind(|mount| mount.mountpoint == path))
}

/// Reads one line: `id parent major:minor root mountpoint options [tags...] - type source options`.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let mountpoint = unescape(fields.nth(1)?);
    let mut tail = fields.skip_while(|field| *field != b"-").skip(1);
    let mut text = || tail.next().map(|field| String::from_utf8_lossy(&unescape(field)).into());
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        mountpoint: PathBuf::from(OsString::from_vec(mountpoint)),
        kind: text()?,
        source: text()?,
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
    fn a_line_is_read_with_and_without_tags() {
        let plain = b"36 35 98:0 / /mnt/a\\040b rw,noatime - ext4 /dev/loop0 rw";
        let tagged = b"36 35 0:44 /r /x rw master:1 shared:2 - fuse.thalweg thalweg rw";
        assert_eq!(
            parse(plain),
            Some(Mount {
                device: (98, 0),
                mountpoint: PathBuf::from("/mnt/a b"),
                kind: "ext4".to_owned(),
                source: "/dev/loop0".to_owned(),
            })
        );
        let tagged = parse(tagged).unwrap();
        assert_eq!((&*tagged.kind, &*tagged.source), ("fuse.thalweg", "thalweg"));
        assert_eq!(tagged.device, (0, 44));
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
