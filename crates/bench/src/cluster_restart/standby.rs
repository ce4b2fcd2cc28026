//! A server on a Ceph cluster is killed, and a standby on what looks like another machine goes on in its place.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use thalweg_cluster::client::address::Address;
use thalweg_cluster::client::{self, Client};
use thalweg_env::Env;
use thalweg_fs::Filesystem;
use thalweg_net::keys::{Home, Token};

use super::{CLIENTS, Maker};
use crate::ceph::{Ceph, POOL};
use crate::machine::{Machine, Need, output};
use crate::peer::Peer;
use crate::rig::{failed, rounded};
use crate::{BenchError, Options, Report};

/// The requirements of this part. A process gets a host name of its own by `unshare`.
const NEEDS: [Need; 6] = [
    Need::Librados,
    Need::MiniCluster,
    Need::CephProgram("ceph-mon"),
    Need::CephProgram("ceph-osd"),
    Need::Root,
    Need::Program("unshare"),
];
/// Seconds.
const LEASE: u32 = 10;

/// Measures it and adds the figures. Without a Ceph cluster, says so and adds none.
pub(super) fn run(
    options: &Options,
    (scale, files): (f64, u64),
    report: &mut Report,
) -> Result<(), BenchError> {
    let machine = match Machine::new(options, scale, NEEDS.into_iter()) {
        Err(error @ BenchError::Invalid(_)) => {
            eprintln!("SKIPPED: a standby on a Ceph cluster: {error}");
            return Ok(());
        }
        machine => machine?,
    };
    let ceph = Ceph::start("bluestore", 0)?;
    let site = Site::start(&machine, &ceph)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let (seconds, lost) = runtime.map_err(failed)?.block_on(measure(site, files))?;
    report
        .figure("rados_standby_seconds", rounded(seconds))
        .figure("rados_lease", LEASE)
        .figure("rados_standby_seconds_beyond_lease", rounded(seconds - f64::from(LEASE)))
        .figure("rados_files_lost", lost);
    Ok(())
}

/// A served filesystem with a standby.
struct Site {
    address: Address,
    home: Home,
    token: Token,
    serving: Peer,
    _standby: Peer,
}

/// The image on the command line.
fn image() -> String {
    format!("rados:{POOL}/bench")
}

/// A command with the servers' keys.
fn on(machine: &Machine, ceph: &Ceph, program: &Path, words: &[&str]) -> Command {
    let keys = machine.folder.path().join("keys-server");
    let mut command = Command::new(program);
    command.args(words).env("CEPH_CONF", ceph.conf()).env_remove("CEPH_ARGS");
    command.env("THALWEG_KEYS", keys);
    command
}

/// The command that serves the image at `place` under a host name of its own. The end of a process on the standby's own machine
/// would be noticed at once.
fn serve(machine: &Machine, ceph: &Ceph, host: &str, place: &str) -> Command {
    let named = ["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", host];
    let mut command = on(machine, ceph, Path::new("unshare"), &named);
    command.arg(machine.program()).args(["cluster", "serve", "--json", "--standby"]);
    command.args(["--lease", &LEASE.to_string(), "--listen", place]).arg(image());
    command
}

/// Two places on loopback that were free a moment ago: clients name the standby before it listens.
fn free_places() -> Result<[String; 2], BenchError> {
    let listen = || TcpListener::bind("127.0.0.1:0").map_err(failed);
    let listeners = [listen()?, listen()?];
    let [one, two] = listeners.map(|it| it.local_addr().map_err(failed));
    Ok([one?.to_string(), two?.to_string()])
}

impl Site {
    fn start(machine: &Machine, ceph: &Ceph) -> Result<Site, BenchError> {
        let thalweg = |words: &[&str]| on(machine, ceph, machine.program(), words);
        output(thalweg(&["cluster", "create"]).arg(image()))?;
        let places = free_places()?;
        let (serving, _) = Peer::announced(&mut serve(machine, ceph, "first", &places[0]))?;
        let stands_by = || {
            let status = output(thalweg(&["cluster", "status", "--json"]).arg(image()));
            let status = status.ok().and_then(|said| serde_json::from_str::<Value>(&said).ok());
            status.is_some_and(|it| it["standbys"].as_array().is_some_and(|all| !all.is_empty()))
        };
        let standby = Peer::until(&mut serve(machine, ceph, "second", &places[1]), stands_by)?;
        let add = ["cluster", "client", "add", "bench", "--path", "/", "--rw", "--squash", "none"];
        let token = output(&mut thalweg(&add))?.trim().parse().map_err(failed)?;
        let servers = places.map(|place| place + ",").concat();
        let address = Address::of(&format!("{}:/", servers.trim_end_matches(',')));
        let address = address.transpose().map_err(failed)?;
        let address =
            address.ok_or_else(|| BenchError::Invalid(format!("{servers}: no address")))?;
        let home = Home::at(machine.folder.path().join("keys-clients"));
        Ok(Site { address, home, token, serving, _standby: standby })
    }
}

/// A new client, which makes each change by a call.
async fn connect(site: &(Address, Home), env: &Env) -> Result<Client, BenchError> {
    let (address, home) = site;
    let options = client::Options { exclusive: None, ..client::Options::default() };
    let connector = address.connector(env, home.clone());
    Client::connect(env, connector, options).await.map_err(failed)
}

/// Seconds from the kill until the last client has an answer to a call that it made later, and acknowledged files that are not
/// there then.
async fn measure(site: Site, files: u64) -> Result<(f64, u64), BenchError> {
    let env = Env::real();
    let Site { address, home, token, serving, _standby } = site;
    address.join(&env, &home, Some(&token)).await.map_err(failed)?;
    let site = (address, home);
    let mut makers = Vec::new();
    for number in 0..CLIENTS {
        let process = env.node();
        let client = connect(&site, process.env()).await?;
        makers.push(Maker::new(process, client, number).await?);
    }
    let making = makers.iter().map(|it| it.make(files));
    for made in futures::future::join_all(making).await {
        made.map_err(failed)?;
    }
    makers.iter_mut().for_each(Maker::begin);
    env.sleep(Duration::from_secs(1)).await;
    let killed = env.now();
    serving.kill()?;
    let going = makers.iter().map(|it| it.client.statistics());
    for gone in futures::future::join_all(going).await {
        gone.map_err(failed)?;
    }
    let seconds = env.now().since(killed).as_secs_f64();
    makers.iter().for_each(Maker::stop);
    let reader = connect(&site, &env).await?;
    let mut lost = 0;
    for maker in &mut makers {
        maker.end().await.map_err(failed)?;
        lost += maker.lost(&reader).await?;
    }
    Ok((seconds, lost))
}
