//! `thalweg serve`: serves volumes over NBD and over the transaction sockets.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use thalweg_env::Env;
use thalweg_fuse::state;
use thalweg_nbd::{Server, ServerConfig, ServerError, TlsConfig, UnixSocketOptions};
use thalweg_net::keys::Home;
use thalweg_replica::PrimaryOptions;

use super::key;
use crate::daemon::entrance::Entrance;
use crate::daemon::network;
use crate::daemon::running::Running;
use crate::daemon::session::{Purpose, Session};
use crate::failure::{Failure, Outcome};
use crate::listen::{ListenAddress, is_absent};
use crate::output;
use crate::size::Size;
use crate::target::{JournalDev, Target};
use crate::volume::opened::Opened;

/// Serve volumes over NBD, and their transactions to programs
///
/// Programs that use Thalweg's library for C, Python or Rust find the socket for transactions in the volume's
/// folder. With --listen they can be on other machines, where a volume is thalweg://HOST:PORT/NAME; they need keys: see
/// `thalweg key`.
///
/// A volume's snapshots are served beside it, read-only, as NAME@SNAPSHOT; FOLDER@SNAPSHOT serves that
/// snapshot alone. The first SIGINT or SIGTERM shuts the server down cleanly, the second one at once.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    options: Options,
    /// Folder with the keys [default: $THALWEG_KEYS; or /etc/thalweg for root, ~/.config/thalweg for others]
    #[arg(long, value_name = "FOLDER", requires = "listen")]
    keys: Option<PathBuf>,
    /// Answer a flush when the change is durable at N replicas, too. Flushes wait while fewer are connected
    #[arg(
        long,
        value_name = "N",
        requires = "listen",
        default_value_t = 0,
        hide_default_value = true
    )]
    ack: usize,
    /// Send at most SIZE in a second to all replicas that need a copy; what is written meanwhile is not limited
    #[arg(long, value_name = "SIZE", requires = "listen", value_parser = rate)]
    copy_rate: Option<NonZeroU64>,
}

fn rate(text: &str) -> Result<NonZeroU64, String> {
    let Size(bytes) = text.parse()?;
    NonZeroU64::new(bytes).ok_or_else(|| "a copy would never end".to_owned())
}

/// What is served, and where.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Folders of volumes, FOLDER@SNAPSHOT, or devices or images of in-place volumes
    #[arg(required = true, value_name = "VOLUME")]
    volumes: Vec<String>,
    #[command(flatten)]
    journal: JournalDev,
    /// Let clients write to whole volumes that have partitions, for example to restore an image; by default
    /// these are read-only
    #[arg(long)]
    writable: bool,
    /// The Unix socket, made with mode 0600 [default: NAME.sock under /run/thalweg; for
    /// other users than root under $XDG_RUNTIME_DIR/thalweg or /tmp/thalweg-UID]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Also listen on TCP, for example localhost:10809 or 0.0.0.0:10809: on every address of the host
    #[arg(long, value_name = "HOST:PORT")]
    tcp: Option<ListenAddress>,
    /// Certificate chain for TCP; clients must then use TLS
    #[arg(long, value_name = "FILE.pem", requires_all = ["tcp", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate
    #[arg(long, value_name = "FILE.pem", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Authority that must have signed the clients' certificates
    #[arg(long, value_name = "FILE.pem", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Serve transactions to programs on other machines, too, that have keys
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<ListenAddress>,
    /// Maximum number of NBD clients, for each kind of socket
    #[arg(long, value_name = "N", default_value_t = ServerConfig::default().max_connections)]
    max_connections: usize,
    /// Serve metrics for Prometheus over HTTP, on localhost:PORT for example
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<ListenAddress>,
    /// Print the sockets and URIs as one JSON object
    #[arg(long)]
    json: bool,
}

/// Opens each volume once, even if several targets name it.
async fn open_all(env: &Env, targets: &[Target], role: Role) -> Outcome<Vec<Opened>> {
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
        opened.push(match role {
            Role::Alone(_) => Opened::open(env, &whole).await?,
            Role::Following => Opened::open_to_follow(env, &whole).await?,
        });
    }
    Ok(opened)
}

/// What becomes of the volumes.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// They are written here, and may have replicas.
    Alone(PrimaryOptions),
    /// They follow others.
    Following,
}

pub(crate) async fn run(env: &Env, args: Serve) -> Outcome<()> {
    let Serve { options, keys, ack, copy_rate } = args;
    let treated = PrimaryOptions { ack, copy_rate, ..PrimaryOptions::default() };
    serve(env, options, keys, Role::Alone(treated)).await
}

/// Serves volumes that follow others.
pub(crate) async fn follow(env: &Env, args: Options, keys: Option<PathBuf>) -> Outcome<()> {
    serve(env, args, keys, Role::Following).await
}

async fn serve(env: &Env, args: Options, keys: Option<PathBuf>, role: Role) -> Outcome<()> {
    let home = key::home(keys.as_deref());
    let targets = args.volumes.iter().map(|text| Target::find(text));
    let mut targets = targets.collect::<Outcome<Vec<_>>>()?;
    if let Some(journal) = &args.journal.journal_dev {
        let mut in_place = targets.iter_mut().filter(|target| target.is_in_place());
        let (Some(target), None) = (in_place.next(), in_place.next()) else {
            return Err(Failure::new("--journal-dev is for one volume that is updated in place"));
        };
        target.journal = Some(journal.clone());
    }
    let volumes = open_all(env, &targets, role).await?;
    let limits = ServerConfig { max_connections: args.max_connections, ..ServerConfig::default() };
    raise_file_limit();
    let session = Arc::new(Session::with(env, volumes, Purpose::Serve, limits));
    if args.writable {
        session.exports.allow_writes();
    }
    let running = Running::start(&session, args.metrics.as_ref())?;
    let served = async {
        if let Role::Alone(options) = role {
            // Before anything is served.
            session.replicas.treat(env, &session.volumes, options).await?;
        }
        let served = start(&session, &args, home.clone(), &targets).await?;
        for volume in &session.volumes {
            match role {
                Role::Following => session.replicas.follow(env, volume, home.clone()).await?,
                Role::Alone(_) => session.replicas.tell_replaced(env, volume, home.clone()).await,
            }
        }
        Ok(served)
    };
    match served.await {
        // The network is there until the session has ended.
        Ok((place, _network)) => {
            announce(&session, &place, args.json);
            running.until_stopped().await
        }
        Err(failure) => {
            running.close().await?;
            Err(failure)
        }
    }
}

/// Raises the limit of open files to the hard limit: each connection takes a descriptor, and the soft limit
/// is often 1,024.
fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for both calls, which use no other memory.
    let raised = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0
        }
    };
    if !raised {
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// The addresses of a server.
struct Place {
    socket: PathBuf,
    tcp: Vec<SocketAddr>,
    /// Whether clients on TCP must use TLS.
    tls: bool,
    /// Where clients with keys find transactions.
    network: Vec<SocketAddr>,
}

async fn start(
    session: &Arc<Session>,
    args: &Options,
    home: Home,
    targets: &[Target],
) -> Outcome<(Place, Option<Entrance>)> {
    for volume in &session.volumes {
        let of = || targets.iter().filter(|target| target.folder == volume.target.folder);
        match of().any(|target| target.snapshot.is_none()) {
            true => session.exports.export_all(volume)?,
            false => {
                of().try_for_each(|it| session.exports.export(volume, it.snapshot.as_deref()))?
            }
        }
    }
    let socket = match &args.socket {
        Some(path) => std::path::absolute(path)?,
        None => default_socket(&targets[0].name)?,
    };
    session.exports.server().listen_unix(&socket, UnixSocketOptions::default(), None)?;
    let tcp = match &args.tcp {
        None => Vec::new(),
        Some(address) => listen_tcp(session.exports.server(), address, tls(args)?).await?,
    };
    let is_tls = args.tls_cert.is_some();
    if let Some(address) = tcp.iter().find(|it| !is_tls && !it.ip().is_loopback()) {
        tracing::warn!(%address, "without --tls-cert nothing is encrypted");
    }
    let network = match &args.listen {
        None => None,
        Some(address) => Some(network::start(session, address, home).await?),
    };
    let addresses = network.iter().flat_map(|network| network.addresses().to_vec()).collect();
    Ok((Place { socket, tcp, tls: is_tls, network: addresses }, network))
}

/// Listens on every address of a host.
async fn listen_tcp(
    server: &Server,
    address: &ListenAddress,
    tls: Option<TlsConfig>,
) -> Outcome<Vec<SocketAddr>> {
    let open = async |place| Ok((server.listen_tcp(place, tls.clone()).await?, ()));
    let absent = |error: &ServerError| match error {
        ServerError::Tcp { source, .. } => is_absent(source),
        _ => false,
    };
    let listening = address.open_all(open, absent).await?;
    Ok(listening.into_iter().map(|(address, ())| address).collect())
}

fn tls(args: &Options) -> Outcome<Option<TlsConfig>> {
    let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) else { return Ok(None) };
    Ok(Some(TlsConfig::from_pem_files(cert, key, args.tls_ca.as_deref(), true)?))
}

/// A path for the socket that only this user can reach.
fn default_socket(name: &str) -> Outcome<PathBuf> {
    match state::folder() {
        Ok(folder) => Ok(folder.join(format!("{name}.sock"))),
        Err(error) => Err(Failure::of(&error).help("name another place: --socket PATH")),
    }
}

fn announce(session: &Session, place: &Place, json: bool) {
    let exports = session.exports.server().exports();
    let volumes = session.volumes.iter().map(|volume| &*volume.target.name);
    let remote = volumes.flat_map(|name| addresses(name, place));
    let uris: Vec<String> =
        exports.iter().flat_map(|name| uris(name, place)).chain(remote).collect();
    if json {
        let tcp = place.tcp.first().map(|address| address.to_string());
        let object = serde_json::json!({
            "socket": place.socket, "tcp": tcp, "exports": exports, "uris": uris,
            "listen": place.network,
        });
        println!("{object}");
    } else {
        uris.iter().for_each(|uri| println!("{uri}"));
    }
    output::flush();
}

/// All URIs of an export.
fn uris(export: &str, place: &Place) -> Vec<String> {
    let export = escaped(export.as_bytes(), "");
    let socket = escaped(place.socket.as_os_str().as_bytes(), "/");
    let scheme = if place.tls { "nbds" } else { "nbd" };
    let unix = format!("nbd+unix:///{export}?socket={socket}");
    let tcp = place.tcp.iter().map(|address| format!("{scheme}://{address}/{export}"));
    std::iter::once(unix).chain(tcp).collect()
}

/// The addresses of a volume's transactions.
fn addresses(volume: &str, place: &Place) -> Vec<String> {
    let servers = place.network.iter();
    servers.map(|address| format!("thalweg://{address}/{volume}")).collect()
}

/// Percent-encodes a part of a URI, except unreserved characters (RFC 3986, 2.3) and those in `kept`.
fn escaped(bytes: &[u8], kept: &str) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' | b'@' => {
                text.push(char::from(*byte));
            }
            byte if kept.as_bytes().contains(byte) => text.push(char::from(*byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_the_scheme_and_escape_what_is_no_name() {
        let place = |tls| Place {
            socket: "/run/a b?.sock".into(),
            tcp: vec!["127.0.0.1:10809".parse().unwrap(), "[::1]:10809".parse().unwrap()],
            tls,
            network: Vec::new(),
        };
        let unix = "nbd+unix:///my%20vol%23%2F%C3%A9@monday?socket=/run/a%20b%3F.sock";
        assert_eq!(
            uris("my vol#/é@monday", &place(true)),
            [
                unix,
                "nbds://127.0.0.1:10809/my%20vol%23%2F%C3%A9@monday",
                "nbds://[::1]:10809/my%20vol%23%2F%C3%A9@monday",
            ]
        );
        assert_eq!(uris("vol", &place(false))[1], "nbd://127.0.0.1:10809/vol");
    }
}
