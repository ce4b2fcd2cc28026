//! Runs the program, and ends the processes that a test started.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::busy::once_free;

/// The program with some arguments.
pub(crate) fn thalweg<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
    command.args(args).env("NO_COLOR", "1").env_remove("THALWEG_LOG").stdin(Stdio::null());
    command
}

/// Runs a command that must succeed.
pub(crate) fn good(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?} failed: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that ends a use, again while another test keeps it busy.
pub(crate) fn when_free(command: &mut Command) -> Output {
    let busy = |output: &Output| {
        let said = text(output);
        !output.status.success() && ["in use", "busy"].iter().any(|word| said.contains(word))
    };
    once_free(|| command.output().unwrap(), busy)
}

/// Unmounts a filesystem: `command` without the place.
pub(crate) fn umount(mut command: Command, at: &Path) {
    let output = when_free(command.arg(at));
    assert!(output.status.success(), "{command:?} failed: {}", text(&output));
}

/// Runs a command that must fail with exit code `code`; returns its messages, on one line.
pub(crate) fn bad(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", text(&output));
    // Long messages are broken into lines, with a mark before each.
    let said = text(&output).replace('│', " ");
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// The exit code of a status that says that something needs attention.
const DEGRADED: i32 = 3;

/// The output of a successful command, as JSON. A status may say that something needs attention; its exit code says so, too.
pub(crate) fn json(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    let code = output.status.code();
    assert!(code == Some(0) || code == Some(DEGRADED), "{command:?} failed: {}", text(&output));
    let printed = String::from_utf8_lossy(&output.stdout);
    let value: Value =
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error} in {printed}"));
    let needs_attention = value["degraded"].as_array().is_some_and(|all| !all.is_empty());
    assert!(code == Some(0) || needs_attention, "{command:?}: {printed}");
    value
}

/// The text of a status that says that something needs attention: it begins with that, and its exit code says so.
pub(crate) fn degraded(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(DEGRADED), "{command:?}: {}", text(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("DEGRADED: "), "{said}");
    said
}

/// The standard output of a command that ends with an exit code, as JSON.
pub(crate) fn bad_json(command: &mut Command, code: i32) -> Value {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A folder for one test, with a volume in it. Servers and attachments of the volume end with it.
pub(crate) struct Home {
    folder: TempDir,
}

impl Home {
    /// A folder without a volume.
    pub(crate) fn empty() -> Home {
        Home { folder: TempDir::with_prefix("thalweg-cli").unwrap() }
    }

    /// A volume called `vol` of `size`, made with further arguments.
    pub(crate) fn with_volume(size: &str, args: &[&str]) -> Home {
        let home = Home::empty();
        let mut create = thalweg(["volume", "create"]);
        create.arg(home.volume()).args(["--size", size]).args(args);
        good(create.current_dir(home.folder.path()));
        home
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn volume(&self) -> PathBuf {
        self.path("vol")
    }

    /// `thalweg volume COMMAND… VOLUME`.
    pub(crate) fn on_volume(&self, command: &[&str], args: &[&str]) -> Command {
        let mut it = thalweg(["volume"]);
        it.args(command).arg(self.volume()).args(args).current_dir(self.folder.path());
        it
    }

    pub(crate) fn status(&self) -> Value {
        json(&mut self.on_volume(&["status"], &["--json"]))
    }

    pub(crate) fn serve(&self, args: &[&str]) -> Server {
        Server::start(self, &self.volume().display().to_string(), args)
    }

    /// The state of the device whose path ends with `name`.
    pub(crate) fn state(&self, name: &str) -> Value {
        let status = self.status();
        let members = status["members"].as_array().unwrap();
        let is = |member: &&Value| member["path"].as_str().unwrap().ends_with(name);
        members.iter().find(is).unwrap()["state"].clone()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Only after a failing test: nothing may stay mounted or attached.
        if self.path("mnt").exists() {
            let _ = thalweg(["umount", "--lazy"]).arg(self.path("mnt")).output();
        }
        let _ = thalweg(["detach", "--force"]).arg(self.volume()).output();
    }
}

/// A server in the background.
pub(crate) struct Server {
    child: Child,
    pub(crate) socket: PathBuf,
    /// Its message when it was ready.
    pub(crate) ready: Value,
}

impl Server {
    pub(crate) fn start(home: &Home, target: &str, args: &[&str]) -> Server {
        let socket = home.path("nbd.sock");
        let mut command = thalweg(["serve", "--json", "--socket"]);
        command.arg(&socket).arg(target).args(args);
        Server::of(command, socket)
    }

    /// The server that a command starts, which prints a JSON object when it is ready.
    pub(crate) fn of(mut command: Command, socket: PathBuf) -> Server {
        command.stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{command:?} ended: {:?}", child.wait());
        Server { child, socket, ready: serde_json::from_str(&line).unwrap() }
    }

    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub(crate) fn kill(mut self) {
        self.kill_now();
    }

    /// Kills the server, as often as one wants.
    pub(crate) fn kill_now(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the server with SIGTERM, and waits for its clean end.
    pub(crate) fn end(mut self) {
        good(Command::new("kill").args(["-TERM", &self.pid()]));
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a tool is installed; prints a message if not.
pub(crate) fn has(tool: &str) -> bool {
    let places = "/usr/bin:/bin:/usr/sbin:/sbin".split(':');
    let found = places.map(Path::new).any(|place| place.join(tool).exists());
    if !found {
        eprintln!("SKIPPED: {tool} is not installed; make setup installs it");
    }
    found
}

/// Whether this machine can attach a block device; prints a message if not.
pub(crate) fn can_attach() -> bool {
    // SAFETY: the call only reads the process's identity.
    let root = unsafe { libc::geteuid() } == 0;
    let there = ["/dev/fuse", "/dev/loop-control"].map(Path::new).iter().all(|it| it.exists());
    if !(root && there) {
        eprintln!("SKIPPED: attaching needs root, /dev/fuse and /dev/loop-control");
    }
    root && there
}
