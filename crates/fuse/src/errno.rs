//! The kernel's numbers for errors of a filesystem.

use fuser::Errno;
use thalweg_fs::FsError;
use thalweg_store::block::StoreError;
use thalweg_store::device::DeviceError;
use thalweg_store::tree::TreeError;
use thalweg_store::txn::TxnError;

/// The errno of a failure; the log gets the rest.
pub(crate) fn errno(operation: &'static str, error: &FsError) -> Errno {
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
        FsError::Tree(error) => of_tree(error),
        FsError::Transaction(error) => of_transaction(error),
    };
    // Why a transaction has ended was said once, when it did.
    let has_ended = matches!(error, FsError::Transaction(TxnError::Ended));
    if matches!(errno.code(), libc::EIO | libc::EUCLEAN) && !has_ended {
        tracing::error!(operation, %error, "failed");
    }
    errno
}

fn of_tree(error: &TreeError) -> Errno {
    match error {
        TreeError::Full(_) => Errno::ENOSPC,
        TreeError::Damaged { .. } => Errno::from_i32(libc::EUCLEAN),
        TreeError::Txn(error) => of_transaction(error),
        _ => Errno::EIO,
    }
}

fn of_transaction(error: &TxnError) -> Errno {
    match error {
        TxnError::Conflict | TxnError::Preempted(_) | TxnError::TooMany(_) => Errno::EBUSY,
        TxnError::TooLarge(_) | TxnError::Store(StoreError::TooLarge { .. }) => Errno::EFBIG,
        TxnError::Store(StoreError::NoSpace)
        | TxnError::Store(StoreError::Device(DeviceError::NoSpace { .. })) => Errno::ENOSPC,
        TxnError::Store(StoreError::ReadOnly | StoreError::Poisoned(_)) => Errno::EROFS,
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_below_keeps_its_meaning() {
        let store = |error| FsError::Transaction(TxnError::Store(error));
        let tree = |error| FsError::Tree(error);
        let cases = [
            (FsError::NotFound, libc::ENOENT),
            (FsError::Conflict, libc::EBUSY),
            (FsError::Damaged("x".to_owned()), libc::EUCLEAN),
            (FsError::Lost { ino: 7, from: 0, to: 4096 }, libc::EIO),
            (store(StoreError::NoSpace), libc::ENOSPC),
            (store(StoreError::Poisoned("x".into())), libc::EROFS),
            (tree(TreeError::Full("x".to_owned())), libc::ENOSPC),
            (tree(TreeError::Txn(TxnError::Conflict)), libc::EBUSY),
            (tree(TreeError::Missing("x".to_owned())), libc::EIO),
        ];
        for (error, expected) in cases {
            assert_eq!(errno("test", &error).code(), expected, "{error}");
        }
    }
}
