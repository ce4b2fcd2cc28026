//! Exceptions, each named after what the caller must do.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use thalweg_client::{AttachError, OpenError};
use thalweg_ipc::remote::Advice;
use thalweg_store::block::StoreError;
use thalweg_store::tree::TreeError;
use thalweg_store::txn::{Retry, TxnError};
use thalweg_store::{open, stale};

create_exception!(thalweg, Error, PyException, "An error of a volume.");
create_exception!(
    thalweg,
    Conflict,
    Error,
    "The transaction conflicts with another: try it again."
);
create_exception!(thalweg, Doomed, Error, "A transaction nested in this one was aborted.");
create_exception!(thalweg, Invalid, Error, "The request is invalid.");
create_exception!(thalweg, TooLarge, Error, "A transaction, or a process, exceeds a limit.");
create_exception!(thalweg, NoSpace, Error, "The volume, or the partition, is full.");
create_exception!(thalweg, Gone, Error, "The version is not kept, or was lost in a crash.");
create_exception!(
    thalweg,
    Unserved,
    Error,
    "The volume, perhaps a replica, cannot give what the session needs."
);
create_exception!(
    thalweg,
    Behind,
    Unserved,
    "The volume does not have the version yet, or no state at all: ask another node, or wait."
);
create_exception!(
    thalweg,
    NotPrimary,
    Unserved,
    "Only the primary can give the guarantee: ask it."
);
create_exception!(
    thalweg,
    TooOld,
    Unserved,
    "The replica may be older than the bound: ask another node."
);
create_exception!(
    thalweg,
    Apart,
    Unserved,
    "The volume has gone another way than the session saw it: begin a new session."
);
create_exception!(thalweg, Disconnected, Error, "The volume's server is gone.");
create_exception!(
    thalweg,
    Forked,
    Error,
    "A parent of this process has opened it: open it here anew."
);
create_exception!(thalweg, NotPermitted, Error, "Keys are missing, or the server refuses them.");
create_exception!(thalweg, Damaged, Error, "Stored data is damaged.");

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("Conflict", py.get_type::<Conflict>())?;
    module.add("Doomed", py.get_type::<Doomed>())?;
    module.add("Invalid", py.get_type::<Invalid>())?;
    module.add("TooLarge", py.get_type::<TooLarge>())?;
    module.add("NoSpace", py.get_type::<NoSpace>())?;
    module.add("Gone", py.get_type::<Gone>())?;
    module.add("Unserved", py.get_type::<Unserved>())?;
    module.add("Behind", py.get_type::<Behind>())?;
    module.add("NotPrimary", py.get_type::<NotPrimary>())?;
    module.add("TooOld", py.get_type::<TooOld>())?;
    module.add("Apart", py.get_type::<Apart>())?;
    module.add("Disconnected", py.get_type::<Disconnected>())?;
    module.add("Forked", py.get_type::<Forked>())?;
    module.add("NotPermitted", py.get_type::<NotPermitted>())?;
    module.add("Damaged", py.get_type::<Damaged>())
}

pub(crate) fn invalid(why: &str) -> PyErr {
    Invalid::new_err(why.to_owned())
}

pub(crate) fn txn_error(error: TxnError) -> PyErr {
    let text = error.to_string();
    match error {
        error if error.is_retryable() => Conflict::new_err(text),
        TxnError::Doomed => Doomed::new_err(text),
        TxnError::Ended | TxnError::Invalid(_) | TxnError::UnknownHandle => Invalid::new_err(text),
        TxnError::TooLarge(_) | TxnError::TooMany(_) => TooLarge::new_err(text),
        TxnError::Gone(_) | TxnError::Store(StoreError::Gone(_)) => Gone::new_err(text),
        TxnError::Unserved(stale::Unserved::Behind(_) | stale::Unserved::NoState) => {
            Behind::new_err(text)
        }
        TxnError::Unserved(stale::Unserved::NotPrimary) => NotPrimary::new_err(text),
        TxnError::Unserved(stale::Unserved::TooOld) => TooOld::new_err(text),
        TxnError::Unserved(stale::Unserved::Apart(_)) => Apart::new_err(text),
        TxnError::Disconnected(_) => Disconnected::new_err(text),
        TxnError::Forked(_) => Forked::new_err(text),
        TxnError::Store(StoreError::Invalid(_)) => Invalid::new_err(text),
        TxnError::Store(StoreError::NoSpace) => NoSpace::new_err(text),
        TxnError::Store(StoreError::Corrupt { .. }) => Damaged::new_err(text),
        _ => Error::new_err(text),
    }
}

pub(crate) fn tree_error(error: TreeError) -> PyErr {
    let text = error.to_string();
    match error {
        error if Retry::is_retryable(&error) => Conflict::new_err(text),
        TreeError::Txn(error) => txn_error(error),
        TreeError::KeyTooLarge(_) | TreeError::ValueTooLarge(_) => TooLarge::new_err(text),
        TreeError::Full(_) | TreeError::NoGap(..) => NoSpace::new_err(text),
        TreeError::Damaged { .. } => Damaged::new_err(text),
        _ => Invalid::new_err(text),
    }
}

pub(crate) fn close_error(error: open::OpenError) -> PyErr {
    Error::new_err(error.to_string())
}

pub(crate) fn open_error(error: OpenError) -> PyErr {
    match error {
        OpenError::Server(error) => txn_error(error),
        OpenError::Remote(error) => {
            let text = error.to_string();
            match error.advice() {
                Advice::Invalid => Invalid::new_err(text),
                Advice::NotPermitted => NotPermitted::new_err(text),
                Advice::Retry => Disconnected::new_err(text),
            }
        }
        OpenError::Attach(AttachError::Lost(_)) => Disconnected::new_err(error.to_string()),
        OpenError::Invalid(why) => invalid(why),
        error => Error::new_err(error.to_string()),
    }
}
