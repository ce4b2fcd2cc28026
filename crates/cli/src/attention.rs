//! What needs the attention of an administrator. This module alone decides it: `status` begins with it, ends with
//! [`EXIT_CODE`] because of it and has it in its JSON, the metrics have a series for each [`Cause`], and other commands warn of
//! it.

use thalweg_cluster::server::ServerStatus;
use thalweg_fs::Statistics;
use thalweg_replica::{AckStatus, FollowerStatus, ReplicaStatus};
use thalweg_store::chain::Fence;
use thalweg_store::inplace::InPlaceStatus;
use thalweg_store::pool::{MemberState, PoolStatus};

/// The exit code of a status that says that something needs attention.
pub(crate) const EXIT_CODE: u8 = 3;
/// A replica is far behind when its state is older than this. Reads that ask for young enough contents are refused by then,
/// and a promotion would lose as much.
const FAR_BEHIND_MS: u64 = 60_000;
/// Clients answer invalidations within milliseconds; after this time one of them is most likely gone, and calls of other
/// clients wait for its lease.
const LONG_WAIT_MS: u64 = 5_000;
/// The journal is full when less than this share of it is free: backpressure keeps writers from more.
const JOURNAL_SHARE: u64 = 50;

/// Why something needs attention. The names are those of the metrics: they stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The store refuses writes after a failure.
    WritesRefused,
    /// Blocks are lost: no copy is right.
    Damage,
    /// The filesystem has answered with I/O errors, whatever the reason.
    FailedRequests,
    /// A device is missing, failed, or missed writes.
    Device,
    /// A side of a mirror is being filled.
    Rebuilding,
    /// There is no room for writes.
    NoSpace,
    /// The journal is full.
    JournalFull,
    /// A replica was promoted in the volume's place.
    Fenced,
    /// Flushes wait for replicas.
    TooFewReplicas,
    /// A replica was connected, and is not now.
    ReplicaLost,
    /// A replica is far behind.
    ReplicaBehind,
    /// A replica has no state of the volume until its copy is complete.
    ReplicaCopying,
    /// The replica does not follow its primary now.
    NotFollowing,
    /// Clients of the server before this one are expected, and calls wait for them.
    ClientsExpected,
    /// Calls wait for a client that does not answer.
    ClientSilent,
}

impl Cause {
    /// All causes.
    pub(crate) const ALL: [Cause; 15] = [
        Cause::WritesRefused,
        Cause::Damage,
        Cause::FailedRequests,
        Cause::Device,
        Cause::Rebuilding,
        Cause::NoSpace,
        Cause::JournalFull,
        Cause::Fenced,
        Cause::TooFewReplicas,
        Cause::ReplicaLost,
        Cause::ReplicaBehind,
        Cause::ReplicaCopying,
        Cause::NotFollowing,
        Cause::ClientsExpected,
        Cause::ClientSilent,
    ];

    /// Its name in the metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Cause::WritesRefused => "writes_refused",
            Cause::Damage => "damage",
            Cause::FailedRequests => "failed_requests",
            Cause::Device => "device",
            Cause::Rebuilding => "rebuilding",
            Cause::NoSpace => "no_space",
            Cause::JournalFull => "journal_full",
            Cause::Fenced => "fenced",
            Cause::TooFewReplicas => "too_few_replicas",
            Cause::ReplicaLost => "replica_lost",
            Cause::ReplicaBehind => "replica_behind",
            Cause::ReplicaCopying => "replica_copying",
            Cause::NotFollowing => "not_following",
            Cause::ClientsExpected => "clients_expected",
            Cause::ClientSilent => "client_silent",
        }
    }
}

/// Something that needs attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attention {
    pub(crate) cause: Cause,
    /// What happened, to which object, and the next step.
    pub(crate) what: String,
}

impl Attention {
    fn new(cause: Cause, what: impl Into<String>) -> Attention {
        Attention { cause, what: what.into() }
    }
}

/// The same in words, for a status.
pub(crate) fn in_words(all: &[Attention]) -> Vec<String> {
    all.iter().map(|it| it.what.clone()).collect()
}

fn refuses_writes(why: &str) -> Attention {
    let what = format!("it refuses writes until it is opened again: {why}");
    Attention::new(Cause::WritesRefused, what)
}

fn damage(place: &str) -> Attention {
    let what = format!(
        "blocks were found of which no copy is right: thalweg scrub {place} lists them, thalweg fsck -d {place} names their \
         files; a block that is written anew is whole, and this ends with a scrub that finds none"
    );
    Attention::new(Cause::Damage, what)
}

/// Of a chained volume at `place`.
pub(crate) fn of_chain(pool: &PoolStatus, place: &str) -> Vec<Attention> {
    let chain = &pool.chain;
    let mut found: Vec<Attention> = chain.poisoned.iter().map(|why| refuses_writes(why)).collect();
    if chain.damaged {
        found.push(damage(place));
    }
    if chain.live_blocks >= chain.capacity_blocks {
        let what = format!(
            "there is no room, and writes fail: delete snapshots or data, or thalweg volume extend {place} --link DEVICE"
        );
        found.push(Attention::new(Cause::NoSpace, what));
    }
    for member in &pool.members {
        let path = member.path.display();
        let device = |what| Some(Attention::new(Cause::Device, what));
        found.extend(match member.state {
            MemberState::Online => None,
            MemberState::Rebuilding { done, total } => {
                let what = format!("{path} is being rebuilt, {done} of {total} bytes are done");
                Some(Attention::new(Cause::Rebuilding, what))
            }
            MemberState::Stale => device(format!(
                "{path} has missed writes: thalweg volume rebuild {place} {path}"
            )),
            MemberState::Failed => device(format!(
                "requests failed on {path}: thalweg volume replace {place} {path} NEW, or rebuild it"
            )),
            MemberState::Missing => device(format!(
                "{path} is missing: attach it, or thalweg volume replace {place} {path} NEW"
            )),
        });
    }
    found
}

/// Of a volume at `place` that is updated in place.
pub(crate) fn of_in_place(status: &InPlaceStatus, place: &str) -> Vec<Attention> {
    let mut found: Vec<Attention> = status.poisoned.iter().map(|why| refuses_writes(why)).collect();
    if status.damaged {
        found.push(damage(place));
    }
    let least = status.journal_size / JOURNAL_SHARE;
    if status.poisoned.is_none() && status.journal_room < least {
        let what = "the journal is full, and writers wait: the device does not write back as fast as they write";
        found.push(Attention::new(Cause::JournalFull, what));
    }
    found
}

/// Of a volume whose place a promoted replica has taken.
pub(crate) fn of_fence(fence: Fence, place: &str) -> Attention {
    let term = fence.term;
    let what = format!(
        "it was fenced, and refuses writes for ever: a replica was promoted with term {term}. Use that one; \
         {place}@fenced-{term} is the state that this one had"
    );
    Attention::new(Cause::Fenced, what)
}

/// What a primary knows of its followers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followers {
    /// Those that are connected.
    pub(crate) connected: Vec<ReplicaStatus>,
    /// The names of those that were connected, and are not.
    pub(crate) lost: Vec<String>,
    /// What flushes wait for.
    pub(crate) ack: Option<AckStatus>,
}

/// Of a primary.
pub(crate) fn of_followers(followers: &Followers) -> Vec<Attention> {
    let mut found = Vec::new();
    if let Some(AckStatus { needed, connected, waiting }) = followers.ack
        && connected < needed
    {
        let what = format!(
            "flushes wait for {needed} replicas (--ack {needed}), and {connected} are connected; {waiting} flushes wait: \
             start the replicas, or serve with a lower --ack"
        );
        found.push(Attention::new(Cause::TooFewReplicas, what));
    }
    for name in &followers.lost {
        let what = format!(
            "the replica {name} is not connected any more: thalweg replica status, there, says why; one that is gone for \
             good is forgotten when this server starts again"
        );
        found.push(Attention::new(Cause::ReplicaLost, what));
    }
    for ReplicaStatus { name, copy, behind_versions, behind_ms, .. } in &followers.connected {
        match (copy, behind_ms) {
            (Some((sent, all)), _) => {
                let what =
                    format!("the replica {name} gets a copy, {sent} of {all} blocks are sent");
                found.push(Attention::new(Cause::ReplicaCopying, what));
            }
            (None, Some(behind)) if *behind_versions > 0 && *behind > FAR_BEHIND_MS => {
                let what = format!(
                    "the replica {name} is {behind_versions} versions and {} s behind: see its drives and its network",
                    behind / 1000
                );
                found.push(Attention::new(Cause::ReplicaBehind, what));
            }
            _ => {}
        }
    }
    found
}

/// What a replica knows of its primary.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    /// The address of the primary; `None` if it is lost.
    pub(crate) address: Option<String>,
    /// How far it is; `None` if it does not run.
    pub(crate) follower: Option<FollowerStatus>,
    /// Why it does not follow now.
    pub(crate) trouble: Option<String>,
}

/// Of a replica at `place`.
pub(crate) fn of_upstream(upstream: &Upstream, place: &str) -> Vec<Attention> {
    let Some(address) = &upstream.address else {
        let what = format!(
            "the address of its primary is not known: thalweg replica follow {place} --of ADDRESS"
        );
        return vec![Attention::new(Cause::NotFollowing, what)];
    };
    let Some(follower) = &upstream.follower else {
        let what = format!(
            "it does not follow its primary {address}, and gets older: thalweg replica run {place}"
        );
        return vec![Attention::new(Cause::NotFollowing, what)];
    };
    let mut found = Vec::new();
    if !follower.connected {
        let why = upstream.trouble.as_ref().map_or(String::new(), |why| format!(": {why}"));
        let what = format!("it is not connected to its primary {address}{why}; it goes on trying");
        found.push(Attention::new(Cause::NotFollowing, what));
    }
    if let Some(until) = follower.copying_until {
        let what = format!(
            "a copy is under way until version {until}: readers see the state from before it, if there is one"
        );
        found.push(Attention::new(Cause::ReplicaCopying, what));
    }
    if let Some(behind) = follower.behind_ms.filter(|behind| *behind > FAR_BEHIND_MS)
        && follower.connected
        && follower.copying_until.is_none()
    {
        let what = format!(
            "its state is {} s older than that of its primary: see the drives and the network of both",
            behind / 1000
        );
        found.push(Attention::new(Cause::ReplicaBehind, what));
    }
    found
}

/// Of a filesystem that has answered so many requests with an I/O error since it was mounted at `place`.
pub(crate) fn of_failures(failures: u64, place: &str) -> Option<Attention> {
    let what = format!(
        "{failures} requests to the mounted filesystem failed with an I/O error: the server's log names them; unmount it, \
         and thalweg fsck -d {place} says what is damaged"
    );
    (failures > 0).then(|| Attention::new(Cause::FailedRequests, what))
}

/// Of a filesystem that is mounted or served.
pub(crate) fn of_files(files: &Statistics) -> Vec<Attention> {
    let (used, most) = files.inodes;
    let what = match (files.free, most) {
        (0, _) => {
            "the filesystem is full, and writes fail: remove files, or make it larger (thalweg resize)"
        }
        (_, most) if most > 0 && used >= most => {
            "the filesystem has no inode left, and no file can be made: remove files, or make it larger (thalweg resize)"
        }
        _ => return Vec::new(),
    };
    vec![Attention::new(Cause::NoSpace, what)]
}

/// Of the server of a shared filesystem.
pub(crate) fn of_server(status: &ServerStatus) -> Vec<Attention> {
    let mut found = Vec::new();
    if status.expected > 0 {
        let what = format!(
            "calls wait for {} clients of the server before this one, until they are back or their time is up",
            status.expected
        );
        found.push(Attention::new(Cause::ClientsExpected, what));
    }
    let waits = status.invalidations.oldest_ms.filter(|oldest| *oldest > LONG_WAIT_MS);
    if let Some(oldest) = waits {
        let what = format!(
            "{} calls wait for a client that does not answer, the first for {} s: it is evicted when its lease ends, \
             or by thalweg cluster client evict",
            status.invalidations.pending,
            oldest / 1000
        );
        found.push(Attention::new(Cause::ClientSilent, what));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(behind_versions: u64, behind_ms: u64) -> ReplicaStatus {
        ReplicaStatus {
            name: "standby".to_owned(),
            sent: 9,
            durable: 9 - behind_versions,
            behind_versions,
            behind_bytes: None,
            behind_ms: Some(behind_ms),
            copy: None,
            bytes: 0,
        }
    }

    fn causes(found: &[Attention]) -> Vec<Cause> {
        found.iter().map(|it| it.cause).collect()
    }

    #[test]
    fn names_are_told_apart() {
        let mut names = Cause::ALL.map(Cause::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Cause::ALL.len());
    }

    #[test]
    fn a_primary_needs_attention_when_flushes_wait_and_when_replicas_are_gone_or_far_behind() {
        let ack = |needed, connected| Some(AckStatus { needed, connected, waiting: 0 });
        let well = Followers { connected: vec![replica(0, 0)], lost: Vec::new(), ack: ack(1, 1) };
        assert_eq!(of_followers(&well), []);
        assert_eq!(of_followers(&Followers::default()), []);
        let short = Followers { ack: ack(2, 1), ..well.clone() };
        assert_eq!(causes(&of_followers(&short)), [Cause::TooFewReplicas]);
        let lost = Followers { lost: vec!["other".to_owned()], ..well.clone() };
        assert_eq!(causes(&of_followers(&lost)), [Cause::ReplicaLost]);
        // Old and without a newer version is not behind; nor is one that is behind for a moment.
        for (versions, millis, expected) in
            [(0, FAR_BEHIND_MS * 2, None), (3, 100, None), (3, FAR_BEHIND_MS + 1, Some(()))]
        {
            let one = Followers { connected: vec![replica(versions, millis)], ..well.clone() };
            let expected: Vec<Cause> = expected.iter().map(|()| Cause::ReplicaBehind).collect();
            assert_eq!(causes(&of_followers(&one)), expected);
        }
        let copied = ReplicaStatus { copy: Some((1, 2)), ..replica(3, FAR_BEHIND_MS + 1) };
        let copying = Followers { connected: vec![copied], ..well };
        assert_eq!(causes(&of_followers(&copying)), [Cause::ReplicaCopying]);
    }

    #[test]
    fn a_replica_needs_attention_unless_it_follows_closely() {
        let follower = FollowerStatus {
            connected: true,
            version: 9,
            durable: 9,
            primary: Some(9),
            behind_versions: Some(0),
            behind_bytes: Some(0),
            behind_ms: Some(400),
            waiting_bytes: 0,
            silent_ms: Some(400),
            copying_until: None,
        };
        let of = |follower: Option<FollowerStatus>| {
            let address = Some("thalweg://db1/vol".to_owned());
            of_upstream(&Upstream { address, follower, trouble: None }, "/srv/copy")
        };
        assert_eq!(of(Some(follower.clone())), []);
        assert_eq!(causes(&of(None)), [Cause::NotFollowing]);
        let cut = FollowerStatus { connected: false, behind_ms: Some(90_000), ..follower.clone() };
        assert_eq!(causes(&of(Some(cut))), [Cause::NotFollowing]);
        let far = FollowerStatus { behind_ms: Some(FAR_BEHIND_MS + 1), ..follower.clone() };
        assert_eq!(causes(&of(Some(far.clone()))), [Cause::ReplicaBehind]);
        let copying = FollowerStatus { copying_until: Some(7), ..far };
        assert_eq!(causes(&of(Some(copying))), [Cause::ReplicaCopying]);
        let lost = Upstream { address: None, follower: Some(follower), trouble: None };
        assert!(of_upstream(&lost, "/srv/copy")[0].what.contains("replica follow /srv/copy"));
    }

    #[test]
    fn a_filesystem_needs_attention_when_it_has_no_block_or_no_inode_left() {
        let files = |free, inodes| Statistics { block: 4096, blocks: 100, free, inodes };
        assert_eq!(of_files(&files(1, (5, 100))), []);
        assert_eq!(of_files(&files(1, (5, 0))), []);
        assert_eq!(causes(&of_files(&files(0, (5, 100)))), [Cause::NoSpace]);
        assert_eq!(causes(&of_files(&files(1, (100, 100)))), [Cause::NoSpace]);
    }
}
