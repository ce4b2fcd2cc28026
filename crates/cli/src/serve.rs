//! `thalweg serve`: volumes for clients that speak NBD, and for those that run transactions.

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use thalweg_nbd::{TlsConfig, UnixSocketOptions};
use thalweg_store::env::{Env, Task};
use tokio::sync::watch;

use crate::control::{self, Control};
use crate::failure::{Failure, Outcome};
use crate::opened::Opened;
use crate::session::{Administered, Purpose, Session};
use crate::target::{JournalDev, Target};
use crate::{metrics, signals};

/// Serve volumes over NBD, and their transactions to programs on this machine
///
/// Programs that use Thalweg's library for C, Python or Rust find a socket for transactions in the
/// volume's folder.
///
/// A volume's snapshots are served beside it, read-only, as NAME@SNAPSHOT; naming FOLDER@SNAPSHOT
/// serves that snapshot alone. The first SIGINT or SIGTERM ends the server in order, the second one
/// at once.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Folders of volumes, FOLDER@SNAPSHOT, or devices of volumes that are updated in place
    #[arg(required = true, value_name = "VOLUME")]
    volumes: Vec<String>,
    #[command(flatten)]
    journal: JournalDev,
    /// The Unix socket, made with mode 0600 [default: NAME.sock under /run/thalweg, or
    /// $XDG_RUNTIME_DIR/thalweg]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Also listen on a TCP address, such as 0.0.0.0:10809
    #[arg(long, value_name = "ADDRESS:PORT")]
    tcp: Option<SocketAddr>,
    /// Certificate chain for TCP; clients must then use TLS
    #[arg(long, value_name = "FILE.pem", requires_all = ["tcp", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate
    #[arg(long, value_name = "FILE.pem", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Authority that must have signed the clients' certificates
    #[arg(long, value_name = "FILE.pem", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Serve metrics for Prometheus over HTTP, on 127.0.0.1:PORT for example
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Say where the volumes are served as one JSON object
    #[arg(long)]
    json: bool,
}

/// Opens what the targets name, each volume once.
async fn open_all(env: &Env, targets: &[Target]) -> Outcome<Vec<Opened>> {
    let mut opened: Vec<Opened> = Vec::new();
    for target in targets {
        if opened.iter().any(|known| known.target.folder == target.folder) {
            continue;
        }
        if let Some(other) = opened.iter().find(|known| known.target.name == target.name) {
            let (one, two) = (other.target.place().display(), target.place().display());
            return Err(Failure::new(format!(
                "{one} and {two} would both be called {}",
                target.name
            ))
            .help("serve them with two servers, or rename one of the folders"));
        }
        let whole = Target { snapshot: None, ..target.clone() };
        opened.push(Opened::open(env, &whole).await?);
    }
    Ok(opened)
}

pub(crate) async fn run(env: &Env, args: Serve) -> Outcome<()> {
    let targets = args.volumes.iter().map(|text| Target::find(text));
    let mut targets = targets.collect::<Outcome<Vec<_>>>()?;
    if let Some(journal) = &args.journal.journal_dev {
        let mut in_place = targets.iter_mut().filter(|target| target.device.is_some());
        let (Some(target), None) = (in_place.next(), in_place.next()) else {
            return Err(Failure::new("--journal-dev is for one volume that is updated in place"));
        };
        target.journal = Some(journal.clone());
    }
    let volumes = open_all(env, &targets).await?;
    let session = Arc::new(Session::new(env, volumes, Purpose::Serve));
    let running = Running::start(&session, args.metrics)?;
    let served = start(&session, &args, &targets).await;
    match served {
        Ok(place) => {
            announce(&session, &place, args.json);
            running.until_stopped().await
        }
        Err(failure) => {
            running.close().await?;
            Err(failure)
        }
    }
}

/// Where clients find a server.
struct Place {
    socket: PathBuf,
    tcp: Option<SocketAddr>,
}

async fn start(session: &Session, args: &Serve, targets: &[Target]) -> Outcome<Place> {
    for volume in session.volumes() {
        let of = || targets.iter().filter(|target| target.folder == volume.target.folder);
        match of().any(|target| target.snapshot.is_none()) {
            true => session.export_all(volume)?,
            false => of().try_for_each(|it| session.export(volume, it.snapshot.as_deref()))?,
        }
    }
    let socket = match &args.socket {
        Some(path) => std::path::absolute(path)?,
        None => default_socket(&targets[0].name)?,
    };
    session.server().listen_unix(&socket, UnixSocketOptions::default(), None)?;
    let tcp = match args.tcp {
        None => None,
        Some(address) => Some(session.server().listen_tcp(address, tls(args)?).await?),
    };
    if let Some(address) = tcp.filter(|it| args.tls_cert.is_none() && !it.ip().is_loopback()) {
        tracing::warn!(%address, "without --tls-cert everything travels in the clear");
    }
    Ok(Place { socket, tcp })
}

fn tls(args: &Serve) -> Outcome<Option<TlsConfig>> {
    let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) else { return Ok(None) };
    Ok(Some(TlsConfig::from_pem_files(cert, key, args.tls_ca.as_deref(), true)?))
}

/// A place for the socket that only this user can reach.
fn default_socket(name: &str) -> Outcome<PathBuf> {
    // SAFETY: the call only reads the process's identity and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let base = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(base) if !root => PathBuf::from(base),
        _ if root => PathBuf::from("/run"),
        _ => {
            return Err(Failure::new("there is no XDG_RUNTIME_DIR to put the socket in")
                .help("name a place for it: --socket PATH"));
        }
    };
    let folder = base.join("thalweg");
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(Failure::of(&error)
            .while_doing(format!("cannot make {}", folder.display()))
            .help("name another place: --socket PATH")),
        _ => Ok(folder.join(format!("{name}.sock"))),
    }
}

fn announce(session: &Session, place: &Place, json: bool) {
    let exports = session.server().exports();
    if json {
        let tcp = place.tcp.map(|address| address.to_string());
        let object = serde_json::json!({ "socket": place.socket, "tcp": tcp, "exports": exports });
        println!("{object}");
        return;
    }
    for name in exports {
        println!("{}", uri(&name, &place.socket));
        if let Some(address) = place.tcp {
            println!("nbd://{address}/{name}");
        }
    }
}

fn uri(export: &str, socket: &Path) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

/// A session with its control sockets, metrics and signals.
pub(crate) struct Running {
    session: Arc<Session>,
    stopped: watch::Receiver<bool>,
    controls: Vec<Control>,
    _tasks: Vec<Task<()>>,
}

impl Running {
    pub(crate) fn start(session: &Arc<Session>, metrics: Option<SocketAddr>) -> Outcome<Running> {
        let env = session.env().clone();
        let mut tasks = vec![signals::watch(&env, session.stop().clone())?];
        if let Some(address) = metrics {
            tasks.extend(metrics::start(&env, address, session.clone())?);
        }
        let watched = session.clone();
        tasks.push(env.spawn(async move { watched.watch_devices().await }));
        let controls = session.volumes().iter().map(|volume| {
            let (session, volume) = (session.clone(), volume.clone());
            let folder = volume.target.folder.clone();
            control::listen(&env, &folder, Arc::new(Administered { session, volume }))
        });
        let controls = controls.collect::<Outcome<Vec<Control>>>()?;
        session.volumes().iter().try_for_each(|volume| session.serve_transactions(volume))?;
        let stopped = session.stop().subscribe();
        Ok(Running { session: session.clone(), stopped, controls, _tasks: tasks })
    }

    /// Serves until the session is asked to end, then ends it.
    pub(crate) async fn until_stopped(mut self) -> Outcome<()> {
        // The sender lives in the session, so this ends with a true.
        let _ = self.stopped.wait_for(|stopped| *stopped).await;
        self.close().await
    }

    pub(crate) async fn close(self) -> Outcome<()> {
        let result = self.session.close().await;
        // Clients that wait for the end on a control socket hear of it only now.
        drop(self.controls);
        result
    }
}
