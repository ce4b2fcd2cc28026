//! The program, as a user runs it.

use std::path::Path;

use imgstore::process::StoreProcess;
use imgstore::{DATES, IMAGES};
use thalweg_env::Env;
use thalweg_ipc::{Config, Server};
use thalweg_store::pool::{self, DeviceSpec, LinkSpec, NewVolume, OpenOptions, Pool};

use crate::rig::program;

/// The program's output; it must succeed.
async fn good(folder: &Path, args: &[&str]) -> Vec<u8> {
    let mut command = program(folder, args);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The program's error; it must fail.
async fn bad(folder: &Path, args: &[&str]) -> String {
    let mut command = program(folder, args);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Adds, replaces, lists, prints and removes photos.
async fn use_it(folder: &Path, stores: &str) {
    let with = |args: &[&'static str]| [&["--stores", stores], args].concat();
    let image = |name: &str| folder.join(name).display().to_string();
    std::fs::write(image("cat"), vec![1; 20_000]).unwrap();
    std::fs::write(image("dog"), b"dog").unwrap();
    for (id, date, name) in
        [("7", "20150304", "cat"), ("8", "20150510", "cat"), ("7", "20150401", "dog")]
    {
        let file = image(name);
        good(folder, &[&with(&["add"])[..], &[id, date, &file]].concat()).await;
    }
    let taken = good(folder, &with(&["taken", "20150304", "20150510"])).await;
    assert_eq!(taken, b"20150401 7\n");
    assert_eq!(good(folder, &with(&["get", "7"])).await, b"dog");
    assert_eq!(good(folder, &with(&["get", "8"])).await, vec![1; 20_000]);
    good(folder, &with(&["remove", "7"])).await;
    good(folder, &with(&["remove", "8"])).await;
    for command in ["get", "remove"] {
        assert!(bad(folder, &with(&[command, "7"])).await.contains("there is no photo 7"));
    }
    assert!(good(folder, &with(&["taken", "0", "99999999"])).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_keeps_photos_on_a_volume() {
    let (env, home) = (Env::real(), tempfile::tempdir().unwrap());
    let folder = home.path().join("vol");
    let device = DeviceSpec::with_size(folder.join("link"), 96 << 20);
    let mut new = NewVolume::new("vol", 32 << 20, vec![LinkSpec::plain(device)]);
    new.growth = 1.0;
    pool::create(&env, &folder, &new, &|_, _| {}).await.unwrap();
    good(&folder, &["create"]).await;
    // Opened by the program.
    use_it(&folder, "libraries").await;
    use_it(&folder, "threads").await;
    assert!(bad(&folder, &["serve", "images"]).await.contains("not served"));
    // Served by another.
    let pool = Pool::open(&env, &folder, &OpenOptions::default()).await.unwrap();
    let server = Server::start(&env, pool.transactions(), &folder, Config::default()).unwrap();
    use_it(&folder, "libraries").await;
    assert!(
        bad(&folder, &["--stores", "processes", "get", "7"]).await.contains("no process serves it")
    );
    let mut stores = Vec::new();
    for name in [IMAGES, DATES] {
        let command = program(&folder, &["serve", name]);
        stores.push(StoreProcess::start(&env, command, &folder, name).await.unwrap());
    }
    use_it(&folder, "processes").await;
    drop((stores, server));
    pool.close().await.unwrap();
}
