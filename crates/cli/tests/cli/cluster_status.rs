//! The status of a server of a shared filesystem, and its metrics.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::clients::{free_port, scrape, value};
use crate::cluster::Scene;
use crate::files::wait_until;
use crate::run::{bad, good};

fn clients(status: &Value) -> &Vec<Value> {
    status["clients"].as_array().unwrap()
}

#[test]
fn a_status_counts_calls_and_is_watched() {
    let Some(scene) = Scene::with_mounts() else { return };
    let (one, two) = (scene.mount("one", "/", "--rw"), scene.mount("two", "/", "--rw"));
    fs::write(one.join("a"), vec![7; 100_000]).unwrap();
    assert_eq!(fs::read(two.join("a")).unwrap().len(), 100_000);
    fs::write(one.join("a"), "again").unwrap();
    let status = scene.status();
    assert_eq!((&status["role"], &status["connections"]), (&"serves".into(), &2.into()));
    assert_eq!((&status["expected"], &status["evictions"]), (&0.into(), &0.into()));
    assert!(status["received_bytes"].as_u64() >= Some(100_005), "{status}");
    assert!(status["sent_bytes"].as_u64() >= Some(100_000), "{status}");
    assert!(clients(&status)[0]["received_bytes"].as_u64() >= Some(100_005), "{status}");
    assert!(clients(&status)[1]["sent_bytes"].as_u64() >= Some(100_000), "{status}");
    let invalidations = &status["invalidations"];
    assert_eq!((&invalidations["pending"], &invalidations["timed_out"]), (&0.into(), &0.into()));
    assert!(invalidations["sent"].as_u64() > Some(0), "{status}");
    assert_eq!(invalidations["sent"], invalidations["answered"]);
    // One of them is sent later, since the file is the client's own then.
    for kind in ["Write", "Batch"] {
        let calls = status["calls"].as_array().unwrap().iter().find(|it| it["call"] == kind);
        assert!(calls.unwrap()["count"].as_u64() >= Some(1), "{status}");
    }
    // Until the next sync.
    wait_until(|| {
        fs::write(one.join("b"), "kept").unwrap();
        clients(&scene.status())[0]["undurable"].as_u64() > Some(0)
    });
    wait_until(|| scene.status()["undurable"] == 0);

    let plain = good(scene.with("server", &["cluster", "status"]).arg(scene.home.volume()));
    for words in ["serves 2 clients over 2 connections", "no call waits", "NOT DURABLE"] {
        assert!(plain.contains(words), "{plain}");
    }
    let mut watch = scene.with("server", &["cluster", "status", "--watch=0.2", "--json"]);
    let mut watch = watch.arg(scene.home.volume()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["rates"], Value::Null);
    fs::write(one.join("c"), vec![7; 1_000_000]).unwrap();
    let mut rates = (0..10).map(|_| next()["rates"]["received_bytes_per_s"].as_u64().unwrap());
    assert!(rates.any(|rate| rate > 100_000));
    watch.kill().unwrap();
    watch.wait().unwrap();
    let mut wrong = scene.with("server", &["cluster", "status", "--watch=0"]);
    let said = bad(wrong.arg(scene.home.volume()), 2);
    assert!(said.contains("0.1 or more"), "{said}");
}

#[test]
fn metrics_of_a_server_of_files() {
    let Some(mut scene) = Scene::with_mounts() else { return };
    scene.server.take().unwrap().end();
    let port = free_port();
    let metrics = format!("127.0.0.1:{port}");
    scene.serve_with(&["--metrics", &metrics, "--memory", "64M"]);
    let one = scene.mount("one", "/", "--rw");
    let two = scene.mount("two", "/", "--rw");
    fs::write(one.join("a"), "text").unwrap();
    assert_eq!(fs::read(two.join("a")).unwrap(), b"text");
    fs::write(one.join("a"), "more").unwrap();
    assert!(fs::read(two.join("absent")).is_err());
    // Counters are copied once a second.
    wait_until(|| value(&scrape(port), "thalweg_cluster_invalidations_answered_total", "") > 0.0);
    let text = scrape(port);
    let of =
        |metric: &str, labels: &str| value(&text, &format!("thalweg_cluster_{metric}"), labels);
    let calls = of("calls_total", "call=\"Write\"");
    assert!(calls >= 1.0 && of("calls_total", "call=\"Batch\"") >= 1.0, "{text}");
    assert_eq!(of("call_duration_seconds_count", "call=\"Write\""), calls);
    assert!(text.contains("# TYPE thalweg_cluster_call_duration_seconds histogram"), "{text}");
    assert_eq!(
        (of("sessions", ""), of("connections", ""), of("expected_clients", "")),
        (2.0, 2.0, 0.0)
    );
    assert!(of("capabilities", "") >= 1.0 && of("known_inodes", "") >= 3.0, "{text}");
    assert_eq!(of("invalidations_sent_total", ""), of("invalidations_answered_total", ""));
    let said = good(scene.client(&["evict"]).arg(scene.home.volume()).arg("two"));
    assert!(said.contains("1 sessions of two"), "{said}");
    wait_until(|| value(&scrape(port), "thalweg_cluster_evictions_total", "") == 1.0);
    let mut command = scene.with("server", &["cluster", "serve", "--memory", "1k"]);
    let said = bad(command.arg(scene.home.volume()), 2);
    assert!(said.contains("at least 1 MiB"), "{said}");
}

#[test]
fn a_standby_is_shown() {
    let mut scene = Scene::new();
    let mut standby = scene.with("server", &["cluster", "serve", "--standby"]);
    let mut standby =
        standby.arg(scene.home.volume()).args(["--listen", "127.0.0.1:0"]).spawn().unwrap();
    let own = serde_json::json!([standby.id()]);
    wait_until(|| scene.status()["standbys"] == own);
    assert_eq!(scene.status()["role"], "serves");
    // As on another machine, where no request reaches the server.
    fs::remove_file(scene.home.volume().join("control.sock")).unwrap();
    let status = scene.status();
    assert_eq!((&status["role"], &status["standbys"]), (&"stands by".into(), &own));
    let table = good(scene.with("server", &["cluster", "status"]).arg(scene.home.volume()));
    assert!(table.contains("stands by") && table.contains("no process"), "{table}");
    scene.server.take().unwrap().kill();
    wait_until(|| {
        let mut status = scene.with("server", &["cluster", "status", "--json"]);
        let output = status.arg(scene.home.volume()).output().unwrap();
        String::from_utf8(output.stdout).unwrap().contains("\"serves\"")
    });
    assert_eq!(scene.status()["standbys"], serde_json::json!([]));
    good(std::process::Command::new("kill").args(["-TERM", &standby.id().to_string()]));
    assert!(standby.wait().unwrap().success());
}
