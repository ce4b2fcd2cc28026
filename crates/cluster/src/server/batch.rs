//! Directories that are one client's alone, and what that client has made there by itself.

use std::ops::Range;

use bytes::Bytes;
use thalweg_env::HashSet;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::room::RoomShare;
use thalweg_fs::{FsError, Ino, Kind, Node};

use super::Shared;
use super::context::RequestContext;
use super::counters::add;
use super::response::{GrantRequest, Response};
use super::room::check_shares;
use super::session::Session;
use crate::protocol::{
    Answer, Changed, MAX_MUTATIONS, MAX_NUMBERS, changed_by_mutations, decode_list,
};

/// Ranges of inode numbers that a client has at most.
const MAX_RANGES: usize = 4;
/// The list from which new inodes in a directory get theirs.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The mutations of a call.
///
/// # Errors
/// [`FsError::Invalid`]
pub(super) fn decode_mutations(payload: &[u8]) -> Result<Vec<Mutation>, FsError> {
    decode_list(payload, MAX_MUTATIONS)
}

/// What the client is told when its mutations count.
pub(super) fn made_by(mutations: &[Mutation]) -> Response {
    let made = mutations.iter().filter_map(|mutation| match &mutation.kind {
        MutationKind::Create { number, new, .. } => Some((*number, new.node == Node::Directory)),
        MutationKind::SetAttributes { .. }
        | MutationKind::Write { .. }
        | MutationKind::Stored { .. } => None,
    });
    Response { made: made.collect(), ..Response::of(Answer::Made) }
}

impl Shared {
    /// Makes a directory a client's alone, unless another one has used it lately.
    pub(super) async fn acquire(
        &self,
        ctx: &RequestContext<'_>,
        ino: Ino,
    ) -> Result<Response, FsError> {
        let serial = ctx.session.serial;
        let is_free = self.capabilities.lock().is_free(ino, serial);
        let inherits = async || match self.filesystem.xattr(ino, DEFAULT_ACL).await {
            Err(FsError::NoAttribute) => Ok(false),
            found => found.map(|_| true),
        };
        let writes = ctx.session.visitor.access == thalweg_net::keys::Access::Write;
        // Without records its mutations could be lost or applied twice.
        if !is_free || !writes || self.filesystem.session_table().is_none() || inherits().await? {
            return self.attributes(ctx, ino).await;
        }
        // The other clients drop what they cache of it.
        drop(self.recall(ctx, vec![Changed::Attributes(ino), Changed::Names(ino)]).await?);
        let found = self.attributes(ctx, ino).await?;
        match &found.answer {
            Answer::Inode(it) if it.kind == Kind::Directory && it.links > 0 => {
                let wants = GrantRequest { delegation: Some(ino), ..found.wants };
                let found = Response { wants, ..found };
                self.with_quota(ino, found).await
            }
            _ => Ok(found),
        }
    }

    /// An outcome that would delegate an inode: with room for what the client makes of it.
    pub(super) async fn with_quota(
        &self,
        ino: Ino,
        outcome: Response,
    ) -> Result<Response, FsError> {
        let Some(session_table) = self.filesystem.session_table() else { return Ok(outcome) };
        let quota = session_table.quota_of(ino).await?;
        Ok(Response { quota, room_for: vec![quota], ..outcome })
    }

    /// Reserves inode numbers for a client.
    pub(super) async fn reserve(&self, session: &Session) -> Result<Response, FsError> {
        let Some(session_table) = self.filesystem.session_table() else {
            return Err(FsError::NotSupported);
        };
        if session.state.lock().ranges() >= MAX_RANGES {
            return Err(FsError::Invalid("the client has many inode numbers"));
        }
        let numbers = session_table.reserve_numbers(MAX_NUMBERS).await?;
        let Range { start: first, end } = numbers.clone();
        {
            let mut state = session.state.lock();
            if !state.has_ended {
                state.own_numbers(numbers, true);
            }
        }
        let inode_token = session_table.inode_range_token(session.serial, first..end);
        Ok(Response::of(Answer::Numbers { first, count: end - first, inode_token }))
    }

    /// The client has these numbers still.
    pub(super) fn reclaim_numbers(
        &self,
        session: &Session,
        numbers: Range<u64>,
        inode_token: u64,
    ) -> Result<(), FsError> {
        let Some(session_table) = self.filesystem.session_table() else {
            return Err(FsError::NotSupported);
        };
        if session_table.inode_range_token(session.serial, numbers.clone()) != inode_token {
            return Err(FsError::Stale);
        }
        // Inodes that had some of them may be gone.
        session.state.lock().own_numbers(numbers, false);
        Ok(())
    }

    /// The numbers that a client has not used are free again.
    pub(super) async fn return_numbers(&self, numbers: Vec<Range<u64>>) {
        let Some(session_table) = self.filesystem.session_table() else { return };
        for range in numbers {
            if let Err(error) = session_table.return_numbers(range).await {
                tracing::debug!(%error, "inode numbers stay unused");
            }
        }
    }

    /// Whether a client may make these mutations: it knows the inodes, and the numbers are its own.
    fn check_mutations(
        &self,
        ctx: &RequestContext<'_>,
        mutations: &[Mutation],
    ) -> Result<(), FsError> {
        let mut made = HashSet::default();
        for Mutation { kind, .. } in mutations {
            if !made.contains(&kind.ino()) {
                ctx.session.knows(kind.ino())?;
            }
            let Some(number) = kind.made() else { continue };
            // What is made again had its number before.
            if !ctx.is_replay() && !ctx.session.state.lock().has_number(number.0) {
                return Err(FsError::Invalid("the inode number is not the client's"));
            }
            made.insert(number);
        }
        Ok(())
    }

    /// A change that a client had made by itself is lost: counts it, and says in the log of which file.
    async fn note_refused(&self, ctx: &RequestContext<'_>, mutation: &Mutation, error: &FsError) {
        add(&self.counters.refused, 1);
        let client = &ctx.session.visitor.name;
        let path = match self.filesystem.session_table() {
            Some(session_table) => {
                session_table.path_of(mutation.kind.ino()).await.unwrap_or_default()
            }
            None => String::new(),
        };
        let path = match &mutation.kind {
            MutationKind::Create { name, .. } => {
                format!("{}/{}", path.trim_end_matches('/'), String::from_utf8_lossy(name))
            }
            _ => path,
        };
        tracing::error!(client, path, %error, "a change that a client had made by itself is lost");
    }

    /// Applies what a client has made. No name is locked: a call that has locked one may wait for this.
    pub(super) async fn batch(
        &self,
        ctx: &RequestContext<'_>,
        payload: &Bytes,
        sync: bool,
        charged: &[RoomShare],
    ) -> Result<Response, FsError> {
        check_shares(charged)?;
        let mutations = decode_mutations(payload)?;
        self.check_mutations(ctx, &mutations)?;
        self.authorize_mutations(ctx, &mutations).await?;
        let Some(session_table) = ctx.filesystem.session_table() else {
            return Err(FsError::NotSupported);
        };
        let change = self.recall(ctx, changed_by_mutations(&mutations)).await?;
        if let Err(error) = session_table.apply(&mutations, charged).await {
            drop(change);
            // Its client sends each half again.
            if let [mutation] = &mutations[..] {
                self.note_refused(ctx, mutation, &error).await;
            }
            return Err(error);
        }
        drop(change);
        {
            let mut state = ctx.session.state.lock();
            mutations.iter().filter_map(|it| it.kind.made()).for_each(|it| state.use_number(it.0));
        }
        if sync {
            ctx.depend();
        }
        let room_for = charged.iter().map(|share| share.quota).collect();
        Ok(Response { room_for, ..made_by(&mutations) })
    }
}
