//! Printed texts: completions, manual pages, help, sizes of a dump.

use serde_json::Value;

use crate::run::{Home, bad, good, json, thalweg};

#[test]
fn completions_are_made_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = good(&mut thalweg(["completions", shell]));
        assert!(script.contains("snapshot") && script.contains("foreground"), "{shell}");
    }
    assert!(bad(&mut thalweg(["completions", "cmd"]), 2).contains("possible values"));
}

#[test]
fn every_command_has_a_manual_page() {
    let home = Home::empty();
    good(thalweg(["man"]).arg(home.path("man")));
    for page in
        ["thalweg", "thalweg-serve", "thalweg-volume-create", "thalweg-volume-snapshot-rollback"]
    {
        let text = std::fs::read_to_string(home.path("man").join(format!("{page}.1"))).unwrap();
        assert!(text.contains(".SH SYNOPSIS") || text.contains(".SH NAME"), "{page}");
    }
}

#[test]
fn every_command_says_what_it_does() {
    for command in ["volume", "serve", "attach", "detach", "dump", "completions", "man"] {
        assert!(good(&mut thalweg([command, "--help"])).contains("Usage: thalweg"), "{command}");
    }
    assert!(good(&mut thalweg(["help", "bench"])).contains("make build"));
}

#[test]
fn usage_errors_exit_with_2_and_failures_with_1() {
    for args in
        [&["volume", "create", "x"][..], &["serve"], &["frobnicate"], &["volume", "extend", "x"]]
    {
        bad(&mut thalweg(args), 2);
    }
    bad(&mut thalweg(["dump", "/missing"]), 1);
}

#[test]
fn an_error_does_not_break_a_path() {
    let path = format!("/missing/{}", ["a-long-folder"; 9].join("/"));
    let said = bad(&mut thalweg(["dump", &path]), 1);
    assert!(said.contains(&path), "{said}");
}

#[test]
fn a_dump_shows_the_label_and_the_map() {
    let home = Home::with_volume("64M", &["--map", "vol/map"]);
    good(&mut home.on_volume(&["snapshot", "create"], &["monday"]));
    let map = json(thalweg(["dump", "--json"]).arg(home.volume().join("map")));
    let member = &map["label"].as_array().unwrap().last().unwrap()["fields"];
    assert_eq!(member["role"], "map");
    let label = &map["map_areas"][0]["map"]["labels"][0]["label"];
    assert_eq!(label["blocks"], (64 << 20) / 4096);
    assert_eq!(label["snapshots"][0]["name"], "monday");
    let text = good(thalweg(["dump"]).arg(home.volume().join("map")));
    assert!(text.contains("snapshot monday") && text.contains("checkpoint"), "{text}");
    let link = good(thalweg(["dump"]).arg(home.volume().join("link0")));
    assert!(link.contains("role         \"link\""), "{link}");
}

#[test]
fn a_dump_names_a_damaged_copy() {
    let home = Home::with_volume("64M", &[]);
    let path = home.volume().join("link0");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096 + 40] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let found = json(thalweg(["dump", "--json"]).arg(&path));
    let faults: Vec<&Value> =
        found["label"].as_array().unwrap().iter().map(|it| &it["fault"]).collect();
    assert_eq!(faults[..2], [&Value::Null, &Value::from("damaged")]);
}
