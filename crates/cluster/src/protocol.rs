//! The messages between a server of files and its clients, and their layout.
//!
//! After the hellos ([`thalweg_net::hello`]) the client attaches a session, in its first call. The calls of a session
//! have numbers of the client's choice, which grow. A client that lost its connection connects again, resumes the
//! session and sends each call without an answer again, with its old number: the server carries out no call twice.
//!
//! So the server keeps an answer until the client says that it has it. Answers come in any order, and a call may wait without
//! bound, such as one for a lock: the client acknowledges all calls before its oldest one without an answer
//! ([`Call::oldest`]), and each answered one after it ([`Call::answered`]). It says again what it
//! acknowledged on a lost connection when it resumes the session.
//!
//! # After a crash of the server
//!
//! A server whose filesystem keeps records ([`thalweg_fs::SessionTable`]) finds the sessions there when it starts again. An answer
//! that [changed something](Reply::committed) counts at once, and may not survive a crash: the client keeps the call until
//! the server says that it does ([`FromServer::Durable`]). After [`Answer::Attached`] by another incarnation the client
//! reclaims what it held ([`Request::Reclaim`], [`Request::ReclaimOpen`], [`Request::ReclaimLock`]), makes the calls that it has kept
//! again in the order of their versions ([`Call::before`]), and ends that with [`Request::Reclaimed`], which lists the calls that
//! were under way ([`ReplayedCall`]). Until all clients have done so, or their time is up, all other calls wait.
//!
//! # What may be cached
//!
//! Answers say what the client may cache. The server takes that back with [`FromServer::Invalidate`], and waits for the
//! answer before it makes the change. Calls and answers are in one order on a connection: what was allowed before an
//! invalidation ends with it, also when the answer that allowed it is looked at later.

mod call;
mod footprint;
mod journal;
pub mod keep;
mod limits;
mod lists;
pub mod moving;
mod notices;
mod used;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_fs::mutation::ByteMutations;
use thalweg_fs::session_table::{AllUsed, Committed};
use thalweg_fs::{
    Allocation, AttributeChange, Attributes, Caller, Cookie, Handle, Ino, Kind, Level, Lock,
    LockKind, LockOwner, LockRange, NewNode, OpenFlags, PageCache, Rename, RoomShare, Seek,
    SetXattr, Statistics, WriteAt, WriteHow,
};
use thalweg_net::hello::Hello;
use thalweg_net::keys::Squash;
use uuid::Uuid;

use crate::failure::WireError;
pub use call::{Call, CallEffect, ReplayedCall};
pub(crate) use footprint::session_request;
pub use footprint::{Footprint, Needs, Repeat, Written, changed_by_mutations};
pub use journal::{BatchPositions, JournalMount, JournalState};
pub use limits::*;
pub use lists::{decode_entries, decode_list, decode_list_with_ends, encode_list};
pub use notices::{Changed, FromServer, Invalidated, RemovedInode};
pub use used::{UsedInode, conflicts_with};

/// The first bytes that each side sends.
pub const HELLO: Hello = Hello { magic: *b"thwg-fil", version: 21 };

/// What a client wants.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "each is the call of `Filesystem` with that name, and so are its fields"
)]
pub enum Request {
    /// Begins a session, or resumes one. [`Answer::Attached`]. The payload is the list of the numbers of the calls that are to be
    /// carried out once and have no answer; nothing, of a client that does not say so.
    Attach {
        /// The session.
        session: Uuid,
        /// It is to exist.
        resumes: bool,
        /// Of a client with a journal.
        journal: Option<JournalMount>,
    },
    /// The payload is a list of [`Reclaim`].
    Reclaim,
    /// The client had a file open under this handle.
    ReclaimOpen {
        handle: Handle,
        caller: Caller,
        ino: Ino,
        flags: OpenFlags,
    },
    /// The client had a lock.
    ReclaimLock {
        ino: Ino,
        lock: Lock,
    },
    /// The client has reserved inode numbers: what [`Answer::Numbers`] was.
    ReclaimNumbers {
        first: u64,
        count: u64,
        inode_token: u64,
    },
    /// The client has made changes that it has not sent, or not sent in another batch than this one that has no answer, within
    /// this of what it was promised ([`RoomGrant`]). Where the batch has survived, all that it has taken is in use already.
    ReclaimRoom {
        shares: Vec<RoomShare>,
        batch: Option<u64>,
    },
    /// The client has reclaimed everything. The payload is a list of [`ReplayedCall`] calls.
    Reclaimed,
    /// The client would like a delegation of a directory ([`Grants::delegation`]). [`Answer::Inode`] either way.
    RequestDelegation {
        ino: Ino,
    },
    /// Reserves inode numbers for the client. [`Answer::Numbers`].
    Reserve,
    /// The client wants more room below the root of this quota, and of the volume. [`Reply::room`].
    Room {
        quota: u64,
    },
    /// The payload is a part of the mutations of a later [`Request::Batch`] of a client with a journal. Parts of another batch are
    /// dropped. [`Answer::Done`], or [`Answer::Unstaged`] if the server has no room for it.
    Stage {
        /// The first position of the batch, and the number of the part, counted from 0 on.
        part: (u64, u32),
        /// The batch replaces bytes of files, and does nothing else but to set their attributes.
        replaces: bool,
    },
    /// The payload is a list of [`Mutation`](thalweg_fs::mutation::Mutation)s in directories that are delegated to the client, in
    /// their order. [`Answer::Made`].
    Batch {
        /// The answer comes when they are durable, and all changes before.
        sync: bool,
        /// What the client has taken for them of what it was promised; at most [`MAX_SHARES`].
        charged: Vec<RoomShare>,
        /// The numbers of recalls ([`FromServer::Invalidate`]): once these mutations count, the server has all that the client
        /// has made of what is recalled. At most [`MAX_RELEASES`].
        releases: Vec<u64>,
        /// Of a client with a journal: it follows the batch before. A batch that the server has already is answered and not applied again;
        /// one behind other mutations than the server has is refused.
        positions: Option<BatchPositions>,
        /// The list was sent before, in so many parts ([`Request::Stage`]), and the payload is a list of the inodes that it makes,
        /// each with whether that is a directory. [`Answer::Unstaged`] if the server does not have all parts. 0: the payload is the list.
        staged: u32,
        /// Numbers of inodes that were made and removed before they were sent: the highest one of each reservation. At most
        /// [`MAX_SPENT`].
        spent: Vec<Ino>,
    },
    /// The client reads and writes contents itself from now on ([`Answer::Attached::contents`]), with this address at their
    /// store; with an empty one, it does not any more. The store refuses an earlier address of the session when this is answered.
    ReachContents {
        address: String,
    },
    /// The client is about to store bytes of a file up to this one, which is its alone. [`Answer::Number`]: the file's reach, as in
    /// [`Answer::Opened`].
    ExtendWriteBound {
        ino: Ino,
        end: u64,
    },
    /// The client stores [size records](thalweg_fs::contents::SizeRecord) of a file that is delegated to it, and no more of another one.
    /// [`Answer::Number`]: 1 if it may, else 0.
    KeepSizeRecord {
        ino: Ino,
        instead_of: Option<Ino>,
    },
    /// Renews the lease, as every call does.
    Renew,
    /// Ends the session, with all that it holds.
    Detach,
    /// Of a client with a journal, whose mount moves: the session has this name from now on, is this client's no more, and goes on with one
    /// that attaches it as rebooted. [`Answer::Done`] when that is durable.
    HandOver {
        to: Uuid,
    },
    /// Is not answered. The client does not know the inodes of the payload any more: pairs of inode and the stamp of the
    /// last answer that named it.
    Forget,
    /// Is not answered: the call with this number, which waits for a lock, is to fail if it has not got it.
    Cancel(u64),
    Lookup {
        parent: Ino,
        name: Bytes,
    },
    Parent {
        directory: Ino,
    },
    /// Of a client with a journal: a path of an inode from the client's root, by which it was made or moved last. It is told of no
    /// name. [`Answer::Bytes`].
    Path {
        ino: Ino,
    },
    /// Of a client with a journal that was away. [`Answer::Used`], after the owners of these have sent what they made.
    UsedMeanwhile,
    Attributes {
        ino: Ino,
        /// The client's caller has pages of the file. The answer comes when it has dropped those that were changed before.
        shown: bool,
    },
    SetAttributes {
        ino: Ino,
        change: AttributeChange,
    },
    /// A symbolic link's target is the payload.
    Create {
        parent: Ino,
        name: Bytes,
        new: NewNode,
    },
    Link {
        ino: Ino,
        parent: Ino,
        name: Bytes,
    },
    Unlink {
        parent: Ino,
        name: Bytes,
        /// The inode of the name, if the client knows it. It caches nothing of it while it waits for the answer.
        target: Option<Ino>,
    },
    RemoveDirectory {
        parent: Ino,
        name: Bytes,
        target: Option<Ino>,
    },
    Rename {
        from: (Ino, Bytes),
        to: (Ino, Bytes),
        how: Rename,
        targets: [Option<Ino>; 2],
    },
    ReadLink {
        ino: Ino,
    },
    ReadDirectory {
        ino: Ino,
        from: Cookie,
        most: u32,
        attributes: bool,
    },
    Read {
        ino: Ino,
        offset: u64,
        len: u32,
        /// The client's caller caches the pages of these bytes.
        pages: bool,
    },
    /// The bytes are the payload.
    Write {
        ino: Ino,
        at: WriteAt,
        how: WriteHow,
    },
    Allocate {
        ino: Ino,
        offset: u64,
        len: u64,
        how: Allocation,
    },
    Seek {
        ino: Ino,
        offset: u64,
        what: Seek,
    },
    Copy {
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    },
    Sync {
        ino: Ino,
        content_only: bool,
    },
    SyncAll,
    /// How far an inode has come at the server. [`Answer::Level`], which comes when it has come to the level that `wait`
    /// names, or the server has waited for about so many milliseconds.
    Level {
        ino: Ino,
        wait: Option<(Level, u32)>,
    },
    Xattr {
        ino: Ino,
        name: Bytes,
    },
    /// The value is the payload.
    SetXattr {
        ino: Ino,
        name: Bytes,
        how: SetXattr,
    },
    Xattrs {
        ino: Ino,
    },
    RemoveXattr {
        ino: Ino,
        name: Bytes,
    },
    Statistics,
    Open {
        /// Chosen by the client, which has no other open file under it.
        handle: Handle,
        caller: Caller,
        ino: Ino,
        flags: OpenFlags,
        /// The client has had it open before this call, without one, while it was the client's alone, and caches its pages.
        late: bool,
        /// The client would like a delegation of the file ([`Grants::delegation`]).
        delegation: bool,
    },
    Flush {
        ino: Ino,
        handle: Handle,
        owner: LockOwner,
    },
    Release {
        ino: Ino,
        handle: Handle,
    },
    Lock {
        ino: Ino,
        lock: Lock,
        wait: bool,
    },
    Unlock {
        ino: Ino,
        kind: LockKind,
        owner: LockOwner,
        range: LockRange,
    },
    ConflictingLock {
        ino: Ino,
        lock: Lock,
    },
}

/// What a client may cache from now on, until it is invalidated or the lease ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Grants {
    /// The attributes in the answer.
    pub attributes: bool,
    /// In the directory of the call: the name of the call. In the directory that the call makes: that it is empty.
    pub names: bool,
    /// The pages of the file that the call opens.
    pub content: bool,
    /// The directory of a [`Request::RequestDelegation`], or the file of a [`Request::Open`], is the client's alone: no other client
    /// sees it or changes something of it before the client has released it. So the client may change names in the directory by
    /// itself, with all of what it has made there; and bytes, size and times of the file.
    pub delegation: bool,
}

/// Room that a client is promised: as long as what it has made by itself fits into that, the server does not refuse it for want
/// of space, or for a quota.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RoomGrant {
    /// It does not count after a [`FromServer::ReturnRoom`] with a higher number.
    pub recalls: u64,
    /// How much.
    pub shares: Vec<RoomShare>,
}

/// An inode that a client knew before its server stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reclaim {
    /// The inode.
    pub ino: Ino,
    /// The stamp of the last answer that named it.
    pub stamp: u64,
    /// What that answer had as [`Reply::inode_token`].
    pub inode_token: u64,
    /// What the client caches of it.
    pub held: Grants,
}

/// A server's answer.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Reply {
    /// Answers of a session that name inodes have growing stamps.
    pub stamp: u64,
    /// What may be cached.
    pub grants: Grants,
    /// Of a call that changed something, if the client has to keep it.
    pub committed: Option<Committed>,
    /// The client is promised this in addition.
    pub room: RoomGrant,
    /// Of an answer that delegates something: the root of the quota that it counts for; 0 for none.
    pub quota: u64,
    /// Of an answer that names an inode: shows that the client knows it.
    pub inode_token: u64,
    /// The answer itself.
    pub answer: Answer,
}

/// What a server answers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub enum Answer {
    /// The session goes on.
    Attached {
        /// The directory that the client sees as its root.
        root: Ino,
        /// The client may use what it caches for so many milliseconds after it sent the last call that was answered.
        lease: u32,
        /// Changes are refused.
        read_only: bool,
        /// The changes of bytes that a [`Request::Batch`] may have.
        bytes: ByteMutations,
        /// Where the contents of files are, if the client may reach them itself; else nothing.
        contents: Bytes,
        /// The users of the client that act as the user nobody. Unless that is none, the server checks what the user of each call may do.
        squash: Squash,
        /// The incarnation of the server.
        server: Uuid,
        /// Servers with a greater number came later. Calls that another client has begun after it saw what a call had come to at an
        /// earlier server have a greater one, too.
        server_number: u64,
        /// Changes up to this version survive a crash.
        durable: u64,
        /// Of a client with a journal.
        journal: JournalState,
    },
    /// The server has ended the session, or does not know it.
    Evicted,
    /// The same. The client was away, and its journal has lapsed: a mount that begins again goes on with that.
    Lapsed,
    /// The client has handed the session over ([`Request::HandOver`]), which is durable.
    Moved,
    /// Success.
    #[default]
    Done,
    /// An inode.
    Inode(Attributes),
    /// There is no such name.
    Absent,
    /// A directory.
    Directory(Ino),
    /// An offset, or a number of bytes.
    Number(u64),
    /// How far an inode has come.
    Level(Level),
    /// An open file.
    Opened {
        /// How its pages are cached.
        pages: PageCache,
        /// Whether closes are to be told.
        flush: bool,
        /// Bytes of the file below this one may be stored by the client itself while the file is its alone.
        write_bound: u64,
    },
    /// The payload is a list of [`ListedEntry`], and behind that a byte for each: 1 if its attributes may be cached, else 0. Without
    /// these bytes none may.
    Entries,
    /// The payload is what was asked for.
    Bytes,
    /// The payload is a list of names.
    Names,
    /// A lock that excludes the one asked for.
    Lock(Option<Lock>),
    /// How full it is.
    Statistics(Statistics),
    /// Inode numbers that are reserved for the client.
    Numbers {
        /// The first one.
        first: u64,
        /// How many.
        count: u64,
        /// Shows to the next server that they are the client's.
        inode_token: u64,
    },
    /// Parts of a batch are not there, and nothing was done.
    Unstaged,
    /// The mutations count. The payload is a list of numbers: for each inode that they made, what [`Reply::inode_token`] is for one. The
    /// client may cache its attributes, and that a new directory holds what the client has made there.
    Made,
    /// It failed.
    Failed(WireError),
    /// The payload is a list of [`UsedInode`]. Each other inode counts as used as well that was there when the filesystem was used without a
    /// server, if it was.
    Used(Option<AllUsed>),
}

/// A name of a directory in an answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ListedEntry {
    /// The name.
    pub name: Bytes,
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: Kind,
    /// The place behind this entry.
    pub cookie: Cookie,
    /// The attributes, if they were asked for, and the token that the client knows the inode.
    pub attributes: Option<(Attributes, u64)>,
}
