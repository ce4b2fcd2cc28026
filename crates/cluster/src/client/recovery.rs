//! After a crash of the client: its journal is written back, in its order and as a part of the session that made it.
//!
//! The session goes on with the next incarnation of its client, which the server counts. Another client that wants a delegated file waits for that as
//! for any recall. Nothing of the journal is forgotten before the server has all of it, so a crash at any point repeats this.
//!
//! If the client was away for so long that other clients went on, the server refuses changes of what they have used. These are skipped, with
//! all behind the first one or with what depends on them ([`conflict_rule`](super::conflict_rule)), and become a set of conflict copies.
//! Which ones is on record at the server before it passes one ([`conflict_plan`](super::conflict_plan)); the copies come when it has
//! all others.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_env::connection::Connector;
use thalweg_fs::ranges::Ranges;
use thalweg_fs::{FsError, Ino};
use thalweg_store::device::DeviceRef;
use thalweg_store::journal::JournalError;
use uuid::Uuid;

use super::base::ClientBase;
use super::conflict_plan::PlanFile;
use super::conflict_rule::ConflictRule;
use super::conflicts::{Keeper, is_conflict};
use super::copies::CopyError;
use super::error::AttachError;
use super::filesystem::Client;
use super::found_journal::FoundJournal;
use super::inode_changes::Rest;
use super::journal::ClientJournal;
use super::journal_slot::{Kept, Reopen, Reopened};
use super::options::{OnConflict, Options};
use super::stages::Stages;
use super::used_meanwhile::UsedMeanwhile;
use super::write_around::{Refused, pass_skipped, write_around};
use super::writeback::SendGuard;
use crate::protocol::{Answer, JournalMount, MAX_CLAIMS, MAX_PAYLOAD, Request};
use crate::squash::acting;

/// The server does not know the session any more.
const ENDED: &str = "the server has ended the session that made them";

/// Why a mount does not go on that makes no conflict copies.
const USED: &str = "other clients have used files or names that some of them change";

/// What a user can do about changes that are not written back.
const GIVE_UP: &str = "; `cluster journal export` has them in files, and `cluster journal erase --force` gives them up";

impl Client {
    /// Connects, and begins a session. The journal of an earlier mount is written back first.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn connect(
        env: &Env,
        connector: Box<dyn Connector>,
        options: Options,
    ) -> Result<Client, AttachError> {
        connect(env, connector.into(), options).await.map(Client::of)
    }
}

pub(super) async fn connect(
    env: &Env,
    connector: Arc<dyn Connector>,
    mut options: Options,
) -> Result<Stages, AttachError> {
    let Some(device) = options.journal.take() else {
        return Stages::start(env, connector, ClientBase::new(env, options)).await;
    };
    // What it stored itself would be at the servers before it is in the journal.
    options.contents = None;
    let reopen = reopening(env, &connector, &options, device);
    let Reopened { journal, memory, .. } = reopen(Kept::Session, Vec::new()).await?;
    let base = ClientBase::new(env, options);
    base.queue.note_memory(memory);
    base.session.keep_journal(journal.session, JournalMount::Incarnation(1));
    base.queue.begin_journal(journal.room().size);
    base.journal.reopen_by(reopen);
    base.journal.begin(env, journal);
    Stages::start(env, connector, base).await
}

/// Opens the journal on a device for a mount, with its copies: when the client begins, and whenever the server has ended its session.
pub(super) fn reopening(
    env: &Env,
    connector: &Arc<dyn Connector>,
    options: &Options,
    device: DeviceRef,
) -> Reopen {
    let (env, connector, options) = (env.clone(), connector.clone(), options.clone());
    Arc::new(move |kept, asked| {
        let (env, connector, options) = (env.clone(), connector.clone(), options.clone());
        let device = device.clone();
        Box::pin(async move {
            let reopened = match kept {
                Kept::Session => recover(&env, &connector, &options, device, &asked).await?,
                Kept::Nothing(session) => {
                    let journal = begin_empty(&env, &options, session, device).await?;
                    Reopened { journal, unused: Vec::new(), memory: 0 }
                }
            };
            attach_copies(&reopened.journal).await?;
            Ok(reopened)
        })
    })
}

/// Attaches the copies of a journal that begins. A keeper that is away gets its copy later.
///
/// # Errors
/// [`AttachError::Keeper`]: a keeper does not let this client in.
async fn attach_copies(journal: &ClientJournal) -> Result<(), AttachError> {
    let attaching = journal.copies.links.iter().map(|link| async move {
        match journal.attach_copy(link).await {
            Ok(()) => {}
            Err(CopyError::NotPermitted(why)) => {
                return Err(AttachError::Keeper { keeper: link.name().to_owned(), why });
            }
            Err(error) => link.set_down(&error),
        }
        Ok(())
    });
    futures::future::try_join_all(attaching).await.map(drop)
}

/// Opens a journal for a mount, after everything that it has was written back.
///
/// # Errors
/// [`AttachError::Journal`], [`AttachError::Pending`] with the journal as it was; those of the connection.
async fn recover(
    env: &Env,
    connector: &Arc<dyn Connector>,
    options: &Options,
    device: DeviceRef,
    asked: &[Ino],
) -> Result<Reopened, AttachError> {
    let found = FoundJournal::open(env, device, options.memory / 2).await;
    let mut found = found.map_err(AttachError::journal)?;
    let (mut resumed, mut unused, mut memory) = (None, Vec::new(), 0);
    if let Some(session) = found.chain.session {
        let is_arrival = found.chain.arrives_from.is_some();
        match resume(env, connector, options, (session, false), &mut found).await {
            Ok(Resumed { stages: None, .. }) if is_arrival => return Err(AttachError::NotArrived),
            Ok(done) => {
                if let Some(stages) = &done.stages {
                    memory = stages.base.queue.most_in_memory();
                    unused = unused_of(stages, asked, &done.skipped).await.unwrap_or_default();
                }
                resumed = done.stages;
            }
            // The other machine has all of it.
            Err(AttachError::Moved) => {
                tracing::warn!("the last mount of the journal has moved to another machine")
            }
            Err(error) => return Err(error),
        }
    }
    // The journal is empty before the server forgets its position.
    let journal = found.begin(env, options).await.map_err(AttachError::journal)?;
    if let Some(stages) = resumed {
        stages.connections.close().await;
    }
    Ok(Reopened { journal, unused, memory })
}

/// Those of these inodes that no other client has used, and that have all of the journal's changes, with their paths.
async fn unused_of(
    stages: &Stages,
    asked: &[Ino],
    skipped: &[Ino],
) -> Result<Vec<(Ino, Bytes)>, FsError> {
    let mut unused = Vec::new();
    if asked.is_empty() {
        return Ok(unused);
    }
    let (UsedMeanwhile { inodes: used, all }, bytes) = UsedMeanwhile::ask(stages).await?;
    // There may be more of them.
    if all.is_some() || used.len() == MAX_CLAIMS || bytes > MAX_PAYLOAD / 4 {
        return Ok(unused);
    }
    let is_used = |ino: &Ino| skipped.contains(ino) || used.contains_key(ino);
    for ino in asked.iter().filter(|ino| !is_used(ino)) {
        if let Ok((Answer::Bytes, path)) = stages.request(Request::Path { ino: *ino }).await {
            unused.push((*ino, path));
        }
    }
    Ok(unused)
}

/// Begins a journal anew that has nothing of a session, which has ended.
///
/// # Errors
/// [`AttachError::Pending`] if it has something, [`AttachError::Journal`]; also if another mount has begun there.
async fn begin_empty(
    env: &Env,
    options: &Options,
    session: Uuid,
    device: DeviceRef,
) -> Result<ClientJournal, AttachError> {
    let found = FoundJournal::open(env, device, 0).await.map_err(AttachError::journal)?;
    let mutations = found.mutations();
    let is_ours = found.chain.session == Some(session);
    if mutations > 0 || !is_ours {
        return Err(AttachError::Pending { mutations, why: format!("{ENDED}{GIVE_UP}") });
    }
    found.begin(env, options).await.map_err(AttachError::journal)
}

/// What became of a journal that was written back.
#[derive(Default)]
pub(super) struct Resumed {
    /// Its session goes on; `None` if that has ended. Then the journal has nothing, or it is a copy.
    pub(super) stages: Option<Stages>,
    /// Changes that the server did not have, and has now.
    pub(super) written: u64,
    /// Changes that other clients have made impossible.
    pub(super) set_aside: u64,
    /// The inodes that these are about.
    pub(super) skipped: Vec<Ino>,
}

/// Goes on with a session, and writes back what the journal has of it.
pub(super) async fn resume(
    env: &Env,
    connector: &Arc<dyn Connector>,
    options: &Options,
    (session, is_copy): (Uuid, bool),
    found: &mut FoundJournal,
) -> Result<Resumed, AttachError> {
    let (mutations, first, durable) = (found.mutations(), found.chain.first, found.chain.durable);
    let runs = std::mem::take(&mut found.runs);
    let base = ClientBase::new(env, options.clone());
    base.session.keep_journal(session, JournalMount::Rebooted);
    base.queue.begin_recovery(found.chain.after());
    base.journal.recover_from(found.log());
    base.queue.recover(runs);
    let (stages, turn) = match Stages::start_held(env, connector.clone(), base).await {
        Ok(started) => started,
        Err(AttachError::Ended)
            if mutations == 0 || is_copy || found.chain.arrives_from.is_some() =>
        {
            return Ok(Resumed::default());
        }
        Err(AttachError::Ended) => {
            return Err(AttachError::Pending { mutations, why: format!("{ENDED}{GIVE_UP}") });
        }
        Err(AttachError::Diverged) => {
            let why = format!(
                "the server has other ones of the same session: the journal was copied or put back, and another copy of it was mounted{GIVE_UP}"
            );
            return Err(AttachError::Pending { mutations, why });
        }
        Err(error) => return Err(error),
    };
    let pending = |why: String| AttachError::Pending { mutations, why };
    let reached = stages.writeback.reached();
    // Nothing is sent that is not in the journal, whose last record stays. A copy may lack what was sent while its keeper was away.
    if !is_copy && reached >= found.chain.next {
        let why = "the server has later ones: this is an older copy of the journal";
        return Err(pending(format!("{why}{GIVE_UP}")));
    }
    // What the server has refused has a position there, too. Without what it has lost, inodes may be others' that the journal has changes of.
    if mutations > 0 && durable > reached {
        let lost = durable - reached;
        let why = format!(
            "the server has lost {lost} changes that it had made durable: its volume is of an earlier time{GIVE_UP}"
        );
        return Err(pending(why));
    }
    let skipped = Vec::new();
    let mut resumption =
        Resumption { env, connector, stages: &stages, session, mutations, skipped };
    let set_aside = resumption.write_back(found, turn).await?;
    let skipped = resumption.skipped;
    if let Some(error) = stages.base.losses.first() {
        return Err(pending(error.to_string()));
    }
    match stages.rpc.own(Request::SyncAll).await {
        Ok(Answer::Done) => {}
        Ok(_) => return Err(AttachError::lost("its answer does not fit the call")),
        Err(error) => return Err(pending(error.to_string())),
    }
    tracing::info!(mutations, "the journal was written back");
    let begin = first.max(reached + 1);
    let written = found.chain.next.saturating_sub(begin) - set_aside.count_from(begin);
    let set_aside = set_aside.count_from(0);
    Ok(Resumed { stages: Some(stages), written, set_aside, skipped })
}

/// A journal while it is written back.
struct Resumption<'a> {
    env: &'a Env,
    connector: &'a Arc<dyn Connector>,
    /// Of the session of the journal.
    stages: &'a Stages,
    session: Uuid,
    mutations: usize,
    /// The inodes that skipped mutations are about.
    skipped: Vec<Ino>,
}

impl Resumption<'_> {
    fn pending(&self, why: impl ToString) -> AttachError {
        AttachError::Pending { mutations: self.mutations, why: why.to_string() }
    }

    /// Sends what the journal has, and sets aside the changes that other clients have made impossible; their positions.
    async fn write_back(
        &mut self,
        found: &FoundJournal,
        turn: SendGuard,
    ) -> Result<Ranges, AttachError> {
        let Stages { writeback, base, .. } = self.stages;
        let plan = PlanFile::new(self.stages, self.session);
        let mut before = Ranges::default();
        if self.mutations > 0 {
            before = plan.load().await.map_err(|error| self.pending(error))?;
        }
        if !before.is_empty() {
            if base.options.on_conflict == OnConflict::Refuse {
                return Err(self.pending(USED));
            }
            return self.write_around(found, (before, None), turn).await;
        }
        drop(turn);
        let Err(error) = writeback.send_all().await else { return Ok(before) };
        let refused = writeback.refused().filter(|(error, _)| is_conflict(error));
        let Some((why, _)) = refused else { return Err(self.pending(error)) };
        if base.options.on_conflict == OnConflict::Refuse {
            return Err(self.pending(USED));
        }
        let turn = writeback.hold().await;
        self.write_around(found, (before, Some(why)), turn).await
    }

    /// Writes the journal back around the mutations that conflict, and makes conflict copies of these; their positions. Some of these are
    /// known: they were skipped `before` a crash.
    async fn write_around(
        &mut self,
        found: &FoundJournal,
        (mut before, mut why): (Ranges, Option<FsError>),
        turn: SendGuard,
    ) -> Result<Ranges, AttachError> {
        let Stages { writeback, base, .. } = self.stages;
        // What other clients want meanwhile they get at once, and the server refuses changes of it. If it did not know of the client's
        // absence, they would miss these.
        let turn = if base.session.info().has_returned {
            writeback.set_aside();
            drop(turn);
            None
        } else {
            Some(turn)
        };
        let plan = PlanFile::new(self.stages, self.session);
        let (mut reached, mut recorded) = (writeback.reached_position(), Ranges::default());
        let (skipped, used) = loop {
            let used = self.used_meanwhile().await?;
            let skipped = self.skipped_of(found, &used, (reached.position, &before)).await?;
            // Before the server passes one of them.
            if skipped != recorded {
                plan.save(&skipped).await.map_err(|error| self.pending(error))?;
                recorded = skipped.clone();
            }
            match write_around(self.stages, found, reached, &skipped).await {
                Ok(all) => {
                    reached = all;
                    break (skipped, used);
                }
                Err(Refused { position, reached: all, error }) if is_conflict(&error) => {
                    (reached, before) = (all, skipped);
                    before.add(position..position + 1);
                    why.get_or_insert(error);
                }
                Err(Refused { error, .. }) => return Err(self.pending(error)),
            }
        };
        writeback.set_aside();
        drop(turn);
        if skipped.is_empty() {
            return Ok(skipped);
        }
        // What a user has made is kept as the one that it counts for.
        let (mut rest, squash) = (Rest::default(), base.session.squash());
        for record in &found.records {
            let mut runs = found.read(record).await.map_err(AttachError::journal)?;
            runs.iter_mut().for_each(|run| run.user = acting(squash, run.user.as_ref()));
            rest.add(runs, record.after.position + 1, |position| skipped.contains(position));
        }
        self.skipped = rest.iter().map(|(ino, _)| ino).collect();
        let why = why.unwrap_or(FsError::Stale);
        self.keep_rest(rest, &used, &why).await?;
        pass_skipped(self.stages, reached, found.chain.end())
            .await
            .map_err(|error| self.pending(error))?;
        plan.remove().await.map_err(|error| self.pending(error))?;
        Ok(skipped)
    }

    /// The positions of the mutations that are skipped: those that were before, and what conflicts behind the last position that the server has.
    async fn skipped_of(
        &self,
        found: &FoundJournal,
        used: &UsedMeanwhile,
        known: (u64, &Ranges),
    ) -> Result<Ranges, AttachError> {
        let mut rule = ConflictRule::new(self.stages.base.options.conflict, used);
        let mut skipped = Ranges::default();
        for record in &found.records {
            let runs = found.read(record).await.map_err(AttachError::journal)?;
            rule.add_skipped((&runs, record.after.position + 1), known, &mut skipped);
        }
        Ok(skipped)
    }

    /// What other clients have used of what the journal may change.
    async fn used_meanwhile(&self) -> Result<UsedMeanwhile, AttachError> {
        let asked = UsedMeanwhile::ask(self.stages).await;
        asked.map(|(used, _)| used).map_err(|error| self.pending(error))
    }

    /// Keeps in conflict copies what other clients have made impossible, or drops it.
    async fn keep_rest(
        &self,
        rest: Rest,
        used: &UsedMeanwhile,
        why: &FsError,
    ) -> Result<(), AttachError> {
        let options = &self.stages.base.options;
        let (changes, files) = (rest.count(), rest.files());
        if options.on_conflict == OnConflict::Discard {
            tracing::error!(changes, files, %why, "changes of the journal are discarded, which others have made impossible");
            return Ok(());
        }
        let base = ClientBase::new(self.env, Options { exclusive: None, ..options.clone() });
        let client = Client::of(Stages::start(self.env, self.connector.clone(), base).await?);
        let keeper = Keeper::new(&client, self.stages, used, &options.host);
        let kept = keeper.keep(rest, why).await;
        client.close().await;
        let set = kept.map_err(|error| {
            let why = format!("no conflict copies can be made: {error}");
            AttachError::Pending { mutations: changes, why }
        })?;
        tracing::warn!(
            set, changes, files, %why,
            "others have used what the journal is about: that is in conflict copies"
        );
        Ok(())
    }
}

impl AttachError {
    pub(super) fn journal(error: JournalError) -> AttachError {
        AttachError::Journal(Arc::new(error))
    }
}
