//! The system's numbers for errors: the one place that makes an errno from an error of a filesystem.

use crate::error::{Action, FsError};

/// The errno of a failure.
pub fn of(error: &FsError) -> i32 {
    match error {
        FsError::NotFound => libc::ENOENT,
        FsError::Stale => libc::ESTALE,
        FsError::Exists => libc::EEXIST,
        FsError::NotDirectory => libc::ENOTDIR,
        FsError::IsDirectory => libc::EISDIR,
        FsError::NotEmpty => libc::ENOTEMPTY,
        FsError::NameTooLong => libc::ENAMETOOLONG,
        FsError::Invalid(_) => libc::EINVAL,
        FsError::TooManyLinks => libc::EMLINK,
        FsError::FileTooLarge => libc::EFBIG,
        FsError::NothingThere => libc::ENXIO,
        FsError::NoAttribute | FsError::NoReplicas => libc::ENODATA,
        FsError::AttributeTooLarge => libc::E2BIG,
        FsError::NotPermitted => libc::EPERM,
        FsError::Denied => libc::EACCES,
        FsError::NotSupported => libc::EOPNOTSUPP,
        FsError::ReadOnly => libc::EROFS,
        FsError::NoSpace | FsError::NoRoom { .. } => libc::ENOSPC,
        FsError::Smaller { .. } => libc::EINVAL,
        FsError::QuotaExceeded => libc::EDQUOT,
        // As between filesystems: programs that rename copy instead.
        FsError::CrossQuota => libc::EXDEV,
        // As for a block that the device cannot read.
        FsError::Lost { .. } | FsError::Newer(_) => libc::EIO,
        // Not EAGAIN: programs that get it from a file retry for ever.
        FsError::Conflict => libc::EBUSY,
        // As ext4 and XFS answer for invalid structures.
        FsError::Damaged(_) => libc::EUCLEAN,
        FsError::Locked => libc::EAGAIN,
        FsError::Deadlock => libc::EDEADLK,
        FsError::TooManyLocks => libc::ENOLCK,
        // Nothing has failed, and no repair helps: what was opened is not there.
        FsError::NoFilesystem(_) => libc::ENOENT,
        FsError::Foreign(_) => libc::EINVAL,
        FsError::Ended => libc::EIO,
        FsError::ContentsElsewhere | FsError::ContentsWithin => libc::EIO,
        FsError::Store(failure) | FsError::Aborted(failure) => of_action(failure.action()),
    }
}

fn of_action(action: Action) -> i32 {
    match action {
        Action::Retry | Action::RetrySmaller | Action::Wait => libc::EBUSY,
        Action::Divide => libc::EFBIG,
        Action::FreeSpace => libc::ENOSPC,
        Action::Repair => libc::EUCLEAN,
        Action::Reopen => libc::EROFS,
        Action::Restore | Action::Reconnect | Action::GiveUp => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use thalweg_store::block::StoreError;
    use thalweg_store::device::DeviceError;
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
            (tree(TreeError::Missing(name())), libc::ENOENT),
            (tree(TreeError::NoCatalogue), libc::ENOENT),
            (tree(TreeError::Foreign(7)), libc::EINVAL),
            (tree(TreeError::Damaged { what: name(), detail: name() }), libc::EUCLEAN),
        ];
        for (error, expected) in cases {
            assert_eq!(of(&error), expected, "{error}");
        }
    }
}
