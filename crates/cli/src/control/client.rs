//! The client of a control socket.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_ipc::socket;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;

use super::frame::{Frame, receive, send};
use super::socket::{elsewhere, is_closed_to_us};
use crate::failure::{Failure, Outcome};
use crate::places::CONTROL;
use crate::progress::Report;
use crate::request::{Answer, Request};

/// How long a process that has closed its volumes may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to the process that has a volume open.
#[derive(Debug)]
pub(crate) struct Client(UnixStream);

impl Client {
    /// Connects for a request that changes nothing; `None` also if the socket refuses this user. Its server
    /// may be dead; if it lives, the locks on the devices refuse the opening.
    pub(crate) async fn connect_to_look(folder: &Path) -> Outcome<Option<Client>> {
        match is_closed_to_us(folder) {
            true => Ok(None),
            false => Client::connect(folder).await,
        }
    }

    /// Connects; `None` when no process has the volume open.
    pub(crate) async fn connect(folder: &Path) -> Outcome<Option<Client>> {
        let connected = match socket::connect(folder, CONTROL).await {
            Ok(None) => match elsewhere(folder) {
                Some((folder, name)) => socket::connect(&folder, &name).await,
                None => Ok(None),
            },
            connected => connected,
        };
        match connected {
            Ok(stream) => Ok(stream.map(Client)),
            Err(error) => {
                let path = folder.join(CONTROL);
                let failure =
                    Failure::of(&error).while_doing(format!("cannot open {}", path.display()));
                Err(failure.help("run as the user who serves the volume"))
            }
        }
    }

    /// Sends the request and waits for its answer.
    pub(crate) async fn ask(&mut self, request: &Request, report: &dyn Report) -> Outcome<Answer> {
        self.try_ask(request, report).await?.map_err(|error| {
            Failure::of(&error)
                .while_doing("the process that serves the volume went away")
                .help("look at its messages; thalweg volume status shows the volume's state")
        })
    }

    /// As [`Client::ask`], but tells a refused request (outer error) from a lost connection (inner error).
    pub(crate) async fn try_ask(
        &mut self,
        request: &Request,
        report: &dyn Report,
    ) -> Outcome<io::Result<Answer>> {
        if let Err(error) = send(&mut self.0, request).await {
            return Ok(Err(error));
        }
        loop {
            match receive(&mut self.0).await {
                Ok(Frame::Step(step)) => report.step(step),
                Ok(Frame::Done(answer)) => return Ok(Ok(*answer)),
                Ok(Frame::Failed(failure)) => return Err(failure),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Waits until the other process has closed the volume and ended. Before its end it may still have devices open.
    pub(crate) async fn closed(mut self, env: &Env) {
        // While it is connected its number is no other process's.
        let process = self.process();
        let mut nothing = [0; 1];
        // An error also means that the other process has ended.
        let _ = self.0.read(&mut nothing).await;
        let Some(process) = process else { return };
        if env.timeout(PATIENCE, process.readable()).await.is_none() {
            tracing::warn!("the process that served the volume does not end");
        }
    }

    /// The process at the other end, if the kernel shows it; readable when it has ended.
    fn process(&self) -> Option<AsyncFd<OwnedFd>> {
        let number = self.0.peer_cred().ok()?.pid()?;
        // SAFETY: the call takes plain numbers.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
        let opened = i32::try_from(opened).ok().filter(|it| *it >= 0)?;
        // SAFETY: the kernel has just returned this descriptor, which nothing else owns.
        let process = unsafe { OwnedFd::from_raw_fd(opened) };
        // SAFETY: the descriptor is closed by its owner, after it is deregistered.
        unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }.ok()
    }
}
