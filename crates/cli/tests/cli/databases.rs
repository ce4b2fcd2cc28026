//! Databases on a mount with a journal: they survive `kill -9` of the mount and of the server, and recover by themselves, also if another
//! client has read their log while the mount was away.

mod database;
mod leveldb;
mod mariadb;
mod postgres;
mod redis;
mod sqlite;

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::cluster::Scene;
use crate::cluster_journal::{Foreground, first_mount_with};
use crate::files::{can_mount, wait_until};
use crate::run::{self, good, thalweg};
use database::{Database, kill};
use leveldb::LevelDb;
use mariadb::MariaDb;
use postgres::Postgres;
use redis::Redis;
use sqlite::Sqlite;

/// A client with a journal, and a database on its mount.
struct Client {
    mount: Option<Foreground>,
    scene: Scene,
    journal: PathBuf,
    root: PathBuf,
    directory: PathBuf,
}

impl Client {
    /// `None`, with a message, if something is missing here.
    fn of<D: Database>() -> Option<Client> {
        if !D::is_here() || !can_mount() {
            return None;
        }
        let [size, journal_size] = D::SIZES;
        let scene = Scene::of_size(size);
        let (mount, journal, made) = first_mount_with(&scene, journal_size);
        let root = scene.home.path("mnt-one");
        Some(Client { mount: Some(mount), scene, journal, root, directory: made.join("db") })
    }

    fn start<D: Database>(&self) -> D {
        D::start(&self.directory, &self.scene.home.path("scratch"))
    }

    fn kill_mount(&mut self) {
        self.mount.take().unwrap().kill(&self.scene.home, "one");
    }

    fn mount_again(&mut self) {
        let mut command = self.scene.mount_command("one", "/");
        let options = format!("journal_dev={}", self.journal.display());
        self.mount =
            Some(Foreground::start(&self.scene.home, command.args(["-o", &options]), "one"));
    }

    fn drain(&self) {
        good(thalweg(["cluster", "drain"]).arg(&self.root));
    }

    /// Where the database is, as another client sees it.
    fn directory_of(&self, root: &Path) -> PathBuf {
        root.join(self.directory.strip_prefix(&self.root).unwrap())
    }

    fn sets(&self) -> Value {
        run::json(&mut self.conflicts(&["list", "--json"]))
    }

    fn conflicts(&self, words: &[&str]) -> Command {
        let mut command = thalweg(["cluster", "conflicts"]);
        command.args(&words[..1]).arg(&self.root).args(&words[1..]);
        command
    }
}

/// A program that commits rows one after the other.
struct Program<D> {
    thread: Option<JoinHandle<D>>,
    /// Of the database.
    pid: u32,
    /// Rows below this one were acknowledged.
    acknowledged: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl<D: Database> Program<D> {
    /// It goes on with this row.
    fn start(mut database: D, first: u64) -> Program<D> {
        let (acknowledged, is_over) =
            (Arc::new(AtomicU64::new(first)), Arc::new(AtomicBool::new(false)));
        let (pid, counted, stop) = (database.pid(), acknowledged.clone(), is_over.clone());
        let thread = std::thread::Builder::new().name("commits".to_owned());
        let thread = thread.spawn(move || {
            let mut row = first;
            while !stop.load(Ordering::SeqCst) && database.commit(row) {
                row += 1;
                counted.store(row, Ordering::SeqCst);
            }
            database
        });
        Program { thread: Some(thread.unwrap()), pid, acknowledged, is_over }
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits until so many more rows are acknowledged.
    fn wait(&self, more: u64) {
        let enough = self.acknowledged() + more;
        wait_until(|| self.acknowledged() >= enough);
    }

    /// Kills the database, which no commit outlives; the rows that were acknowledged.
    fn kill(self) -> u64 {
        kill(self.pid);
        self.end().0
    }

    /// The rows that were acknowledged, and the database between two commits.
    fn end(mut self) -> (u64, D) {
        self.is_over.store(true, Ordering::SeqCst);
        let database = self.thread.take().unwrap().join().unwrap();
        (self.acknowledged(), database)
    }
}

impl<D> Drop for Program<D> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// How many rows there are: the first ones, without a gap, and without damage.
fn count<D: Database>(database: &mut D) -> u64 {
    let rows = database.rows();
    let is_prefix = (0..).zip(&rows).all(|(expected, row)| expected == *row);
    assert!(is_prefix, "{rows:?}");
    database.check();
    rows.len() as u64
}

/// Whether a database has what was acknowledged. The last commit may be there without an answer.
fn assert_whole<D: Database>(database: &mut D, acknowledged: u64) -> u64 {
    let rows = count(database);
    assert!((acknowledged..=acknowledged + 1).contains(&rows), "{rows} of {acknowledged} rows");
    rows
}

fn survives_kills_of_the_mount<D: Database>() {
    let Some(mut client) = Client::of::<D>() else { return };
    let mut rows = 0;
    for round in 0..3 {
        let program = Program::start(client.start::<D>(), rows);
        program.wait(D::ROWS + 7 * round);
        client.kill_mount();
        let acknowledged = program.kill();
        assert!(acknowledged > rows);
        client.mount_again();
        rows = assert_whole(&mut client.start::<D>(), acknowledged);
    }
}

fn survives_the_loss_of_the_server<D: Database>() {
    let Some(mut client) = Client::of::<D>() else { return };
    let mut program = Program::start(client.start::<D>(), 0);
    program.wait(D::ROWS);
    client.scene.server.as_mut().unwrap().kill_now();
    program.wait(D::ROWS);
    client.scene.serve_with(&[]);
    program.wait(D::ROWS);
    let (acknowledged, mut database) = program.end();
    assert_eq!(count(&mut database), acknowledged, "a commit has failed");
    drop(database);
    // Another client has all of it.
    let other = client.scene.mount("two", "/", "--rw");
    let directory = client.directory_of(&other);
    let mut database = D::start(&directory, &client.scene.home.path("scratch"));
    assert_eq!(count(&mut database), acknowledged);
    program = Program::start(database, acknowledged);
    program.wait(1);
    drop(program.end());
}

fn survives_a_foreign_read_of_its_log<D: Database>() {
    let Some(mut client) = Client::of::<D>() else { return };
    let mut rows = 0;
    for _ in 0..5 {
        let mut database: D = client.start();
        assert!((rows..rows + D::ROWS).all(|row| database.commit(row)));
        client.drain();
        let durable = rows + D::ROWS;
        let program = Program::start(database, durable);
        program.wait(D::ROWS);
        client.kill_mount();
        let acknowledged = program.kill();
        read_log_elsewhere::<D>(&client);
        client.mount_again();
        let sets = client.sets();
        let Some(set) = sets[0]["name"].as_str() else {
            // A call of the database, such as fallocate, had just sent everything.
            rows = assert_whole(&mut client.start::<D>(), acknowledged);
            continue;
        };
        opens_before_and_after::<D>(&client, set, durable..=acknowledged + 1);
        return;
    }
    panic!("the log is never in conflict");
}

/// Another client reads the log, for which it waits until the server gives the first one up.
fn read_log_elsewhere<D: Database>(client: &Client) {
    let other = client.scene.mount_again("two");
    for log in D::log(&client.directory_of(&other)) {
        assert!(!fs::read(&log).unwrap().is_empty(), "{}", log.display());
    }
    assert!(client.scene.umount("two", &[]).status.success());
}

/// The database opens with the first commits, these at least, and has all of them when the conflicts are applied.
fn opens_before_and_after<D: Database>(client: &Client, set: &str, rows: RangeInclusive<u64>) {
    let copy = client.scene.home.path("copy");
    good(Command::new("cp").arg("-a").args([&client.directory, &copy]));
    let found = count(&mut D::start(&copy, &client.scene.home.path("scratch")));
    assert!(rows.contains(&found), "{found} of {rows:?} rows");
    good(&mut client.conflicts(&["apply", set]));
    assert_whole(&mut client.start::<D>(), rows.end() - 1);
    assert_eq!(client.sets(), json!([]));
}

macro_rules! tests {
    ($($name:ident: $database:ty $(, ignored: $why:literal)?;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            $(#[ignore = $why])?
            fn survives_kills_of_the_mount() {
                super::survives_kills_of_the_mount::<$database>();
            }

            #[test]
            $(#[ignore = $why])?
            fn survives_the_loss_of_the_server() {
                super::survives_the_loss_of_the_server::<$database>();
            }

            #[test]
            $(#[ignore = $why])?
            fn survives_a_foreign_read_of_its_log() {
                super::survives_a_foreign_read_of_its_log::<$database>();
            }
        }
    )*};
}

tests! {
    leveldb_with_synced_writes: LevelDb;
    mariadb_with_innodb: MariaDb;
    postgresql: Postgres, ignored: "makes a new cluster of databases, which takes long";
    redis_that_syncs_each_command: Redis;
    sqlite_with_a_rollback_journal: Sqlite<false>;
    sqlite_with_a_log: Sqlite<true>;
}
