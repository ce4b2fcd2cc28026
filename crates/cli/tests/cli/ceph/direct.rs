//! Clients of a filesystem on a cluster read and write the contents of files themselves, while servers fail.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::on;
use super::scene::Scene;
use crate::files::wait_until;
use crate::mini_cluster::MiniCluster;
use crate::run::{Server, good, json};
use crate::tools::fsx;

const IMAGE: &str = "rados:test/direct";
/// Operations of each run of `fsx`: on a file of one client, and on one that another client looks at.
const OPERATIONS: (u32, u32) = (1000, 200);
/// Bytes of a durable record.
const RECORD: usize = 20_000;

/// Both clients of a served filesystem reach the contents of files.
fn all_are_direct(scene: &Scene<'_>) -> bool {
    let status = scene.status();
    let clients = status["clients"].as_array().unwrap();
    clients.len() == 2 && clients.iter().all(|client| client["direct"] == true)
}

/// Two mounts, while nothing fails and while servers are killed.
pub(super) fn contents_agree_and_stay(mini: &MiniCluster) {
    let mut scene = Scene::new(mini, IMAGE);
    good(&mut scene.thalweg("server", &["cluster", "create", IMAGE]));
    let server = scene.serve("10");
    let roots = ["one", "two"].map(|client| {
        good(&mut scene.mount(client));
        scene.root(client)
    });
    wait_until(|| all_are_direct(&scene));
    the_server_sees_no_contents(&scene, &roots);
    fsx_runs(&scene, &roots);
    let server = durable_records_outlive_servers(&mut scene, &roots, mini, server);
    for root in &roots {
        good(on(mini, &["umount"]).arg(root));
    }
    server.end();
    let found = json(&mut scene.thalweg("server", &["fsck", IMAGE, "--json"]));
    assert_eq!(found["clean"], true, "{found}");
    good(&mut on(mini, &["image", "destroy", IMAGE, "--yes"]));
}

fn the_server_sees_no_contents(scene: &Scene<'_>, [one, two]: &[PathBuf; 2]) {
    let received = || scene.status()["received_bytes"].as_u64().unwrap();
    let before = received();
    let bytes: Vec<u8> = (0..20 << 20).map(|at: usize| (at / 4096 * 31 + at) as u8).collect();
    fs::write(one.join("long"), &bytes).unwrap();
    File::open(one.join("long")).unwrap().sync_all().unwrap();
    assert!(fs::read(two.join("long")).unwrap() == bytes);
    let received = received() - before;
    assert!(received < 1 << 20, "the server received {received} bytes");
    fs::remove_file(two.join("long")).unwrap();
}

fn fsx_runs(scene: &Scene<'_>, roots: &[PathBuf; 2]) {
    let beside = scene.home.path("");
    std::thread::scope(|scope| {
        for (number, root) in roots.iter().enumerate() {
            let (root, beside) = (root.join(format!("fsx{number}")), &beside);
            scope.spawn(move || fsx(&root, beside, number as u64 + 1, OPERATIONS.0));
        }
    });
    let names = [&roots[0], &roots[1]].map(|root| root.join("shared"));
    File::create(&names[0]).unwrap();
    let ends = AtomicBool::new(false);
    let looks = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut looks = 0;
            while !ends.load(Ordering::Relaxed) {
                let len = fs::metadata(&names[1]).unwrap().len();
                assert!(len <= 262_144, "longer than fsx makes it: {len}");
                looks += 1;
            }
            looks
        });
        let ran = std::panic::catch_unwind(|| fsx(&names[0], &beside, 3, OPERATIONS.1));
        ends.store(true, Ordering::Relaxed);
        ran.unwrap();
        looking.join().unwrap()
    });
    assert!(looks > 10, "{looks}");
    assert!(fs::read(&names[0]).unwrap() == fs::read(&names[1]).unwrap());
    assert!(all_are_direct(scene));
}

/// The bytes of the record `number` of the client `client`.
fn record(client: usize, number: usize) -> Vec<u8> {
    (0..RECORD).map(|at| (at + number * 7 + client * 101) as u8).collect()
}

/// Writes records until `ends`, each at the end of a log and in a file of its own, and counts the durable ones.
fn write_records(root: &Path, client: usize, durable: &AtomicUsize, ends: &AtomicBool) {
    let log = File::create(root.join(format!("log{client}"))).unwrap();
    let mut number = 0;
    while !ends.load(Ordering::Relaxed) {
        let record = record(client, number);
        let file = File::create(root.join(format!("record{client}-{number}"))).unwrap();
        for (file, offset) in [(&file, 0), (&log, number * RECORD)] {
            file.write_all_at(&record, offset as u64).unwrap();
            file.sync_all().unwrap();
        }
        number += 1;
        durable.store(number, Ordering::Relaxed);
    }
}

/// An object server and the server of the filesystem are killed under both clients.
fn durable_records_outlive_servers(
    scene: &mut Scene<'_>,
    roots: &[PathBuf; 2],
    mini: &MiniCluster,
    server: Server,
) -> Server {
    let durable = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let ends = AtomicBool::new(false);
    let go_on = || {
        let before = durable.each_ref().map(|it| it.load(Ordering::Relaxed));
        let more = |(durable, before): (&AtomicUsize, usize)| {
            durable.load(Ordering::Relaxed) >= before + 3
        };
        wait_long(|| durable.iter().zip(before).all(more));
    };
    let server = std::thread::scope(|scope| {
        for (client, durable) in durable.iter().enumerate() {
            let (root, ends) = (&roots[client], &ends);
            scope.spawn(move || write_records(root, client, durable, ends));
        }
        // The writers end with a failing test, too.
        let failing = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            go_on();
            mini.run("kill-osd", &["0"]);
            go_on();
            mini.run("start-osd", &["0"]);
            go_on();
            server.kill();
            let server = scene.serve("10");
            go_on();
            server
        }));
        ends.store(true, Ordering::Relaxed);
        failing.unwrap()
    });
    for (client, durable) in durable.iter().enumerate() {
        let root = &roots[1 - client];
        let log = fs::read(root.join(format!("log{client}"))).unwrap();
        let durable = durable.load(Ordering::Relaxed);
        assert_eq!(log.len(), durable * RECORD);
        for number in 0..durable {
            let name = format!("record{client}-{number}");
            let expected = record(client, number);
            assert!(fs::read(root.join(&name)).unwrap() == expected, "{name}");
            assert!(log[number * RECORD..][..RECORD] == expected, "{name} in the log");
        }
    }
    server
}

/// Waits two minutes at most: placement groups have to notice what has happened to their object servers.
fn wait_long(is_so: impl Fn() -> bool) {
    for _ in 0..1200 {
        if is_so() {
            return;
        }
        good(Command::new("sleep").arg("0.1"));
    }
    panic!("no write goes on");
}
