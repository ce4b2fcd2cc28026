//! What is mounted: the filesystem of a volume, or one that a server on another machine shares.

use std::sync::Arc;
use std::time::Duration;

use thalweg_cluster::client::Client;
use thalweg_env::Env;
use thalweg_fs::Filesystem;

use crate::failure::{Failure, Outcome};
use crate::request::away_options::AwayOptions;
use crate::request::journal_options::JournalOptions;
use crate::request::mount_options::MountOptions;
use crate::request::sizes::Grown;
use crate::volume::files::Files;
use crate::volume::opened::Opened;

/// How long an unmount waits for a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(8);
/// The same for a lazy unmount.
const LAZY_PATIENCE: Duration = Duration::from_secs(2);

/// What becomes of what is not durable when a filesystem is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It is made durable.
    Whole,
    /// A lazy unmount has given up on it.
    GivenUp,
    /// What the server does not have stays in the journal, for the next mount of that.
    Left,
}

/// A filesystem that can be mounted.
#[derive(Clone, Debug)]
pub(super) enum MountedFiles {
    /// A volume's.
    Own(Arc<Files>),
    /// One behind a server.
    Shared(Client),
}

impl MountedFiles {
    /// The filesystem that the kernel is shown.
    pub(super) fn filesystem(&self) -> Arc<dyn Filesystem> {
        match self {
            MountedFiles::Own(files) => files.filesystem(),
            MountedFiles::Shared(client) => Arc::new(client.clone()),
        }
    }

    /// The filesystem of a volume.
    ///
    /// # Errors
    /// It is another machine's.
    pub(super) fn own(&self) -> Outcome<&Files> {
        match self {
            MountedFiles::Own(files) => Ok(files),
            MountedFiles::Shared(_) => {
                Err(Failure::new("a shared filesystem has no transactions here")
                    .help("transactions are for the volumes of this machine"))
            }
        }
    }

    /// Grows it into its volume's free space.
    pub(super) async fn grow(&self) -> Outcome<Grown> {
        self.own()?.grow().await
    }

    /// Applies the options that a remount may change.
    pub(super) async fn remount(
        &self,
        volume: Option<&Opened>,
        options: &MountOptions,
    ) -> Outcome<()> {
        match (self, volume) {
            (MountedFiles::Own(files), Some(volume)) => files.remount(volume, options).await,
            _ if options.journal != JournalOptions::default() => {
                Err(Failure::new("a shared filesystem has no journal options")
                    .help("leave out the options of volumes that are updated in place"))
            }
            _ if options.recover.is_some() => Err(Failure::new("a remount cannot change recover=")
                .help("unmount it, and mount it again")),
            _ if options.away != AwayOptions::default() => Err(Failure::new(
                "a remount cannot change hard, soft, softerr, timeo=, retrans=, retry=, bg and fg",
            )
            .help("unmount it, and mount it again")),
            // The kernel applies the flags.
            _ => Ok(()),
        }
    }

    /// Makes everything durable. A server on another machine that does not answer soon is an error.
    pub(super) async fn sync(&self, env: &Env, lazy: bool) -> Outcome<()> {
        let patience = if lazy { LAZY_PATIENCE } else { PATIENCE };
        let filesystem = self.filesystem();
        // Of a session that has ended there is nothing left to be made durable, which its end has said.
        let has_ended = matches!(self, MountedFiles::Shared(client) if client.status().ended);
        if filesystem.is_read_only() || has_ended {
            return Ok(());
        }
        let syncing = async {
            // A journal needs no server for that, also after the lease.
            match self {
                MountedFiles::Shared(client) if client.commit().await? => Ok(()),
                _ => filesystem.sync_all().await,
            }
        };
        let synced = match self {
            MountedFiles::Own(_) => syncing.await,
            MountedFiles::Shared(_) => match env.timeout(patience, syncing).await {
                Some(synced) => synced,
                None => {
                    let waited = patience.as_secs();
                    return Err(Failure::new(format!(
                        "the server has not answered for {waited} s, so the latest writes may not be durable"
                    )));
                }
            },
        };
        synced.map_err(|error| {
            Failure::of(&error).while_doing("the latest writes could not be made durable")
        })
    }

    /// Finishes background work, and makes everything durable unless something else is to become of it. After an unmount that
    /// has given up on the latest writes, their loss is no failure, and this does not wait for a server long.
    pub(super) async fn close(&self, env: &Env, ending: Ending) -> Outcome<()> {
        match self {
            MountedFiles::Own(files) => match files.close().await {
                // The unmount has said already that writes are lost, and was to go on nevertheless.
                Err(failure) if ending == Ending::GivenUp => {
                    tracing::error!(%failure, "closed after writes were lost");
                    Ok(())
                }
                closed => closed,
            },
            MountedFiles::Shared(client) => {
                match ending {
                    Ending::GivenUp => drop(env.timeout(LAZY_PATIENCE, client.close()).await),
                    Ending::Whole => client.close().await,
                    Ending::Left => {
                        if let Err(error) = client.leave().await {
                            tracing::warn!(%error, "not all changes are in the journal; they are sent");
                            client.close().await;
                        }
                    }
                }
                Ok(())
            }
        }
    }
}
