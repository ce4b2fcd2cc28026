//! `thalweg mount SERVER:/PATH DIRECTORY`: mounts a filesystem that another machine shares.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thalweg_cluster::client::address::{Address, KeeperEntrance};
use thalweg_cluster::client::{Client, KeeperTarget, Options};
use thalweg_env::Env;
use thalweg_ipc::remote::{Advice, RemoteError};
use thalweg_net::entry::Refusal;
use thalweg_net::keys::{Home, Token};
use thalweg_net::visit::VisitError;

use super::key;
use super::receive::Receiving;
use crate::client_journal;
use crate::daemon::background;
use crate::daemon::running::Running;
use crate::daemon::session::{Purpose, Session};
use crate::daemon::shared_mount::{SharedMount, folder_of};
use crate::devices;
use crate::failure::{Failure, Outcome};
use crate::listen::ListenAddress;
use crate::places::MOUNT_LOG;
use crate::request::MountRequest;
use crate::request::journal_place::JournalPlace;
use crate::request::mount_options::ContentsWord;

/// The pauses before a server that is away is tried again, for the mount itself.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// With a journal, changes are this old before they are sent, unless the mount says otherwise.
const WITH_JOURNAL: Duration = Duration::from_secs(60);

/// A mount of a shared filesystem.
pub(crate) struct Remote {
    pub(crate) address: Address,
    pub(crate) keys: Option<PathBuf>,
    pub(crate) token: Option<Token>,
    pub(crate) request: MountRequest,
    pub(crate) metrics: Option<ListenAddress>,
}

impl Remote {
    fn home(&self) -> Home {
        key::home(self.keys.as_deref())
    }

    /// Becomes a client of the server, if there is a token. Then connects once, so that errors are told at once. A server that
    /// is away is tried again for some time.
    async fn enrol(&self, env: &Env, retry: Duration) -> Result<(), RemoteError> {
        let begun = env.now();
        let mut pause = FIRST_PAUSE;
        loop {
            let joined = self.address.join(env, &self.home(), self.token.as_ref()).await;
            let Err(error) = joined else { return Ok(()) };
            let left = retry.saturating_sub(env.now().since(begun));
            if error.advice() != Advice::Retry || left.is_zero() {
                return Err(error);
            }
            if pause == FIRST_PAUSE {
                tracing::warn!(%error, server = %self.address, "it is tried again");
            }
            env.sleep(pause.min(left)).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// An error of the server or of the keys, with what to do about it.
    fn explain_refusal(&self, error: RemoteError) -> Failure {
        let advice = error.advice();
        let refusal = match &error {
            RemoteError::Visit { source: VisitError::Refused(refusal), .. } => {
                Some(refusal.clone())
            }
            _ => None,
        };
        let failure = match error {
            RemoteError::UnknownServer(server) => {
                Failure::new(format!("the key of the server {server} is not known here"))
            }
            other => Failure::new(other.to_string()),
        };
        let failure = match (advice, &self.token) {
            (Advice::NotPermitted, None) => failure.help(
                "mount it once with --token: `thalweg cluster client add` on the server prints a token",
            ),
            (Advice::NotPermitted, Some(_)) => failure.help(
                "if this user has used the token before, leave it out; `thalweg cluster client add` on the server \
                 prints a new one",
            ),
            (Advice::Invalid, _) => failure.help(self.help_with_path(refusal)),
            (Advice::Retry, _) => {
                failure.help("look there whether `thalweg cluster serve` runs, and on which port")
            }
        };
        self.explain(failure)
    }

    /// What to do about a directory that this client cannot mount.
    fn help_with_path(&self, refusal: Option<Refusal>) -> String {
        match refusal {
            Some(Refusal::Outside { allowed, .. }) => {
                format!("mount {}, or a directory below it", self.address.with_path(&allowed))
            }
            Some(Refusal::NoDirectory(path)) => format!(
                "have a client make {path} that may mount a directory above it, or mount one that is there"
            ),
            _ => "`thalweg cluster client list` on the server prints the directory that this client may mount"
                .to_owned(),
        }
    }

    fn explain(&self, failure: Failure) -> Failure {
        failure.while_doing(format!("cannot mount {}", self.address))
    }

    /// Mounts it, and returns when it is mounted; a background process serves it. `options` are those behind `-o`. With `bg`,
    /// that process waits for a server that is away.
    pub(crate) async fn in_background(&self, env: &Env, options: &[String]) -> Outcome<()> {
        let away = &self.request.options.away;
        let bg = away.goes_to_background();
        let retry = if bg { Duration::ZERO } else { away.retry(false) };
        let is_later = match self.enrol(env, retry).await {
            Ok(()) => false,
            Err(error) if bg && error.advice() == Advice::Retry => {
                eprintln!("{}: {error}; the mount goes on in the background", self.address);
                true
            }
            Err(error) => return Err(self.explain_refusal(error)),
        };
        let mut command: Vec<OsString> = ["mount", "--foreground", "--tell"].map(Into::into).into();
        if is_later {
            command.push("--later".into());
            if let Some(token) = &self.token {
                command.extend(["--token".into(), token.to_string().into()]);
            }
        }
        for list in options {
            command.extend(["-o".into(), list.into()]);
        }
        if let Some(journal) = &self.request.options.journal.journal_dev {
            // The process has another working directory. The last option of a name counts.
            let journal = JournalPlace::parse(journal)?.absolute()?;
            command.extend(["-o".into(), format!("journal_dev={journal}").into()]);
        }
        if let Some(keys) = &self.keys {
            command.extend(["--keys".into(), std::path::absolute(keys)?.into()]);
        }
        if let Some(metrics) = &self.metrics {
            command.extend(["--metrics".into(), metrics.to_string().into()]);
        }
        let address = self.address.to_string();
        let directory = self.request.directory.clone();
        command.extend(["--".into(), address.clone().into(), directory.into()]);
        background::start::<()>(&command, Path::new(&address), MOUNT_LOG)
    }

    /// Mounts it when the server is there, as a background process that has nothing more to report.
    pub(crate) async fn later(&self, env: &Env) -> Outcome<()> {
        background::tell(&Ok(()))?;
        let retry = self.request.options.away.retry(true);
        self.enrol(env, retry).await.map_err(|error| self.explain_refusal(error))?;
        self.start(env).await?.until_stopped().await
    }

    /// Mounts it, and serves the mount until it is unmounted. With `tell`, reports to the parent process first.
    pub(crate) async fn in_foreground(&self, env: &Env, tell: bool) -> Outcome<()> {
        let entered = async {
            if !tell {
                let retry = self.request.options.away.retry(false);
                let enrolled = self.enrol(env, retry).await;
                enrolled.map_err(|error| self.explain_refusal(error))?;
            }
            match &self.request.options.journal.receive {
                Some(place) => {
                    let options = self.client_options(env).await?;
                    let place = (&**place, self.home());
                    let begun = Receiving::begin(env, &self.address, place, options).await;
                    begun.map(Some).map_err(|failure| self.explain(failure))
                }
                None => Ok(None),
            }
        };
        let entered = entered.await;
        if let Ok(Some(receiving)) = entered {
            receiving.show();
            if tell {
                background::tell(&Ok(()))?;
            }
            return self.mount_arrival(env, receiving).await?.until_stopped().await;
        }
        let started = match entered {
            Ok(_) => self.start(env).await,
            Err(failure) => Err(failure),
        };
        if tell {
            background::tell(&started.as_ref().map(|_| ()).map_err(Failure::clone))?;
        }
        started?.until_stopped().await
    }

    async fn start(&self, env: &Env) -> Outcome<Running> {
        let connector = self.address.connector(env, self.home());
        let client = Client::connect(env, connector, self.client_options(env).await?).await;
        let client = client.map_err(|error| self.explain(error.into()))?;
        self.mount_client(env, client).await
    }

    /// Mounts what moves here, when it is here.
    async fn mount_arrival(&self, env: &Env, receiving: Receiving) -> Outcome<Running> {
        let arrival = receiving.arrived().await?;
        let running = self.mount_client(env, arrival.client().clone()).await?;
        drop(arrival.accept());
        receiving.end(env);
        Ok(running)
    }

    /// How the client is to treat the server.
    async fn client_options(&self, env: &Env) -> Outcome<Options> {
        let (options, defaults) = (&self.request.options.journal, Options::default());
        let (journal, mirror) = match &options.journal_dev {
            Some(place) => {
                let opened = client_journal::open(env, place, options.journal_size).await?;
                (Some(opened.device), opened.mirror)
            }
            None => (None, None),
        };
        let mut keepers = Vec::new();
        for keeper in options.replicate.iter().flat_map(|it| &it.hosts) {
            let entrance = KeeperEntrance::new(keeper, env, self.home())?;
            keepers.push(KeeperTarget {
                name: keeper.clone(),
                connector: Arc::new(entrance),
                is_durable: options.replicate.as_ref().is_none_or(|it| it.are_durable),
            });
        }
        let (writeback, expire) = match journal {
            Some(_) => (WITH_JOURNAL, WITH_JOURNAL),
            None => (defaults.writeback, defaults.expire),
        };
        let in_memory = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let options = Options {
            writeback: options.writeback.unwrap_or(writeback),
            expire: options.expire.unwrap_or(expire),
            commit: options.commit.unwrap_or(defaults.commit),
            data: client_journal::data_of(options)?,
            on_conflict: options.on_conflict.unwrap_or(defaults.on_conflict),
            conflict: options.conflict.unwrap_or(defaults.conflict),
            recall: options.recall.unwrap_or(defaults.recall),
            memory: options.memory.map_or(defaults.memory, in_memory),
            background: options.background.map(in_memory),
            sync: options.sync.unwrap_or(defaults.sync),
            host: host_name().unwrap_or(defaults.host),
            journal,
            mirror,
            keepers,
            contents: match self.request.options.contents {
                Some(ContentsWord::Server) => None,
                Some(ContentsWord::Direct) | None => devices::finder(env),
            },
            recover: self.request.options.recover.unwrap_or(defaults.recover),
            // How long calls wait is the mount's business.
            retry: None,
            ..defaults
        };
        Ok(options)
    }

    /// Serves a client's mount.
    async fn mount_client(&self, env: &Env, client: Client) -> Outcome<Running> {
        let session = Arc::new(Session::new(env, Vec::new(), Purpose::Attach));
        let address = self.address.to_string();
        let folder = folder_of(&address)?;
        let mount = SharedMount {
            session: session.clone(),
            client: client.clone(),
            address,
            home: self.home(),
        };
        let mounted =
            session.mounts.mount_shared(client, &self.address, &self.request, folder.clone()).await;
        let running = match mounted {
            Ok(()) => Running::start_shared(mount, &folder, self.metrics.as_ref()),
            Err(failure) => Err(failure),
        };
        if running.is_err() {
            session.close().await?;
        }
        running
    }
}

/// The name of this host, as far as it can be a part of a file's name.
pub(super) fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let allowed = |it: &char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.');
    let name: String = name.trim().chars().filter(allowed).take(64).collect();
    (!name.is_empty()).then_some(name)
}
