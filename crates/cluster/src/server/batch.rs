//! Directories that are one client's alone, and what that client has made there by itself.

use std::ops::Range;

use bytes::Bytes;
use thalweg_env::HashSet;
use thalweg_fs::event::{Deed, Event};
use thalweg_fs::room::RoomShare;
use thalweg_fs::{FsError, Ino, Kind, Node};

use super::Shared;
use super::counters::add;
use super::job::Job;
use super::outcome::{Outcome, Wants};
use super::room::check_shares;
use super::session::Session;
use crate::protocol::{Answer, Changed, MAX_EVENTS, MAX_NUMBERS, changed_by_events, decode_list};

/// Ranges of inode numbers that a client has at most.
const MAX_RANGES: usize = 4;
/// The list from which new inodes in a directory get theirs.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The events of a call.
///
/// # Errors
/// [`FsError::Invalid`]
pub(super) fn decode_events(payload: &[u8]) -> Result<Vec<Event>, FsError> {
    decode_list(payload, MAX_EVENTS)
}

/// What the client is told when its events count.
pub(super) fn made_by(events: &[Event]) -> Outcome {
    let made = events.iter().filter_map(|event| match &event.deed {
        Deed::Create { number, new, .. } => Some((*number, new.node == Node::Directory)),
        Deed::SetAttributes { .. } | Deed::Write { .. } | Deed::Stored { .. } => None,
    });
    Outcome { made: made.collect(), ..Outcome::of(Answer::Made) }
}

impl Shared {
    /// Makes a directory a client's alone, unless another one has used it lately.
    pub(super) async fn acquire(&self, job: &Job<'_>, ino: Ino) -> Result<Outcome, FsError> {
        let serial = job.session.serial;
        let is_free = self.capabilities.lock().is_free(ino, serial);
        let inherits = async || match self.filesystem.xattr(ino, DEFAULT_ACL).await {
            Err(FsError::NoAttribute) => Ok(false),
            found => found.map(|_| true),
        };
        let writes = job.session.visitor.access == thalweg_net::keys::Access::Write;
        // Without records its events could be lost or applied twice.
        if !is_free || !writes || self.filesystem.ledger().is_none() || inherits().await? {
            return self.attributes(job, ino).await;
        }
        // The other clients drop what they cache of it.
        drop(self.begin(job, vec![Changed::Attributes(ino), Changed::Names(ino)]).await?);
        let found = self.attributes(job, ino).await?;
        match &found.answer {
            Answer::Inode(it) if it.kind == Kind::Directory && it.links > 0 => {
                let wants = Wants { exclusive: Some(ino), ..found.wants };
                let found = Outcome { wants, ..found };
                self.with_quota(ino, found).await
            }
            _ => Ok(found),
        }
    }

    /// An outcome that would grant an inode exclusively: with room for what the client makes of it.
    pub(super) async fn with_quota(&self, ino: Ino, outcome: Outcome) -> Result<Outcome, FsError> {
        let Some(ledger) = self.filesystem.ledger() else { return Ok(outcome) };
        let quota = ledger.quota_of(ino).await?;
        Ok(Outcome { quota, room_for: vec![quota], ..outcome })
    }

    /// Reserves inode numbers for a client.
    pub(super) async fn reserve(&self, session: &Session) -> Result<Outcome, FsError> {
        let Some(ledger) = self.filesystem.ledger() else { return Err(FsError::NotSupported) };
        if session.state.lock().ranges() >= MAX_RANGES {
            return Err(FsError::Invalid("the client has many inode numbers"));
        }
        let numbers = ledger.reserve_numbers(MAX_NUMBERS).await?;
        let Range { start: first, end } = numbers.clone();
        {
            let mut state = session.state.lock();
            if !state.has_ended {
                state.own_numbers(numbers, true);
            }
        }
        let proof = ledger.proof_of_numbers(session.serial, first..end);
        Ok(Outcome::of(Answer::Numbers { first, count: end - first, proof }))
    }

    /// The client has these numbers still.
    pub(super) fn claim_numbers(
        &self,
        session: &Session,
        numbers: Range<u64>,
        proof: u64,
    ) -> Result<(), FsError> {
        let Some(ledger) = self.filesystem.ledger() else { return Err(FsError::NotSupported) };
        if ledger.proof_of_numbers(session.serial, numbers.clone()) != proof {
            return Err(FsError::Stale);
        }
        // Inodes that had some of them may be gone.
        session.state.lock().own_numbers(numbers, false);
        Ok(())
    }

    /// The numbers that a client has not used are free again.
    pub(super) async fn return_numbers(&self, numbers: Vec<Range<u64>>) {
        let Some(ledger) = self.filesystem.ledger() else { return };
        for range in numbers {
            if let Err(error) = ledger.return_numbers(range).await {
                tracing::debug!(%error, "inode numbers stay unused");
            }
        }
    }

    /// Whether a client may make these events: it knows the inodes, and the numbers are its own.
    fn check_events(&self, job: &Job<'_>, events: &[Event]) -> Result<(), FsError> {
        let mut made = HashSet::default();
        for Event { deed, .. } in events {
            if !made.contains(&deed.ino()) {
                job.session.knows(deed.ino())?;
            }
            let Some(number) = deed.made() else { continue };
            // What is made again had its number before.
            if !job.is_again() && !job.session.state.lock().has_number(number.0) {
                return Err(FsError::Invalid("the inode number is not the client's"));
            }
            made.insert(number);
        }
        Ok(())
    }

    /// A change that a client had made by itself is lost: counts it, and says in the log of which file.
    async fn note_refused(&self, job: &Job<'_>, event: &Event, error: &FsError) {
        add(&self.counters.refused, 1);
        let client = &job.session.visitor.name;
        let path = match self.filesystem.ledger() {
            Some(ledger) => ledger.path_of(event.deed.ino()).await.unwrap_or_default(),
            None => String::new(),
        };
        let path = match &event.deed {
            Deed::Create { name, .. } => {
                format!("{}/{}", path.trim_end_matches('/'), String::from_utf8_lossy(name))
            }
            _ => path,
        };
        tracing::error!(client, path, %error, "a change that a client had made by itself is lost");
    }

    /// Applies what a client has made. No name is locked: a call that has locked one may wait for this.
    pub(super) async fn batch(
        &self,
        job: &Job<'_>,
        payload: &Bytes,
        (sync, charged): (bool, &[RoomShare]),
    ) -> Result<Outcome, FsError> {
        check_shares(charged)?;
        let events = decode_events(payload)?;
        self.check_events(job, &events)?;
        self.permit_events(job, &events).await?;
        let Some(ledger) = job.filesystem.ledger() else { return Err(FsError::NotSupported) };
        let change = self.begin(job, changed_by_events(&events)).await?;
        if let Err(error) = ledger.apply(&events, charged).await {
            drop(change);
            // Its client sends each half again.
            if let [event] = &events[..] {
                self.note_refused(job, event, &error).await;
            }
            return Err(error);
        }
        drop(change);
        {
            let mut state = job.session.state.lock();
            events.iter().filter_map(|it| it.deed.made()).for_each(|it| state.use_number(it.0));
        }
        if sync {
            job.depend();
        }
        let room_for = charged.iter().map(|share| share.quota).collect();
        Ok(Outcome { room_for, ..made_by(&events) })
    }
}
