//! A filesystem that clients on other machines share.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::files::{can_mount, text, wait_until};
use crate::run::{Home, Server, bad, good, json, thalweg};

/// A served filesystem, and clients with a folder of keys each, all on this machine. Everything is unmounted at the end.
pub(crate) struct Scene {
    pub(crate) home: Home,
    pub(crate) server: Option<Server>,
    place: String,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        Scene::of_size("96M")
    }

    pub(crate) fn of_size(size: &str) -> Scene {
        let home = Home::empty();
        let mut scene = Scene { home, server: None, place: "127.0.0.1:0".to_owned() };
        let mut create = scene.with("server", &["cluster", "create", "--size", size]);
        good(create.arg(scene.home.volume()));
        scene.serve();
        scene
    }

    /// A scene with mounts; `None`, with a message, if this machine cannot mount.
    pub(crate) fn with_mounts() -> Option<Scene> {
        can_mount().then(Scene::new)
    }

    /// Serves the volume, at the same address as before.
    fn serve(&mut self) {
        self.serve_with(&[]);
    }

    pub(crate) fn serve_with(&mut self, args: &[&str]) {
        let mut command = self.with("server", &["cluster", "serve", "--json", "--lease", "2"]);
        command.args(args).arg(self.home.volume()).args(["--listen", &self.place]);
        let server = Server::of(command, self.home.path("unused"));
        let address = server.ready["addresses"][0].as_str().unwrap();
        self.place = address.strip_suffix(":/").unwrap().to_owned();
        self.server = Some(server);
    }

    /// A command with these keys.
    pub(crate) fn with(&self, keys: &str, args: &[&str]) -> Command {
        let mut command = thalweg(args.iter().copied());
        command.env("THALWEG_KEYS", self.home.path(keys));
        command
    }

    pub(crate) fn client(&self, args: &[&str]) -> Command {
        let all: Vec<&str> = ["cluster", "client"].iter().chain(args).copied().collect();
        self.with("server", &all)
    }

    fn token(&self, name: &str, path: &str, access: &str) -> String {
        self.token_with(name, &["--path", path, access, "--squash", "none"])
    }

    pub(crate) fn token_with(&self, name: &str, args: &[&str]) -> String {
        let mut command = self.client(&["add", name]);
        good(command.args(args)).trim().to_owned()
    }

    /// What clients mount.
    pub(crate) fn address(&self) -> String {
        format!("{}:/", self.place)
    }

    /// The directory on which a client mounts.
    fn directory(&self, name: &str) -> PathBuf {
        let directory = self.home.path(&format!("mnt-{name}"));
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    pub(crate) fn mount_command(&self, name: &str, path: &str) -> Command {
        let mut command = self.with(name, &["mount", &format!("{}:{path}", self.place)]);
        command.arg(self.directory(name));
        command
    }

    /// Adds a client that acts as every user, and mounts what it sees.
    pub(crate) fn mount(&self, name: &str, path: &str, access: &str) -> PathBuf {
        self.mount_with(name, path, &self.token(name, path, access))
    }

    /// Mounts what a client sees, the first time.
    pub(crate) fn mount_with(&self, name: &str, path: &str, token: &str) -> PathBuf {
        good(self.mount_command(name, path).args(["--token", token]));
        self.directory(name)
    }

    /// Mounts everything for a client, which is added if it is new.
    pub(crate) fn mount_again(&self, name: &str) -> PathBuf {
        match self.home.path(name).exists() {
            true => {
                good(&mut self.mount_command(name, "/"));
                self.directory(name)
            }
            false => self.mount(name, "/", "--rw"),
        }
    }

    pub(crate) fn status(&self) -> Value {
        json(self.with("server", &["cluster", "status", "--json"]).arg(self.home.volume()))
    }

    pub(crate) fn umount(&self, name: &str, options: &[&str]) -> Output {
        let mut command = thalweg(["umount"]);
        command.args(options).arg(self.home.path(&format!("mnt-{name}"))).output().unwrap()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let Ok(found) = fs::read_dir(self.home.path(".")) else { return };
        for path in found.flatten().map(|entry| entry.path()) {
            if path.file_name().unwrap().to_string_lossy().starts_with("mnt-") {
                let _ = thalweg(["umount", "--lazy"]).arg(path).output();
            }
        }
    }
}

#[test]
fn a_filesystem_is_made_once_and_stays() {
    let scene = Scene::new();
    let create = |args: &[&str]| {
        let mut command = scene.with("server", &["cluster", "create"]);
        command.args(args);
        command
    };
    let (volume, absent) = (scene.home.volume(), scene.home.path("absent"));
    let said = bad(create(&["--size", "64M"]).arg(&volume), 1);
    assert!(said.contains("is a volume already"), "{said}");
    let said = bad(create(&[]).arg(&absent), 1);
    assert!(said.contains("--size"), "{said}");
    let said = bad(thalweg(["cluster", "status"]).arg(&absent), 1);
    assert!(said.contains("absent"), "{said}");
    let said = bad(thalweg(["cluster", "serve"]).arg(&volume), 1);
    assert!(said.contains("in use by another process"), "{said}");
}

#[test]
fn clients_are_added_listed_and_revoked() {
    let scene = Scene::new();
    for (args, code, word) in [
        (&["add", "a b", "--path", "/", "--rw"][..], 1, "is no name for a client"),
        (&["add", "a", "--path", "home", "--rw"], 1, "begins with `/`"),
        (&["add", "a", "--path", "/x/../y", "--rw"], 1, "without . and .."),
        (&["add", "a", "--path", "/"], 2, "--rw|--ro"),
        (&["add", "a", "--path", "/", "--rw", "--ro"], 2, "cannot be used with"),
        (&["add", "a", "--path", "/", "--rw", "--squash", "some"], 2, "root, all, none"),
        (&["add", "a", "--path", "/", "--rw", "--nobody", "0:0"], 2, "not 0"),
        (
            &["add", "a", "--path", "/", "--rw", "--squash", "none", "--nobody", "7:7"],
            1,
            "no user acts as nobody",
        ),
        (&["revoke", "stranger"], 1, "no client stranger"),
        (&["revoke", "stranger"], 1, "`thalweg cluster client list`"),
    ] {
        let said = bad(&mut scene.client(args), code);
        assert!(said.contains(word), "{args:?}: {said}");
    }
    let said = bad(scene.client(&["evict"]).arg(scene.home.volume()).arg("stranger"), 1);
    assert!(said.contains("stranger"), "{said}");
    assert_eq!(good(&mut scene.client(&["list"])), "");
    // A token that was not used yet is withdrawn with its client.
    let token = scene.token("late", "/", "--rw");
    let said = good(&mut scene.client(&["revoke", "late"]));
    assert!(said.contains("1 unused tokens of late are withdrawn"), "{said}");
    let said = bad(scene.mount_command("late", "/").args(["--token", &token]), 1);
    assert!(said.contains("does not know this token"), "{said}");
}

#[test]
fn what_cannot_be_mounted_is_told_with_what_to_do() {
    let Some(scene) = Scene::with_mounts() else { return };
    let one = scene.mount("one", "/", "--rw");
    fs::create_dir(one.join("sub")).unwrap();
    let used = scene.token("two", "/sub", "--ro");
    fs::write(one.join("file"), "").unwrap();
    // A path that cannot be mounted leaves the token valid, and a mount that succeeded needs none.
    for (path, word) in
        [("/typo", "may mount /sub"), ("/", "may mount /sub"), ("/sub/x", "no directory")]
    {
        let said = bad(scene.mount_command("two", path).args(["--token", &used]), 1);
        assert!(said.contains(word), "{path}: {said}");
    }
    good(scene.mount_command("two", "/sub").args(["--token", &used]));
    good(Command::new("umount").arg(scene.directory("two")).env("LC_ALL", "C"));
    good(scene.mount_command("two", "/sub").args(["--token", &used]));
    let may = format!("mount {}:/sub, or a directory below it", scene.place);
    for (name, path, args, words) in [
        ("one", "/", &[][..], ["is mounted already", "unmount it first"]),
        ("three", "/", &[], ["there is no key", "--token"]),
        ("three", "/", &["--token", &used], ["does not know this token", "cluster client add"]),
        ("two", "/", &[], ["this client may mount /sub, and not /", &may]),
        ("two", "/sub/..", &[], ["this client may mount /sub, and not /sub/..", &may]),
        ("two", "/submarine", &[], ["this client may mount /sub, and not /submarine", &may]),
        ("two", "/sub/absent", &[], ["has no directory /sub/absent", "have a client make"]),
        ("one", "/absent", &[], ["has no directory /absent", "mount one that is there"]),
        ("one", "/file", &[], ["has no directory /file", "mount one that is there"]),
        ("one", "/sub", &["-o", "gap=1M"], ["without these options", "leave out"]),
        ("one", "/sub", &["-o", "data=ordered"], ["are about a journal", "journal_dev=PATH"]),
        ("one", "/sub", &["-o", "frobnicate"], ["unknown mount option", "frobnicate"]),
    ] {
        let said = bad(scene.mount_command(name, path).args(args), 1);
        assert!(words.iter().all(|word| said.contains(word)), "{name} {path} {args:?}: {said}");
    }
    let mut absent = scene.with("one", &["mount", "127.0.0.1:1:/", "--token", &used]);
    let said = bad(absent.arg(scene.directory("absent")), 1);
    assert!(said.contains("127.0.0.1:1") && said.contains("cluster serve"), "{said}");
    let said = bad(thalweg(["mount"]).arg(scene.home.volume()).arg(scene.directory("own")), 1);
    assert!(said.contains("is served to clients"), "{said}");
}

#[test]
fn mounts_see_each_other_within_what_their_keys_permit() {
    let Some(scene) = Scene::with_mounts() else { return };
    let one = scene.mount("one", "/", "--rw");
    fs::create_dir(one.join("sub")).unwrap();
    fs::write(one.join("outside"), "x").unwrap();
    let two = scene.mount("two", "/sub", "--rw");
    let three = scene.mount("three", "/sub", "--ro");
    for round in 0..20 {
        let content = format!("round {round}");
        fs::write(one.join("sub/a"), &content).unwrap();
        assert_eq!(text(&two.join("a")), content);
        fs::write(two.join("b"), &content).unwrap();
        assert_eq!((text(&one.join("sub/b")), text(&three.join("b"))), (content.clone(), content));
    }
    assert_eq!(fs::read_dir(&two).unwrap().count(), 2);
    assert!(!two.join("outside").exists());
    for error in [fs::write(three.join("c"), ""), fs::remove_file(three.join("a"))] {
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    let status = scene.status();
    let clients = status["clients"].as_array().unwrap();
    let names: Vec<_> = clients.iter().map(|client| client["client"].as_str().unwrap()).collect();
    assert_eq!(names, ["one", "three", "two"]);
    assert_eq!((&clients[1]["read_only"], &clients[1]["path"]), (&true.into(), &"/sub".into()));
    let table = good(scene.with("server", &["cluster", "status"]).arg(scene.home.volume()));
    assert!(table.contains("CLIENT") && table.contains("three"), "{table}");
    let said = good(scene.client(&["evict"]).arg(scene.home.volume()).arg("two"));
    assert!(said.contains("1 sessions of two"), "{said}");
    // It connects again by itself.
    wait_until(|| fs::read_to_string(two.join("a")).is_ok_and(|it| it == "round 19"));
    for name in ["one", "two", "three"] {
        let output = scene.umount(name, &[]);
        assert!(output.status.success(), "{output:?}");
    }
    wait_until(|| scene.status()["clients"].as_array().unwrap().is_empty());
}

#[test]
fn a_lock_of_one_client_holds_at_the_other() {
    let Some(scene) = Scene::with_mounts() else { return };
    let (one, two) = (scene.mount("one", "/", "--rw"), scene.mount("two", "/", "--rw"));
    let held = fs::File::create(one.join("lock")).unwrap();
    held.lock().unwrap();
    let other = fs::File::open(two.join("lock")).unwrap();
    assert!(matches!(other.try_lock(), Err(fs::TryLockError::WouldBlock)));
    drop(held);
    wait_until(|| other.try_lock().is_ok());
}

#[test]
fn a_mount_without_its_server_can_be_unmounted() {
    let Some(mut scene) = Scene::with_mounts() else { return };
    let one = scene.mount("one", "/", "--rw");
    fs::write(one.join("a"), "x").unwrap();
    scene.server.take().unwrap().kill();
    // It gives up long before this.
    let plain = thalweg(["umount"]);
    let mut limited = Command::new("timeout");
    limited.arg("60").arg(plain.get_program()).args(plain.get_args()).arg(&one);
    let output = limited.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).replace('│', " ");
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("server has not answered") && said.contains("--lazy"), "{said}");
    let lazy = thalweg(["umount", "--lazy"]);
    let mut limited = Command::new("timeout");
    good(limited.arg("12").arg(lazy.get_program()).args(lazy.get_args()).arg(&one));
    assert!(!one.join("a").exists());
}

#[test]
fn a_revoked_client_cannot_mount_again() {
    let Some(scene) = Scene::with_mounts() else { return };
    scene.mount("one", "/", "--rw");
    let output = scene.umount("one", &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(good(&mut scene.client(&["list"])).contains("one"));
    good(&mut scene.client(&["revoke", "one"]));
    assert_eq!(good(&mut scene.client(&["list"])), "");
    // The server reads the file of clients again within a second.
    wait_until(|| !scene.mount_command("one", "/").output().is_ok_and(|it| it.status.success()));
    let said = bad(&mut scene.mount_command("one", "/"), 1);
    assert!(said.contains("does not know the key") && said.contains("client add"), "{said}");
}

#[test]
fn mounts_go_on_when_the_server_is_killed_and_starts_again() {
    let Some(mut scene) = Scene::with_mounts() else { return };
    let (one, two) = (scene.mount("one", "/", "--rw"), scene.mount("two", "/", "--rw"));
    let mut open = fs::File::create(one.join("gone")).unwrap();
    open.write_all(b"kept ").unwrap();
    fs::remove_file(one.join("gone")).unwrap();
    fs::write(one.join("a"), "not synced").unwrap();
    scene.server.take().unwrap().kill();
    scene.serve();
    assert_eq!(text(&one.join("a")), "not synced");
    assert_eq!(text(&two.join("a")), "not synced");
    open.write_all(b"open").unwrap();
    assert_eq!(open.metadata().unwrap().len(), 9);
    drop(open);
    fs::write(two.join("b"), "later").unwrap();
    assert_eq!(text(&one.join("b")), "later");
    for name in ["one", "two"] {
        let output = scene.umount(name, &[]);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn a_standby_goes_on_when_the_server_is_killed() {
    let Some(mut scene) = Scene::with_mounts() else { return };
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let second = free.local_addr().unwrap().to_string();
    drop(free);
    let mut command = scene.with("server", &["cluster", "serve", "--json", "--lease", "2"]);
    command.arg("--standby").arg(scene.home.volume()).args(["--listen", &second]);
    let unused = scene.home.path("unused");
    let standby = std::thread::Builder::new().name("standby".to_owned());
    let standby = standby.spawn(move || Server::of(command, unused)).unwrap();
    scene.place = format!("{},{second}", scene.place);
    let one = scene.mount("one", "/", "--rw");
    fs::write(one.join("a"), "not synced").unwrap();
    assert!(!standby.is_finished());
    scene.server.take().unwrap().kill();
    scene.server = Some(standby.join().unwrap());
    assert_eq!(text(&one.join("a")), "not synced");
    fs::write(one.join("b"), "later").unwrap();
    let output = scene.umount("one", &[]);
    assert!(output.status.success(), "{output:?}");
}

/// What clients cache would not notice a raw write; and `/vol` is a directory for them, not the volume of that name.
#[test]
fn clients_of_files_get_no_raw_volume() {
    let scene = Scene::new();
    for (name, path) in [("all", "/"), ("confined", "/vol")] {
        let token = scene.token(name, path, "--rw");
        good(&mut scene.with(name, &["key", "new"]));
        good(&mut scene.with(name, &["key", "enrol", &scene.place, &token]));
        let volume = format!("thalweg://{}/vol", scene.place);
        let said = bad(&mut scene.with(name, &["kv", &volume, "list"]), 1);
        assert!(said.contains("nothing called vol"), "{name}: {said}");
    }
}
