//! `thalweg mount SERVER:/PATH DIRECTORY`: mounts a filesystem that another machine shares.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_cluster::client::address::Address;
use thalweg_cluster::client::{Client, Options};
use thalweg_env::Env;
use thalweg_ipc::remote::{Advice, RemoteError};
use thalweg_net::keys::{Home, Token};

use super::key;
use crate::daemon::background;
use crate::daemon::running::Running;
use crate::daemon::session::{Purpose, Session};
use crate::daemon::shared_mount::{SharedMount, folder_of};
use crate::devices;
use crate::failure::{Failure, Outcome};
use crate::listen::ListenAddress;
use crate::places::MOUNT_LOG;
use crate::request::MountRequest;
use crate::request::mount_options::ContentsWord;

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

    /// Becomes a client of the server, if there is a token. Then connects once, so that errors are told at once.
    async fn enrol(&self, env: &Env) -> Outcome<()> {
        let joined = self.address.join(env, &self.home(), self.token.as_ref()).await;
        joined.map_err(|error| self.explain_refusal(error))
    }

    /// An error of the server or of the keys, with what to do about it.
    fn explain_refusal(&self, error: RemoteError) -> Failure {
        let advice = error.advice();
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
            (Advice::Invalid, _) => failure.help(
                "`thalweg cluster client list` on the server prints the directory that this client may mount",
            ),
            (Advice::Retry, _) => {
                failure.help("look there whether `thalweg cluster serve` runs, and on which port")
            }
        };
        self.explain(failure)
    }

    fn explain(&self, failure: Failure) -> Failure {
        failure.while_doing(format!("cannot mount {}", self.address))
    }

    /// Mounts it, and returns when it is mounted; a background process serves it. `options` are those behind `-o`.
    pub(crate) async fn in_background(&self, env: &Env, options: &[String]) -> Outcome<()> {
        self.enrol(env).await?;
        let mut command: Vec<OsString> = ["mount", "--foreground", "--tell"].map(Into::into).into();
        for list in options {
            command.extend(["-o".into(), list.into()]);
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

    /// Mounts it, and serves the mount until it is unmounted. With `tell`, reports to the parent process first.
    pub(crate) async fn in_foreground(&self, env: &Env, tell: bool) -> Outcome<()> {
        let started = async {
            if !tell {
                self.enrol(env).await?;
            }
            self.start(env).await
        };
        let started = started.await;
        if tell {
            background::tell(&started.as_ref().map(|_| ()).map_err(Failure::clone))?;
        }
        started?.until_stopped().await
    }

    async fn start(&self, env: &Env) -> Outcome<Running> {
        let connector = self.address.connector(env, self.home());
        let (journal, defaults) = (&self.request.options.journal, Options::default());
        let options = Options {
            writeback: journal.writeback.unwrap_or(defaults.writeback),
            expire: journal.expire.unwrap_or(defaults.expire),
            contents: match self.request.options.contents {
                Some(ContentsWord::Server) => None,
                Some(ContentsWord::Direct) | None => devices::finder(env),
            },
            recover: self.request.options.recover.unwrap_or(defaults.recover),
            ..defaults
        };
        let client = Client::connect(env, connector, options).await;
        let client = client.map_err(|error| self.explain(error.into()))?;
        let session = Arc::new(Session::new(env, Vec::new(), Purpose::Attach));
        let address = self.address.to_string();
        let folder = folder_of(&address)?;
        let mount = SharedMount { session: session.clone(), client: client.clone(), address };
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
