//! The control socket of a volume that is in use: how one process asks another to act on it.
//!
//! It is a Unix socket with mode 0600 in the volume's folder. A frame is a length (u32, little endian) and
//! that many bytes of JSON. The client sends one [`Request`]; the server sends any number of [`Frame::Step`]s
//! and then one [`Frame::Done`] or [`Frame::Failed`]. The server finishes the request even if the client
//! disconnects.
//!
//! If this user cannot write to the volume's folder, for example on a read-only medium, the socket is in one
//! of this user's directories.

use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thalweg_env::{Env, Task};
use thalweg_ipc::socket;
use thalweg_store::open::unique;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::failure::{Failure, Outcome};
use crate::leftover;
use crate::progress::{Report, Step};
use crate::request::{Answer, Request};

/// The socket's name in the volume's folder.
pub(crate) const SOCKET: &str = "control.sock";
/// Longest frame; a status with the maximum number of snapshots is many times smaller.
const MAX_FRAME: u32 = 16 << 20;
/// How long the server waits for the request of a new client.
const PATIENCE: Duration = Duration::from_secs(10);
const BACKLOG: u32 = 16;
/// Characters of a volume's name in the name of a socket outside of its folder.
const NAME_SHOWN: usize = 16;

/// A frame from the server.
#[derive(Debug, Serialize, Deserialize)]
enum Frame {
    Step(Step),
    Done(Box<Answer>),
    Failed(Failure),
}

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

/// Whether this user may write to the file or folder at `path`.
fn check_writable(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a terminated string, alive for the call.
    match unsafe { libc::access(path.as_ptr(), libc::W_OK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The directory and the name of a volume's socket if this user cannot write to the volume's folder; `None`
/// if it is in that folder.
pub(crate) fn elsewhere(folder: &Path) -> Option<(PathBuf, String)> {
    if check_writable(folder).is_ok() {
        return None;
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    // A socket's path has to fit into an address (108 bytes).
    let name: String = name.chars().take(NAME_SHOWN).collect();
    let directory = thalweg_fuse::state::directory("read-only");
    match directory {
        Ok(directory) => Some((directory, format!("{}.sock", unique(&name, folder)))),
        Err(error) => {
            tracing::debug!(%error, "no directory for sockets");
            None
        }
    }
}

/// Whether the control socket in a volume's folder refuses this user: it belongs to another user's server,
/// which may be dead.
pub(crate) fn is_closed_to_us(folder: &Path) -> bool {
    let refused = |error: io::Error| error.kind() == ErrorKind::PermissionDenied;
    check_writable(&folder.join(SOCKET)).is_err_and(refused)
}

/// Answers requests on the volume in `folder`, whose lock this process holds: a socket that exists already
/// was left by a dead process.
pub(crate) fn listen<H: Handler>(
    env: &Env,
    folder: &Path,
    owned: Owned,
    handler: Arc<H>,
) -> Outcome<Control> {
    let place = elsewhere(folder).unwrap_or_else(|| (folder.to_owned(), SOCKET.to_owned()));
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
        let connected = match socket::connect(folder, SOCKET).await {
            Ok(None) => match elsewhere(folder) {
                Some((folder, name)) => socket::connect(&folder, &name).await,
                None => Ok(None),
            },
            connected => connected,
        };
        match connected {
            Ok(stream) => Ok(stream.map(Client)),
            Err(error) => {
                let path = folder.join(SOCKET);
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

    /// Waits until the other process has closed the volume.
    pub(crate) async fn closed(mut self) {
        let mut nothing = [0; 1];
        // An error also means that the other process has ended.
        let _ = self.0.read(&mut nothing).await;
    }
}

async fn send<S: AsyncWrite + Unpin, T: Serialize>(stream: &mut S, message: &T) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let len = u32::try_from(bytes.len()).ok().filter(|len| *len <= MAX_FRAME);
    let len = len.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a message is too long"))?;
    stream.write_all(&len.to_le_bytes()).await?;
    stream.write_all(&bytes).await
}

async fn receive<S: AsyncRead + Unpin, T: DeserializeOwned>(stream: &mut S) -> io::Result<T> {
    let len = stream.read_u32_le().await?;
    if len > MAX_FRAME {
        return Err(io::Error::new(ErrorKind::InvalidData, "a message is too long"));
    }
    let mut bytes = Vec::new();
    stream.take(u64::from(len)).read_to_end(&mut bytes).await?;
    if bytes.len() < len as usize {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&bytes)?)
}
