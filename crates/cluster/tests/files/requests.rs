//! A request of each kind.

use bytes::Bytes;
use thalweg_cluster::protocol::Request;
use thalweg_fs::{
    Allocation, AttributeChange, Caller, Cookie, Handle, Ino, Level, Lock, LockKind, LockMode,
    LockOwner, LockRange, Node, OpenFlags, Rename, Seek, SetXattr, WriteAt, WriteHow,
};

use crate::scene::new;

/// The last kind of request. A new kind does not compile before it is counted here, and then [`every`] lacks it.
const LAST: usize = 51;

fn kind(request: &Request) -> usize {
    match request {
        Request::Attach { .. } => 0,
        Request::Reclaim => 1,
        Request::ReclaimOpen { .. } => 2,
        Request::ReclaimLock { .. } => 3,
        Request::ReclaimNumbers { .. } => 4,
        Request::ReclaimRoom { .. } => 5,
        Request::Reclaimed => 6,
        Request::RequestDelegation { .. } => 7,
        Request::Reserve => 8,
        Request::Room { .. } => 9,
        Request::Batch { .. } => 10,
        Request::ReachContents { .. } => 11,
        Request::ExtendWriteBound { .. } => 12,
        Request::KeepSizeRecord { .. } => 13,
        Request::Renew => 14,
        Request::Detach => 15,
        Request::Forget => 16,
        Request::Cancel(_) => 17,
        Request::Lookup { .. } => 18,
        Request::Parent { .. } => 19,
        Request::Attributes { .. } => 20,
        Request::SetAttributes { .. } => 21,
        Request::Create { .. } => 22,
        Request::Link { .. } => 23,
        Request::Unlink { .. } => 24,
        Request::RemoveDirectory { .. } => 25,
        Request::Rename { .. } => 26,
        Request::ReadLink { .. } => 27,
        Request::ReadDirectory { .. } => 28,
        Request::Read { .. } => 29,
        Request::Write { .. } => 30,
        Request::Allocate { .. } => 31,
        Request::Seek { .. } => 32,
        Request::Copy { .. } => 33,
        Request::Sync { .. } => 34,
        Request::SyncAll => 35,
        Request::Level { .. } => 36,
        Request::Xattr { .. } => 37,
        Request::SetXattr { .. } => 38,
        Request::Xattrs { .. } => 39,
        Request::RemoveXattr { .. } => 40,
        Request::Statistics => 41,
        Request::Open { .. } => 42,
        Request::Flush { .. } => 43,
        Request::Release { .. } => 44,
        Request::Lock { .. } => 45,
        Request::Unlock { .. } => 46,
        Request::ConflictingLock { .. } => 47,
        Request::Path { .. } => 48,
        Request::Stage { .. } => 49,
        Request::UsedMeanwhile => 50,
        Request::HandOver { .. } => 51,
    }
}

pub(crate) const HANDLE: Handle = Handle(77);

const READING: OpenFlags =
    OpenFlags { read: true, write: false, append: false, direct: false, sync: false };

fn lock() -> Lock {
    let (kind, mode, range) = (LockKind::Posix, LockMode::Shared, LockRange::ALL);
    Lock { kind, owner: LockOwner::local(1), handle: HANDLE, pid: 1, mode, range }
}

/// Those about the session.
fn about_sessions(ino: Ino) -> Vec<Request> {
    let (handle, caller, flags) = (HANDLE, Caller::default(), READING);
    vec![
        Request::Attach { session: uuid::Uuid::nil(), resumes: true, journal: None },
        Request::Reclaim,
        Request::ReclaimOpen { handle, caller, ino, flags },
        Request::ReclaimLock { ino, lock: lock() },
        Request::ReclaimNumbers { first: 1, count: 1, inode_token: 1 },
        Request::ReclaimRoom { shares: Vec::new(), batch: None },
        Request::Reclaimed,
        Request::Renew,
        Request::Detach,
        Request::HandOver { to: uuid::Uuid::nil() },
        Request::Forget,
        Request::Cancel(1),
        Request::Reserve,
        Request::Stage { part: (1, 0), replaces: true },
        Request::Room { quota: 0 },
        Request::ReachContents { address: String::new() },
        Request::SyncAll,
        Request::Statistics,
    ]
}

/// Those about a directory, and names in it.
fn about_names(parent: Ino, ino: Ino) -> Vec<Request> {
    let (name, made) = (Bytes::from_static(b"f"), || Bytes::from_static(b"made"));
    let renamed = (parent, Bytes::from_static(b"renamed"));
    let (from, to, targets) = ((parent, name.clone()), renamed, [Some(ino), None]);
    vec![
        Request::RequestDelegation { ino: parent },
        batch_request(),
        Request::Lookup { parent, name: name.clone() },
        Request::Parent { directory: parent },
        Request::Path { ino },
        Request::UsedMeanwhile,
        Request::Create { parent, name: made(), new: new(Node::File) },
        Request::Create { parent, name: made(), new: new(Node::Directory) },
        Request::Link { ino, parent, name: made() },
        Request::Unlink { parent, name: name.clone(), target: Some(ino) },
        Request::RemoveDirectory { parent, name, target: None },
        Request::Rename { from, to, how: Rename::Replace, targets },
        Request::ReadDirectory { ino: parent, from: Cookie::START, most: 9, attributes: true },
    ]
}

/// Those about a file.
fn about_files(ino: Ino) -> Vec<Request> {
    let (handle, lock, caller) = (HANDLE, lock(), Caller::default());
    let (any, how) = (AttributeChange::default(), WriteHow::default());
    let open = |flags| Request::Open { handle, caller, ino, flags, late: false, delegation: false };
    let change = |change| Request::SetAttributes { ino, change };
    vec![
        Request::ExtendWriteBound { ino, end: 1 },
        Request::KeepSizeRecord { ino, instead_of: None },
        Request::Attributes { ino, shown: true },
        Request::Attributes { ino, shown: false },
        change(AttributeChange { mode: Some(0o777), ..any }),
        change(AttributeChange { size: Some(1), ..any }),
        Request::ReadLink { ino },
        Request::Read { ino, offset: 0, len: 9, pages: false },
        Request::Write { ino, at: WriteAt::Offset(5), how },
        Request::Write { ino, at: WriteAt::End, how },
        Request::Allocate { ino, offset: 3, len: 4, how: Allocation::Punch },
        Request::Seek { ino, offset: 0, what: Seek::Data },
        Request::Copy { from: (ino, 0), to: (ino, 2), len: 2 },
        Request::Sync { ino, content_only: false },
        Request::Level { ino, wait: Some((Level::Server, 1)) },
        Request::Xattr { ino, name: Bytes::from_static(b"user.x") },
        Request::SetXattr { ino, name: Bytes::from_static(b"user.y"), how: SetXattr::Any },
        Request::Xattrs { ino },
        Request::RemoveXattr { ino, name: Bytes::from_static(b"user.x") },
        open(READING),
        open(OpenFlags { write: true, ..OpenFlags::default() }),
        Request::Flush { ino, handle, owner: lock.owner },
        Request::Release { ino, handle },
        Request::Lock { ino, lock, wait: false },
        Request::Unlock { ino, kind: lock.kind, owner: lock.owner, range: lock.range },
        Request::ConflictingLock { ino, lock },
    ]
}

/// A batch of nothing more than what its payload says.
pub(crate) fn batch_request() -> Request {
    Request::Batch {
        sync: false,
        charged: Vec::new(),
        releases: Vec::new(),
        positions: None,
        staged: 0,
        spent: Vec::new(),
    }
}

/// A request of each kind, and of some kinds several, about a directory and a file `f` in it.
pub(crate) fn every(directory: Ino, file: Ino) -> Vec<Request> {
    let all = [about_sessions(file), about_names(directory, file), about_files(file)].concat();
    let mut kinds: Vec<usize> = all.iter().map(kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, (0..=LAST).collect::<Vec<_>>(), "each kind of request");
    all
}
