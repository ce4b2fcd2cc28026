//! The package in a fresh environment of Python: its files beside the library that these tests were compiled with, or as a
//! user gets it, in a wheel.

#![allow(clippy::unwrap_used)]

// The tests of other crates use all of it.
#[allow(dead_code)]
#[path = "../../client/tests/client/sharing.rs"]
mod sharing;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use sharing::{Sharing, mkfs, volume_with_files};
use tempfile::TempDir;
use thalweg_env::{Env, Task};
use thalweg_ipc::{Config, Server};
use thalweg_net::entry::Service;
use thalweg_net::gate::Gate;
use thalweg_net::keys::{Access, Authorized, Client, Home, Key};
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, Write};
use thalweg_store::device::{FileDevice, FileOptions};
use thalweg_store::inplace::{InPlace, NewInPlace, Parts};
use thalweg_store::pool::{self, DeviceSpec, Follows, LinkSpec, NewVolume, OpenOptions, Pool};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use uuid::Uuid;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn good(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// A fresh environment; its interpreter.
fn environment(home: &Path, options: &[&str]) -> PathBuf {
    good(Command::new("python3").args(["-m", "venv"]).args(options).arg(home.join("python")));
    home.join("python/bin/python")
}

/// The folder with the binary of this test and with what was compiled for it.
fn compiled() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// An interpreter with the package's files, and the library that was compiled with this test.
fn with_package(home: &Path) -> PathBuf {
    let python = environment(home, &["--without-pip"]);
    let mut folders = std::fs::read_dir(home.join("python/lib")).unwrap();
    let package = folders.next().unwrap().unwrap().path().join("site-packages/thalweg");
    std::fs::create_dir(&package).unwrap();
    for file in std::fs::read_dir(format!("{HERE}/python/thalweg")).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    let library = compiled().join("libthalweg_python.so");
    std::fs::copy(library, package.join("_thalweg.abi3.so")).unwrap();
    python
}

/// An interpreter with the package, from a wheel. The tools that build it come from the network.
fn with_wheel(home: &Path) -> Option<PathBuf> {
    let python = environment(home, &[]);
    let pip = || {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "--disable-pip-version-check", "--quiet"]);
        pip
    };
    let tools = pip().args(["install", "maturin>=1.9,<2"]).output().unwrap();
    if !tools.status.success() {
        // Not with a macro: the output of macros is shown for failed tests only.
        let why = String::from_utf8_lossy(&tools.stderr);
        let said = format!("SKIPPED, maturin is not available: {why}\n");
        std::io::stderr().write_all(said.as_bytes()).unwrap();
        return None;
    }
    let wheels = home.join("wheels");
    let mut maturin = Command::new(home.join("python/bin/maturin"));
    // What cargo tells this test about its package would run build scripts again, and compile all that depends on them:
    // here and in the next command.
    for (name, _) in std::env::vars_os() {
        let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
        if of_package.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            maturin.env_remove(name);
        }
    }
    maturin
        .args(["build", "--profile", "dev", "--manifest-path"])
        .arg(format!("{HERE}/Cargo.toml"));
    // The folder of what the tests need, for some of the same dependencies.
    let target = compiled().join("../..");
    good(maturin.arg("--target-dir").arg(target).arg("--out").arg(&wheels));
    let wheel = std::fs::read_dir(wheels).unwrap().next().unwrap().unwrap().path();
    good(pip().args(["install", "--no-index"]).arg(wheel));
    Some(python)
}

/// A volume of 16 MiB.
async fn volume(home: &Path, name: &str) -> PathBuf {
    volume_with(home, name, |_| {}).await
}

/// A volume that keeps old versions, and has the history of one that was followed.
async fn keeping(home: &Path, name: &str) -> PathBuf {
    let folder = volume_with(home, name, |new| new.settings.keep_versions = Some(1000)).await;
    let pool = Pool::open(&Env::real(), &folder, &OpenOptions::default()).await.unwrap();
    pool.chain().begin_history().await.unwrap();
    // An opening keeps no versions from before it.
    pool.transactions()
        .apply(vec![Write::block(Lba(99), Bytes::from(vec![0; BLOCK_SIZE]))])
        .await
        .unwrap();
    pool.close().await.unwrap();
    folder
}

async fn volume_with(home: &Path, name: &str, change: impl FnOnce(&mut NewVolume)) -> PathBuf {
    let folder = home.join(name);
    let links =
        ["a", "b"].map(|name| LinkSpec::plain(DeviceSpec::with_size(folder.join(name), 64 << 20)));
    let mut new = NewVolume::new(name, 16 << 20, links.to_vec());
    change(&mut new);
    pool::create(&Env::real(), &folder, &new, &|_, _| {}).await.unwrap();
    folder
}

/// A volume that is updated in place, in a file of 32 MiB.
async fn in_place(home: &Path, name: &str) -> PathBuf {
    let path = home.join(name);
    let file = FileDevice::create(&path, 32 << 20, &FileOptions::default()).await.unwrap();
    let parts = Parts { data: Arc::new(file), journal: None };
    let new = NewInPlace { name: name.to_owned(), journal_size: None, size: None };
    InPlace::create(&Env::real(), &parts, &new).await.unwrap();
    path
}

fn check(python: &Path, volume: &Path, empty: &Path, served: &str) {
    good(
        Command::new("timeout")
            .arg("120")
            .arg(python)
            .arg(format!("{HERE}/tests/test_thalweg.py"))
            .env("VOLUME", volume)
            .env("EMPTY_VOLUME", empty)
            .env("SERVED", served),
    );
}

/// Checks sessions and old versions, on an empty volume that keeps them.
fn check_kept(python: &mut Command, volume: &str) {
    let test = format!("{HERE}/tests/test_thalweg.py");
    good(python.args([&test, "Kept"]).env("KEPT_VOLUME", volume));
}

/// Checks files, on an empty filesystem.
fn check_files(python: &mut Command, place: &str) {
    let test = format!("{HERE}/tests/test_thalweg.py");
    good(python.args([&test, "Files"]).env("FILES", place));
}

/// Checks children of a program that has a volume open, an empty one, or files; `-` for none.
fn check_forks(python: &mut Command, volume: &str, served: &str, files: &str) {
    good(python.arg(format!("{HERE}/tests/forks.py")).args([volume, served, files]));
}

/// Checks files of a volume, and files that a server shares; and runs the program of docs/files.md.
async fn check_all_files(python: &Path, home: &Path) {
    let own = volume_with_files(home, "files").await;
    check_files(&mut Command::new(python), &text(&own));
    let forked = volume_with_files(home, "forked-files").await;
    check_forks(&mut Command::new(python), "-", "0", &text(&forked));
    let served = volume_with_files(home, "shared").await;
    let sharing = Sharing::begin(&served, &home.join("sharing")).await;
    let token = sharing.token("laptop", Access::Write);
    tokio::task::block_in_place(|| {
        let mut shared = Command::new(python);
        shared.env("FILES_TOKEN", token).env("FILES_KEYS", home.join("laptop"));
        check_files(&mut shared, &sharing.address);
    });
    sharing.end().await;
    let documented = volume(home, "with-files").await;
    mkfs(&documented).await;
    let programs = programs("docs/files.md");
    let [program] = &programs[..] else { panic!("{}", programs.len()) };
    assert!(program.contains("\"/srv/vol\""), "it opens another volume");
    let program = program.replace("/srv/vol", documented.to_str().unwrap());
    let output = Command::new(python).args(["-c", &program]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "notes ['monday.txt'] 6\n");
}

/// Runs the program of docs/stale-reads.md, unchanged, on an empty volume, and checks its effects.
fn check_sessions(python: &Path, volume: &str) {
    let programs = programs("docs/stale-reads.md");
    let [program] = &programs[..] else { panic!("{}", programs.len()) };
    let program = program.replace("/srv/volume", volume);
    let after = format!(
        "{program}\n\
         assert got.value == b'1815' and got.versions[0] == written, got\n\
         assert got.guarantee == 'read-my-writes' and got.age == 0, got\n\
         print(saved)\n"
    );
    let output = Command::new(python).args(["-c", &after]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let saved = printed.lines().last().unwrap();
    // Another process, which opens the volume anew.
    let resumed = format!(
        "import thalweg\n\
         session = thalweg.Session('causal', {saved:?})\n\
         with thalweg.open({volume:?}) as volume:\n    \
         users = volume.btree('users')\n    \
         assert users.get_for(session, b'alice').value == b'1815'\n    \
         users.put_for(session, b'alice', b'1852')\n    \
         assert users.get_for(session, b'alice').value == b'1852'\n"
    );
    good(Command::new(python).args(["-c", &resumed]));
}

/// The programs in a document, which open a volume under /srv.
fn programs(document: &str) -> Vec<String> {
    let text = std::fs::read_to_string(format!("{HERE}/../../{document}")).unwrap();
    let programs = text.split("```python\n").skip(1);
    programs.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The document with the program that is run over the socket and the network too.
const VERSIONS: &str = "docs/clients.md";

/// Runs the program of a document, unchanged, on an empty volume, and checks its effects.
fn check_document(python: &mut Command, document: &str, volume: &str) {
    let programs = programs(document);
    let [program] = &programs[..] else { panic!("{} in {document}", programs.len()) };
    let names = ["\"/srv/db\"", "\"/srv/volume\""];
    let name = names.into_iter().find(|name| program.contains(name)).unwrap();
    let program = program.replace(name, &format!("{volume:?}"));
    let after = format!(
        "{program}\n\
         with thalweg.open({volume:?}) as volume:\n    \
         assert volume.raw('blocks').read(7) == b'x' * thalweg.BLOCK_SIZE\n"
    );
    good(python.args(["-c", &after]));
}

/// Runs the program that waits for a position, on a volume that is served and has this one.
fn check_positions(python: &Path, volume: &str, position: &str) {
    let programs = programs("docs/replicas.md");
    let [program] = &programs[..] else { panic!("{}", programs.len()) };
    let program = program.replace("/srv/volume", volume);
    let after = format!(
        "{program}\n\
         assert position == {position:?}, position\n\
         assert not replica.wait(position + '9', timeout=0.02)\n\
         for wrong in ('1:2:3', '0' * 8 + position[8:]):\n    \
         try:\n        replica.wait(wrong)\n    \
         except thalweg.Invalid:\n        continue\n    \
         raise AssertionError(wrong)\n"
    );
    good(Command::new(python).args(["-c", &after]));
}

/// Runs reads that a replica refuses which has not heard of its primary.
fn check_replica(python: &Path, volume: &str) {
    let program = format!(
        "import thalweg\n\
         refused = {{'strong': thalweg.NotPrimary, 'updates=3': thalweg.NotPrimary, 'bounded=1s': thalweg.TooOld}}\n\
         with thalweg.open({volume:?}) as replica:\n    \
         for guarantee, kind in refused.items():\n        \
         try:\n            replica.read_for(thalweg.Session(guarantee), 0)\n        \
         except kind as error:\n            assert isinstance(error, thalweg.Unserved)\n        \
         else:\n            raise AssertionError(guarantee)\n    \
         assert replica.read_for(thalweg.Session('eventual'), 0).age is None\n"
    );
    good(Command::new(python).args(["-c", &program]));
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A folder with a key, which clients may use.
fn new_key(env: &Env, keys: &Path) -> Key {
    let (home, key) = (Home::at(keys), Key::generate(env).unwrap());
    home.add_key(&key).unwrap();
    let itself = Client::new(key.public(), "itself").unwrap();
    Authorized::update(&home.authorized_clients(), |all| all.add(itself)).unwrap();
    key
}

/// Serves a volume over TCP to clients with the keys in a folder, which has this one; its address.
async fn listen(env: &Env, server: &Server, keys: &Path, key: &Key) -> (String, Task<()>) {
    let home = Home::at(keys);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    home.trust(&address, &key.public()).unwrap();
    let (gate, service) = (Gate::new(env, home).unwrap(), server.service().clone());
    let seats = Arc::new(Semaphore::new(1));
    let serving = env.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let allows = |_: &Client, _: Service, _: &str| true;
            let guest = gate.admit(stream, &seats, allows).await.unwrap().unwrap();
            service.serve(guest.stream, guest.permission.client().access).await.unwrap();
        }
    });
    (format!("thalweg://{address}/volume"), serving)
}

/// Runs each program of the documents, unchanged, on a volume of its own, and checks its effects.
async fn check_documents(python: &Path, home: &Path) {
    let documents = ["README.md", "docs/transactions.md", VERSIONS];
    for (number, document) in documents.into_iter().enumerate() {
        let folder = volume(home, &format!("documented{number}")).await;
        check_document(&mut Command::new(python), document, folder.to_str().unwrap());
    }
    // The package's own example.
    let folder = volume(home, "docstring").await;
    let examples = "import doctest, sys, thalweg\n\
        thalweg.__doc__ = thalweg.__doc__.replace('/srv/volume', sys.argv[1])\n\
        failed, tried = doctest.testmod(thalweg)\n\
        sys.exit(failed or not tried)";
    good(Command::new(python).args(["-c", examples]).arg(folder));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_package_works_in_a_fresh_environment() {
    let home: TempDir = tempfile::tempdir().unwrap();
    check_all(&home, with_package(home.path())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "compiles the package once more: make test-long"]
async fn the_wheel_works_in_a_fresh_environment() {
    let home: TempDir = tempfile::tempdir().unwrap();
    if let Some(python) = with_wheel(home.path()) {
        check_all(&home, python).await;
    }
}

async fn check_all(home: &TempDir, python: PathBuf) {
    let (plain, empty) = (volume(home.path(), "plain").await, volume(home.path(), "empty").await);
    check(&python, &plain, &empty, "0");
    check_documents(&python, home.path()).await;
    let (one, two) = (in_place(home.path(), "one").await, in_place(home.path(), "two").await);
    check(&python, &one, &two, "0");
    check_kept(&mut Command::new(&python), &text(&keeping(home.path(), "kept").await));
    let forked = volume(home.path(), "forked").await;
    check_forks(&mut Command::new(&python), &text(&forked), "0", "-");
    let forked = in_place(home.path(), "forked-in-place").await;
    check_forks(&mut Command::new(&python), &text(&forked), "0", "-");
    check_sessions(&python, &text(&keeping(home.path(), "documented").await));
    check_all_files(&python, home.path()).await;
    let env = Env::real();
    let kept = keeping(home.path(), "keeping").await;
    let far = keeping(home.path(), "far").await;
    let replica = volume_with(home.path(), "replica", |new| {
        let (volume, address) = (Uuid::from_u128(7), "nowhere.example:1".to_owned());
        new.follows = Some(Follows { volume, address });
    });
    let replica = replica.await;
    let (served, empty) = (volume(home.path(), "served").await, volume(home.path(), "other").await);
    let shown = volume(home.path(), "shown").await;
    let remote = volume(home.path(), "remote").await;
    let forked = volume(home.path(), "forked-served").await;
    let all = [&served, &empty, &shown, &remote, &far, &kept, &replica, &forked];
    let pools = all.map(async |folder| {
        let mut options = OpenOptions::default();
        options.chain.follow = folder == &replica;
        let pool = Pool::open(&env, folder, &options).await.unwrap();
        let server = Server::start(&env, pool.transactions(), folder, Config::default()).unwrap();
        (pool, server)
    });
    let pools = futures::future::join_all(pools).await;
    let keys = home.path().join("keys");
    let key = new_key(&env, &keys);
    let (address, _serving) = listen(&env, &pools[3].1, &keys, &key).await;
    let (far, _served) = listen(&env, &pools[4].1, &keys, &key).await;
    let chain = pools[0].0.chain();
    chain.begin_history().await.unwrap();
    let checked = tokio::task::block_in_place(|| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check(&python, &served, &empty, "1");
            let position = chain.position_of(chain.now()).unwrap().to_string();
            check_positions(&python, served.to_str().unwrap(), &position);
            check_document(&mut Command::new(&python), VERSIONS, shown.to_str().unwrap());
            let mut over_network = Command::new(&python);
            check_document(over_network.env("THALWEG_KEYS", &keys), VERSIONS, &address);
            check_kept(&mut Command::new(&python), &text(&kept));
            check_kept(Command::new(&python).env("THALWEG_KEYS", &keys), &far);
            check_replica(&python, &text(&replica));
            check_forks(&mut Command::new(&python), &text(&forked), "1", "-");
        }))
    });
    for (pool, server) in pools {
        drop(server);
        pool.close().await.unwrap();
    }
    checked.unwrap();
}
