//! Redis with a file of all commands, each of which is synced.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::database::{Database, Process, is_installed, numbers, value};
use crate::run::good;

pub(crate) struct Redis {
    connection: BufReader<UnixStream>,
    directory: PathBuf,
    process: Process,
}

const MANIFEST: &str = "appendonlydir/appendonly.aof.manifest";

impl Redis {
    /// A line of the answer; `None` if the server has ended.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.connection.read_line(&mut line).ok()?;
        line.strip_suffix("\r\n").map(str::to_owned)
    }

    fn ask(&mut self, command: &str) -> Option<String> {
        write!(self.connection.get_mut(), "{command}\r\n").ok()?;
        self.line()
    }
}

impl Database for Redis {
    const SIZES: [&str; 2] = ["96M", "16M"];

    fn is_here() -> bool {
        is_installed("redis-server", "redis-server")
            && is_installed("redis-check-aof", "redis-tools")
    }

    fn start(directory: &Path, scratch: &Path) -> Redis {
        [directory, scratch].iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        let socket = scratch.join("redis.sock");
        let _ = fs::remove_file(&socket);
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "yes"]);
        command.args(["--appendfsync", "always", "--dir"]).arg(directory);
        command.arg("--unixsocket").arg(&socket);
        let is_ready = || UnixStream::connect(&socket).is_ok();
        let process = Process::until(&mut command, &scratch.join("redis.log"), is_ready);
        let connection = BufReader::new(UnixStream::connect(&socket).unwrap());
        let mut redis = Redis { connection, directory: directory.to_owned(), process };
        while redis.ask("PING").as_deref() != Some("+PONG") {}
        redis
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn commit(&mut self, row: u64) -> bool {
        let pushed = self.ask(&format!("RPUSH rows {row},{}", value(row)));
        pushed.is_some_and(|answer| answer.starts_with(':'))
    }

    fn rows(&mut self) -> Vec<u64> {
        let count = self.ask("LRANGE rows 0 -1").unwrap();
        let count: usize = count.strip_prefix('*').unwrap().parse().unwrap();
        let mut rows = Vec::new();
        for _ in 0..count {
            // Its length is in a line of its own.
            let (_, value) = (self.line().unwrap(), self.line().unwrap());
            let value = numbers(&value);
            assert_eq!(value[0], value[1], "the value of a row is its number");
            rows.push(value[0]);
        }
        rows
    }

    fn check(&mut self) {
        good(Command::new("redis-check-aof").arg(self.directory.join(MANIFEST)));
    }

    fn log(directory: &Path) -> Vec<PathBuf> {
        let found = fs::read_dir(directory.join("appendonlydir")).unwrap();
        let found = found.map(|entry| entry.unwrap().path());
        found.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).collect()
    }
}
