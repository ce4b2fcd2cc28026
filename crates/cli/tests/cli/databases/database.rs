//! What the tests need of a database, and the processes that it consists of.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::files::wait_until;

/// A database that runs. Dropping it kills it, as `kill -9` does.
pub(crate) trait Database: Sized + Send + 'static {
    /// Bytes of the filesystem, and of the client's journal.
    const SIZES: [&str; 2];
    /// Commits before something happens, and commits that need no server. LevelDB lists its directory before it ends a log of 64 KiB.
    const ROWS: u64 = 30;

    /// Whether this machine has it; prints a message if not.
    fn is_here() -> bool;

    /// Starts it on a directory, where it is made if that is absent. Its sockets and logs are in `scratch`, a folder elsewhere.
    fn start(directory: &Path, scratch: &Path) -> Self;

    /// The process that has its files open, or is the parent of those that have.
    fn pid(&self) -> u32;

    /// Inserts a row in a transaction; whether that was acknowledged.
    fn commit(&mut self, row: u64) -> bool;

    /// The rows in their order.
    fn rows(&mut self) -> Vec<u64>;

    /// Fails if its own check finds damage.
    fn check(&mut self);

    /// The files to which a commit goes first.
    fn log(directory: &Path) -> Vec<PathBuf>;
}

/// Kills a process that was not waited for, and its children.
pub(crate) fn kill(pid: u32) {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    // SAFETY: the process is a child of this one, or of one that is.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
    children.split_whitespace().for_each(|child| kill(child.parse().unwrap()));
}

/// A process, which is killed at the end.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Process {
        Process(command.spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Starts a server with its messages in a file; returns when it is ready.
    pub(crate) fn until(command: &mut Command, log: &Path, is_ready: impl Fn() -> bool) -> Process {
        let output = fs::File::create(log).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        let process = RefCell::new(Process::start(command));
        wait_until(|| {
            let ended = process.borrow_mut().0.try_wait().unwrap();
            assert!(ended.is_none(), "{}", fs::read_to_string(log).unwrap());
            is_ready()
        });
        process.into_inner()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        kill(self.pid());
        let _ = self.0.wait();
    }
}

/// A program that answers each line with a line.
pub(crate) struct Shell {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    process: Process,
}

impl Shell {
    pub(crate) fn start(command: &mut Command) -> Shell {
        // It fails when its mount is killed, and would say so.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process::start(command);
        let input = process.0.stdin.take().unwrap();
        let output = BufReader::new(process.0.stdout.take().unwrap());
        Shell { input, output, process }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// `None` if it has ended.
    pub(crate) fn ask(&mut self, line: &str) -> Option<String> {
        writeln!(self.input, "{line}").ok()?;
        let mut answer = String::new();
        self.output.read_line(&mut answer).ok()?;
        answer.strip_suffix('\n').map(str::to_owned)
    }
}

/// The numbers of a list with commas.
pub(crate) fn numbers(list: &str) -> Vec<u64> {
    let list = list.split(',').filter(|number| !number.is_empty());
    list.map(|number| number.parse().unwrap()).collect()
}

/// A value for a row.
pub(crate) fn value(row: u64) -> String {
    format!("{row:0500}")
}

/// Whether a program is installed; prints a message with its package if not.
pub(crate) fn is_installed(program: &str, package: &str) -> bool {
    let folders = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(Path::new);
    let is_there = folders.iter().any(|folder| folder.join(program).exists());
    if !is_there {
        eprintln!("SKIPPED: {program} is not installed; it is in the package {package}");
    }
    is_there
}
