//! What a client reclaims in the grace period.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_fs::{Credentials, FsError};

use super::super::context::Place;
use super::super::room::check_shares;
use super::super::session::{MAX_RECLAIMED, Session};
use super::{Op, RequestContext, Stages, delegations, opens};
use crate::protocol::{MAX_CLAIMS, Reclaim, Request, decode_list};

/// Carries out a call by which a client reclaims what it held. One that it has reclaimed before, and may not know that, is
/// done already.
pub(in crate::server) async fn reclaim(
    session: &Arc<Session>,
    stages: &Stages,
    user: Option<&Credentials>,
    request: &Request,
    payload: &Bytes,
) -> Result<(), FsError> {
    if stages.grace_period.has_reclaimed(session)? {
        return Ok(());
    }
    let (files, place) = (&stages.files, Place { number: 0, slot: 0 });
    let ctx = &RequestContext::new(files, session, place, user, (request, payload.len()), None);
    let op = Op { ctx, stages };
    match request {
        Request::Reclaim => inodes(op, payload),
        Request::ReclaimOpen { handle, caller, ino, flags } => {
            opens::reclaim(op, (caller, *handle), (*ino, *flags)).await
        }
        Request::ReclaimLock { ino, lock } => opens::reclaim_lock(op, *ino, lock).await,
        Request::ReclaimNumbers { first, count, inode_token } => {
            delegations::reclaim_numbers(ctx, (*first, *count), *inode_token)
        }
        Request::ReclaimRoom { shares, batch } => {
            check_shares(shares)?;
            let has_survived =
                batch.is_some_and(|number| session.lock().record_of(number).is_some());
            if let Some(table) = files.session_table().filter(|_| !has_survived) {
                table.reclaim_room(session.serial, shares);
            }
            Ok(())
        }
        Request::Reclaimed => {
            stages.replay.reclaim(session, payload)?;
            stages.grace_period.is_gone(session.serial);
            Ok(())
        }
        _ => Err(FsError::Invalid("the call reclaims nothing")),
    }
}

/// The client knows these inodes, and what it caches of them has not changed since the server before this one stopped.
fn inodes(Op { ctx, stages }: Op<'_>, payload: &[u8]) -> Result<(), FsError> {
    let (session, files) = (ctx.session, &ctx.files);
    let reclaims: Vec<Reclaim> = decode_list(payload, MAX_CLAIMS)?;
    let table = files.session_table().ok_or(FsError::NotSupported)?;
    for Reclaim { ino, stamp, inode_token, held } in reclaims {
        if ino != session.root {
            let generation = session.generation(ino);
            let is_proved = table.inode_token(session.serial, ino, generation) == inode_token;
            if !is_proved || stamp > MAX_RECLAIMED {
                // It was told of the inode before that was moved out of its root, or lies.
                if generation > 0 {
                    continue;
                }
                return Err(FsError::Stale);
            }
            if session.reclaim(ino, stamp) {
                files.reference(ino);
            }
        }
        stages.capabilities.reclaim(session.serial, ino, held);
    }
    Ok(())
}
