//! The process that has a device open, from the kernel's list of locks.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Longest command line that is shown.
const SHOWN: usize = 100;

/// The process that locks the file or device at `path`: its number and command line.
pub(crate) fn of(path: &Path) -> Option<String> {
    let file = std::fs::metadata(path).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
    pid_in(&locks, &format!("{major:02x}:{minor:02x}:{}", file.ino())).map(shown)
}

/// A process by number and command line.
pub(crate) fn shown(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let words: String = words.join(" ").trim_end().chars().take(SHOWN).collect();
    match words.is_empty() {
        true => format!("process {pid}"),
        false => format!("process {pid} ({words})"),
    }
}

/// The process that locks the file `id`, in the kernel's list of locks. The fields of a line are: number,
/// kind of lock, how strict it is, read or write, process, file, range. A `->` after the number marks a
/// process that waits for the lock.
fn pid_in(locks: &str, id: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_held = fields.get(1) != Some(&"->") && fields.get(5) == Some(&id);
        fields.get(4).filter(|_| is_held)?.parse().ok().filter(|pid| *pid > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found_in_the_kernels_list() {
        let locks = "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 99 fe:00:77 0 EOF\n\
                     2: OFDLCK ADVISORY  WRITE -1 fe:00:77 0 8191\n\
                     3: FLOCK  ADVISORY  READ 12 fe:00:77 0 EOF\n";
        assert_eq!(pid_in(locks, "fe:00:1234"), Some(4711));
        assert_eq!(pid_in(locks, "fe:00:77"), Some(12));
        assert_eq!(pid_in(locks, "fe:00:7"), None);
    }
}
