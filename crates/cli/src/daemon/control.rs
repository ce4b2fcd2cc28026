//! The server of a control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thalweg_env::{Env, Task, watch};
use thalweg_ipc::socket;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};

use super::leftover;
use crate::control::frame::{Frame, receive, send};
use crate::control::socket::elsewhere;
use crate::failure::{Failure, Outcome};
use crate::places::CONTROL;
use crate::progress::{Report, Step};
use crate::request::{Answer, Request};

/// How long the server waits for the request of a new client.
const PATIENCE: Duration = Duration::from_secs(10);
const BACKLOG: u32 = 16;

/// Answers requests.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(
        &self,
        request: Request,
        report: &dyn Report,
    ) -> impl Future<Output = Outcome<Answer>> + Send;

    /// Called when the client that received `answer` has disconnected.
    fn gone(&self, answer: &Answer) -> impl Future<Output = ()> + Send;
}

/// A listening control socket. Dropping it ends the listener and its connections, and removes the socket.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    folder: PathBuf,
    owned: Owned,
    _task: Task<()>,
}

/// Whether the folder exists for the socket alone, and is removed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owned {
    Yes,
    No,
}

impl Drop for Control {
    // Before the connections end: clients that wait for that open the volume next.
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "the control socket stays");
        }
        if self.owned == Owned::Yes {
            leftover::clear(&self.folder);
        }
    }
}

/// Answers requests on the volume in `folder`, whose lock this process holds: a socket that exists already
/// was left by a dead process.
pub(crate) fn listen<H: Handler>(
    env: &Env,
    folder: &Path,
    owned: Owned,
    handler: Arc<H>,
) -> Outcome<Control> {
    let place = elsewhere(folder).unwrap_or_else(|| (folder.to_owned(), CONTROL.to_owned()));
    let path = place.0.join(&place.1);
    let failed = |error: io::Error| {
        Failure::of(&error).while_doing(format!("cannot listen on {}", path.display()))
    };
    let listener = socket::listen(&place.0, &place.1, BACKLOG).map_err(failed)?;
    let task = env.spawn(accept(env.clone(), listener, handler));
    Ok(Control { path, folder: folder.to_owned(), owned, _task: task })
}

async fn accept<H: Handler>(env: Env, listener: UnixListener, handler: Arc<H>) {
    let mut conversations: Vec<Task<()>> = Vec::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                conversations.retain(|task| !task.is_finished());
                let (env2, handler) = (env.clone(), handler.clone());
                conversations.push(env.spawn(async move {
                    if let Err(error) = converse(&env2, stream, &*handler).await {
                        tracing::debug!(%error, "a control connection failed");
                    }
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control connection");
                env.sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Keeps the newest step, for the connection to send.
struct Newest(watch::Sender<Option<Step>>);

impl Report for Newest {
    fn step(&self, step: Step) {
        self.0.send_replace(Some(step));
    }
}

async fn converse<H: Handler>(env: &Env, mut stream: UnixStream, handler: &H) -> io::Result<()> {
    let request = env.timeout(PATIENCE, receive(&mut stream)).await;
    let Some(request) = request.transpose()? else { return Ok(()) };
    let (steps, mut newest) = watch::channel(None);
    let report = Newest(steps);
    let mut handled = std::pin::pin!(handler.handle(request, &report));
    // After the client disconnects nothing is sent, but the request is carried out.
    let mut listening = true;
    let result = loop {
        tokio::select! {
            biased;
            result = &mut handled => break result,
            Ok(()) = newest.changed() => {
                let step = newest.borrow_and_update().clone();
                if let Some(step) = step && listening {
                    listening = send(&mut stream, &Frame::Step(step)).await.is_ok();
                }
            }
        }
    };
    let last = match result {
        Ok(answer) => Frame::Done(Box::new(answer)),
        Err(failure) => Frame::Failed(failure),
    };
    let sent = send(&mut stream, &last).await;
    let ended = match sent {
        // The client may wait for this end of file; it comes when the client disconnects or this process
        // ends.
        Ok(()) => stream.read(&mut [0; 1]).await.map(drop),
        Err(error) => Err(error),
    };
    if let Frame::Done(answer) = &last {
        handler.gone(answer).await;
    }
    ended
}
