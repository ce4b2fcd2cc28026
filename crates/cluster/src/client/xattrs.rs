//! Extended attributes.
//!
//! Of an inode that this client has made under a grant that stands nothing is unknown: at first it has none, and those that this client sets
//! are kept with its delegation. So they are read, set and removed here. An access control list
//! changes modes, which is not foreseen: a call sets it, and the inode is not this client's alone any more. Values that are too large to be kept are set by calls, too.

use bytes::Bytes;
use thalweg_env::Time;
use thalweg_fs::filesystem::{MAX_XATTR_NAME, MAX_XATTR_VALUE};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::xattr_name::{check_name, is_acl};
use thalweg_fs::{Attributes, FsError, Ino, SetXattr, is_quota_attribute};

use super::base::ClientBase;
use super::content;
use super::delegation::{Local, is_owned_by};
use super::error::{LinkError, expect_answer};
use super::inodes::Stripe;
use super::known_xattrs::KnownXattrs;
use super::record::{Record, room_of};
use super::room::Charge;
use super::stages::Stages;
use super::user;
use crate::protocol::{Answer, MAX_PAYLOAD, Request, decode_list};

/// Read by the owner, and written by the owner.
const OWNER_READS: u16 = 0o400;
const OWNER_WRITES: u16 = 0o200;

/// The attributes of an inode, and the root of the quota that it counts for.
type Owned = (Attributes, u64);

/// Whether the server would make a change, which is made here.
type Changed = Result<(), FsError>;

/// The server would refuse a longer name; one that exceeds a message would end the connection, again and again.
fn check_length(name: &[u8]) -> Result<(), FsError> {
    if name.len() > MAX_XATTR_NAME { Err(FsError::AttributeTooLarge) } else { Ok(()) }
}

/// Looks at the extended attributes of an inode, if all of them are known.
fn with_xattrs<T>(
    base: &ClientBase,
    ino: Ino,
    look: impl FnOnce(&KnownXattrs, Option<&Attributes>) -> Option<T>,
) -> Option<T> {
    let is_leased = base.session.is_leased();
    base.inodes.with(ino, |node| {
        let is_known = is_leased && node.delegation.is_made_here(ino);
        is_known.then(|| look(node.delegation.xattrs(), node.cached.attributes.as_ref()))?
    })?
}

/// One of an inode, if that is known, and the user of the call may read it as far as can be told here.
fn known_xattr(base: &ClientBase, ino: Ino, name: &[u8]) -> Option<Result<Bytes, FsError>> {
    let squash = base.session.squash();
    with_xattrs(base, ino, |known, attributes| {
        if let Some(value) = known.get(name) {
            let may_read = user::seen_as(squash).is_none_or(|user| {
                attributes.is_some_and(|it| it.mode & OWNER_READS != 0 && is_owned_by(it, &user))
            });
            return may_read.then(|| Ok(value.clone()));
        }
        let checked = attributes.map_or(Ok(()), |it| check_name(it.kind, name));
        Some(Err(match checked {
            Err(error @ (FsError::Invalid(_) | FsError::NotSupported))
                if !is_quota_attribute(name) =>
            {
                error
            }
            _ => FsError::NoAttribute,
        }))
    })
}

/// The attributes and the quota of an inode whose extended attribute of that name changes without the server; else the outcome of the change.
fn own_xattrs(
    base: &ClientBase,
    stripe: &mut Stripe,
    (ino, name): (Ino, &[u8]),
    now: Time,
) -> Result<Owned, Local<Changed>> {
    let squash = stripe.rules.squash;
    let node = stripe.node(ino).ok_or(Local::NeedsCall)?;
    let attributes = base.changeable(node, squash, now).ok_or(Local::NeedsCall)?;
    let own = &node.delegation;
    let grant = own.grant().filter(|_| own.is_made_here(ino)).ok_or(Local::NeedsCall)?;
    // What a user may do that the server checks is foreseen for plain ones alone.
    let is_foreseen = user::seen_as(squash).is_none()
        || name.starts_with(b"user.") && attributes.mode & OWNER_WRITES != 0;
    if !is_foreseen || is_acl(name) || is_quota_attribute(name) {
        return Err(Local::NeedsCall);
    }
    match check_name(attributes.kind, name) {
        Ok(()) => Ok((attributes, grant.quota)),
        Err(error) => Err(Local::Made(Err(error))),
    }
}

/// Gives an extended attribute a value, or removes it, if that is possible without the server, and `check` finds nothing in those that are
/// there.
fn change_delegated(
    base: &ClientBase,
    ino: Ino,
    (name, value): (&Bytes, Option<&Bytes>),
    check: impl FnOnce(&KnownXattrs) -> Result<(), Local<Changed>>,
) -> Local<Changed> {
    let (now, time) = base.session.clocks();
    let kind = match value {
        Some(value) => MutationKind::SetXattr { ino, name: name.clone(), value: value.clone() },
        None => MutationKind::RemoveXattr { ino, name: name.clone() },
    };
    let room = room_of(&kind, 0);
    let record = Record::small(&Mutation { time, kind });
    let mut stripe = base.inodes.lock(ino);
    let (mut attributes, quota) = match own_xattrs(base, &mut stripe, (ino, name), now) {
        Ok(owned) => owned,
        Err(otherwise) => return otherwise,
    };
    let node = stripe.node(ino).expect("it was looked at");
    if let Err(otherwise) = check(node.delegation.xattrs()) {
        return otherwise;
    }
    // Under the lock: when room is recalled, what was taken before has its number behind a barrier.
    if !base.room.charge(Charge { quota, room }) {
        return Local::NoRoom(quota);
    }
    attributes.changed_xattr(time);
    let known = node.delegation.xattrs_mut();
    match value {
        Some(value) => known.set(name.clone(), value.clone()),
        None => known.remove(name),
    }
    node.delegation.changed();
    node.cached.set_attributes(attributes);
    base.queue.append(&mut stripe, record, quota, now);
    Local::Made(Ok(()))
}

/// Whether an attribute may get a value of so many bytes here.
fn check_set(
    known: &KnownXattrs,
    (name, len): (&[u8], usize),
    how: SetXattr,
) -> Result<(), Local<Changed>> {
    match (how, known.get(name)) {
        (SetXattr::Create, Some(_)) => Err(Local::Made(Err(FsError::Exists))),
        (SetXattr::Replace, None) => Err(Local::Made(Err(FsError::NoAttribute))),
        _ if !known.has_room(name, len) => Err(Local::NeedsCall),
        _ => Ok(()),
    }
}

pub(super) async fn get(stages: &Stages, ino: Ino, name: &[u8]) -> Result<Bytes, FsError> {
    check_length(name)?;
    if let Some(known) = known_xattr(&stages.base, ino, name) {
        return known;
    }
    let request = Request::Xattr { ino, name: Bytes::copy_from_slice(name) };
    let (answer, value) = stages.request(request).await?;
    expect_answer!(answer, Answer::Bytes => value)
}

pub(super) async fn list(stages: &Stages, ino: Ino) -> Result<Vec<Bytes>, FsError> {
    if let Some(names) = with_xattrs(&stages.base, ino, |known, _| Some(known.names())) {
        return Ok(names);
    }
    let (answer, names) = stages.request(Request::Xattrs { ino }).await?;
    let names = expect_answer!(answer, Answer::Names => names)?;
    decode_list(&names, MAX_PAYLOAD).map_err(|_| LinkError::Unexpected.into())
}

pub(super) async fn set(
    stages: &Stages,
    ino: Ino,
    (name, value): (&[u8], Bytes),
    how: SetXattr,
) -> Result<(), FsError> {
    check_length(name)?;
    if value.len() > MAX_XATTR_VALUE {
        return Err(FsError::AttributeTooLarge);
    }
    // What is kept is a part of no message.
    let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(&value));
    let set = || {
        change_delegated(&stages.base, ino, (&name, Some(&value)), |known| {
            check_set(known, (&name, value.len()), how)
        })
    };
    if let Some(set) = stages.change_locally(ino, set).await? {
        stages.writeback.throttle().await?;
        return set;
    }
    stages.base.revoke_all_of(ino);
    let request = Request::SetXattr { ino, name, how };
    content::change(stages, ino, request, vec![value]).await.map(drop)
}

pub(super) async fn remove(stages: &Stages, ino: Ino, name: &[u8]) -> Result<(), FsError> {
    check_length(name)?;
    let name = Bytes::copy_from_slice(name);
    let remove = || {
        change_delegated(&stages.base, ino, (&name, None), |known| {
            let is_there = known.get(&name).is_some();
            if is_there { Ok(()) } else { Err(Local::Made(Err(FsError::NoAttribute))) }
        })
    };
    if let Some(removed) = stages.change_locally(ino, remove).await? {
        stages.writeback.throttle().await?;
        return removed;
    }
    stages.base.revoke_all_of(ino);
    let request = Request::RemoveXattr { ino, name };
    content::change(stages, ino, request, Vec::new()).await.map(drop)
}
