//! Reads that may be old, from a shell.

use std::process::Command;

use crate::run::{Home, bad, good, json, thalweg};

fn kv(home: &Home, args: &[&str]) -> Command {
    let mut command = thalweg(["kv"]);
    command.arg(home.volume()).args(args);
    command
}

#[test]
fn a_server_that_keeps_versions_gives_old_ones_to_those_that_want_them() {
    let home = Home::with_volume("64M", &["--keep-versions", "1000"]);
    let server = home.serve(&[]);
    good(&mut kv(&home, &["create", "users", "--size", "4M"]));
    let session = home.path("session").display().to_string();
    good(&mut kv(&home, &["put", "users", "alice", "one"]));
    let first = json(&mut kv(&home, &["get", "users", "alice", "--read", "strong", "--json"]));
    good(&mut kv(&home, &["put", "users", "alice", "two", "--session", &session]));
    good(&mut kv(&home, &["put", "users", "alice", "three"]));
    let version = first["versions"][1].as_u64().unwrap();
    let at = format!("at={version}");
    let old = json(&mut kv(&home, &["get", "users", "alice", "--read", &at, "--json"]));
    assert_eq!(old["value"], "one");
    assert_eq!(old["guarantee"], at.as_str());
    assert!(old["age_ms"].is_u64(), "{old}");
    // Everything is in memory, so the oldest that is allowed is taken.
    let own = json(&mut kv(
        &home,
        &["get", "users", "alice", "--read", "read-my-writes", "--session", &session, "--json"],
    ));
    assert_eq!(own["value"], "two");
    assert_eq!(good(&mut kv(&home, &["get", "users", "alice", "--read", "updates=0"])), "three");
    assert_eq!(good(&mut kv(&home, &["get", "users", "alice", "--read", "strong"])), "three");
    assert_eq!(good(&mut kv(&home, &["get", "users", "alice"])), "three");
    let status = good(thalweg(["status"]).arg(home.volume()));
    assert!(status.contains("kept        versions from"), "{status}");
    // Versions and guarantees that are refused.
    let refused = bad(&mut kv(&home, &["get", "users", "alice", "--read", "at=99999999"]), 1);
    assert!(refused.contains("does not have yet"), "{refused}");
    for wrong in ["bounded", "strong,eventual", "at=1,strong", "fresh"] {
        bad(&mut kv(&home, &["get", "users", "alice", "--read", wrong]), 2);
    }
    std::fs::write(&session, "nonsense").unwrap();
    let refused = bad(
        &mut kv(&home, &["get", "users", "alice", "--read", "eventual", "--session", &session]),
        1,
    );
    assert!(refused.contains("is no session"), "{refused}");
    server.end();
    // Versions end with the server: an exact one is an error, and a guarantee gets a newer one.
    bad(&mut kv(&home, &["get", "users", "alice", "--read", &at]), 1);
    assert_eq!(good(&mut kv(&home, &["get", "users", "alice", "--read", "eventual"])), "three");
}

#[test]
fn a_volume_that_keeps_versions_is_rolled_back_all_the_same() {
    let home = Home::with_volume("64M", &["--keep-time", "3600", "--placement", "round-robin"]);
    let server = home.serve(&[]);
    good(&mut kv(&home, &["create", "users", "--size", "4M"]));
    good(&mut kv(&home, &["put", "users", "alice", "one"]));
    good(&mut home.on_volume(&["snapshot", "create"], &["before"]));
    good(&mut kv(&home, &["put", "users", "alice", "two"]));
    good(&mut home.on_volume(&["snapshot", "rollback"], &["before", "--yes"]));
    for read in [&[][..], &["--read", "eventual"], &["--read", "bounded=1s"]] {
        let get = [&["get", "users", "alice"], read].concat();
        assert_eq!(good(&mut kv(&home, &get)), "one");
    }
    good(&mut kv(&home, &["put", "users", "alice", "three"]));
    assert_eq!(good(&mut kv(&home, &["get", "users", "alice", "--read", "strong"])), "three");
    server.end();
}
