//! An inode that is delegated to this client, or was. A client has one of these for each inode that it knows, so what most of
//! them lack is kept apart.

use std::num::NonZeroU64;

use thalweg_env::Time;
use thalweg_fs::Ino;

/// The number of a grant of a delegation, from 1 on.
pub(super) type Grant = NonZeroU64;

/// What this client may do with an inode by itself, and has done.
#[derive(Debug, Default)]
pub(super) struct Delegation {
    /// The directory or file is delegated to this client since this grant.
    pub(super) granted: Option<Grant>,
    /// The client has made it in a directory that was delegated to it since that grant, or in what it has made there.
    pub(super) within: Option<(Ino, Grant)>,
    /// The root of the quota that it counts for; 0 for none. Known while it is delegated.
    pub(super) quota: u64,
    direct: Option<Box<Direct>>,
    creates: Option<Box<Creates>>,
    /// Mutations that concern it, and that the server does not have.
    pub(super) unsent: u32,
    /// Its bytes follow one another from the start, without holes.
    pub(super) is_dense: bool,
    /// How much its attributes say that is stored is not exact.
    pub(super) is_estimate: bool,
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
        grant: Option<Grant>,
        asked: Time,
    },
    Refused,
}

/// What is known of a file whose bytes this client stores itself.
#[derive(Debug, Default)]
struct Direct {
    /// Bytes below this one may be stored without the server; 0: none.
    write_bound: u64,
    /// The last change for which the server stores or clears bytes of it.
    by_server: u64,
    /// The write bound is 0 because the server has to clear bytes first. It is asked again from this time on, when it has the
    /// mutations up to this one.
    cleared: Option<(Time, u64)>,
    /// Whether size records of the file are stored.
    size_record: SizeRecordState,
}

/// Of a directory in which the client has made names by calls.
#[derive(Debug, Default)]
struct Creates {
    /// New names since its delegation was refused.
    count: u32,
    /// Before this time it is not asked for again.
    refused_until: Time,
}

impl Delegation {
    /// Of an inode that this client has just made, with one mutation.
    pub(super) fn of_new(within: Option<(Ino, Grant)>, quota: u64, write_bound: u64) -> Delegation {
        let direct = match write_bound {
            0 => None,
            write_bound => Some(Box::new(Direct { write_bound, ..Direct::default() })),
        };
        let unsent = 1;
        Delegation { within, quota, direct, unsent, is_dense: true, ..Delegation::default() }
    }

    /// What is left when the session ends: the mutations of a batch that is under way.
    pub(super) fn ended(&self) -> Delegation {
        // What is under way was asked of the server before.
        let direct = self
            .direct
            .as_ref()
            .map(|it| Box::new(Direct { by_server: it.by_server, ..Direct::default() }));
        Delegation { unsent: self.unsent, direct, ..Delegation::default() }
    }

    /// Bytes below this one may be stored without the server; 0: none.
    pub(super) fn write_bound(&self) -> u64 {
        self.direct.as_ref().map(|direct| direct.write_bound).unwrap_or_default()
    }

    /// The last change for which the server stores or clears bytes; 0: none.
    pub(super) fn by_server(&self) -> u64 {
        self.direct.as_ref().map(|direct| direct.by_server).unwrap_or_default()
    }

    /// The change with this number is one for which the server stores or clears bytes.
    pub(super) fn changed_by_server(&mut self, number: u64) {
        self.direct.get_or_insert_default().by_server = number;
    }

    /// From when on the server is asked for the write bound again, once it has the mutations up to this one.
    pub(super) fn cleared(&self) -> Option<(Time, u64)> {
        self.direct.as_ref()?.cleared
    }

    /// No bytes may be stored until the server is asked again.
    pub(super) fn clear_write_bound(&mut self, cleared: (Time, u64)) {
        let direct = self.direct.get_or_insert_default();
        (direct.write_bound, direct.cleared) = (0, Some(cleared));
    }

    /// Bytes below this one, which is not 0, may be stored.
    pub(super) fn set_write_bound(&mut self, write_bound: u64) {
        assert!(write_bound > 0, "a write bound is cleared, not set to 0");
        let direct = self.direct.get_or_insert_default();
        (direct.write_bound, direct.cleared) = (write_bound, None);
    }

    /// Whether size records of the file are stored.
    pub(super) fn size_record(&self) -> SizeRecordState {
        self.direct.as_ref().map(|direct| direct.size_record).unwrap_or_default()
    }

    /// Whether size records of the file are stored, to be changed.
    pub(super) fn size_record_mut(&mut self) -> &mut SizeRecordState {
        &mut self.direct.get_or_insert_default().size_record
    }

    /// Before this time the server is not asked for the directory.
    pub(super) fn refused_until(&self) -> Time {
        self.creates.as_ref().map(|creates| creates.refused_until).unwrap_or_default()
    }

    /// A name is about to be made by a call; how many were since the directory was refused, with this one.
    pub(super) fn count_create(&mut self) -> u32 {
        let creates = self.creates.get_or_insert_default();
        creates.count += 1;
        creates.count
    }

    /// The next names do not count as further ones.
    pub(super) fn forget_creates(&mut self) {
        if let Some(creates) = &mut self.creates {
            creates.count = 0;
        }
    }

    /// The directory was refused: it is not asked for before this time.
    pub(super) fn refuse(&mut self, until: Time) {
        self.creates = Some(Box::new(Creates { count: 0, refused_until: until }));
    }
}
