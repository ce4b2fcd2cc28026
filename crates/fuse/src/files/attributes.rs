//! Attributes and moments, in the kernel's terms and in ours.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use thalweg_fs::{Answer, Attributes, Kind, TimeChange, Timestamp, Validity};

pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::CharDevice => FileType::CharDevice,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
    }
}

pub(crate) fn file_attr(it: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(it.ino.0),
        size: it.size,
        blocks: it.stored.div_ceil(512),
        atime: system_time(it.accessed),
        mtime: system_time(it.modified),
        ctime: system_time(it.changed),
        crtime: system_time(it.created),
        kind: file_type(it.kind),
        perm: it.mode,
        nlink: it.links,
        uid: it.uid,
        gid: it.gid,
        rdev: it.rdev,
        blksize: 4096,
        flags: 0,
    }
}

/// How long the kernel may cache what it is told of an inode. See [`privileges`](super::privileges).
pub(super) fn validity(answer: &Answer) -> Validity {
    match has_mode_privileges(answer) && answer.kind == Kind::File {
        true => Validity { attributes: Duration::ZERO, ..answer.valid },
        false => answer.valid,
    }
}

/// Set-user-id or set-group-id.
pub(super) fn has_mode_privileges(attributes: &Attributes) -> bool {
    attributes.mode & 0o6000 != 0
}

/// The attributes of no inode at all.
pub(crate) fn nothing() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds {
        0.. => UNIX_EPOCH.checked_add(seconds),
        _ => UNIX_EPOCH.checked_sub(seconds),
    };
    let nanos = Duration::from_nanos(time.nanos.into());
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

pub(crate) fn time_change(time: TimeOrNow) -> TimeChange {
    match time {
        TimeOrNow::Now => TimeChange::Now,
        TimeOrNow::SpecificTime(time) => TimeChange::At(timestamp(time)),
    }
}

/// Converts a time from the kernel. The library subtracts the nanoseconds from a time before 1970, where
/// the kernel means them to be added.
fn timestamp(time: SystemTime) -> Timestamp {
    let seconds = |span: Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { seconds: seconds(after), nanos: after.subsec_nanos() },
        Err(error) => {
            let before = error.duration();
            Timestamp { seconds: -seconds(before), nanos: before.subsec_nanos() }
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_fs::Ino;

    use super::*;

    #[test]
    fn moments_before_1970_come_back() {
        // As the library reads seconds -2 and 300 ns.
        let read = UNIX_EPOCH - Duration::new(2, 300);
        let time = timestamp(read);
        assert_eq!(time, Timestamp { seconds: -2, nanos: 300 });
        let shown = UNIX_EPOCH.duration_since(system_time(time)).unwrap();
        assert_eq!(shown, Duration::new(1, 999_999_700));
    }

    fn answer(kind: Kind, mode: u16) -> Answer {
        let time = Timestamp { seconds: 0, nanos: 0 };
        Answer::until_changed(Attributes {
            ino: Ino(2),
            kind,
            mode,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            stored: 0,
            accessed: time,
            modified: time,
            changed: time,
            created: time,
        })
    }

    #[test]
    fn a_mode_that_a_write_clears_is_not_cached() {
        for mode in [0o4755, 0o2755, 0o6711] {
            let (answer, valid) = (answer(Kind::File, mode), validity(&answer(Kind::File, mode)));
            assert_eq!((valid.attributes, valid.entry), (Duration::ZERO, answer.valid.entry));
        }
        for (kind, mode) in [(Kind::File, 0o1777), (Kind::Directory, 0o2755)] {
            assert!(!validity(&answer(kind, mode)).attributes.is_zero());
        }
    }
}
