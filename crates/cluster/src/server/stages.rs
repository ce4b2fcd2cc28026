//! The stages of a server, in the order in which they are built: each knows those before it at most.

use std::sync::Arc;

use thalweg_env::{Env, Time};
use thalweg_fs::Filesystem;
use uuid::Uuid;

use super::authorize::Authorize;
use super::capabilities::Capabilities;
use super::commit_on_share::CommitOnShare;
use super::counters::Counters;
use super::grace_period::GracePeriod;
use super::inode_limit::InodeLimit;
use super::moves::Moves;
use super::open_files::OpenFiles;
use super::options::Options;
use super::recall::Recall;
use super::replay::Replay;
use super::room::Room;
use super::served::Served;
use super::sessions::Sessions;

/// What the calls of all connections have in common.
#[derive(Debug)]
pub(super) struct Stages {
    pub(super) env: Env,
    pub(super) files: Arc<dyn Filesystem>,
    pub(super) options: Arc<Options>,
    /// Tells clients this server from the one before it.
    pub(super) incarnation: Uuid,
    pub(super) started: Time,
    pub(super) counters: Arc<Counters>,
    pub(super) limit: Arc<InodeLimit>,
    pub(super) capabilities: Arc<Capabilities>,
    pub(super) open_files: Arc<OpenFiles>,
    pub(super) replay: Arc<Replay>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) authorize: Authorize,
    pub(super) commit_on_share: Arc<CommitOnShare>,
    pub(super) recall: Arc<Recall>,
    pub(super) room: Room,
    pub(super) grace_period: Arc<GracePeriod>,
    pub(super) moves: Moves,
}

impl Stages {
    pub(super) fn new(env: &Env, files: Arc<dyn Filesystem>, options: Options) -> Stages {
        let served = &Served { env: env.clone(), files, options: Arc::new(options) };
        let Served { files, options, .. } = served;
        let counters = Arc::new(Counters::default());
        let limit = Arc::new(InodeLimit::new(options.known, options.lease));
        let capabilities = Arc::new(Capabilities::new(env, 4 * options.lease));
        let open_files = Arc::new(OpenFiles::new(files));
        let replay = Arc::new(Replay::new(files));
        let sessions =
            Sessions::new(served, &capabilities, &open_files, &replay, &counters, &limit);
        let sessions = Arc::new(sessions);
        let commit_on_share = Arc::new(CommitOnShare::new(served, &sessions));
        let recall = Arc::new(Recall::new(served, &capabilities, &sessions, &commit_on_share));
        let grace_period = Arc::new(GracePeriod::new(served, &sessions, &replay));
        let moves = Moves::new(
            served,
            &sessions,
            &capabilities,
            &open_files,
            &recall,
            &commit_on_share,
            &grace_period,
        );
        Stages {
            env: env.clone(),
            files: files.clone(),
            options: options.clone(),
            incarnation: env.uuid(),
            started: env.now(),
            authorize: Authorize::new(files, &open_files),
            room: Room::new(served, &sessions, &open_files, &recall),
            counters,
            limit,
            capabilities,
            open_files,
            replay,
            sessions,
            commit_on_share,
            recall,
            grace_period,
            moves,
        }
    }
}
