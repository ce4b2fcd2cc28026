//! Foreign clients: NBD tools, Prometheus.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::run::{Home, Server, bad, good, has, json, thalweg};

/// Bytes that differ in every block.
fn pattern(len: usize, salt: u64) -> Vec<u8> {
    let words = (0..len as u64 / 8).map(|at| (at ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

fn nbdcopy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    good(Command::new("nbdcopy").args(["--flush".as_ref(), from.as_ref(), to.as_ref()]));
}

#[test]
fn nbdinfo_sees_the_volume_and_its_snapshots() {
    if !has("nbdinfo") {
        return;
    }
    let home = Home::with_volume("64M", &[]);
    good(&mut home.on_volume(&["snapshot", "create"], &["before"]));
    let server = home.serve(&[]);
    good(&mut home.on_volume(&["snapshot", "create"], &["while"]));
    assert_eq!(server.ready["exports"].as_array().unwrap().len(), 2);
    let uri = server.uri("");
    let list = json(Command::new("nbdinfo").args(["--json", "--list", &uri]));
    let exports = list["exports"].as_array().unwrap();
    let seen: Vec<_> = exports
        .iter()
        .map(|it| (it["export-name"].as_str().unwrap(), it["is_read_only"] == true))
        .collect();
    assert_eq!(seen, [("vol", false), ("vol@before", true), ("vol@while", true)]);
    assert_eq!(exports[0]["export-size"], 64 << 20);
    server.end();
}

#[test]
fn a_client_that_names_no_export_gets_the_volume() {
    if !has("nbdinfo") {
        return;
    }
    let home = Home::with_volume("64M", &[]);
    good(&mut home.on_volume(&["snapshot", "create"], &["before"]));
    let server = home.serve(&[]);
    let info = json(Command::new("nbdinfo").args(["--json", &server.uri("")]));
    assert_eq!(info["exports"][0]["is_read_only"], false);
    server.end();
}

#[test]
fn a_host_is_served_on_all_its_addresses() {
    let home = Home::with_volume("64M", &[]);
    let server = home.serve(&["--tcp", "localhost:0"]);
    let uris = server.ready["uris"].as_array().unwrap();
    let addresses: Vec<&str> = uris
        .iter()
        .filter_map(|uri| uri.as_str().unwrap().strip_prefix("nbd://")?.strip_suffix("/vol"))
        .collect();
    assert!(!addresses.is_empty(), "{uris:?}");
    for address in addresses {
        let mut greeting = [0; 8];
        TcpStream::connect(address).unwrap().read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"NBDMAGIC");
    }
    server.end();
    let said = bad(thalweg(["serve", "--tcp", "localhost"]).arg(home.volume()), 2);
    assert!(said.contains("HOST:PORT"), "{said}");
}

#[test]
fn names_in_uris_are_escaped() {
    if !has("nbdinfo") {
        return;
    }
    let home = Home::empty();
    let volume = home.path("my volume#1");
    good(thalweg(["volume", "create", "--size", "64M"]).arg(&volume));
    let server = Server::start(&home, &volume.display().to_string(), &[]);
    let uri = server.ready["uris"][0].as_str().unwrap();
    assert!(uri.contains("my%20volume%231"), "{uri}");
    good(Command::new("nbdinfo").arg(uri));
    server.end();
}

#[test]
fn hundreds_of_idle_clients_lock_nobody_out() {
    let home = Home::with_volume("64M", &[]);
    let server = home.serve(&[]);
    let connect = || {
        let mut stream = std::os::unix::net::UnixStream::connect(&server.socket).unwrap();
        let mut greeting = [0; 8];
        stream.read_exact(&mut greeting).unwrap();
        stream
    };
    let idle: Vec<_> = (0..300).map(|_| connect()).collect();
    drop(idle);
    server.end();
}

#[test]
fn copies_come_back_as_they_went_and_outlive_the_server() {
    if !has("nbdcopy") {
        return;
    }
    let home = Home::with_volume("64M", &["--cache", "vol/cache:16M"]);
    let bytes = pattern(64 << 20, 1);
    std::fs::write(home.path("in"), &bytes).unwrap();
    let server = home.serve(&[]);
    nbdcopy(home.path("in"), server.uri("vol"));
    nbdcopy(server.uri("vol"), home.path("out"));
    assert!(std::fs::read(home.path("out")).unwrap() == bytes);
    server.kill();
    let server = home.serve(&[]);
    nbdcopy(server.uri("vol"), home.path("again"));
    assert!(std::fs::read(home.path("again")).unwrap() == bytes, "flushed writes were lost");
    server.end();
}

#[test]
fn qemu_img_converts_to_and_from_the_volume() {
    if !has("qemu-img") {
        return;
    }
    let home = Home::with_volume("64M", &[]);
    std::fs::write(home.path("raw"), pattern(32 << 20, 2)).unwrap();
    let qemu = |args: &[&str]| good(Command::new("qemu-img").args(args).current_dir(home.path("")));
    qemu(&["convert", "-O", "qcow2", "raw", "image.qcow2"]);
    qemu(&["resize", "-q", "image.qcow2", "64M"]);
    let server = home.serve(&[]);
    let uri = server.uri("vol");
    qemu(&["convert", "-n", "-O", "raw", "image.qcow2", &uri]);
    qemu(&["compare", "image.qcow2", &uri]);
    qemu(&["convert", "-O", "qcow2", &uri, "back.qcow2"]);
    qemu(&["compare", "image.qcow2", "back.qcow2"]);
    server.end();
}

#[test]
fn a_snapshot_keeps_what_was_and_a_rollback_brings_it_back() {
    if !has("nbdcopy") {
        return;
    }
    // Room for both.
    let home = Home::with_volume("32M", &["--link", "vol/a:80M", "--link", "vol/b:80M"]);
    let (old, new) = (pattern(32 << 20, 3), pattern(32 << 20, 4));
    std::fs::write(home.path("old"), &old).unwrap();
    std::fs::write(home.path("new"), &new).unwrap();
    let server = home.serve(&[]);
    nbdcopy(home.path("old"), server.uri("vol"));
    good(&mut home.on_volume(&["snapshot", "create"], &["old"]));
    nbdcopy(home.path("new"), server.uri("vol"));
    let content = |uri: String| {
        nbdcopy(uri, home.path("out"));
        std::fs::read(home.path("out")).unwrap()
    };
    assert!(content(server.uri("vol@old")) == old);
    assert!(content(server.uri("vol")) == new);
    good(&mut home.on_volume(&["snapshot", "rollback"], &["old", "--yes"]));
    assert!(content(server.uri("vol")) == old);
    good(&mut home.on_volume(&["snapshot", "delete"], &["old"]));
    assert!(content(server.uri("vol")) == old);
    server.end();
    // An idle volume's snapshots are served as well, and alone.
    good(&mut home.on_volume(&["snapshot", "create"], &["alone"]));
    let server = Server::start(&home, &format!("{}@alone", home.volume().display()), &[]);
    assert_eq!(server.ready["exports"], Value::from(vec!["vol@alone"]));
    assert!(content(server.uri("vol@alone")) == old);
    server.end();
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What the metrics' listener says to a request.
fn say(port: u16, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

pub(crate) fn scrape(port: u16) -> String {
    say(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
}

/// The sum over all series of a metric whose labels contain `labels`.
pub(crate) fn value(text: &str, metric: &str, labels: &str) -> f64 {
    let of = |line: &&str| {
        line.strip_prefix(metric).is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
            && line.contains(labels)
    };
    let values = text.lines().filter(of).map(|line| line.rsplit(' ').next().unwrap());
    values.map(|value| value.parse::<f64>().unwrap()).sum()
}

#[test]
#[allow(clippy::disallowed_methods)]
fn metrics_count_what_clients_do() {
    if !has("nbdcopy") {
        return;
    }
    let home = Home::with_volume("64M", &[]);
    let port = free_port();
    let server = home.serve(&["--metrics", &format!("127.0.0.1:{port}")]);
    std::fs::write(home.path("in"), pattern(16 << 20, 5)).unwrap();
    nbdcopy(home.path("in"), server.uri("vol"));
    // Counters are copied once a second.
    std::thread::sleep(Duration::from_millis(2500));
    let text = scrape(port);
    let bytes = f64::from(16 << 20);
    assert_eq!(value(&text, "thalweg_user_written_bytes_total", "volume=\"vol\""), bytes);
    assert_eq!(value(&text, "thalweg_nbd_bytes_total", "command=\"write\""), bytes);
    assert!(value(&text, "thalweg_device_written_bytes_total", "purpose=\"user_data\"") >= bytes);
    assert!(value(&text, "thalweg_device_flushes_total", "purpose=\"map\"") >= 1.0);
    assert!(value(&text, "thalweg_free_segments", "") > 0.0);
    let requests = value(&text, "thalweg_nbd_requests_total", "command=\"write\"");
    let timed = value(&text, "thalweg_nbd_request_duration_seconds_count", "command=\"write\"");
    assert!(requests > 0.0 && requests == timed, "{requests} requests, {timed} timed");
    assert!(text.contains("# TYPE thalweg_nbd_request_duration_seconds histogram"));
    // Each transaction takes space in log and index.
    assert!(value(&text, "thalweg_stage_duration_seconds_count", "stage=\"write_apply\"") >= 1.0);
    assert!(text.contains("# TYPE thalweg_stage_duration_seconds histogram"), "{text}");
    assert_eq!(value(&text, "thalweg_writers_waiting", "cause=\"cleaning\""), 0.0);
    let shown = good(&mut home.on_volume(&["status"], &["--latency"]));
    assert!(shown.contains("p99.9") && shown.contains("device_write"), "{shown}");
    assert!(shown.contains("nbd_write") && shown.contains("nbd_send"), "{shown}");
    let sends = value(&text, "thalweg_nbd_send_duration_seconds_count", "");
    // One send may carry several answers.
    let answers = value(&text, "thalweg_nbd_requests_total", "");
    assert!(sends > 0.0 && sends <= answers, "{sends} sends of {answers} answers");
    let status = home.status();
    let stages = status["chain"]["stages"].as_array().unwrap();
    let flush = stages.iter().find(|stage| stage["stage"] == "flush").unwrap();
    assert!(flush["count"].as_u64() > Some(0) && flush["max_us"].as_u64() > Some(0), "{flush}");
    let slowest = &status["chain"]["slow_flushes"][0];
    assert_eq!(slowest["took_us"], flush["max_us"], "{status}");
    assert!(text.contains("# HELP thalweg_cache_hits_total "), "{text}");
    let of_page = text.split_once("\r\n\r\n").unwrap();
    let length = format!("content-length: {}", of_page.1.len());
    assert!(of_page.0.starts_with("HTTP/1.1 200 OK\r\n") && of_page.0.contains(&length), "{text}");
    let head = say(port, b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let idle = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let posted = say(port, b"POST / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
    // All of it is read before the answer: what is left unread resets the connection.
    for request in [&b"what is this\r\n"[..], b"\0", b"GET / HTTP/9\r\n"] {
        let refused = say(port, request);
        assert!(refused.starts_with("HTTP/1.1 400 "), "{request:?}: {refused}");
    }
    drop(idle);
    let second = home.path("second.sock");
    let other = Home::with_volume("64M", &[]);
    let mut taken = thalweg(["serve", "--metrics", &format!("127.0.0.1:{port}"), "--socket"]);
    let said = bad(taken.arg(second).arg(other.volume()), 1);
    assert!(said.contains("cannot serve metrics"), "{said}");
    server.end();
}
