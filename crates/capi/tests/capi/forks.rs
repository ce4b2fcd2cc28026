//! Children of programs that have a volume or a filesystem open.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_ipc::{Config, Connection, Server};
use thalweg_net::keys::Access;
use thalweg_store::pool::{OpenOptions, Pool};

use crate::sharing::{Sharing, mkfs, volume_with_files};
use crate::{Process, calls, in_place, program, runtime, volume};

#[test]
fn a_child_uses_nothing_that_its_parent_has_open() {
    let [home, empty] = [volume(), volume()];
    let empty = empty.path().join("vol");
    calls("forks", &home.path().join("vol"), &["0", empty.to_str().unwrap()]);
}

#[test]
fn a_child_uses_no_volume_in_place_that_its_parent_has_open() {
    let home = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| in_place(home.path(), name));
    calls("forks", &one, &["0", two.to_str().unwrap()]);
}

#[test]
fn a_child_uses_no_connection_of_its_parent() {
    let volumes = [volume(), volume()];
    let [folder, empty] = volumes.each_ref().map(|home| home.path().join("vol"));
    let _servers = [&folder, &empty].map(|folder| Process::serve(folder, "60000"));
    calls("forks", &folder, &["1", empty.to_str().unwrap()]);
}

#[test]
fn a_child_uses_no_files_that_its_parent_has_open() {
    let home = volume();
    let folder = home.path().join("vol");
    runtime().block_on(mkfs(&folder));
    calls("forks with files", &folder, &[]);
}

#[test]
fn a_child_uses_no_files_that_its_parent_has_from_a_server() {
    let home = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let sharing = runtime.block_on(async {
        let path = volume_with_files(home.path(), "one").await;
        Sharing::begin(&path, &home.path().join("server")).await
    });
    let (token, keys) = (sharing.token("laptop", Access::Write), home.path().join("keys"));
    let place = Path::new(&sharing.address);
    calls("forks with files", place, &[&token, keys.to_str().unwrap()]);
    runtime.block_on(sharing.end());
}

/// A child, which is killed at the end.
struct Orphan(String);

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.0]).status();
    }
}

/// A program that is killed, and whose child lives on.
fn orphan(folder: &Path) -> Orphan {
    let mut parent = Process::start(Command::new(program()).arg("orphan").arg(folder));
    let child = Orphan(parent.line());
    parent.kill();
    assert!(Path::new("/proc").join(&child.0).exists(), "the child has ended");
    child
}

#[test]
fn a_child_keeps_no_volume_locked_when_its_parent_has_died() {
    let home = volume();
    let folder = home.path().join("vol");
    let _child = orphan(&folder);
    runtime().block_on(async {
        let env = Env::real();
        let pool = Pool::open(&env, &folder, &OpenOptions::default()).await.unwrap();
        pool.close().await.unwrap();
    });
}

/// The server takes the end of the connection for that of the process: it has a seat for one.
#[test]
fn a_child_keeps_no_connection_open_when_its_parent_has_died() {
    let home = volume();
    let folder = home.path().join("vol");
    let runtime = runtime();
    let env = runtime.block_on(async { Env::real() });
    let (pool, server) = runtime.block_on(async {
        let pool = Pool::open(&env, &folder, &OpenOptions::default()).await.unwrap();
        let config = Config { max_connections: 1, ..Config::default() };
        let server = Server::start(&env, pool.transactions(), &folder, config).unwrap();
        (pool, server)
    });
    let _child = orphan(&folder);
    runtime.block_on(async {
        for attempt in 0.. {
            match Connection::open(&env, &folder).await {
                Ok(Some(_)) => break,
                refused => assert!(attempt < 200, "a dead process has the seat: {refused:?}"),
            }
            env.sleep(Duration::from_millis(50)).await;
        }
        drop(server);
        pool.close().await.unwrap();
    });
}
