//! What a client may do with one inode by itself, and has done. There is one of these for each inode that it knows, so what
//! most of them lack is kept apart.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_env::Time;
use thalweg_fs::Ino;

use super::known_xattrs::KnownXattrs;

/// The number of a grant of a delegation, from 1 on.
pub(super) type GrantNumber = NonZeroU64;

/// A delegation that the server has granted: of a directory, with all that the client makes there, or of a file.
pub(super) struct Grant {
    number: GrantNumber,
    root: Ino,
    /// The root of the quota that it counts for; 0 for none.
    pub(super) quota: u64,
    is_over: AtomicBool,
}

impl Grant {
    pub(super) fn new(number: GrantNumber, root: Ino, quota: u64) -> Grant {
        Grant { number, root, quota, is_over: AtomicBool::new(false) }
    }

    pub(super) fn number(&self) -> GrantNumber {
        self.number
    }

    /// What was granted.
    pub(super) fn root(&self) -> Ino {
        self.root
    }
}

/// What this client may do with an inode by itself, and has done.
#[derive(Default)]
pub(super) struct Delegation {
    /// The grant by which it is this client's alone: its own, or that of the directory in which the client has made it.
    grant: Option<Arc<Grant>>,
    rare: Option<Box<Rare>>,
    /// Mutations that concern it, and that the server does not have.
    unsent: u32,
    /// Its bytes follow one another from the start, without holes.
    pub(super) is_dense: bool,
    /// How much its attributes say that is stored is not exact.
    pub(super) is_estimate: bool,
    /// All unsent mutations are durable by a size record. Stays when the session ends, for what a batch under way loses then.
    pub(super) is_ended: bool,
}

/// Whether a size record of a file may be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum SizeRecordState {
    /// The server was not asked, and no `fsync` counts.
    #[default]
    Unknown,
    /// The file had this size at its last `fsync`, and was longer than before at so many.
    Synced {
        size: u64,
        growths: u32,
    },
    /// It may, in the session of this generation, said the server then; all that it had of the file was durable once since this grant.
    Allowed {
        generation: u64,
        grant: Option<GrantNumber>,
        asked: Time,
    },
    Refused,
}

/// What few inodes have.
#[derive(Default)]
struct Rare {
    extra: Extra,
    /// Its extended attributes, if this client has made it.
    xattrs: KnownXattrs,
}

/// What few inodes have of the server's answers, and of what was asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extra {
    /// Bytes of the file below this one may be stored without the server; 0: none.
    pub(super) write_bound: u64,
    /// The last change for which the server stores or clears bytes of it.
    pub(super) by_server: u64,
    /// The write bound is 0 because the server has to clear bytes first. It is asked again from this time on, when it has the
    /// mutations up to this one.
    pub(super) cleared: Option<(Time, u64)>,
    /// Whether size records of the file are stored.
    pub(super) size_record: SizeRecordState,
    /// New names that were made in the directory by calls since its delegation was refused.
    pub(super) creates: u32,
    /// Before this time the delegation of the directory is not asked for again.
    pub(super) refused_until: Time,
    /// The directory that it is in, if it is a directory that this client has made.
    pub(super) parent: Option<Ino>,
    /// The server was asked whether the file has holes, under this grant.
    pub(super) holes_asked: Option<GrantNumber>,
}

impl Rare {
    fn of(extra: Extra) -> Box<Rare> {
        Box::new(Rare { extra, xattrs: KnownXattrs::default() })
    }
}

impl Delegation {
    /// Of an inode that this client is about to make, with one mutation; of a directory, that is in this one.
    pub(super) fn of_new(grant: Arc<Grant>, write_bound: u64, parent: Option<Ino>) -> Delegation {
        let extra = Extra { write_bound, parent, ..Extra::default() };
        let rare = (write_bound > 0 || parent.is_some()).then(|| Rare::of(extra));
        Delegation { grant: Some(grant), rare, unsent: 1, is_dense: true, ..Delegation::default() }
    }

    /// The grant by which the inode is this client's alone now.
    pub(super) fn grant(&self) -> Option<&Arc<Grant>> {
        // The load sees every write before the grant was revoked: see `ClientBase::revoke`.
        self.grant.as_ref().filter(|grant| !grant.is_over.load(Ordering::Acquire))
    }

    pub(super) fn grant_number(&self) -> Option<GrantNumber> {
        self.grant().map(|grant| grant.number)
    }

    /// Whether this client has made it under a grant that stands, so that nothing is unknown of it.
    pub(super) fn is_made_here(&self, ino: Ino) -> bool {
        self.grant().is_some_and(|grant| grant.root != ino)
    }

    /// Whether the inode itself was granted to this client.
    pub(super) fn is_granted(&self, ino: Ino) -> bool {
        self.grant().is_some_and(|grant| grant.root == ino)
    }

    /// The inode was granted. An earlier grant of it does not count any more, so that there is one to revoke.
    pub(super) fn set_grant(&mut self, grant: Arc<Grant>, is_empty: bool) {
        let root = grant.root;
        // Another client may have made holes since the last grant.
        self.is_dense = is_empty;
        if let Some(before) = self.grant.replace(grant).filter(|before| before.root == root) {
            before.is_over.store(true, Ordering::Release);
        }
    }

    /// The inode, which this client has made, is in a directory with this grant from now on.
    pub(super) fn move_to(&mut self, directory: Ino, grant: Arc<Grant>) {
        self.grant = Some(grant);
        if let Some(rare) = self.rare.as_mut().filter(|rare| rare.extra.parent.is_some()) {
            rare.extra.parent = Some(directory);
        }
    }

    /// The directory that it is in, of a directory that this client has made under a grant that stands.
    pub(super) fn parent(&self, ino: Ino) -> Option<Ino> {
        self.extra().parent.filter(|_| self.is_made_here(ino))
    }

    /// The inode is not this client's alone any more. If it was granted itself, or with `whole`, nothing is that has the same grant.
    /// Returns what was granted.
    pub(super) fn revoke(&mut self, ino: Ino, whole: bool) -> Option<Ino> {
        self.forget_creates();
        self.forget_xattrs();
        let grant = self.grant.take()?;
        if whole || grant.root == ino {
            grant.is_over.store(true, Ordering::Release);
        }
        Some(grant.root)
    }

    /// The session ends. The mutations of a batch that is under way stay.
    pub(super) fn end_session(&mut self) {
        // What is under way was asked of the server before.
        let by_server = self.extra().by_server;
        let rare = (by_server > 0).then(|| Rare::of(Extra { by_server, ..Extra::default() }));
        // An inode that is made at this moment has the same grant.
        if let Some(grant) = &self.grant {
            grant.is_over.store(true, Ordering::Release);
        }
        let Delegation { unsent, is_ended, .. } = *self;
        *self = Delegation { unsent, rare, is_ended, ..Delegation::default() };
    }

    /// The session goes on here, where the inode has this grant. Its unsent mutations are counted already.
    pub(super) fn import(
        &mut self,
        grant: Arc<Grant>,
        (is_dense, is_estimate): (bool, bool),
        xattrs: KnownXattrs,
    ) {
        assert!(self.grant.is_none(), "a client that begins has no grants");
        (self.grant, self.is_dense, self.is_estimate) = (Some(grant), is_dense, is_estimate);
        if xattrs != KnownXattrs::default() {
            *self.xattrs_mut() = xattrs;
        }
    }

    /// Mutations that concern it, and that the server does not have.
    pub(super) fn unsent(&self) -> u32 {
        self.unsent
    }

    /// A mutation was made.
    pub(super) fn changed(&mut self) {
        assert!(self.unsent < u32::MAX, "more mutations wait than memory takes");
        self.unsent += 1;
        self.is_ended = false;
    }

    /// The server has a mutation, or it is lost.
    pub(super) fn sent(&mut self) {
        assert!(self.unsent > 0, "a mutation is sent that was not made");
        self.unsent -= 1;
        self.is_ended &= self.unsent > 0;
    }

    /// Whether there are unsent mutations, all of which are durable by a size record.
    pub(super) fn has_ended(&self) -> bool {
        self.is_ended && self.unsent > 0
    }

    /// So many mutations are durable by a size record.
    pub(super) fn end(&mut self, mutations: usize) {
        self.is_ended |= self.unsent as usize == mutations;
    }

    /// What few inodes have; nothing of this one, if it does not.
    pub(super) fn extra(&self) -> Extra {
        self.rare.as_ref().map(|rare| rare.extra).unwrap_or_default()
    }

    pub(super) fn extra_mut(&mut self) -> &mut Extra {
        &mut self.rare.get_or_insert_default().extra
    }

    /// The extended attributes that this client has set. There are no other ones of an inode that it [has made](Self::is_made_here).
    pub(super) fn xattrs(&self) -> &KnownXattrs {
        self.rare.as_ref().map_or(KnownXattrs::NONE, |rare| &rare.xattrs)
    }

    pub(super) fn xattrs_mut(&mut self) -> &mut KnownXattrs {
        &mut self.rare.get_or_insert_default().xattrs
    }

    fn forget_xattrs(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.xattrs = KnownXattrs::default();
        }
    }

    /// No bytes may be stored until the server is asked again.
    pub(super) fn clear_write_bound(&mut self, cleared: (Time, u64)) {
        let extra = self.extra_mut();
        (extra.write_bound, extra.cleared) = (0, Some(cleared));
    }

    /// The next names do not count as further ones.
    pub(super) fn forget_creates(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.extra.creates = 0;
        }
    }
}
