//! Errors of other crates, as the user sees them: most with the next step.

use std::path::Path;

use thalweg_cluster::client;
use thalweg_fs::FsError;
use thalweg_fuse::attach::AttachError;
use thalweg_ipc::remote::RemoteError;
use thalweg_nbd::{ServerError, TlsError};
use thalweg_net::entry::Refusal;
use thalweg_net::keys::KeyError;
use thalweg_net::visit::VisitError;
use thalweg_replica::Stopped;
use thalweg_store::chain::ChainError;
use thalweg_store::device::DeviceError;
use thalweg_store::inplace::InPlaceError;
use thalweg_store::journal::JournalError;
use thalweg_store::open::OpenError;
use thalweg_store::pool::{DAMAGED_LABEL, PairError, PoolError};
use thalweg_store::tree::TreeError;
use thalweg_store::txn::TxnError;

use super::Failure;
use crate::holder;

/// What to do about a kind of devices that the program was not built with.
const HOW_TO_BUILD: &str = "images in a pool of a Ceph cluster need a program with librados: make build-ceph, \
     or cargo build --release -p thalweg --features librados";

/// What to do where users were to write a replica.
const FOLLOWS: &str = "write at its primary; thalweg replica run follows that, and thalweg volume scrub, rebuild, replace and \
     extend --link look after the replica's own drives";

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::of(&error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::of(&error)
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Failure {
        Failure::of(&error)
    }
}

impl From<TlsError> for Failure {
    fn from(error: TlsError) -> Failure {
        Failure::of(&error).help("give PEM files that belong together: --tls-cert, --tls-key, and --tls-ca for the clients' authority")
    }
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Failure {
        Failure::of(&error)
    }
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Failure {
        let help = match &error {
            RemoteError::Visit { source: VisitError::Refused(Refusal::UnknownKey), .. } => Some(
                "`thalweg key show` prints this user's key; `thalweg key authorize NAME KEY` on the server lets it in",
            ),
            RemoteError::Visit { source: VisitError::Refused(Refusal::UnknownToken), .. } => {
                Some("`thalweg key authorize NAME --token` on the server prints a new one")
            }
            RemoteError::Visit { source: VisitError::WrongServer, .. } => Some(
                "another server may listen there now, or pretend to; if its key was changed on purpose: \
                 thalweg key trust SERVER KEY --replace",
            ),
            _ => None,
        };
        let failure = Failure::of(&error);
        match help {
            Some(help) => failure.help(help),
            None => failure,
        }
    }
}

/// An error of a client's journal.
pub(crate) fn explain_journal(error: &JournalError) -> Failure {
    let failure = Failure::of(error);
    match error {
        JournalError::NoJournal { device } => failure.help(format!(
            "thalweg cluster journal create {device} makes one, and overwrites its content"
        )),
        JournalError::Foreign { .. } => {
            failure.help("name another file or device: this one is the journal of a volume")
        }
        _ => failure,
    }
}

/// A mirrored journal's error, with what to do about it.
pub(crate) fn explain_pair(error: PairError) -> Failure {
    let help = match &error {
        PairError::Pool(_) => {
            let PairError::Pool(error) = error else { unreachable!("it is one") };
            return error.into();
        }
        PairError::Undecided { present, absent, .. } => format!(
            "if {absent} is lost for good, mount once with journal_dev={present}+missing; an empty one of the same size takes its \
             place at a later mount"
        ),
        PairError::LeftBehind { present } => {
            format!("thalweg cluster journal export {present} FOLDER writes what it has into files")
        }
        PairError::Diverged { first, second } => format!(
            "thalweg cluster journal export {first} FOLDER, and {second}, write what each has into files; journal_dev={first}+missing, or \
             {second}+missing, goes on with one of them"
        ),
        PairError::NoPair { first, second } => {
            format!("thalweg cluster journal create {first}+{second} makes them one")
        }
        PairError::OtherData { .. }
        | PairError::OtherPair { .. }
        | PairError::Sector { .. }
        | PairError::Sizes { .. }
        | PairError::Twice { .. } => return Failure::of(&error),
    };
    Failure::of(&error).help(help)
}

impl From<client::AttachError> for Failure {
    fn from(error: client::AttachError) -> Failure {
        let error = match error {
            client::AttachError::Lost(error) => error,
            error @ client::AttachError::Pending { .. } => {
                return Failure::of(&error).help(
                    "they stay in the journal; thalweg cluster journal inspect PATH shows them, and thalweg cluster \
                     journal erase PATH gives them up. Mount it without journal_dev= meanwhile",
                );
            }
            client::AttachError::Journal(error) => return explain_journal(&error),
            error @ client::AttachError::Keeper { .. } => {
                return Failure::of(&error).help(
                    "thalweg key authorize NAME --token at the keeper prints a token for thalweg key enrol HOST:PORT TOKEN here",
                );
            }
            error => return Failure::of(&error),
        };
        if !error.get_ref().is_some_and(|inner| inner.is::<RemoteError>()) {
            return Failure::of(&error).while_doing("the server cannot be reached");
        }
        match error.into_inner().map(|inner| inner.downcast::<RemoteError>()) {
            Some(Ok(error)) => (*error).into(),
            _ => Failure::new("the server cannot be reached"),
        }
    }
}

impl From<Stopped> for Failure {
    fn from(error: Stopped) -> Failure {
        Failure::of(&error)
    }
}

impl From<AttachError> for Failure {
    fn from(error: AttachError) -> Failure {
        let help = match &error {
            AttachError::Unavailable(_) => {
                Some("serve the volume and use an NBD client instead: thalweg serve VOLUME")
            }
            AttachError::Busy { .. } => Some("unmount what is on it, then detach again"),
            AttachError::Occupied { .. } => Some("detach it first: thalweg detach VOLUME"),
            _ => None,
        };
        let failure = Failure::of(&error);
        match help {
            Some(help) => failure.help(help),
            None => failure,
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        match error {
            OpenError::Chained(error) => error.into(),
            OpenError::InPlace(error) => error.into(),
            error => Failure::of(&error),
        }
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Failure {
        let help = match &error {
            PoolError::Device(DeviceError::Locked { device, holder: Some(holder) }) => {
                return Failure::of(&error).help(format!(
                    "{holder} has it open; if that one is to be stopped, or has died on another machine: \
                     thalweg image break-lock {device} --yes"
                ));
            }
            PoolError::Device(DeviceError::UnknownKind { .. }) => Some(HOW_TO_BUILD),
            PoolError::Device(DeviceError::Locked { device, holder: None }) => {
                let failure = Failure::of(&error);
                return match holder::of(Path::new(device)) {
                    Some(holder) => failure.help(format!("{holder} has it open")),
                    None => failure.help("another process has it open"),
                };
            }
            PoolError::Missing { .. } => Some("thalweg dump DEVICE shows whose a device is"),
            PoolError::Unfinished { .. } => Some("thalweg volume destroy FOLDER --yes"),
            PoolError::Chain(ChainError::Follows) => Some(FOLLOWS),
            PoolError::Chain(ChainError::Loss(_)) => {
                Some("--dry-run shows them; --accept-loss goes on without them")
            }
            // Not where a label is: nothing of it would be left.
            PoolError::Foreign { what, .. } if *what != DAMAGED_LABEL => {
                Some("--force writes over it")
            }
            PoolError::SeveralVolumes { .. } | PoolError::NoPart { .. } => {
                Some("thalweg dump DEVICE shows whose a device is")
            }
            PoolError::Incomplete { .. } => Some(
                "thalweg dump DEVICE shows whose a device is; --degraded goes on if only sides of mirrors are missing",
            ),
            _ => None,
        };
        let failure = Failure::of(&error);
        match help {
            Some(help) => failure.help(help),
            None => failure,
        }
    }
}

impl From<ChainError> for Failure {
    fn from(error: ChainError) -> Failure {
        PoolError::from(error).into()
    }
}

impl From<InPlaceError> for Failure {
    fn from(error: InPlaceError) -> Failure {
        match error {
            InPlaceError::Device(error) => PoolError::from(error).into(),
            InPlaceError::JournalElsewhere { .. } => {
                Failure::of(&error).help("-o journal_dev=PATH, or --journal-dev PATH")
            }
            InPlaceError::NoStore { .. } => {
                Failure::of(&error).help("make one, and a filesystem on it: thalweg mkfs DEVICE")
            }
            InPlaceError::NoSuperblock { .. } => Failure::of(&error).help(
                "thalweg fsck -y DEVICE, if nothing else was put on the device since; nothing was \
                 changed",
            ),
            InPlaceError::Journal(
                JournalError::Rotten { .. } | JournalError::NoSuperblock { .. },
            ) => Failure::of(&error).help("thalweg fsck -y DEVICE; nothing was changed"),
            InPlaceError::Journal(JournalError::NoJournal { .. }) => Failure::of(&error).help(
                "name the journal's device; if this is it, its superblocks are damaged: \
                 thalweg fsck -y --journal-dev PATH DEVICE",
            ),
            InPlaceError::Unreadable { .. } => {
                Failure::of(&error).help("thalweg fsck -y DEVICE gives it up, if it stays so")
            }
            error => Failure::of(&error),
        }
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        let help = match &error {
            FsError::Exists => Some("--force makes a new one in its place, which loses its files"),
            FsError::NoFilesystem(_) => Some("make one: thalweg mkfs VOLUME"),
            FsError::Damaged(_) => Some("thalweg fsck VOLUME says what is damaged"),
            FsError::Newer(_) => Some("use a newer program"),
            error if error.is_damage_below() => Some("thalweg fsck VOLUME says what is damaged"),
            _ => None,
        };
        let failure = match &error {
            FsError::Exists => Failure::new("the volume has a filesystem already"),
            FsError::NoFilesystem(_) => Failure::new("the volume has no filesystem"),
            error => Failure::of(error),
        };
        match help {
            Some(help) => failure.help(help),
            None => failure,
        }
    }
}

impl From<TreeError> for Failure {
    fn from(error: TreeError) -> Failure {
        let failure = Failure::of(&error);
        match &error {
            TreeError::NoCatalogue => {
                failure.help("thalweg kv VOLUME create NAME --kind btree --size SIZE")
            }
            TreeError::Foreign(_) => failure.help("use another volume, or make one"),
            TreeError::OfFilesystem(_) => failure.help("thalweg mount VOLUME DIRECTORY"),
            TreeError::Missing(_) => failure.help("thalweg kv VOLUME list shows the partitions"),
            TreeError::Unfinished(_) => failure.help("thalweg kv VOLUME drop NAME --yes"),
            TreeError::Damaged { .. } => {
                failure.help("thalweg volume scrub VOLUME looks for damage underneath")
            }
            _ => failure,
        }
    }
}

impl From<TxnError> for Failure {
    fn from(error: TxnError) -> Failure {
        Failure::of(&error)
    }
}
