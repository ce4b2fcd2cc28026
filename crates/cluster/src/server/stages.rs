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
use super::sessions::Sessions;

/// What the calls of all connections have in common.
#[derive(Debug)]
pub(super) struct Stages {
    pub(super) env: Env,
    pub(super) files: Arc<dyn Filesystem>,
    pub(super) options: Options,
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
        let counters = Arc::new(Counters::default());
        let limit = Arc::new(InodeLimit::new(options.known, options.lease));
        let capabilities = Arc::new(Capabilities::new(env, 4 * options.lease));
        let open_files = Arc::new(OpenFiles::new(&files));
        let replay = Arc::new(Replay::new(&files));
        let sessions = Arc::new(Sessions::new(
            env,
            &files,
            &options,
            &capabilities,
            &open_files,
            &replay,
            &counters,
            &limit,
        ));
        let commit_on_share = Arc::new(CommitOnShare::new(env, &files, &sessions, options.commit));
        let recall =
            Arc::new(Recall::new(env, &options, &capabilities, &sessions, &commit_on_share));
        let grace_period =
            Arc::new(GracePeriod::new(env, &files, &sessions, &replay, options.lease));
        Stages {
            env: env.clone(),
            incarnation: env.uuid(),
            started: env.now(),
            authorize: Authorize::new(&files, &open_files),
            room: Room::new(env, &files, &options, &sessions, &open_files, &recall),
            moves: Moves::new(
                &files,
                &sessions,
                &capabilities,
                &open_files,
                &recall,
                &commit_on_share,
                &grace_period,
            ),
            files,
            options,
            counters,
            limit,
            capabilities,
            open_files,
            replay,
            sessions,
            commit_on_share,
            recall,
            grace_period,
        }
    }
}
