//! The filesystem of one open volume.

use std::path::Path;
use std::sync::Arc;

use thalweg_cluster::server::{SessionsWithoutServer, use_without_server};
use thalweg_env::Env;
use thalweg_fs::check;
use thalweg_fs::contents::{self, Contents};
use thalweg_fs::local::{self, Format, LocalFs};
use thalweg_fs::{Action, Filesystem, FsError};
use thalweg_store::txn::{Begin, Durability, Retry, Transact, TxnError};

use super::opened::Opened;
use crate::failure::{Failure, Outcome};
use crate::request::mount_options::MountOptions;
use crate::request::sizes::{Grown, Room};
use crate::request::{ContentsPlace, NewFilesystem};

/// The filesystem of one open volume.
#[derive(Debug)]
pub(crate) struct Files {
    local: LocalFs,
    volume: Arc<dyn Transact>,
}

/// The filesystem as one transaction sees it.
#[derive(Debug)]
pub(crate) struct View {
    local: LocalFs,
}

/// The outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    Yes,
    /// It conflicts with another transaction: nothing of it was applied.
    Conflict,
}

fn transact(volume: &Opened) -> Arc<dyn Transact> {
    Arc::new(volume.transactions().clone())
}

/// The transactions of a volume, or read-only ones on a snapshot.
fn transact_on(env: &Env, volume: &Opened, snapshot: Option<&str>) -> Outcome<Arc<dyn Transact>> {
    match snapshot {
        None => {
            let present = volume.chained().map(|pool| pool.present_transactions(env));
            match present.transpose()?.flatten() {
                Some(present) => Ok(Arc::new(present)),
                None => Ok(transact(volume)),
            }
        }
        Some(name) => Ok(Arc::new(volume.snapshot_transactions(env, name)?)),
    }
}

/// Makes an empty filesystem on a volume.
pub(crate) async fn make(env: &Env, volume: &Opened, new: &NewFilesystem) -> Outcome<()> {
    let format = Format { mode: new.mode, uid: new.uid, gid: new.gid, ..Format::default() };
    let beside = volume.contents(&format.name).await?;
    let contents = match new.contents {
        ContentsPlace::Volume => None,
        ContentsPlace::Objects => {
            Some(beside.as_deref().ok_or_else(|| no_objects(volume.target.place()))?)
        }
    };
    let volume = transact(volume);
    let make = async || match contents {
        Some(contents) => local::make_external(env, &volume, &format, contents).await,
        None => local::make(env, &volume, &format).await,
    };
    match make().await {
        Err(FsError::Exists) if new.force => {
            local::remove(env, &volume, &format.name).await?;
            make().await?;
        }
        made => made?,
    }
    match beside {
        // Those of the filesystem that this one replaces.
        Some(contents) if new.force => Ok(contents::empty(&*contents).await?),
        _ => Ok(()),
    }
}

/// The failure for a place beside which there are no objects.
pub(crate) fn no_objects(place: &Path) -> Failure {
    let message =
        format!("{} is no image, so the contents of files cannot be objects", place.display());
    Failure::new(message).help("name an image, rados:POOL/IMAGE, or leave out --contents objects")
}

/// Whether the files of a volume's filesystem have their contents in objects; `None` without a filesystem.
pub(crate) async fn has_objects(env: &Env, volume: &Opened) -> Outcome<Option<bool>> {
    match local::is_external(env, &transact(volume), &Format::default().name).await {
        Err(FsError::NoFilesystem(_) | FsError::Foreign(_)) => Ok(None),
        found => Ok(Some(found?)),
    }
}

/// The contents of the files of a volume's filesystem, if they are kept elsewhere.
async fn contents_of(
    env: &Env,
    volume: &Opened,
    transact: &Arc<dyn Transact>,
) -> Outcome<Option<Arc<dyn Contents>>> {
    let name = Format::default().name;
    match local::is_external(env, transact, &name).await? {
        true => volume.contents(&name).await,
        false => Ok(None),
    }
}

/// The same for a check, which may find the filesystem damaged so that it does not say.
async fn contents_to_check(env: &Env, volume: &Opened) -> Outcome<Option<Arc<dyn Contents>>> {
    let name = Format::default().name;
    match local::is_external(env, &transact(volume), &name).await {
        Ok(false) => return Ok(None),
        Ok(true) => return volume.contents(&name).await,
        Err(FsError::Damaged(_)) => {}
        Err(error) if error.is_damage_below() => {}
        Err(error) => return Err(error.into()),
    }
    match volume.contents(&name).await? {
        Some(contents) if !contents.list().await?.is_empty() => Ok(Some(contents)),
        _ => Ok(None),
    }
}

/// Grows a volume's unmounted filesystem into the volume's free space.
pub(crate) async fn grow(env: &Env, volume: &Opened) -> Outcome<Grown> {
    let name = Format::default().name;
    let options = local::Options::default();
    let transact = transact(volume);
    let contents = contents_of(env, volume, &transact).await?;
    let local = LocalFs::open_with(env, transact, &name, options, contents).await?;
    let grown = local.grow(None).await;
    local.close().await?;
    Ok(grown?.into())
}

/// The size of a volume's filesystem, and the size that it could have; `None` without a filesystem.
pub(crate) async fn room(volume: &Opened) -> Outcome<Option<Room>> {
    let transact = transact(volume);
    let name = Format::default().name;
    match local::room(&*transact, &name).await {
        Ok((filesystem, most)) => Ok(Some(Room { filesystem, most })),
        Err(FsError::NoFilesystem(_) | FsError::Foreign(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Checks the filesystem of a volume that no other process has open.
pub(crate) async fn check(env: &Env, volume: &Opened, how: check::How) -> Outcome<check::Report> {
    let contents = contents_to_check(env, volume).await?;
    let name = Format::default().name;
    Ok(check::check_with(env, transact(volume), &name, how, contents).await?)
}

/// Checks a snapshot's filesystem on a thread of its own, since the volume is served meanwhile.
pub(crate) async fn check_snapshot(
    env: &Env,
    volume: &Opened,
    name: &str,
    how: check::How,
) -> Outcome<check::Report> {
    let volume = transact_on(env, volume, Some(name))?;
    let (env, runtime) = (env.clone(), tokio::runtime::Handle::current());
    let work = move || {
        let name = Format::default().name;
        runtime.block_on(check::check(&env, volume, &name, how))
    };
    let checked = tokio::task::spawn_blocking(work).await;
    Ok(checked.map_err(|error| Failure::of(&error).while_doing("the check ended early"))??)
}

impl Files {
    /// Opens the filesystem of a volume, or of a snapshot.
    pub(crate) async fn open(
        env: &Env,
        volume: &Opened,
        snapshot: Option<&str>,
        options: &MountOptions,
    ) -> Outcome<Files> {
        volume.keep_journal(&options.journal)?;
        let transact = transact_on(env, volume, snapshot)?;
        let name = Format::default().name;
        let contents = contents_of(env, volume, &transact).await?;
        let volume = transact;
        let options = options.for_files();
        let local = LocalFs::open_with(env, volume.clone(), &name, options, contents).await?;
        let files = Files { local, volume };
        files.end_sessions().await?;
        Ok(files)
    }

    /// Opens the filesystem of a volume for a server of it.
    pub(crate) async fn open_served(env: &Env, volume: &Opened) -> Outcome<Files> {
        let transact = transact(volume);
        let contents = contents_of(env, volume, &transact).await?;
        let volume = transact;
        let options = local::Options { keep_orphans: true, ..local::Options::default() };
        let name = Format::default().name;
        let local = LocalFs::open_with(env, volume.clone(), &name, options, contents).await?;
        Ok(Files { local, volume })
    }

    async fn end_sessions(&self) -> Outcome<()> {
        let Some(session_table) = self.local.session_table() else { return Ok(()) };
        let SessionsWithoutServer { ended, away } = use_without_server(session_table).await?;
        if ended > 0 {
            tracing::warn!(ended, "clients of the server of this filesystem lost their sessions");
        }
        if away > 0 {
            tracing::warn!(
                away,
                "clients of the server of this filesystem may have changes in their journals: those of files that are there become conflict copies"
            );
        }
        Ok(())
    }

    /// Applies the options that a remount may change.
    pub(crate) async fn remount(&self, volume: &Opened, options: &MountOptions) -> Outcome<()> {
        volume.keep_journal(&options.journal)?;
        if options.atime.is_some() {
            self.local.set_atime(options.for_files().atime);
        }
        if options.read_only == Some(true) {
            self.local.sync_all().await?;
        }
        Ok(())
    }

    /// Grows it into the volume's free space.
    pub(crate) async fn grow(&self) -> Outcome<Grown> {
        Ok(self.local.grow(None).await?.into())
    }

    /// The filesystem that the kernel is shown.
    pub(crate) fn filesystem(&self) -> Arc<dyn Filesystem> {
        Arc::new(self.local.clone())
    }

    /// Makes everything durable and finishes background work.
    pub(crate) async fn close(&self) -> Outcome<()> {
        Ok(self.local.close().await?)
    }

    /// Begins a transaction on the whole filesystem.
    pub(crate) async fn begin(&self) -> Outcome<View> {
        self.local.prepare().await?;
        let transaction = self.volume.begin(Begin::STRICT).await.map_err(FsError::from)?;
        Ok(View { local: self.local.within(transaction) })
    }
}

fn action(error: &FsError) -> Option<Action> {
    match error {
        FsError::Aborted(failure) => Some(failure.action()),
        _ => None,
    }
}

/// Whether another attempt may succeed. A limit would be exceeded again.
fn may_retry(error: &FsError) -> bool {
    error.is_retryable() && action(error) != Some(Action::RetrySmaller)
}

/// The user's error for a failed transaction.
fn refuse(error: FsError) -> Failure {
    let help = "nothing was changed; do the work in several transactions";
    let FsError::Aborted(failure) = &error else { return error.into() };
    match (failure.cause(), failure.action()) {
        (Some(TxnError::TooLarge(most)), _) => Failure::new(format!(
            "the transaction changes more than {most} blocks of metadata, and this volume takes no more at once"
        ))
        .help(help),
        (_, Action::Divide | Action::RetrySmaller) => Failure::of(&error).help(help),
        _ => error.into(),
    }
}

impl View {
    /// The filesystem that the kernel is shown.
    pub(crate) fn filesystem(&self) -> Arc<dyn Filesystem> {
        Arc::new(self.local.clone())
    }

    /// Commits durably: all changes appear, or none.
    pub(crate) async fn commit(&self) -> Outcome<Committed> {
        let failure = self.local.failure();
        let committed = self.local.commit(Durability::Synced).await;
        match failure.map_or(committed, Err) {
            Ok(()) => Ok(Committed::Yes),
            Err(error) if may_retry(&error) => Ok(Committed::Conflict),
            Err(error) => Err(refuse(error)),
        }
    }

    /// Discards all changes. The outcome says whether a commit would have succeeded, and if not, why.
    pub(crate) async fn abort(&self) -> Outcome<Committed> {
        self.local.abort().await;
        match self.local.failure() {
            None => Ok(Committed::Yes),
            Some(error) if may_retry(&error) => Ok(Committed::Conflict),
            Some(error) => Err(refuse(error)),
        }
    }
}
