//! The stages of a server, in the order in which they are built: each knows those before it at most.

use std::sync::Arc;

use thalweg_env::{Env, Time};
use thalweg_fs::Filesystem;
use uuid::Uuid;

use super::authorize::Authorize;
use super::base::Base;
use super::capabilities::Capabilities;
use super::commit_on_share::CommitOnShare;
use super::context::RequestContext;
use super::counters::Counters;
use super::grace_period::GracePeriod;
use super::inode_limit::InodeLimit;
use super::moves::Moves;
use super::open_files::OpenFiles;
use super::options::Options;
use super::recall::Recall;
use super::replay::Replay;
use super::room::Room;
use super::session::StagingRoom;
use super::sessions::Sessions;

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
    pub(super) staging_room: StagingRoom,
}

/// A call that is carried out, and the stages that it uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op<'a> {
    pub(super) ctx: &'a RequestContext<'a>,
    pub(super) stages: &'a Stages,
}

impl Stages {
    pub(super) fn new(env: &Env, files: Arc<dyn Filesystem>, options: Options) -> Stages {
        let base = Base::new(env, files, options);
        let sessions = Arc::new(Sessions::new(&base));
        let commit_on_share = Arc::new(CommitOnShare::new(&base, &sessions));
        let recall = Arc::new(Recall::new(&base, &sessions, &commit_on_share));
        let grace_period = Arc::new(GracePeriod::new(&base, &sessions));
        let moves = Moves::new(&base, &sessions, &recall, &commit_on_share, &grace_period);
        let room = Room::new(&base, &sessions, &recall);
        let authorize = Authorize::new(&base);
        let Base { env, files, options, counters, limit, capabilities, open_files, replay, .. } =
            base;
        Stages {
            incarnation: env.uuid(),
            started: env.now(),
            env,
            files,
            options,
            counters,
            limit,
            capabilities,
            open_files,
            replay,
            sessions,
            authorize,
            commit_on_share,
            recall,
            room,
            grace_period,
            moves,
            staging_room: StagingRoom::default(),
        }
    }
}
