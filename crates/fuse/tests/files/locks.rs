//! Locks of two processes, and of two mounts of one filesystem.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_fs::Filesystem;
use thalweg_fuse::files::Locks;
use thalweg_fuse::mounted::MountOptions;
use thalweg_sim::files::NaiveFiles;

use crate::rig::{Rig, local};

const SERVER: &str = "locks::a_process_that_locks";
const PATH: &str = "THALWEG_LOCKED";

/// One call of flock or fcntl on a file; the error, or 0.
fn call(file: &File, words: &[&str]) -> i32 {
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
    let mode = |shared, exclusive, none| match words[1] {
        "shared" => shared,
        "exclusive" => exclusive,
        _ => none,
    };
    let result = match words[0] {
        "flock" | "flock-wait" => {
            let how = mode(libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN);
            let wait = if words[0] == "flock-wait" { 0 } else { libc::LOCK_NB };
            // SAFETY: the descriptor is open.
            unsafe { libc::flock(file.as_raw_fd(), how | wait) }
        }
        _ => {
            // SAFETY: every field is an integer.
            let mut lock: libc::flock = unsafe { std::mem::zeroed() };
            lock.l_type = mode(libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK) as i16;
            (lock.l_start, lock.l_len) = (number(2), number(3));
            let command = if words[0] == "fcntl-wait" { libc::F_SETLKW } else { libc::F_SETLK };
            // SAFETY: the descriptor is open, and the structure lives for the call.
            unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) }
        }
    };
    match result {
        -1 => std::io::Error::last_os_error().raw_os_error().unwrap_or(-1),
        _ => 0,
    }
}

/// No test of its own: the process that the tests below start. It carries out the calls that it reads.
#[test]
fn a_process_that_locks() {
    let Some(path) = std::env::var_os(PATH) else { return };
    let mut file = Some(OpenOptions::new().read(true).write(true).open(&path).unwrap());
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[0] {
            "close" => {
                file = None;
                0
            }
            _ => call(file.as_ref().unwrap(), &words),
        };
        println!("answer {answer}");
    }
}

/// Another process with the file open.
struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn new(path: &Path) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([SERVER, "--exact", "--nocapture", "--test-threads=1"]).env(PATH, path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut other = Other { child, input, output: BufReader::new(output) };
        while other.line() != "ready" {}
        other
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "the process has ended");
        // The harness may have begun the line.
        let line = line.trim_end();
        line.rsplit_once("... ").map_or(line, |(_, line)| line).to_owned()
    }

    fn begin(&mut self, call: &str) {
        writeln!(self.input, "{call}").unwrap();
    }

    fn answer(&mut self) -> i32 {
        loop {
            if let Some(answer) = self.line().strip_prefix("answer ") {
                return answer.parse().unwrap();
            }
        }
    }

    fn call(&mut self, call: &str) -> i32 {
        self.begin(call);
        self.answer()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may wait for a lock.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pause(millis: u64) {
    (0..millis.div_ceil(20)).for_each(|_| crate::rig::pause());
}

fn mounted(locks: Locks) -> Option<Rig> {
    Rig::with(|env| local(env), &MountOptions { locks, ..MountOptions::default() })
}

fn file(rig: &Rig) -> std::path::PathBuf {
    fs::write(rig.path("a"), "x").unwrap();
    rig.path("a")
}

#[test]
fn two_processes_lock_a_file() {
    for locks in [Locks::Kernel, Locks::Bsd, Locks::Posix, Locks::Both] {
        let Some(rig) = mounted(locks) else { return };
        let path = file(&rig);
        let (mut one, mut two) = (Other::new(&path), Other::new(&path));
        for [shared, exclusive, none] in [
            ["flock shared", "flock exclusive", "flock none"],
            ["fcntl shared 0 0", "fcntl exclusive 0 0", "fcntl none 0 0"],
        ] {
            assert_eq!((one.call(shared), two.call(shared)), (0, 0), "{locks:?}");
            assert_eq!(two.call(none), 0);
            assert_eq!(one.call(exclusive), 0, "{locks:?}");
            assert_eq!((two.call(exclusive), two.call(shared)), (libc::EAGAIN, libc::EAGAIN));
            assert_eq!((one.call(none), two.call(exclusive)), (0, 0), "{locks:?}");
            assert_eq!(two.call(none), 0);
        }
        assert_eq!(one.call("fcntl exclusive 10 10"), 0);
        assert_eq!(two.call("fcntl exclusive 0 10"), 0);
        assert_eq!(two.call("fcntl exclusive 19 1"), libc::EAGAIN, "{locks:?}");
        assert_eq!(one.call("fcntl none 15 0"), 0);
        assert_eq!(
            (two.call("fcntl shared 15 9"), two.call("fcntl shared 14 1")),
            (0, libc::EAGAIN)
        );
        // A close ends the locks.
        assert_eq!(one.call("close"), 0);
        assert_eq!(two.call("fcntl exclusive 0 0"), 0, "{locks:?}");
        assert_eq!(two.call("fcntl none 0 0"), 0);
        let mut three = Other::new(&path);
        assert_eq!((two.call("flock exclusive"), three.call("flock shared")), (0, libc::EAGAIN));
        drop(two);
        // The release of a file is asynchronous.
        let mut refused = 0;
        while three.call("flock shared") != 0 {
            refused += 1;
            assert!(refused < 100, "{locks:?}");
            pause(20);
        }
    }
}

#[test]
fn locks_of_flock_and_of_fcntl_do_not_know_each_other() {
    for locks in [Locks::Kernel, Locks::Bsd, Locks::Posix, Locks::Both] {
        let Some(rig) = mounted(locks) else { return };
        let path = file(&rig);
        let (mut one, mut two) = (Other::new(&path), Other::new(&path));
        // One process takes both, in either order and by either call.
        for (first, second) in [
            ("flock exclusive", "fcntl-wait exclusive 0 0"),
            ("fcntl exclusive 0 0", "flock-wait exclusive"),
            ("flock shared", "fcntl exclusive 0 0"),
            ("fcntl shared 0 0", "flock exclusive"),
        ] {
            assert_eq!((one.call(first), one.call(second)), (0, 0), "{locks:?}: {first}");
            assert_eq!(two.call("flock exclusive"), libc::EAGAIN, "{locks:?}: {first}");
            assert_eq!(two.call("fcntl exclusive 0 0"), libc::EAGAIN, "{locks:?}: {first}");
            assert_eq!(one.call("flock none"), 0);
            assert_eq!(two.call("fcntl exclusive 0 0"), libc::EAGAIN, "{locks:?}: {first}");
            assert_eq!((two.call("flock exclusive"), two.call("flock none")), (0, 0));
            assert_eq!((one.call("flock exclusive"), one.call("fcntl none 0 0")), (0, 0));
            assert_eq!(two.call("flock exclusive"), libc::EAGAIN, "{locks:?}: {first}");
            assert_eq!(two.call("fcntl exclusive 0 0"), 0, "{locks:?}: {first}");
            assert_eq!((two.call("fcntl none 0 0"), one.call("flock none")), (0, 0));
        }
        // Two processes that have one each get the other one only from each other.
        assert_eq!((one.call("flock exclusive"), two.call("fcntl exclusive 0 0")), (0, 0));
        assert_eq!(
            (one.call("fcntl shared 0 0"), two.call("flock shared")),
            (libc::EAGAIN, libc::EAGAIN)
        );
        // A close ends the locks of fcntl at once.
        assert_eq!(two.call("close"), 0);
        assert_eq!(one.call("fcntl exclusive 0 0"), 0, "{locks:?}");
    }
}

#[test]
fn a_process_waits_for_a_lock() {
    for locks in [Locks::Kernel, Locks::Bsd, Locks::Posix, Locks::Both] {
        let Some(rig) = mounted(locks) else { return };
        let path = file(&rig);
        let (mut one, mut two) = (Other::new(&path), Other::new(&path));
        for (held, wait, none) in [
            ("flock exclusive", "flock-wait shared", "flock none"),
            ("fcntl exclusive 0 9", "fcntl-wait exclusive 5 1", "fcntl none 0 0"),
        ] {
            assert_eq!(one.call(held), 0);
            two.begin(wait);
            pause(100);
            assert_eq!(one.call(none), 0);
            assert_eq!(two.answer(), 0, "{locks:?}");
            assert_eq!(one.call(held), libc::EAGAIN, "{locks:?}");
            assert_eq!(two.call(none), 0);
        }
    }
}

#[test]
fn a_deadlock_is_refused() {
    for locks in [Locks::Kernel, Locks::Posix] {
        let Some(rig) = mounted(locks) else { return };
        let path = file(&rig);
        let (mut one, mut two) = (Other::new(&path), Other::new(&path));
        assert_eq!((one.call("fcntl exclusive 0 1"), two.call("fcntl exclusive 1 1")), (0, 0));
        one.begin("fcntl-wait exclusive 1 1");
        pause(100);
        assert_eq!(two.call("fcntl-wait exclusive 0 1"), libc::EDEADLK, "{locks:?}");
        assert_eq!(two.call("fcntl none 1 1"), 0);
        assert_eq!(one.answer(), 0, "{locks:?}");
    }
}

#[test]
fn a_signal_ends_a_wait() {
    for locks in [Locks::Kernel, Locks::Bsd, Locks::Posix, Locks::Both] {
        let Some(rig) = mounted(locks) else { return };
        let path = file(&rig);
        let (mut one, mut two) = (Other::new(&path), Other::new(&path));
        for (held, wait) in [
            ("flock exclusive", "flock-wait shared"),
            ("fcntl exclusive 0 0", "fcntl-wait shared 0 0"),
        ] {
            let mut waits = Other::new(&path);
            assert_eq!(one.call(held), 0);
            waits.begin(wait);
            pause(100);
            // The process ends although the lock is held.
            let (limit, env) = (Duration::from_secs(20), Env::real());
            let begun = env.now();
            drop(waits);
            assert!(env.now().since(begun) < limit, "{locks:?}");
            assert_eq!(one.call(&held.replace("exclusive", "none")), 0);
            assert_eq!(two.call(held), 0, "{locks:?}");
            assert_eq!(two.call(&held.replace("exclusive", "none")), 0);
        }
    }
}

#[test]
fn two_mounts_see_forwarded_locks() {
    for locks in [Locks::Kernel, Locks::Both] {
        let files = Arc::new(NaiveFiles::new(&Env::real()));
        let other: Arc<dyn Filesystem> = Arc::new(files.share());
        let options = MountOptions { locks, ..MountOptions::default() };
        let Some(first) = Rig::with(move |_| files, &options) else { return };
        let Some(second) = Rig::with(move |_| other, &options) else { return };
        let path = file(&first);
        pause(40);
        let (mut one, mut two) = (Other::new(&path), Other::new(&second.path("a")));
        let expected = if locks == Locks::Kernel { 0 } else { libc::EAGAIN };
        assert_eq!(
            (one.call("flock exclusive"), two.call("flock shared")),
            (0, expected),
            "{locks:?}"
        );
        assert_eq!((one.call("flock none"), two.call("flock none")), (0, 0));
        assert_eq!(one.call("fcntl exclusive 3 3"), 0);
        assert_eq!(two.call("fcntl shared 0 0"), expected, "{locks:?}");
        assert_eq!(two.call("fcntl none 0 0"), 0);
        if locks == Locks::Both {
            two.begin("fcntl-wait shared 5 1");
            pause(100);
            assert_eq!(one.call("close"), 0);
            assert_eq!(two.answer(), 0);
        }
    }
}
