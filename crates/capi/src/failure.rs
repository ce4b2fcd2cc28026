//! Errors as C sees them: an errno and a text.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use thalweg_client::{AttachError, FileError, OpenError};
use thalweg_fs::errno;
use thalweg_ipc::remote::Advice;
use thalweg_store::block::StoreError;
use thalweg_store::chain::ChainError;
use thalweg_store::device::DeviceError;
use thalweg_store::inplace::InPlaceError;
use thalweg_store::open;
use thalweg_store::pool::PoolError;
use thalweg_store::stale::Unserved;
use thalweg_store::tree::TreeError;
use thalweg_store::txn::TxnError;

/// Why a call failed.
pub(crate) struct Failure {
    number: c_int,
    text: String,
}

impl Failure {
    pub(crate) fn new(number: c_int, text: String) -> Failure {
        Failure { number, text }
    }

    pub(crate) fn invalid(text: &str) -> Failure {
        Failure { number: libc::EINVAL, text: text.to_owned() }
    }
}

impl From<TxnError> for Failure {
    fn from(error: TxnError) -> Failure {
        let number = match &error {
            TxnError::Conflict => libc::EAGAIN,
            TxnError::Preempted(_) | TxnError::Doomed => libc::ECANCELED,
            TxnError::Ended => libc::ESRCH,
            TxnError::Invalid(_) => libc::EINVAL,
            TxnError::TooLarge(_) => libc::E2BIG,
            TxnError::TooMany(_) => libc::EMFILE,
            TxnError::UnknownHandle => libc::ENOENT,
            TxnError::Gone(_) => libc::ESTALE,
            TxnError::Unserved(Unserved::Behind(_) | Unserved::NoState) => libc::ENODATA,
            TxnError::Unserved(Unserved::NotPrimary) => libc::EREMOTE,
            TxnError::Unserved(Unserved::TooOld) => libc::ETIME,
            TxnError::Unserved(Unserved::Apart(_)) => libc::EREMCHG,
            TxnError::Disconnected(_) => libc::ENOTCONN,
            TxnError::Forked(_) => libc::EBADFD,
            TxnError::Store(error) => of_store(error),
        };
        Failure { number, text: error.to_string() }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        TxnError::Store(error).into()
    }
}

fn of_store(error: &StoreError) -> c_int {
    match error {
        StoreError::Invalid(_) => libc::EINVAL,
        StoreError::NoSpace => libc::ENOSPC,
        StoreError::Corrupt { .. } => libc::EBADMSG,
        StoreError::ReadOnly | StoreError::Poisoned(_) | StoreError::Fenced(_) => libc::EROFS,
        StoreError::Unreplicated(_) => libc::EIO,
        StoreError::TooLarge { .. } => libc::E2BIG,
        StoreError::Gone(_) => libc::ESTALE,
        StoreError::Device(error) => of_device(error),
    }
}

fn of_device(error: &DeviceError) -> c_int {
    match error {
        DeviceError::Locked { .. } => libc::EBUSY,
        DeviceError::NoSpace { .. } => libc::ENOSPC,
        DeviceError::Misaligned { .. } | DeviceError::OutOfRange { .. } => libc::EINVAL,
        DeviceError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        DeviceError::Closed { .. } => libc::EIO,
        DeviceError::Fenced { .. } => libc::EROFS,
        DeviceError::UnknownKind { .. } => libc::ENOTSUP,
    }
}

impl From<TreeError> for Failure {
    fn from(error: TreeError) -> Failure {
        if let TreeError::Txn(error) = error {
            return error.into();
        }
        let number = match &error {
            TreeError::KeyTooLarge(_) => libc::ENAMETOOLONG,
            TreeError::ValueTooLarge(_) => libc::EFBIG,
            TreeError::Full(_) | TreeError::NoGap(..) => libc::ENOSPC,
            TreeError::NoCatalogue | TreeError::Missing(_) => libc::ENOENT,
            TreeError::Exists(_) => libc::EEXIST,
            TreeError::Newer { .. } => libc::EPROTONOSUPPORT,
            TreeError::Damaged { .. } => libc::EBADMSG,
            TreeError::Foreign(_)
            | TreeError::Overlap { .. }
            | TreeError::WrongKind { .. }
            | TreeError::Unfinished(_)
            | TreeError::Partitioned { .. }
            | TreeError::OfFilesystem(_)
            | TreeError::Invalid(_)
            | TreeError::Txn(_) => libc::EINVAL,
        };
        Failure { number, text: error.to_string() }
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Failure {
        let number = match &error {
            PoolError::Device(error) | PoolError::Chain(ChainError::Device(error)) => {
                of_device(error)
            }
            PoolError::NoVolume { .. } => libc::ENOENT,
            PoolError::Missing { .. } => libc::ENODEV,
            PoolError::Chain(ChainError::Follows) => libc::EROFS,
            PoolError::Chain(_) => libc::EBADMSG,
            _ => libc::EINVAL,
        };
        Failure { number, text: error.to_string() }
    }
}

impl From<InPlaceError> for Failure {
    fn from(error: InPlaceError) -> Failure {
        let number = match &error {
            InPlaceError::Device(error) => of_device(error),
            InPlaceError::Store(error) => of_store(error),
            InPlaceError::NoStore { .. } => libc::ENOENT,
            InPlaceError::Newer { .. } => libc::EPROTONOSUPPORT,
            InPlaceError::JournalElsewhere { .. }
            | InPlaceError::JournalInside
            | InPlaceError::Invalid(_) => libc::EINVAL,
            InPlaceError::NoSuperblock { .. }
            | InPlaceError::Damaged(_)
            | InPlaceError::Unreadable { .. }
            | InPlaceError::Journal(_) => libc::EBADMSG,
        };
        Failure { number, text: error.to_string() }
    }
}

impl From<open::OpenError> for Failure {
    fn from(error: open::OpenError) -> Failure {
        let number = match error {
            open::OpenError::Chained(error) => return error.into(),
            open::OpenError::InPlace(error) => return error.into(),
            open::OpenError::NoVolume { .. } => libc::ENOENT,
            open::OpenError::LostManifest { .. } => libc::ENODEV,
            open::OpenError::Part { .. }
            | open::OpenError::Journal { .. }
            | open::OpenError::Foreign { .. }
            | open::OpenError::NoJournal { .. } => libc::EINVAL,
        };
        Failure { number, text: error.to_string() }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        match error {
            OpenError::Server(error) => error.into(),
            OpenError::Remote(error) => {
                let number = match error.advice() {
                    Advice::Invalid => libc::ENOENT,
                    Advice::NotPermitted => libc::EACCES,
                    Advice::Retry => libc::ENOTCONN,
                };
                Failure { number, text: error.to_string() }
            }
            OpenError::Volume(error) => error.into(),
            OpenError::Served { .. } => Failure { number: libc::EBUSY, text: error.to_string() },
            OpenError::Filesystem(error) | OpenError::Attach(AttachError::Refused(error)) => {
                Failure { number: errno::of(&error), text: error.to_string() }
            }
            OpenError::Attach(AttachError::Moved) => {
                Failure { number: libc::ESTALE, text: error.to_string() }
            }
            OpenError::Attach(AttachError::Lost(_) | AttachError::Ended) => {
                Failure { number: libc::ENOTCONN, text: error.to_string() }
            }
            OpenError::Attach(AttachError::Keeper { .. }) => {
                Failure { number: libc::EACCES, text: error.to_string() }
            }
            OpenError::Attach(
                AttachError::Journal(_)
                | AttachError::Pending { .. }
                | AttachError::NotArrived
                | AttachError::Diverged,
            ) => Failure { number: libc::EIO, text: error.to_string() },
            OpenError::Invalid(text) => Failure::invalid(text),
            OpenError::Threads(error) => Failure {
                number: error.raw_os_error().unwrap_or(libc::EAGAIN),
                text: error.to_string(),
            },
        }
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Failure {
        Failure { number: error.errno(), text: error.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<(c_int, CString)> = RefCell::default();
}

/// Stores a failure as this thread's last error.
pub(crate) fn remember(failure: &Failure) {
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = (failure.number, text));
}

/// The last failure's text.
pub(crate) fn text() -> *const c_char {
    LAST.with_borrow(|last| last.1.as_ptr())
}

/// The last failure's errno.
pub(crate) fn number() -> c_int {
    LAST.with_borrow(|last| last.0)
}

/// Runs a call; returns its result or a negative errno. A panic must not unwind into C.
pub(crate) fn call<T: From<c_int>>(body: impl FnOnce() -> Result<T, Failure>) -> T {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        let text = "a bug in the library; its state is unknown".to_owned();
        Err(Failure { number: libc::ENOTRECOVERABLE, text })
    });
    result.unwrap_or_else(|failure| {
        remember(&failure);
        T::from(-failure.number)
    })
}
