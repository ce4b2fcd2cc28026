//! The C library, as C programs use it.

#![allow(clippy::unwrap_used)]

mod files;
mod forks;
// The tests of other crates use all of it.
#[allow(dead_code)]
#[path = "../../../client/tests/client/sharing.rs"]
mod sharing;
mod stale;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tempfile::TempDir;
use thalweg_env::Env;
use thalweg_ipc::{Config, Server};
use thalweg_store::block::{BLOCK_SIZE, Blocks, EpochVersion, Lba};
use thalweg_store::device::{FileDevice, FileOptions};
use thalweg_store::inplace::{InPlace, NewInPlace, Parts};
use thalweg_store::pool::{self, DeviceSpec, LinkSpec, NewVolume, OpenOptions, Pool};
use thalweg_store::tree::{Kind, NewPartition, Store, catalogue};
use thalweg_store::txn::{Begin, Options, Transact};
use tokio::runtime::Runtime;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A volume of 16 MiB, in a folder of its own.
fn volume() -> TempDir {
    volume_with(|_| {})
}

fn volume_with(change: impl FnOnce(&mut NewVolume)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vol");
    let links =
        ["a", "b"].map(|name| LinkSpec::plain(DeviceSpec::with_size(path.join(name), 64 << 20)));
    runtime().block_on(async {
        let mut new = NewVolume::new("vol", 16 << 20, links.to_vec());
        change(&mut new);
        pool::create(&Env::real(), &path, &new, &|_, _| {}).await.unwrap();
    });
    folder
}

/// Builds a C program, linked with the library.
fn build(sources: &[PathBuf], program: &Path) {
    // Beside this test.
    let own = std::env::current_exe().unwrap();
    let libraries = own.parent().unwrap();
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-o"])
        .arg(program)
        .args(sources)
        .arg(format!("-I{HERE}/include"))
        .arg(libraries.join("libthalweg.so"))
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .arg("-lpthread")
        .status();
    assert!(built.unwrap().success(), "the C program does not build");
}

/// The program in tests/c.
fn program() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    &BUILT
        .get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let program = folder.path().join("calls");
            let sources = ["calls.c", "files.c", "forks.c", "stale.c"];
            build(&sources.map(|it| Path::new(HERE).join("tests/c").join(it)), &program);
            (folder, program)
        })
        .1
}

fn calls(mode: &str, folder: &Path, rest: &[&str]) {
    let status =
        Command::new("timeout").arg("120").arg(program()).arg(mode).arg(folder).args(rest).status();
    assert!(status.unwrap().success(), "{mode} failed");
}

/// A process that is killed at the end, if it was not before.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(command: &mut Command) -> Process {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Process { child, input, output: BufReader::new(output) }
    }

    /// A process that serves a volume, as `thalweg serve` does.
    fn serve(folder: &Path, idle: &str) -> Process {
        Process::serve_as(folder, idle, "primary")
    }

    fn serve_as(folder: &Path, idle: &str, role: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("ROLE", role).args([
            "--ignored",
            "--exact",
            "--nocapture",
            "serves_until_it_is_told_to_end",
        ]);
        let mut process = Process::start(command.env("SERVED", folder).env("IDLE", idle));
        while process.line() != "serving" {}
        process
    }

    fn steps(folder: &Path, last: &str, byte: u8) -> Process {
        let mut command = Command::new(program());
        Process::start(command.arg("steps").arg(folder).arg(last).arg(byte.to_string()))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let count = self.output.read_line(&mut line).unwrap();
        assert!(count > 0, "the process has ended");
        line.trim().to_owned()
    }

    fn go_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Not a test: the process of [`Process::serve`].
#[test]
#[ignore = "the server of other tests"]
fn serves_until_it_is_told_to_end() {
    let Some(folder) = std::env::var_os("SERVED").map(PathBuf::from) else { return };
    let idle = Duration::from_millis(std::env::var("IDLE").unwrap().parse().unwrap());
    runtime().block_on(async {
        let env = Env::real();
        let transactions = Options { idle, ..Options::default() };
        let mut options = OpenOptions { transactions, ..OpenOptions::default() };
        options.chain.follow = std::env::var("ROLE").unwrap() == "replica";
        let pool = Pool::open(&env, &folder, &options).await.unwrap();
        let server = Server::start(&env, pool.transactions(), &folder, Config::default()).unwrap();
        println!("\nserving");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        drop(server);
        pool.close().await.unwrap();
    });
}

/// The first bytes of blocks 0 to 8, once the volume's server is gone.
fn stored(folder: &Path) -> Vec<u8> {
    runtime().block_on(async {
        let env = Env::real();
        let pool = Pool::open(&env, folder, &OpenOptions::default()).await.unwrap();
        let txn = pool.transactions().begin(Begin::READ_ONLY).await.unwrap();
        let blocks = txn.read_run(Lba(0), 9).await.unwrap();
        assert!(blocks.iter().all(|block| *block == vec![block[0]; BLOCK_SIZE]));
        drop(txn);
        pool.close().await.unwrap();
        blocks.iter().map(|block| block[0]).collect()
    })
}

#[test]
fn every_call_in_one_process() {
    let [home, empty] = [volume(), volume()];
    let empty = empty.path().join("vol");
    calls("calls", &home.path().join("vol"), &["0", empty.to_str().unwrap()]);
}

/// A volume that is updated in place, in a file of 32 MiB.
fn in_place(home: &Path, name: &str) -> PathBuf {
    let path = home.join(name);
    runtime().block_on(async {
        let file = FileDevice::create(&path, 32 << 20, &FileOptions::default()).await.unwrap();
        let parts = Parts { data: Arc::new(file), journal: None };
        let new = NewInPlace { name: name.to_owned(), journal_size: None, size: None };
        InPlace::create(&Env::real(), &parts, &new).await.unwrap();
    });
    path
}

#[test]
fn every_call_on_a_volume_in_place_that_nobody_serves() {
    let home = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| in_place(home.path(), name));
    calls("calls", &one, &["0", two.to_str().unwrap()]);
}

#[test]
fn every_call_through_a_server() {
    let volumes = [volume(), volume()];
    let [folder, empty] = volumes.each_ref().map(|home| home.path().join("vol"));
    let _servers = [&folder, &empty].map(|folder| Process::serve(folder, "60000"));
    calls("calls", &folder, &["1", empty.to_str().unwrap()]);
}

#[test]
fn after_an_abort_from_outside_only_ends_and_aborts_succeed() {
    let home = volume();
    let folder = home.path().join("vol");
    let _server = Process::serve(&folder, "1000");
    calls("preempted", &folder, &[]);
}

/// A client is killed at any step: its transaction commits as a whole or not at all.
#[test]
fn a_client_that_is_killed_leaves_the_state_before_or_after() {
    let home = volume();
    let folder = home.path().join("vol");
    let mut server = Process::serve(&folder, "60000");
    for last in ["open", "begin", "read", "write", "mark", "release", "takeover"] {
        let mut client = Process::steps(&folder, last, 1);
        client.line();
        client.kill();
    }
    let mut committed = 0;
    for round in 0..6u8 {
        let mut client = Process::steps(&folder, "commit", committed + 1);
        assert_eq!(client.line(), "commit");
        for _ in 0..round * 2 {
            committed = client.line().parse().unwrap();
        }
        client.kill();
        // It may have made progress before it was killed.
        let rest = client.output.by_ref().lines().map_while(Result::ok);
        committed = rest.filter_map(|line| line.parse().ok()).last().unwrap_or(committed);
    }
    server.go_on();
    server.child.wait().unwrap();
    let found = stored(&folder);
    assert!(found[..8].iter().all(|byte| *byte == found[0]), "in part: {found:?}");
    // An unacknowledged commit may have taken effect.
    assert!(found[0] == committed || found[0] == committed + 1, "{found:?} after {committed}");
}

/// The server is killed at any step of its clients.
#[test]
fn a_server_that_is_killed_leaves_the_state_before_or_after() {
    let home = volume();
    let folder = home.path().join("vol");
    for last in ["open", "begin", "read", "write", "mark", "release", "takeover"] {
        let mut server = Process::serve(&folder, "60000");
        let mut client = Process::steps(&folder, last, 1);
        client.line();
        server.kill();
        client.kill();
        assert_eq!(stored(&folder), [0; 9], "after {last}");
    }
    let mut committed = 0;
    for round in 0..6u8 {
        let mut server = Process::serve(&folder, "60000");
        let mut client = Process::steps(&folder, "commit", committed + 1);
        assert_eq!(client.line(), "commit");
        for _ in 0..round * 2 {
            committed = client.line().parse().unwrap();
        }
        server.kill();
        // The client gets an error, and no false acknowledgement.
        let mut lines: Vec<String> = client.output.by_ref().lines().map_while(Result::ok).collect();
        let not_connected = -107;
        // Killed between two of its calls, it fails to begin.
        if lines.last().is_some_and(|line| line.starts_with("end")) {
            assert_eq!(lines.pop(), Some(format!("end {not_connected}")));
        }
        committed = lines.last().map_or(committed, |line| line.parse().unwrap());
        let found = stored(&folder);
        assert!(found[..8].iter().all(|byte| *byte == found[0]), "in part: {found:?}");
        assert!(found[0] == committed || found[0] == committed + 1, "{found:?} after {committed}");
        committed = found[0];
    }
}

/// From one process to another, with either end killed, and the server.
#[test]
fn a_transaction_is_handed_from_process_to_process() {
    let home = volume();
    let folder = home.path().join("vol");
    let mut server = Process::serve(&folder, "60000");
    // Its first owner lives on, or dies after the release.
    for (byte, is_killed) in [(1, false), (2, true)] {
        let mut first = Process::steps(&folder, "release", byte);
        let handle = first.line();
        if is_killed {
            first.kill();
        }
        calls("take", &folder, &[&handle, &byte.to_string()]);
        drop(first);
    }
    // Its second owner dies: the transaction has no owner any more.
    let mut first = Process::steps(&folder, "release", 3);
    let handle = first.line();
    let mut second = Process::steps(&folder, "takeover", 4);
    second.line();
    second.kill();
    first.go_on();
    // The first owner took its transaction back meanwhile.
    assert_eq!(first.line(), "commit");
    first.kill();
    let again = Command::new(program()).arg("take").arg(&folder).args([&*handle, "3"]).status();
    assert_eq!(again.unwrap().code(), Some(1), "a handle served twice");
    // The server dies, and with it all uncommitted transactions.
    let mut first = Process::steps(&folder, "release", 100);
    let handle = first.line();
    server.kill();
    let _server = Process::serve(&folder, "60000");
    let again = Command::new(program()).arg("take").arg(&folder).args([&*handle, "100"]).status();
    assert_eq!(again.unwrap().code(), Some(1), "a handle outlived its server");
    drop(_server);
    let found = stored(&folder);
    assert!((2..100).contains(&found[0]), "{found:?}");
    assert_eq!(found[8], 2);
}

/// The program in a document, unchanged but for its volume, and `after` it.
fn documented(document: &str, volume: &Path, after: &str) -> PathBuf {
    let guide = std::fs::read_to_string(format!("{HERE}/../../{document}")).unwrap();
    let code: Vec<&str> =
        guide.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [code] = code[..] else { panic!("{} programs in {document}", code.len()) };
    assert!(code.contains("\"/srv/volume\""), "it opens another volume");
    let code = code.replace("/srv/volume", volume.to_str().unwrap());
    let program = volume.with_extension("guide");
    let source = program.with_extension("c");
    let headers = ["<errno.h>", "<fcntl.h>", "<stdio.h>", "<string.h>", "\"thalweg.h\""]
        .map(|it| format!("#include {it}\n"));
    let text = format!("{}int main(void)\n{{\n{code}\n{after}}}\n", headers.concat());
    std::fs::write(&source, text).unwrap();
    build(&[source], &program);
    program
}

#[test]
fn the_guides_program_tells_versions() {
    let home = volume();
    let folder = home.path().join("vol");
    let after = "if (committed.epoch != served.epoch || committed.version != served.version)\nreturn 1;\n\
                 if (tw_begin_tx_at(volume, committed) != 0 || block[0] != 'h')\nreturn 2;\n\
                 puts(text);\nreturn tw_close(volume);\n";
    let program = documented("docs/clients.md", &folder, after);
    let run = || {
        let output = Command::new(&program).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        text.trim().parse::<EpochVersion>().unwrap()
    };
    let (one, two) = (run(), run());
    assert!(one.epoch < two.epoch && one.version < two.version, "{one} {two}");
    let _server = Process::serve(&folder, "60000");
    let (one, two) = (run(), run());
    assert!(one.epoch == two.epoch && one.version < two.version, "{one} {two}");
}

/// The program in docs/replicas.md: a volume that has had a follower has positions.
#[test]
fn the_guides_program_waits_for_a_position() {
    let home = volume();
    let folder = home.path().join("vol");
    let after = "if (named != 0)\nreturn named == -ENODATA ? 7 : 8;\n\
                 if (tw_wait(replica, \"1:2:3\", 0) != -EINVAL || tw_wait(replica, NULL, 0) != -EINVAL)\nreturn 9;\n\
                 position[0] ^= 1;\n\
                 if (tw_wait(replica, position, 0) != -EINVAL)\nreturn 10;\n\
                 position[0] ^= 1;\n\
                 char block[TW_BLOCK_SIZE] = \"x\";\n\
                 if (tw_write(primary, 7, 1, block) != 0 || tw_position(primary, position) != 0)\nreturn 12;\n\
                 if (tw_wait(replica, position, 5000) != 1)\nreturn 13;\n\
                 position[strlen(position) - 1] = '9';\n\
                 if (tw_wait(replica, position, 20) != 0)\nreturn 11;\n\
                 tw_close(replica);\nreturn tw_close(primary);\n";
    let program = documented("docs/replicas.md", &folder, after);
    let run = || {
        let output = Command::new(&program).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let server = Process::serve(&folder, "60000");
    assert_eq!(run(), (Some(7), String::new()), "it has had no follower");
    drop(server);
    let position = runtime().block_on(async {
        let pool = Pool::open(&Env::real(), &folder, &OpenOptions::default()).await.unwrap();
        pool.chain().begin_history().await.unwrap();
        let position = pool.chain().position_of(pool.chain().now()).unwrap();
        pool.close().await.unwrap();
        position
    });
    let _server = Process::serve(&folder, "60000");
    assert_eq!(run(), (Some(0), format!("{position}\n")));
}

/// The program in docs/transactions.md, on a volume with a store.
#[test]
fn the_guides_program_counts_and_leaves_stores_alone() {
    let home = volume();
    let folder = home.path().join("vol");
    let after = "if (tw_raw_read(counters, 7, 1, block) != 0)\nreturn 90;\n\
                 tw_raw_close(counters);\nreturn tw_close(volume) == 0 ? (int)block[0] : 91;\n";
    let program = documented("docs/transactions.md", &folder, after);
    runtime().block_on(async {
        let env = Env::real();
        let pool = Pool::open(&env, &folder, &OpenOptions::default()).await.unwrap();
        let (name, kind) = ("names".to_owned(), Kind::Btree);
        let new = NewPartition { name, kind, first: None, blocks: Some(64) };
        catalogue::create(&env, pool.transactions(), &new).await.unwrap();
        pool.close().await.unwrap();
    });
    for count in 1..3 {
        assert_eq!(Command::new(&program).status().unwrap().code(), Some(count));
    }
    runtime().block_on(async {
        let env = Env::real();
        let pool = Pool::open(&env, &folder, &OpenOptions::default()).await.unwrap();
        let volume = Arc::new(pool.transactions().clone());
        let names = Store::open(&env, volume, "names").await.unwrap();
        assert_eq!(names.check().await.unwrap().keys, 0);
        pool.close().await.unwrap();
    });
}

#[test]
fn the_header_says_what_the_library_does() {
    let header = Path::new(HERE).join("include/thalweg.h");
    let mut made = Vec::new();
    cbindgen::generate(HERE).unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&header, &made).unwrap();
    }
    let there = std::fs::read_to_string(&header).unwrap_or_default();
    assert!(there == made, "UPDATE_HEADER=1 cargo test -p thalweg-capi header");
}
