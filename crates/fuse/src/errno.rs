//! The kernel's numbers for errors: the one place that makes an errno from an error of ours.

use fuser::Errno;
use thalweg_fs::{Action, FsError};
use thalweg_store::block::StoreError;
use thalweg_store::device::DeviceError;

/// The errno of a failure of a filesystem; the log gets the rest.
pub(crate) fn of_filesystem(operation: &'static str, error: &FsError) -> Errno {
    let errno = match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::Stale => Errno::ESTALE,
        FsError::Exists => Errno::EEXIST,
        FsError::NotDirectory => Errno::ENOTDIR,
        FsError::IsDirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::Invalid(_) => Errno::EINVAL,
        FsError::TooManyLinks => Errno::EMLINK,
        FsError::FileTooLarge => Errno::EFBIG,
        FsError::NothingThere => Errno::ENXIO,
        FsError::NoAttribute => Errno::ENODATA,
        FsError::AttributeTooLarge => Errno::E2BIG,
        FsError::NotPermitted => Errno::EPERM,
        FsError::NotSupported => Errno::EOPNOTSUPP,
        FsError::ReadOnly => Errno::EROFS,
        FsError::NoSpace | FsError::NoRoom { .. } => Errno::ENOSPC,
        FsError::Smaller { .. } => Errno::EINVAL,
        FsError::QuotaExceeded => Errno::EDQUOT,
        // As between filesystems: programs that rename copy instead.
        FsError::CrossQuota => Errno::EXDEV,
        // As for a block that the device cannot read.
        FsError::Lost { .. } | FsError::Newer(_) => Errno::EIO,
        // Not EAGAIN: programs that get it from a file retry for ever.
        FsError::Conflict => Errno::EBUSY,
        // As ext4 and XFS answer for invalid structures.
        FsError::Damaged(_) => Errno::from_i32(libc::EUCLEAN),
        FsError::Locked => Errno::EAGAIN,
        FsError::Deadlock => Errno::EDEADLK,
        FsError::TooManyLocks => Errno::from_i32(libc::ENOLCK),
        FsError::Ended | FsError::NoFilesystem(_) | FsError::Foreign(_) => Errno::EIO,
        FsError::Store(failure) | FsError::Aborted(failure) => of_action(failure.action()),
    };
    // Why a transaction has ended was said once, when it did.
    let has_ended = matches!(error, FsError::Ended);
    if matches!(errno.code(), libc::EIO | libc::EUCLEAN) && !has_ended {
        tracing::error!(operation, %error, "failed");
    }
    errno
}

fn of_action(action: Action) -> Errno {
    match action {
        Action::Retry | Action::RetrySmaller | Action::Wait => Errno::EBUSY,
        Action::Divide => Errno::EFBIG,
        Action::FreeSpace => Errno::ENOSPC,
        Action::Repair => Errno::from_i32(libc::EUCLEAN),
        Action::Reopen => Errno::EROFS,
        Action::Restore | Action::Reconnect | Action::GiveUp => Errno::EIO,
    }
}

/// The errno of a failure of a volume; the log gets the rest.
pub(crate) fn of_store(operation: &'static str, error: &StoreError) -> Errno {
    match error {
        StoreError::Invalid(_) | StoreError::TooLarge { .. } => Errno::EINVAL,
        StoreError::NoSpace | StoreError::Device(DeviceError::NoSpace { .. }) => Errno::ENOSPC,
        StoreError::ReadOnly => Errno::EROFS,
        StoreError::Poisoned(_) | StoreError::Fenced(_) => {
            tracing::error!(operation, %error, "refused");
            Errno::EROFS
        }
        StoreError::Corrupt { .. }
        | StoreError::Gone(_)
        | StoreError::Unreplicated(_)
        | StoreError::Device(_) => {
            tracing::error!(operation, %error, "failed");
            Errno::EIO
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_store::tree::TreeError;
    use thalweg_store::txn::{Preempted, TxnError};

    use super::*;

    #[test]
    fn failures_below_keep_their_meaning() {
        let store = |error| FsError::from(TxnError::Store(error));
        let tree = |error| FsError::from(error);
        let name = || "x".to_owned();
        let full = DeviceError::NoSpace { device: name() };
        let lba = thalweg_store::block::Lba(7);
        let cases = [
            (FsError::NotFound, libc::ENOENT),
            (FsError::Conflict, libc::EBUSY),
            (FsError::Locked, libc::EAGAIN),
            (FsError::Deadlock, libc::EDEADLK),
            (FsError::TooManyLocks, libc::ENOLCK),
            (FsError::Damaged(name()), libc::EUCLEAN),
            (FsError::Lost { ino: 7, from: 0, to: 4096 }, libc::EIO),
            (TxnError::Ended.into(), libc::EIO),
            (TxnError::Preempted(Preempted::Memory).into(), libc::EBUSY),
            (TxnError::TooMany(7).into(), libc::EBUSY),
            (TxnError::TooLarge(7).into(), libc::EFBIG),
            (TxnError::Disconnected(name()).into(), libc::EIO),
            (store(StoreError::TooLarge { needed: 2, most: 1 }), libc::EFBIG),
            (store(StoreError::NoSpace), libc::ENOSPC),
            (store(StoreError::Device(full)), libc::ENOSPC),
            (store(StoreError::ReadOnly), libc::EROFS),
            (store(StoreError::Poisoned("x".into())), libc::EROFS),
            (store(StoreError::Fenced(1)), libc::EROFS),
            (store(StoreError::Unreplicated("x".into())), libc::EIO),
            (store(StoreError::Corrupt { lba, detail: name() }), libc::EIO),
            (tree(TreeError::Full(name())), libc::ENOSPC),
            (tree(TreeError::Txn(TxnError::Conflict)), libc::EBUSY),
            (tree(TreeError::Missing(name())), libc::EIO),
            (tree(TreeError::Damaged { what: name(), detail: name() }), libc::EUCLEAN),
        ];
        for (error, expected) in cases {
            assert_eq!(of_filesystem("test", &error).code(), expected, "{error}");
        }
    }

    #[test]
    fn failures_of_a_volume_have_an_errno() {
        let full = DeviceError::NoSpace { device: "d".to_owned() };
        let cases = [
            (StoreError::Invalid("x".to_owned()), libc::EINVAL),
            (StoreError::NoSpace, libc::ENOSPC),
            (StoreError::Device(full), libc::ENOSPC),
            (StoreError::Poisoned("x".into()), libc::EROFS),
            (StoreError::ReadOnly, libc::EROFS),
            (StoreError::Device(DeviceError::Closed { device: "d".to_owned() }), libc::EIO),
        ];
        for (error, expected) in cases {
            assert_eq!(of_store("test", &error).code(), expected, "{error}");
        }
    }
}
