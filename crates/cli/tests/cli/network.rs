//! Clients on other machines: keys, tokens, and volumes over TCP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::run::{Home, Server, bad, good, json, thalweg};

/// A server with keys, and a client with a key that the server does not know yet.
struct Scene {
    home: Home,
    server: Server,
}

/// A command with the keys in a folder of a test.
fn with_keys(home: &Home, keys: &str, args: &[&str]) -> Command {
    let mut command = thalweg(args.iter().copied());
    command.env("THALWEG_KEYS", home.path(keys));
    command
}

fn listen(home: &Home) -> Server {
    let keys = home.path("server").display().to_string();
    home.serve(&["--listen", "127.0.0.1:0", "--keys", &keys])
}

impl Scene {
    fn new() -> Scene {
        let home = Home::with_volume("64M", &[]);
        good(&mut home.kv_command(&["create", "names"]));
        for keys in ["server", "client"] {
            good(&mut with_keys(&home, keys, &["key", "new"]));
        }
        let server = listen(&home);
        Scene { home, server }
    }

    fn address(&self) -> String {
        self.server.ready["listen"][0].as_str().unwrap().to_owned()
    }

    fn volume(&self) -> String {
        format!("thalweg://{}/vol", self.address())
    }

    fn at_server(&self, args: &[&str]) -> Command {
        with_keys(&self.home, "server", args)
    }

    fn at_client(&self, args: &[&str]) -> Command {
        with_keys(&self.home, "client", args)
    }

    /// `thalweg kv` of the client.
    fn kv(&self, args: &[&str]) -> Command {
        let mut command = self.at_client(&["kv", &self.volume()]);
        command.args(args);
        command
    }

    /// Makes a token for a client called `name`.
    fn token(&self, name: &str, args: &[&str]) -> String {
        let printed = good(self.at_server(&["key", "authorize", name, "--token"]).args(args));
        printed.trim().to_owned()
    }

    fn enrol(&self, name: &str, args: &[&str]) {
        let token = self.token(name, args);
        let said = good(&mut self.at_client(&["key", "enrol", &self.address(), &token]));
        assert!(said.contains(name), "{said}");
    }
}

#[allow(clippy::disallowed_methods)]
fn wait(span: Duration) {
    std::thread::sleep(span);
}

impl Home {
    fn kv_command(&self, args: &[&str]) -> Command {
        let mut command = thalweg(["kv"]);
        command.arg(self.volume()).args(args);
        command
    }
}

#[test]
fn a_client_with_a_token_uses_a_volume_over_the_network() {
    let scene = Scene::new();
    assert!(scene.server.ready["uris"].as_array().unwrap().contains(&scene.volume().into()));
    scene.enrol("laptop", &[]);
    good(&mut scene.kv(&["put", "names", "alice", "42"]));
    assert_eq!(good(&mut scene.kv(&["get", "names", "alice"])), "42");
    assert_eq!(good(&mut scene.home.kv_command(&["get", "names", "alice"])), "42");
    let clients = json(&mut scene.at_server(&["key", "list", "--json"]));
    assert_eq!(clients[0]["name"], "laptop");
    assert_eq!(clients[0]["access"], "rw");
    scene.server.end();
}

#[test]
fn a_client_may_be_let_in_by_its_key_and_know_the_server_by_its() {
    let scene = Scene::new();
    let said = bad(&mut scene.kv(&["list"]), 1);
    assert!(said.contains("not known here") && said.contains("key enrol"), "{said}");
    let own = good(&mut scene.at_server(&["key", "show"]));
    good(&mut scene.at_client(&["key", "trust", &scene.address(), own.trim()]));
    let said = bad(&mut scene.kv(&["list"]), 1);
    assert!(said.contains("does not know the key") && said.contains("key authorize"), "{said}");
    let theirs = good(&mut scene.at_client(&["key", "show"]));
    good(&mut scene.at_server(&["key", "authorize", "laptop", theirs.trim()]));
    assert!(good(&mut scene.kv(&["list"])).contains("names"));
    let said = bad(&mut scene.at_server(&["key", "authorize", "other", theirs.trim()]), 1);
    assert!(said.contains("laptop has this key already"), "{said}");
    scene.server.end();
}

#[test]
fn a_client_reads_but_does_not_write_or_sees_one_volume_as_its_line_says() {
    let scene = Scene::new();
    good(&mut scene.home.kv_command(&["put", "names", "alice", "42"]));
    scene.enrol("reader", &["--read-only", "--volume", "vol"]);
    assert_eq!(good(&mut scene.kv(&["get", "names", "alice"])), "42");
    let said = bad(&mut scene.kv(&["put", "names", "alice", "43"]), 1);
    assert!(said.contains("read-only"), "{said}");
    assert_eq!(good(&mut scene.home.kv_command(&["get", "names", "alice"])), "42");
    good(&mut scene.at_server(&["key", "revoke", "reader"]));
    let theirs = good(&mut scene.at_client(&["key", "show"]));
    let authorize = ["key", "authorize", "reader", theirs.trim(), "--volume", "other"];
    good(&mut scene.at_server(&authorize));
    let said = bad(&mut scene.kv(&["list"]), 1);
    assert!(said.contains("nothing called vol"), "{said}");
    scene.server.end();
}

#[test]
fn a_revoked_client_loses_its_session() {
    let scene = Scene::new();
    scene.enrol("laptop", &[]);
    // A long session: an import that waits for its input.
    let mut import = scene.kv(&["import", "names"]);
    import.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut import = import.spawn().unwrap();
    let mut input = import.stdin.take().unwrap();
    let line = |number: u32| format!("{{\"key\": \"{number}\", \"value\": \"x\"}}\n");
    // A minute, for a machine that is slow.
    let mut numbers = 0..32 * 1200;
    let mut batch = || {
        assert!(!numbers.is_empty(), "the session goes on");
        let lines: String = numbers.by_ref().take(32).map(line).collect();
        // The client ends at its first call that fails, and reads no more.
        let _ = input.write_all(lines.as_bytes());
        wait(Duration::from_millis(50));
    };
    let is_stored =
        || scene.home.kv_command(&["get", "names", "0"]).output().unwrap().status.success();
    while !is_stored() {
        batch();
    }
    good(&mut scene.at_server(&["key", "revoke", "laptop"]));
    while import.try_wait().unwrap().is_none() {
        batch();
    }
    let output = import.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("connection"), "{said}");
    let said = bad(&mut scene.kv(&["list"]), 1);
    assert!(said.contains("does not know the key"), "{said}");
    scene.server.end();
}

#[test]
fn a_token_works_once_and_for_its_time_only() {
    let scene = Scene::new();
    let token = scene.token("laptop", &[]);
    let enrol = |token: &str| scene.at_client(&["key", "enrol", &scene.address(), token]);
    good(&mut enrol(&token));
    let said = bad(&mut enrol(&token), 1);
    assert!(said.contains("it was used, or it has expired") && said.contains("--token"), "{said}");
    let said = bad(&mut scene.at_server(&["key", "authorize", "laptop", "--token"]), 1);
    assert!(said.contains("there is a client laptop already"), "{said}");
    let token = scene.token("late", &["--expires", "1s"]);
    wait(Duration::from_secs(3));
    let said = bad(&mut enrol(&token), 1);
    assert!(said.contains("it was used, or it has expired"), "{said}");
    scene.server.end();
}

#[test]
fn a_server_whose_key_changed_is_not_talked_to() {
    let scene = Scene::new();
    scene.enrol("laptop", &[]);
    let address = scene.address();
    scene.server.end();
    std::fs::remove_file(scene.home.path("server/key")).unwrap();
    good(&mut with_keys(&scene.home, "server", &["key", "new"]));
    let keys = scene.home.path("server").display().to_string();
    let server = scene.home.serve(&["--listen", &address, "--keys", &keys]);
    let volume = format!("thalweg://{address}/vol");
    let said = bad(&mut with_keys(&scene.home, "client", &["kv", &volume, "list"]), 1);
    assert!(said.contains("another key") && said.contains("--replace"), "{said}");
    let own = good(&mut with_keys(&scene.home, "server", &["key", "show"]));
    let trust = ["key", "trust", &address, own.trim()];
    let said = bad(&mut with_keys(&scene.home, "client", &trust), 1);
    assert!(said.contains("another key"), "{said}");
    good(with_keys(&scene.home, "client", &trust).arg("--replace"));
    good(&mut with_keys(&scene.home, "client", &["kv", &volume, "list"]));
    server.end();
}

#[test]
fn bad_peers_and_bad_words_are_refused() {
    let scene = Scene::new();
    scene.enrol("laptop", &[]);
    for text in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff, 0, 0], &[0xff; 4096]] {
        let mut stream = TcpStream::connect(scene.address()).unwrap();
        stream.write_all(text).unwrap();
        // The server closes the connection, or resets it.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // These say nothing, and keep no other client out.
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(scene.address()).unwrap()).collect();
    good(&mut scene.kv(&["put", "names", "alice", "42"]));
    drop(silent);
    let said = bad(&mut scene.at_client(&["kv", "thalweg://nowhere", "list"]), 1);
    assert!(said.contains("thalweg://HOST:PORT/NAME"), "{said}");
    let said = bad(&mut scene.at_client(&["key", "enrol", "a:0", "thwg1-x"]), 2);
    assert!(said.contains("HOST:PORT"), "{said}");
    let said = bad(&mut scene.at_client(&["key", "enrol", "localhost:1", "thwg1-x"]), 2);
    assert!(said.contains("a token begins with"), "{said}");
    let said = bad(&mut scene.at_client(&["key", "new"]), 1);
    assert!(said.contains("exists"), "{said}");
    let said = bad(&mut scene.at_server(&["key", "revoke", "stranger"]), 1);
    assert!(said.contains("no client stranger"), "{said}");
    scene.server.end();
}

#[test]
fn nothing_is_served_over_the_network_without_a_key() {
    let home = Home::with_volume("64M", &[]);
    let keys: PathBuf = home.path("none");
    let mut serve = thalweg(["serve", "--listen", "127.0.0.1:0", "--socket"]);
    serve.arg(home.path("nbd.sock")).arg(home.volume()).env("THALWEG_KEYS", &keys);
    let said = bad(&mut serve, 1);
    assert!(said.contains("there is no key") && said.contains("thalweg key new"), "{said}");
    let said = bad(thalweg(["serve", "--keys", "folder"]).arg(home.volume()), 2);
    assert!(said.contains("--listen"), "{said}");
}
