//! Foreign clients. Where one is not installed, the test prints a line and passes.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;

use crate::memory::MemoryVolume;
use crate::tls::Certificates;
use crate::{Fixture, MIB, quick_config};

fn is_installed(tool: &str) -> bool {
    let found = Command::new(tool)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        eprintln!("skipped: {tool} is not installed");
    }
    found
}

fn output(tool: &str, arguments: &[&str]) -> Output {
    tokio::task::block_in_place(|| Command::new(tool).args(arguments).output().unwrap())
}

/// Runs a tool that must succeed, and returns what it printed.
fn run(tool: &str, arguments: &[&str]) -> String {
    let output = output(tool, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {arguments:?} failed: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// A file with data, holes and a last partial megabyte.
fn sparse_image(path: &Path, size: u64) -> Vec<u8> {
    let mut image = vec![0; size as usize];
    for (start, len) in [(0, 5000), (3 * MIB as usize + 512, 300_000), (size as usize - 9000, 9000)]
    {
        for (index, byte) in image[start..start + len].iter_mut().enumerate() {
            *byte = (index * 31 / 7) as u8 | 1;
        }
    }
    fs::write(path, &image).unwrap();
    image
}

fn uri(fixture: &Fixture) -> String {
    format!("nbd+unix:///disk?socket={}", fixture.socket.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn nbdinfo_sees_the_export() {
    if !is_installed("nbdinfo") {
        return;
    }
    let fixture = Fixture::new();
    let text = run("nbdinfo", &["--json", &uri(&fixture)]);
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    let export = &info["exports"][0];
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    assert_eq!(export["export-name"], "disk");
    assert_eq!(export["export-size"], 8 * MIB);
    assert_eq!(export["block_size_minimum"], 512);
    assert_eq!(export["block_size_preferred"], 4096);
    assert_eq!(export["block_size_maximum"], 32 << 20);
    assert_eq!(export["contexts"][0], "base:allocation");
    assert_eq!(export["is_read_only"], false);
    assert_eq!(export["is_rotational"], false);
    for ability in ["flush", "fua", "trim", "zero", "fast_zero", "multi_conn", "df", "cache"] {
        assert_eq!(export[format!("can_{ability}")], true, "{ability}");
    }
    let listed = run("nbdinfo", &["--list", "--json", &uri(&fixture)]);
    assert!(listed.contains("a disk"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nbdcopy_round_trip_keeps_bytes_and_holes() {
    if !is_installed("nbdcopy") || !is_installed("nbdinfo") {
        return;
    }
    let size = 16 * MIB;
    let fixture = Fixture::with(MemoryVolume::new(size), quick_config());
    let (source, target) =
        (fixture.directory.path().join("in"), fixture.directory.path().join("out"));
    let image = sparse_image(&source, size);
    run("nbdcopy", &["--flush", source.to_str().unwrap(), &uri(&fixture)]);
    run("nbdcopy", &[&uri(&fixture), target.to_str().unwrap()]);
    assert!(fs::read(&target).unwrap() == image);
    assert!(fixture.volume.flushes.load(Ordering::SeqCst) > 0);
    let text = run("nbdinfo", &["--map", "--json", &uri(&fixture)]);
    let map: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let total: u64 = map.iter().map(|extent| extent["length"].as_u64().unwrap()).sum();
    assert_eq!(total, size);
    let holes: u64 = map
        .iter()
        .filter(|extent| extent["type"] == 3)
        .map(|extent| extent["length"].as_u64().unwrap())
        .sum();
    assert!(holes > 10 * MIB, "{holes} bytes are holes");
}

#[tokio::test(flavor = "multi_thread")]
async fn qemu_img_round_trip() {
    if !is_installed("qemu-img") {
        return;
    }
    let size = 16 * MIB;
    let fixture = Fixture::with(MemoryVolume::new(size), quick_config());
    let (source, target) =
        (fixture.directory.path().join("in"), fixture.directory.path().join("out"));
    let image = sparse_image(&source, size);
    let (source, uri) = (source.to_str().unwrap(), uri(&fixture));
    let info = run("qemu-img", &["info", "--output=json", "-f", "raw", &uri]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["virtual-size"], size);
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", source, &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]);
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, target.to_str().unwrap()]);
    assert!(fs::read(&target).unwrap() == image);
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(map.contains("\"zero\": true") && map.contains("\"zero\": false"));
}

#[tokio::test(flavor = "multi_thread")]
async fn fio_verifies_what_it_wrote() {
    if !is_installed("fio") {
        return;
    }
    if !run("fio", &["--enghelp"]).lines().any(|line| line.trim() == "nbd") {
        eprintln!("skipped: fio is built without its nbd engine");
        return;
    }
    let fixture = Fixture::with(MemoryVolume::new(32 * MIB), quick_config());
    let socket = format!("nbd+unix:///disk?socket={}", fixture.socket.display());
    let aux = format!("--aux-path={}", fixture.directory.path().display());
    for (block, depth) in [("bs=4k", "32"), ("bs=128k", "4"), ("bsrange=512-64k", "16")] {
        let (block, depth) = (format!("--{block}"), format!("--iodepth={depth}"));
        run(
            "fio",
            &[
                "--name=verify",
                "--ioengine=nbd",
                &format!("--uri={socket}"),
                "--rw=randwrite",
                "--size=32M",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--fsync=64",
                &aux,
                &block,
                &depth,
            ],
        );
    }
    assert!(fixture.volume.flushes.load(Ordering::SeqCst) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn libnbd_speaks_tls_over_tcp() {
    if !is_installed("nbdinfo") || !is_installed("nbdcopy") {
        return;
    }
    let fixture = Fixture::with(MemoryVolume::new(4 * MIB), quick_config());
    let pki = fixture.directory.path().join("pki");
    let tls = Certificates::make(&pki).server(true, true);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let address = fixture.server.listen_tcp(any, Some(tls)).await.unwrap();
    let server = format!("localhost:{}/disk", address.port());
    let uri = format!("nbds://{server}?tls-certificates={}", pki.display());
    let text = run("nbdinfo", &["--json", &uri]);
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(info["TLS"], true);
    let source = fixture.directory.path().join("in");
    let target = fixture.directory.path().join("out");
    let image = sparse_image(&source, 4 * MIB);
    run("nbdcopy", &[source.to_str().unwrap(), &uri]);
    run("nbdcopy", &[&uri, target.to_str().unwrap()]);
    assert!(fs::read(&target).unwrap() == image);
    assert!(!output("nbdinfo", &[&format!("nbd://{server}")]).status.success(), "in the clear");
    // Without its certificate the client is refused.
    fs::remove_file(pki.join("client-cert.pem")).unwrap();
    fs::remove_file(pki.join("client-key.pem")).unwrap();
    assert!(!output("nbdinfo", &[&uri]).status.success(), "an unknown client");
}
