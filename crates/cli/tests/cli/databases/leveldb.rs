//! LevelDB, by a small program in C.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::database::{Database, Shell, is_installed, numbers, value};
use crate::run::good;

pub(crate) struct LevelDb(Shell);

const HEADER: &str = "/usr/include/leveldb/c.h";

impl Database for LevelDb {
    const SIZES: [&str; 2] = ["96M", "16M"];

    fn is_here() -> bool {
        let is_there = Path::new(HEADER).exists();
        if !is_there {
            eprintln!("SKIPPED: {HEADER} is absent; it is in the package libleveldb-dev");
        }
        is_there && is_installed("cc", "gcc")
    }

    fn start(directory: &Path, scratch: &Path) -> LevelDb {
        fs::create_dir_all(scratch).unwrap();
        let program = scratch.join("leveldb");
        if !program.exists() {
            let source =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/databases/leveldb.c");
            good(Command::new("cc").arg("-o").args([&program, &source]).arg("-lleveldb"));
        }
        let mut shell = Shell::start(Command::new(&program).arg(directory));
        assert_eq!(shell.ask("check").as_deref(), Some("clean"));
        LevelDb(shell)
    }

    fn pid(&self) -> u32 {
        self.0.pid()
    }

    fn commit(&mut self, row: u64) -> bool {
        self.0.ask(&format!("put {row:09} {}", value(row))).is_some()
    }

    fn rows(&mut self) -> Vec<u64> {
        numbers(&self.0.ask("keys").unwrap())
    }

    fn check(&mut self) {
        assert_eq!(self.0.ask("check").as_deref(), Some("clean"));
    }

    fn log(directory: &Path) -> Vec<PathBuf> {
        let found = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        found.filter(|path| path.extension().is_some_and(|it| it == "log")).collect()
    }
}
