//! Keys and values from a shell, on volumes that are idle and served.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::run::{Home, bad, good, json, thalweg};

fn kv(home: &Home, args: &[&str]) -> Command {
    let mut command = thalweg(["kv"]);
    command.arg(home.volume()).args(args);
    command
}

/// Runs a command that reads `input`.
fn feed(mut command: Command, input: &[u8]) -> String {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Typical commands on both kinds of stores.
fn tour(home: &Home) {
    for kind in ["btree", "hash"] {
        let made = json(&mut kv(home, &["create", kind, "--kind", kind, "--size", "4M", "--json"]));
        assert_eq!((&made["kind"], made["blocks"].as_u64()), (&kind.into(), Some(1024)));
        for (key, value) in [("a", "one"), ("b", "two"), ("ba", "three"), ("c", "four")] {
            good(&mut kv(home, &["put", kind, key, value]));
        }
        feed(kv(home, &["put", kind, "large"]), &[b'x'; 20_000]);
        feed(kv(home, &["put", kind, "00ff", "--hex", "fe"]), b"");
        assert_eq!(good(&mut kv(home, &["get", kind, "ba"])), "three");
        assert_eq!(good(&mut kv(home, &["get", kind, "large"])).len(), 20_000);
        let bytes = json(&mut kv(home, &["get", kind, "00ff", "--hex", "--json"]));
        assert_eq!(bytes["value"]["hex"], "fe");
        good(&mut kv(home, &["delete", kind, "c"]));
        bad(&mut kv(home, &["delete", kind, "c"]), 1);
        bad(&mut kv(home, &["get", kind, "c"]), 1);
        let report = json(&mut kv(home, &["check", kind, "--json"]));
        assert_eq!(report[kind]["keys"], 5);
    }
    let scan = |args: &[&str]| good(&mut kv(home, &[&["scan", "btree", "--keys"], args].concat()));
    assert_eq!(scan(&[]), "\\x00\\xff\na\nb\nba\nlarge\n");
    assert_eq!(scan(&["--prefix", "b"]), "b\nba\n");
    assert_eq!(scan(&["--from", "a", "--to", "ba"]), "a\nb\n");
    assert_eq!(scan(&["--reverse", "--limit", "2"]), "large\nba\n");
    let exported = good(&mut kv(home, &["export", "hash"]));
    assert_eq!(exported.lines().count(), 5);
    good(&mut kv(home, &["create", "copy", "--size", "4M"]));
    feed(kv(home, &["import", "copy"]), exported.as_bytes());
    let copied = good(&mut kv(home, &["export", "copy"]));
    assert_eq!(copied, good(&mut kv(home, &["export", "btree"])));
    let listed = json(&mut kv(home, &["list", "--json"]));
    assert_eq!(listed.as_array().unwrap().len(), 3);
    bad(&mut kv(home, &["drop", "copy"]), 1);
    good(&mut kv(home, &["drop", "copy", "--yes"]));
    good(&mut kv(home, &["check"]));
}

#[test]
fn an_idle_volume() {
    tour(&Home::with_volume("64M", &[]));
}

#[test]
fn a_served_volume_and_what_it_leaves() {
    let home = Home::with_volume("64M", &[]);
    let server = home.serve(&[]);
    assert!(!good(thalweg(["status"]).arg(home.volume())).contains("txns"));
    tour(&home);
    let status = good(thalweg(["status"]).arg(home.volume()));
    assert!(status.contains("committed") && status.contains("0 running"), "{status}");
    server.end();
    assert_eq!(good(&mut kv(&home, &["get", "hash", "ba"])), "three");
}

#[test]
fn a_server_that_was_killed_leaves_what_was_acknowledged() {
    let home = Home::with_volume("64M", &[]);
    let server = home.serve(&[]);
    good(&mut kv(&home, &["create", "kv", "--kind", "hash"]));
    good(&mut kv(&home, &["put", "kv", "key", "value"]));
    server.kill();
    assert_eq!(good(&mut kv(&home, &["get", "kv", "key"])), "value");
    good(&mut kv(&home, &["check"]));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let home = Home::with_volume("64M", &[]);
    let says = |args: &[&str], part: &str| {
        let said = bad(&mut kv(&home, args), 1);
        assert!(said.contains(part), "{args:?}: {said}");
    };
    says(&["list"], "no partitions");
    says(&["get", "kv", "key"], "create");
    good(&mut kv(&home, &["create", "kv", "--kind", "hash", "--size", "4M"]));
    good(&mut kv(&home, &["create", "raw", "--kind", "raw", "--size", "4M"]));
    says(&["create", "kv", "--size", "4M"], "exists");
    says(&["create", "more", "--size", "65M"], "largest gap");
    says(&["create", "more", "--size", "5000"], "multiple of a block");
    says(&["create", "more", "--size", "1M", "--first", "20"], "partition kv");
    says(&["get", "none", "key"], "no partition");
    says(&["get", "raw", "key"], "raw");
    says(&["scan", "kv", "--from", "a"], "order");
    says(&["scan", "kv", "--reverse"], "backward");
    says(&["put", "kv", &"k".repeat(1025), "v"], "1024");
    says(&["put", "kv", "abc", "v", "--hex"], "hexadecimal");
    std::fs::write(home.path("wrong"), "{\"key\": \"a\", \"value\": \"b\"}\n{\"key\": 3}\n")
        .unwrap();
    says(&["import", "kv", home.path("wrong").to_str().unwrap()], "line 2");
    good(&mut kv(&home, &["create", "rest"]));
    says(&["create", "more"], "no block of the volume is free");
}

/// A volume that is not empty does not become one with partitions.
#[test]
fn a_filesystem_is_left_alone() {
    let home = Home::with_volume("64M", &[]);
    if !crate::run::has("nbdcopy") {
        return;
    }
    let server = home.serve(&[]);
    std::fs::write(home.path("image"), vec![0x5a; 64 << 20]).unwrap();
    good(Command::new("nbdcopy").arg("--flush").arg(home.path("image")).arg(server.uri("vol")));
    let said = bad(&mut kv(&home, &["create", "kv", "--size", "4M"]), 1);
    assert!(said.contains("something else"), "{said}");
    server.end();
}
