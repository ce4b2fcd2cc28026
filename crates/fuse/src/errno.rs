//! The kernel's numbers for errors, and the log of those that say too little.

use fuser::Errno;
use thalweg_fs::FsError;
use thalweg_store::block::StoreError;
use thalweg_store::device::DeviceError;

/// The errno of a failure of a filesystem; the log gets the rest.
pub(crate) fn of_filesystem(operation: &'static str, error: &FsError) -> Errno {
    let errno = Errno::from_i32(thalweg_fs::errno::of(error));
    // Why a transaction has ended was said once, when it did.
    let has_ended = matches!(error, FsError::Ended);
    if matches!(errno.code(), libc::EIO | libc::EUCLEAN) && !has_ended {
        tracing::error!(operation, %error, "failed");
    }
    errno
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
    use super::*;

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
